#!/usr/bin/env python3
"""A rank of peers.py: checks the averages of PyTorch and DeepSpeed, and then times them in turns.

mpirun starts it, for its rank and their number; gloo carries every message. It needs torch, and deepspeed for
`deepspeed_compressed`. A method that this installation does not have is left out with a word about it.

Before each call all ranks wait for each other. A call has ended on a rank when the rank has the average, and the time
of a call is the slowest rank's. The bytes are what the system counts at the host's interface from the barrier before a
call to the barrier after it. Every method first averages once and is compared with what it should give; the program
ends with status 1 where it gives something else.
"""

import argparse
import datetime
import importlib
import inspect
import json
import math
import os
import pathlib
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"  # or DeepSpeed looks for a GPU

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


def integers(elements, rank):
    """A rank's vector of small integers, whose sum is exact in any order and in 16 bits."""
    place = torch.arange(elements)
    return ((place * 7 + rank * 13 + place // 1000) % 33 - 16).float()


def normal(elements, rank):
    """A rank's vector of random numbers, whose size differs from rank to rank."""
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank)).mul_(1 + rank / 10)


def signs(vector):
    """1 for 0 and above, or else -1."""
    return torch.where(vector < 0, -1.0, 1.0)


def root_mean_square(vector):
    return float(torch.linalg.norm(vector)) / math.sqrt(vector.numel())


class DenseAverage:
    """torch.distributed.all_reduce. In 16 bits it does what PyTorch's fp16_compress_hook does: round, divide, add up,
    and widen."""

    library, version = "PyTorch", torch.__version__

    def __init__(self, elements, dtype):
        self.elements, self.dtype = elements, dtype
        self.own = integers(elements, dist.get_rank())
        self.average = torch.empty(elements)

    def fill(self):
        self.average.copy_(self.own)

    def call(self):
        if self.dtype == torch.float32:
            dist.all_reduce(self.average)
            self.average.div_(dist.get_world_size())
        else:
            half = self.average.to(self.dtype).div_(dist.get_world_size())
            dist.all_reduce(half)
            self.average.copy_(half)

    def check(self):
        """The largest error of an element over the error that roundings allow."""
        ranks = range(dist.get_world_size())
        mean = sum(integers(self.elements, rank) for rank in ranks) / len(ranks)
        return float((self.average - mean).abs().max()) / (16 * len(ranks) * torch.finfo(self.dtype).eps)


class GivenGradient(torch.autograd.Function):
    """0 for any weights, with a given gradient."""

    @staticmethod
    def forward(context, weights, gradient):
        context.gradient = gradient
        return weights.new_zeros(())

    @staticmethod
    def backward(context, _):
        return context.gradient, None


class Matrix(torch.nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(rows, columns))

    def forward(self, gradient):
        return GivenGradient.apply(self.weights, gradient)


class PowerSGD:
    """The hook of DistributedDataParallel: the backward pass of one matrix whose gradient is there already, so a copy
    into the bucket, the hook's products and its messages. A gradient of the rank of the approximation comes back
    exactly, up to rounding."""

    library, version = "PyTorch", torch.__version__

    def __init__(self, elements, approximation):
        rows = next(rows for rows in range(math.isqrt(elements), 0, -1) if elements % rows == 0)
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(size, approximation, generator=generator) for size in (rows, elements // rows))
        self.gradient = (left @ right.T).mul_(1 + dist.get_rank())
        self.matrix = Matrix(rows, elements // rows)
        # Its weights are the same on all ranks; older versions send them all the same.
        unsent = {"init_sync": False} if "init_sync" in inspect.signature(self.parallel()).parameters else {}
        self.replica = self.parallel()(self.matrix, gradient_as_bucket_view=True, **unsent)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=approximation, start_powerSGD_iter=2)
        self.replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(2):  # dense averages, with which the hook begins
            self.fill()
            self.call()

    @staticmethod
    def parallel():
        return torch.nn.parallel.DistributedDataParallel

    def fill(self):
        self.matrix.weights.grad = None
        self.loss = self.replica(self.gradient)

    def call(self):
        self.loss.backward()

    def check(self):
        ranks = dist.get_world_size()
        mean = self.gradient * ((1 + ranks) / 2 / (1 + dist.get_rank()))
        return float(torch.linalg.norm(self.matrix.weights.grad - mean) / torch.linalg.norm(mean)) / 1e-3


class Packer:
    """Eight signs a byte, the first one highest and 1 for 0 and above: the kernels that DeepSpeed's CompressedBackend
    takes from its op `packbits`, which DeepSpeed builds for XPUs alone."""

    def __init__(self):
        byte = torch.arange(256).unsqueeze(1)
        self.signs = byte.bitwise_and(torch.tensor([128, 64, 32, 16, 8, 4, 2, 1])).ne(0).float().mul_(2).sub_(1)

    def packbits(self, vector, size, _):
        """A product of 64 bits gathers the bits of eight booleans."""
        product = vector[:size].ge(0).view(torch.int64).mul_(-0x7fbfdfeff7fbfdff)  # 0x8040201008040201
        return product.bitwise_right_shift_(56).to(torch.uint8)

    def unpackbits(self, packed, size, _):
        return self.signs.index_select(0, packed[:size].int()).flatten()


class PackerBuilder:
    """Stands in for DeepSpeed's class, whose `load` says on a CPU that there is no such op."""

    @staticmethod
    def load():
        return Packer()


class LikeShapes:
    """deepspeed.comm, but a gathered number has the shape of where it goes, which gloo demands: CompressedBackend
    sends scales without a dimension and receives them with one."""

    def __getattr__(self, name):
        return getattr(importlib.import_module("deepspeed.comm"), name)

    def all_gather(self, gathered, own, group):
        return self.__getattr__("all_gather")(gathered, own.reshape(gathered[0].shape), group=group)


def compressed_backend():
    """(DeepSpeed's CompressedBackend over gloo, DeepSpeed's version). Nothing of its code is changed: it is given the
    kernels and the shapes that it lacks on a CPU."""
    deepspeed = importlib.import_module("deepspeed")
    compressed = importlib.import_module("deepspeed.runtime.comm.compressed")
    compressed.PackbitsBuilder, compressed.dist = PackerBuilder, LikeShapes()
    deepspeed.comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    return compressed.CompressedBackend(), deepspeed.__version__


class DeepSpeedCompressed:
    """DeepSpeed's CompressedBackend.compressed_allreduce, with 0 as the residuals of the first call."""

    library = "DeepSpeed"

    def __init__(self, elements):
        self.elements, self.ranks = elements, dist.get_world_size()
        self.backend, self.version = compressed_backend()
        padded = -(-elements // (8 * self.ranks)) * 8 * self.ranks
        self.worker_error, self.server_error = torch.zeros(padded), torch.zeros(padded // self.ranks)
        self.own = normal(elements, dist.get_rank())
        self.vector = torch.empty(elements)

    def fill(self):
        self.vector.copy_(self.own)

    def call(self):
        self.average = self.backend.compressed_allreduce(self.vector, self.worker_error, self.server_error, 0)

    def check(self):
        """The share of elements that differ from the documented formula, of which rounding may flip a few."""
        mean = torch.zeros_like(self.worker_error)
        for rank in range(self.ranks):
            vector = torch.zeros_like(mean)
            vector[:self.elements] = normal(self.elements, rank)
            mean.add_(signs(vector), alpha=root_mean_square(vector) / self.ranks)
        right = torch.cat([signs(chunk) * root_mean_square(chunk) for chunk in mean.chunk(self.ranks)])
        same = torch.isclose(self.average, right[:self.elements], rtol=1e-4)
        return float((~same).float().mean()) / 1e-4


METHODS = {
    "gloo_fp32": lambda elements: DenseAverage(elements, torch.float32),
    "gloo_fp16": lambda elements: DenseAverage(elements, torch.float16),
    "gloo_bf16": lambda elements: DenseAverage(elements, torch.bfloat16),
    "powersgd_1": lambda elements: PowerSGD(elements, 1),
    "powersgd_4": lambda elements: PowerSGD(elements, 4),
    "deepspeed_compressed": DeepSpeedCompressed,
}


def say(text):
    if dist.get_rank() == 0:
        print(f"peers_rank: {text}", flush=True)


def made(name, elements):
    """The method after its first, checked average; None where this installation does not have it."""
    try:
        method = METHODS[name](elements)
        method.fill()
        method.call()
    except (ImportError, RuntimeError) as missing:  # on all ranks alike
        say(f"{name} is left out: {missing}")
        return None
    error = torch.tensor([method.check()], dtype=torch.float64)
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    if not float(error) <= 1:
        say(f"{name} is wrong: {float(error):.3g} times the error that it may have")
        sys.exit(1)
    return method


def bytes_sent(interface):
    return int(pathlib.Path("/sys/class/net", interface, "statistics/tx_bytes").read_text())


def timed(method, interface):
    """(seconds of one call on this rank, bytes that its host sent)."""
    method.fill()
    dist.barrier()
    before, begin = bytes_sent(interface), time.perf_counter()
    method.call()
    seconds = time.perf_counter() - begin
    dist.barrier()  # after it no byte of the call is on its way
    return seconds, bytes_sent(interface) - before


def measure(methods, calls, interface):
    """{name: (seconds of each call on the slowest rank, mean bytes that a host sent in one)}, in turns."""
    results = {name: [] for name in methods}
    for _ in range(calls):
        for name, method in methods.items():
            results[name].append(timed(method, interface))
    for name, pairs in results.items():
        seconds, sent = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        dist.all_reduce(sent)
        results[name] = (seconds.tolist(), float(sent.mean()) / dist.get_world_size())
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--address", required=True, help="of rank 0's host")
    parser.add_argument("--interface", required=True, help="the host's link")
    parser.add_argument("--output", required=True, metavar="FILE.json")
    parser.add_argument("methods", nargs="+", choices=METHODS, metavar="METHOD")
    arguments = parser.parse_args()
    os.environ.update(MASTER_ADDR=arguments.address, MASTER_PORT="29500", GLOO_SOCKET_IFNAME=arguments.interface,
                      RANK=os.environ["OMPI_COMM_WORLD_RANK"], WORLD_SIZE=os.environ["OMPI_COMM_WORLD_SIZE"],
                      LOCAL_RANK=os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    methods = {name: made(name, arguments.elements) for name in arguments.methods}
    methods = {name: method for name, method in methods.items() if method}
    results = measure(methods, arguments.calls, arguments.interface)
    if dist.get_rank() == 0:
        rows = [{"method": name, "library": methods[name].library, "version": methods[name].version,
                 "seconds": seconds, "bytes": sent} for name, (seconds, sent) in results.items()]
        pathlib.Path(arguments.output).write_text(json.dumps(rows))
        for name, (seconds, sent) in results.items():
            say(f"{name}: {sent / 1e6:.3f} MB, {' '.join(f'{value:.4f}' for value in seconds)} s")
    # Without the destructors: one of a process group in PyTorch 1.13 sometimes waits forever.
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
