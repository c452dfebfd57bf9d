#!/usr/bin/env python3
"""Times training steps of the same BERT in PyTorch, as the peer of `onebit train`; docs/results/cpu_step.md.

Usage: step_time.py [STEPS] [DROPOUT]      (OMP_NUM_THREADS threads; needs torch, which is no part of the set-up)

Four layers, hidden 256, 4 heads, feed-forward 1024, 128 tokens, vocabulary 8192, batch 16, float32: post-LayerNorm
encoder, masked-LM head on the 19 masked positions of each sample, tied output, Adam. Prints each step's milliseconds
and their median, the first five steps left out.
"""

import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, FEED_FORWARD, TOKENS, VOCABULARY, BATCH, MASKED = 4, 256, 4, 1024, 128, 8192, 16, 19


class Layer(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.output = torch.nn.Linear(HIDDEN, HIDDEN)
        self.norm1, self.norm2 = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)
        self.up, self.down = torch.nn.Linear(HIDDEN, FEED_FORWARD), torch.nn.Linear(FEED_FORWARD, HIDDEN)
        self.dropout = dropout

    def forward(self, h):
        q, k, v = (z.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2) for z in self.qkv(h).split(HIDDEN, 2))
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        a = self.output(a.transpose(1, 2).reshape(h.shape))
        h = self.norm1(h + F.dropout(a, self.dropout))
        f = self.down(F.gelu(self.up(h), approximate="tanh"))
        return self.norm2(h + F.dropout(f, self.dropout))


class Bert(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.word, self.position = torch.nn.Embedding(VOCABULARY, HIDDEN), torch.nn.Embedding(512, HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN)
        self.layers = torch.nn.ModuleList(Layer(dropout) for _ in range(LAYERS))
        self.transform, self.head_norm = torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.LayerNorm(HIDDEN)
        self.bias = torch.nn.Parameter(torch.zeros(VOCABULARY))
        self.dropout = dropout

    def forward(self, tokens, masked, labels):
        h = F.dropout(self.norm(self.word(tokens) + self.position.weight[:TOKENS]), self.dropout)
        for layer in self.layers:
            h = layer(h)
        h = h.reshape(-1, HIDDEN)[masked]
        h = self.head_norm(F.gelu(self.transform(h), approximate="tanh"))
        return F.cross_entropy(F.linear(h, self.word.weight, self.bias), labels)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    dropout = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(1)
    model = Bert(dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS))
    masked = torch.cat([sample * TOKENS + torch.randperm(TOKENS)[:MASKED] for sample in range(BATCH)])
    labels = torch.randint(VOCABULARY, (BATCH * MASKED,))
    times = []
    for _ in range(steps + 5):
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(tokens, masked, labels).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[5:]
    print(" ".join(f"{t:.1f}" for t in times))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median {statistics.median(times):.1f} ms")


if __name__ == "__main__":
    main()
