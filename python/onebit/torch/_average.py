"""The two averages over ranks."""

import torch
from mpi4py import MPI

from onebit._allreduce import CompressedAllreduce


def average(comm, x):
    """x ← (1/n) Σ_i x_i in place, dense. MPI gets host memory, because not every MPI library knows a GPU's."""
    host = x.cpu()
    comm.Allreduce(MPI.IN_PLACE, host.numpy())
    if x.is_cuda:
        x.copy_(host)
    x.div_(comm.size)


def compressed_average(comm, x, options):
    """\\returns the CompressedAllreduce of vectors like x. `options` are its keyword arguments."""
    on_gpu = "hip" if torch.version.hip else "cuda"
    return CompressedAllreduce(comm, x.numel(), **{"backend": on_gpu if x.is_cuda else "", **options})
