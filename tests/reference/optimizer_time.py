#!/usr/bin/env python3
"""Times 1-bit Adam's compression stage in PyTorch, as the peer of inputs/performance/optimizer.yaml.

Usage: optimizer_time.py [--parameters D] [--steps N]     (OMP_NUM_THREADS threads; needs torch, no part of the set-up)

One rank, nothing travels (docs/algorithms.md): momentum, compression with the worker's residual, bits packed and unpacked,
average with the server's residual, bits again, update with the frozen variance. The way DeepSpeed writes it, with
in-place operations where PyTorch has them. Prints each step's milliseconds and their median, the first three left out.
"""

import argparse
import os
import statistics
import time

import torch

WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def compress(compensated, residual):
    """Packed signs and scale of `compensated`, whose loss goes into `residual`."""
    scale = compensated.abs().mean()
    positive = compensated >= 0
    bits = (positive.view(-1, 8) * WEIGHTS).sum(1, dtype=torch.uint8)
    torch.sub(compensated, torch.where(positive, scale, -scale), out=residual)
    return bits, scale


def decompress(bits, scale):
    signs = torch.bitwise_and(bits.unsqueeze(1), WEIGHTS).ne(0).view(-1)
    return torch.where(signs, scale, -scale)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=25000000)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(1)
    d = arguments.parameters
    x, g, momentum = torch.randn(d), torch.randn(d), torch.zeros(d)
    worker_residual, server_residual = torch.zeros(d), torch.zeros(d)
    preconditioner = 1e-4 / (torch.rand(d).sqrt() + 1e-8)
    times = []
    for _ in range(arguments.steps + 3):
        begin = time.perf_counter()
        momentum.mul_(0.9).add_(g, alpha=0.1)
        worker = compress(momentum.add_(worker_residual), worker_residual)
        average = decompress(*worker).add_(server_residual)
        momentum = decompress(*compress(average, server_residual))
        x.addcmul_(momentum, preconditioner, value=-1)
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[3:]
    print(" ".join(f"{t:.1f}" for t in times))
    print(f"torch {torch.__version__}, 1-bit Adam, {torch.get_num_threads()} threads, median {statistics.median(times):.1f} ms")


if __name__ == "__main__":
    main()
