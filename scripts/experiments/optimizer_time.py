#!/usr/bin/env python3
"""Times 1-bit Adam's compressed phase in PyTorch, as the peer of inputs/performance/optimizer.yaml.

It takes OMP_NUM_THREADS threads, and needs torch, which is no part of the set-up: 1.13 and later, 2 and later for
`compile`.

One rank, nothing travels (docs/reference/algorithms/averages.md): momentum, compression with the worker's residual,
bits packed and unpacked, average with the server's residual, bits again, update with the frozen variance. All buffers
are made before the first step. A product of 64 bits packs eight signs, a table of 256 rows unpacks them. `compile`
hands the passes over floats to torch.compile, which fuses them. The script first compares a step with the plain
formulation, and ends with status 1 where they differ. Then it prints each step's milliseconds and their median, the
first three left out.
"""

import argparse
import os
import statistics
import sys
import time

import torch

BETA = 0.9
PACK = 0x0102040810204080  # times eight bytes of 0 or 1: their bits, the first one lowest, in the highest byte
WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128])
# The signs of each byte's bits.
PATTERNS = torch.where(torch.arange(256).unsqueeze(1).bitwise_and(WEIGHTS).ne(0), -1.0, 1.0)


def plain_step(x, g, momentum, worker_residual, server_residual, preconditioner):
    """The definition: new x, momentum and residuals."""

    def compress(c):
        scale = c.abs().mean()
        compressed = torch.where(torch.signbit(c), -scale, scale)
        return compressed, c - compressed

    average, worker_residual = compress(worker_residual.add(momentum, alpha=BETA).add(g, alpha=1 - BETA))
    momentum, server_residual = compress(average + server_residual)
    return x - preconditioner * momentum, momentum, worker_residual, server_residual


class Stage:
    """The compressed phase of one rank with d parameters, a multiple of 8."""

    def __init__(self, d, compiled):
        self.x, self.g, self.momentum = torch.randn(d), torch.randn(d), torch.randn(d).mul_(0.1)
        self.worker_residual, self.server_residual = torch.randn(d).mul_(0.1), torch.randn(d).mul_(0.1)
        self.preconditioner = 1e-4 / (torch.rand(d).sqrt() + 1e-4)
        self.average = torch.empty(d)
        self.negative = torch.empty(d, dtype=torch.bool)
        self.product = torch.empty(d // 8, dtype=torch.int64)
        self.bits = torch.empty(d // 8, dtype=torch.uint8)
        self.index = torch.empty(d // 8, dtype=torch.int32)
        # torch.compile keeps |c| and C(c) in registers; an eager pass needs a place to write them to.
        self.scratch = None if compiled else torch.empty(d)
        self.passes = [Stage.compensate_worker, Stage.compensate_server, Stage.lose, Stage.update]
        if compiled:
            self.passes = [torch.compile(one, dynamic=False) for one in self.passes]

    @staticmethod
    def mean_size(c, scratch):
        return (c.abs() if scratch is None else torch.abs(c, out=scratch)).mean()

    @staticmethod
    def compensate_worker(residual, momentum, g, scratch):
        """The residual becomes c = δ + β m + (1 − β) g. Returns the scale."""
        return Stage.mean_size(residual.add_(momentum, alpha=BETA).add_(g, alpha=1 - BETA), scratch)

    @staticmethod
    def compensate_server(residual, average, scratch):
        return Stage.mean_size(residual.add_(average), scratch)

    @staticmethod
    def lose(c, scale, scratch):
        """c becomes the residual c − C(c)."""
        c.sub_(torch.where(c < 0, -scale, scale) if scratch is None else torch.copysign(scale, c, out=scratch))

    @staticmethod
    def update(x, momentum, preconditioner):
        x.addcmul_(momentum, preconditioner, value=-1)

    def pack(self, c):
        """Always eager: torch.compile does not vectorise a pass that writes booleans."""
        torch.signbit(c, out=self.negative)
        torch.mul(self.negative.view(torch.int64), PACK, out=self.product)
        self.bits.copy_(self.product.bitwise_right_shift_(56))

    def unpack(self, scale, out):
        self.index.copy_(self.bits)
        torch.index_select(PATTERNS * scale, 0, self.index, out=out.view(-1, 8))

    def step(self):
        compensate_worker, compensate_server, lose, update = self.passes
        scale = compensate_worker(self.worker_residual, self.momentum, self.g, self.scratch)
        self.pack(self.worker_residual)
        lose(self.worker_residual, scale, self.scratch)
        self.unpack(scale, self.average)
        scale = compensate_server(self.server_residual, self.average, self.scratch)
        self.pack(self.server_residual)
        lose(self.server_residual, scale, self.scratch)
        self.unpack(scale, self.momentum)
        update(self.x, self.momentum, self.preconditioner)

    def check(self):
        """Ends the program where a step differs from `plain_step`. Rounding may flip the sign of an element near 0."""
        state = self.x, self.g, self.momentum, self.worker_residual, self.server_residual, self.preconditioner
        expected = plain_step(*(vector.clone() for vector in state))
        self.step()
        found = self.x, self.momentum, self.worker_residual, self.server_residual
        for name, one, other in zip(("x", "momentum", "worker residual", "server residual"), expected, found):
            wrong = int((~torch.isclose(one, other, rtol=1e-4, atol=1e-6)).sum())
            if wrong > 1e-5 * len(one):
                sys.exit(f"optimizer_time: {wrong} of {len(one)} elements of {name} differ from the plain formulation")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=25000000)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--mode", choices=("eager", "compile"), default="eager")
    arguments = parser.parse_args()
    if arguments.parameters % 8:
        parser.error("--parameters must be a multiple of 8")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(1)
    stage = Stage(arguments.parameters, arguments.mode == "compile")
    stage.check()
    times = []
    for _ in range(arguments.steps + 3):
        begin = time.perf_counter()
        stage.step()
        times.append(1e3 * (time.perf_counter() - begin))
    times = times[3:]
    print(" ".join(f"{t:.1f}" for t in times))
    print(f"torch {torch.__version__}, 1-bit Adam, {arguments.mode}, {torch.get_num_threads()} threads, "
          f"median {statistics.median(times):.1f} ms")


if __name__ == "__main__":
    main()
