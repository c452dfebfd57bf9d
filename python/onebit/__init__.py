"""Compressed averages over MPI or torch.distributed: `CompressedAllreduce` for NumPy arrays and PyTorch tensors, and
`onebit.torch`."""

from onebit._allreduce import CompressedAllreduce
from onebit._library import Error

__all__ = ["CompressedAllreduce", "Error", "__version__"]
__version__ = "0.1.0"
