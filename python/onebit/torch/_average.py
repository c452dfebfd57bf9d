"""The two averages over ranks, and what ranks must agree on before them."""

import numpy as np
import torch
from mpi4py import MPI

from onebit._allreduce import CompressedAllreduce
from onebit._library import message


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


def residuals_of(allreduce):
    """\\returns the state of a CompressedAllreduce as tensors, for `torch.save`"""
    return {name: torch.from_numpy(of) for name, of in allreduce.state_dict().items()}


def load_residuals(allreduce, residuals):
    """Restores what `residuals_of` returned. `torch.load` may have moved it to a GPU."""
    allreduce.load_state_dict({name: of.cpu().numpy() for name, of in residuals.items()})


def rank_of(comm):
    """\\returns the rank whose residuals a state holds, and the number of ranks, as entries of a `state_dict`"""
    return {"rank": comm.rank, "ranks": comm.size}


def check_rank(comm, state_dict, name):
    """Raises ValueError if the state is that of another rank, or of another number of ranks."""
    rank, ranks = state_dict.get("rank"), state_dict.get("ranks")
    if (rank, ranks) != (comm.rank, comm.size):
        raise ValueError(message(f"torch.{name}", f"the state is of rank {rank} of {ranks}, and this is rank "
                                 f"{comm.rank} of {comm.size}",
                                 "let each rank save and load a file of its own, on as many ranks"))


def is_finite(x):
    """Whether x holds neither NaN nor infinity."""
    return x.numel() == 0 or all(torch.isfinite(end) for end in torch.aminmax(x))  # NaN becomes both ends


def first_nonfinite(comm, x):
    """Collective. \\returns the first rank whose x holds NaN or infinity; None if there is none

    A compressed average of such an x would leave NaN in the residuals of every rank, for good.
    """
    rank = np.array([comm.size if is_finite(x) else comm.rank], np.int32)
    comm.Allreduce(MPI.IN_PLACE, rank, MPI.MIN)
    return None if rank[0] == comm.size else int(rank[0])
