#!/usr/bin/env python3
"""Times training steps of the same transformers in PyTorch, as the peer of `onebit train`; docs/results/performance.md.

Usage: step_time.py MODEL [--steps N] [--dropout P] [--precision fp32|bf16] [--optimizer adam|none] [--compile]
(OMP_NUM_THREADS threads; needs torch, which is no part of the set-up)

BERT is the post-LayerNorm encoder with a masked-LM head on 15 % of the positions and a tied output; GPT the
pre-LayerNorm decoder that predicts every position. Attention is `scaled_dot_product_attention`. bf16 is autocast, the
parameters stay in float32. Prints each step's milliseconds and their median, the first five steps left out.
"""

import argparse
import os
import statistics
import time

import torch
import torch.nn.functional as F

#          architecture, layers, hidden, heads, tokens, positions, vocabulary, batch
MODELS = {
    "bert_small": ("bert", 4, 256, 4, 128, 512, 8192, 16),
    "bert_base": ("bert", 12, 768, 12, 128, 512, 30522, 8),
    "gpt_char": ("gpt", 4, 128, 4, 64, 64, 65, 12),
    "gpt2": ("gpt", 12, 768, 12, 64, 1024, 50257, 4),
}


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads, bert, dropout):
        super().__init__()
        self.qkv = torch.nn.Linear(hidden, 3 * hidden)
        self.output = torch.nn.Linear(hidden, hidden)
        self.norm1, self.norm2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.up, self.down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)
        self.heads, self.bert, self.dropout = heads, bert, dropout

    def attention(self, h):
        batch, tokens, hidden = h.shape
        q, k, v = (z.view(batch, tokens, self.heads, -1).transpose(1, 2) for z in self.qkv(h).split(hidden, 2))
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=not self.bert)
        return F.dropout(self.output(a.transpose(1, 2).reshape(h.shape)), self.dropout)

    def feed_forward(self, h):
        return F.dropout(self.down(F.gelu(self.up(h), approximate="tanh")), self.dropout)

    def forward(self, h):
        if self.bert:
            h = self.norm1(h + self.attention(h))
            return self.norm2(h + self.feed_forward(h))
        h = h + self.attention(self.norm1(h))
        return h + self.feed_forward(self.norm2(h))


class Transformer(torch.nn.Module):
    def __init__(self, architecture, layers, hidden, heads, positions, vocabulary, dropout):
        super().__init__()
        self.bert = architecture == "bert"
        self.word, self.position = torch.nn.Embedding(vocabulary, hidden), torch.nn.Embedding(positions, hidden)
        self.norm = torch.nn.LayerNorm(hidden)
        self.layers = torch.nn.ModuleList(Layer(hidden, heads, self.bert, dropout) for _ in range(layers))
        if self.bert:
            self.transform, self.head_norm = torch.nn.Linear(hidden, hidden), torch.nn.LayerNorm(hidden)
            self.bias = torch.nn.Parameter(torch.zeros(vocabulary))
        for embedding in (self.word, self.position):
            torch.nn.init.normal_(embedding.weight, std=0.02)
        self.dropout = dropout

    def forward(self, tokens, predicted, labels):
        h = self.word(tokens) + self.position.weight[: tokens.shape[1]]
        h = F.dropout(self.norm(h) if self.bert else h, self.dropout)
        for layer in self.layers:
            h = layer(h)
        h = h.reshape(-1, h.shape[-1])
        if self.bert:
            h = self.head_norm(F.gelu(self.transform(h[predicted]), approximate="tanh"))
            return F.cross_entropy(F.linear(h, self.word.weight, self.bias), labels)
        return F.cross_entropy(F.linear(self.norm(h), self.word.weight), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    architecture, layers, hidden, heads, tokens, positions, vocabulary, batch = MODELS[arguments.model]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(1)
    device = arguments.device
    model = Transformer(architecture, layers, hidden, heads, positions, vocabulary, arguments.dropout).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randint(vocabulary, (batch, tokens), device=device)
    masked = int(0.15 * tokens)
    predicted = torch.cat([sample * tokens + torch.randperm(tokens)[:masked] for sample in range(batch)]).to(device)
    labels = torch.randint(vocabulary, (len(predicted) if architecture == "bert" else batch * tokens,), device=device)
    step_loss = torch.compile(model) if arguments.compile else model
    times = []
    for _ in range(arguments.steps + 5):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = step_loss(inputs, predicted, labels)
        loss.backward()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[5:]
    print(" ".join(f"{t:.1f}" for t in times))
    print(
        f"torch {torch.__version__}, {arguments.model}, {arguments.precision}, {torch.get_num_threads()} threads, "
        f"median {statistics.median(times):.1f} ms"
    )


if __name__ == "__main__":
    main()
