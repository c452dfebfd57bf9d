"""Compressed averages over MPI: `CompressedAllreduce` for NumPy arrays and PyTorch tensors, and `onebit.torch`."""

from onebit._allreduce import CompressedAllreduce
from onebit._library import Error

__all__ = ["CompressedAllreduce", "Error"]
