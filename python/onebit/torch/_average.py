"""The two averages over ranks, and what ranks must agree on before them."""

import torch

from onebit._allreduce import CompressedAllreduce
from onebit._library import message

# A gradient of this magnitude counts as not finite: 2⁶³, whose square, and sums of many of them, float32 still holds.
TOO_LARGE = 2.0**63


def average(ranks, x, divide_first=False):
    """x ← (1/n) Σ_i x_i in place, dense. divide_first: the same on every rank; the sum of large numbers stays finite"""
    if divide_first:
        x.div_(ranks.size)
    ranks.sum(x)
    if not divide_first:
        x.div_(ranks.size)


def compressed_average(ranks, x, options):
    """\\returns the CompressedAllreduce of vectors like x. `options` are its keyword arguments."""
    on_gpu = "hip" if torch.version.hip else "cuda"
    return CompressedAllreduce(ranks, x.numel(), **{"backend": on_gpu if x.is_cuda else "", **options})


def residuals_of(allreduce):
    """\\returns the state of a CompressedAllreduce as tensors, for `torch.save`"""
    return {name: torch.from_numpy(of) for name, of in allreduce.state_dict().items()}


def load_residuals(allreduce, residuals):
    """Restores what `residuals_of` returned. `torch.load` may have moved it to a GPU."""
    allreduce.load_state_dict({name: of.cpu().numpy() for name, of in residuals.items()})


def rank_of(ranks):
    """\\returns the rank whose residuals a state holds, and the number of ranks, as entries of a `state_dict`"""
    return {"rank": ranks.rank, "ranks": ranks.size}


def check_rank(ranks, state_dict, name):
    """Raises ValueError if the state is that of another rank, or of another number of ranks."""
    rank, count = state_dict.get("rank"), state_dict.get("ranks")
    if (rank, count) != (ranks.rank, ranks.size):
        raise ValueError(message(f"torch.{name}", f"the state is of rank {rank} of {count}, and this is rank "
                                 f"{ranks.rank} of {ranks.size}",
                                 "let each rank save and load a file of its own, on as many ranks"))


def is_finite(x):
    """Whether x holds neither NaN nor infinity nor a number that is TOO_LARGE."""
    if x.numel() == 0:
        return True
    least, greatest = torch.aminmax(x)  # NaN becomes both ends, and no comparison with it holds
    return bool(least > -TOO_LARGE) and bool(greatest < TOO_LARGE)
