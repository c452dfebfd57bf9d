#!/usr/bin/env python3
"""Times training steps of the same transformers in PyTorch, as the peer of `onebit train`; docs/results/performance.md.

It takes OMP_NUM_THREADS threads, and needs torch, which is no part of the set-up: 1.13 and later, 2 and later for
`compile`.

BERT is the post-LayerNorm encoder with a masked-LM head on 15 % of the positions and a tied output; GPT the
pre-LayerNorm decoder that predicts every position. Attention is `scaled_dot_product_attention` and Adam is fused where
this PyTorch has them; else attention is written out and Adam goes over lists of tensors (`foreach`). `compile` compiles
a layer, the embedding and the head, each once for all of its uses. bf16 is autocast, the parameters stay in float32.
Prints each step's milliseconds and their median, the first ones (--warm-up) left out.
"""

import argparse
import math
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib.models import MODELS, predicted_tokens


def attention_written_out(q, k, v, dropout_p, is_causal):
    """`F.scaled_dot_product_attention` for PyTorch before 2.0."""
    scores = q @ (k * (1 / math.sqrt(k.shape[-1]))).transpose(2, 3)
    if is_causal:
        tokens = q.shape[2]
        scores = scores + torch.full((tokens, tokens), -math.inf, dtype=q.dtype, device=q.device).triu_(1)
    return F.dropout(torch.softmax(scores, 3), dropout_p) @ v


attend = getattr(F, "scaled_dot_product_attention", attention_written_out)


def adam(parameters):
    parameters = list(parameters)
    try:
        return torch.optim.Adam(parameters, lr=1e-4, fused=True)
    except (RuntimeError, TypeError):  # no fused Adam for this device
        return torch.optim.Adam(parameters, lr=1e-4, foreach=True)


class LayerNorm(torch.nn.LayerNorm):
    """PyTorch 1.13's refuses a bfloat16 input beside float32 weights on a CPU: there it is computed in float32."""

    def forward(self, x):
        return super().forward(x.float() if torch.__version__.startswith("1.") else x)


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads, bert, dropout):
        super().__init__()
        self.qkv = torch.nn.Linear(hidden, 3 * hidden)
        self.output = torch.nn.Linear(hidden, hidden)
        self.norm1, self.norm2 = LayerNorm(hidden), LayerNorm(hidden)
        self.up, self.down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)
        self.heads, self.bert, self.dropout = heads, bert, dropout

    def attention(self, h):
        batch, tokens, hidden = h.shape
        q, k, v = (z.view(batch, tokens, self.heads, -1).transpose(1, 2) for z in self.qkv(h).split(hidden, 2))
        a = attend(q, k, v, dropout_p=self.dropout, is_causal=not self.bert)
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
        self.norm = LayerNorm(hidden)
        self.layers = torch.nn.ModuleList(Layer(hidden, heads, self.bert, dropout) for _ in range(layers))
        if self.bert:
            self.transform, self.head_norm = torch.nn.Linear(hidden, hidden), LayerNorm(hidden)
            self.bias = torch.nn.Parameter(torch.zeros(vocabulary))
        for embedding in (self.word, self.position):
            torch.nn.init.normal_(embedding.weight, std=0.02)
        self.dropout = dropout

    def embed(self, tokens):
        h = self.word(tokens) + self.position.weight[: tokens.shape[1]]
        return F.dropout(self.norm(h) if self.bert else h, self.dropout)

    def loss(self, h, predicted, labels):
        h = h.reshape(-1, h.shape[-1])
        if self.bert:
            h = self.head_norm(F.gelu(self.transform(h[predicted]), approximate="tanh"))
            return F.cross_entropy(F.linear(h, self.word.weight, self.bias), labels)
        return F.cross_entropy(F.linear(self.norm(h), self.word.weight), labels)

    def forward(self, tokens, predicted, labels):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.loss(h, predicted, labels)

    def compile(self):
        self.embed, self.loss = torch.compile(self.embed), torch.compile(self.loss)
        for layer in self.layers:
            layer.compile()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--mode", choices=("eager", "compile"), default="eager")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch", type=int, help="samples of a step instead of the model's")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    shape = MODELS[arguments.model]
    if arguments.batch:
        shape = shape._replace(batch=arguments.batch)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    device = arguments.device
    model = Transformer(shape.architecture, shape.layers, shape.hidden, shape.heads, shape.positions, shape.vocabulary,
                        arguments.dropout).to(device)
    optimizer = adam(model.parameters())
    inputs = torch.randint(shape.vocabulary, (shape.batch, shape.tokens), device=device)
    count = predicted_tokens(shape)
    positions = [sample * shape.tokens + torch.randperm(shape.tokens)[:count // shape.batch]
                 for sample in range(shape.batch)]
    predicted = torch.cat(positions).to(device)
    labels = torch.randint(shape.vocabulary, (count,), device=device)
    if arguments.mode == "compile":
        model.compile()
    times = []
    for _ in range(arguments.warm_up + arguments.steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = model(inputs, predicted, labels)
        loss.backward()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[arguments.warm_up:]
    print(" ".join(f"{t:.1f}" for t in times))
    print(f"torch {torch.__version__}, {arguments.model}, {arguments.mode}, {arguments.precision}, "
          f"{torch.get_num_threads()} threads, median {statistics.median(times):.1f} ms")


if __name__ == "__main__":
    main()
