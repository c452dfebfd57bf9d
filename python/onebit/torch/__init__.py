"""1-bit Adam for PyTorch, and compressed gradients for its DistributedDataParallel. docs/guide/python.md shows both."""

from onebit.torch._adam import OneBitAdam
from onebit.torch._freeze import AutoFreeze
from onebit.torch._hook import CompressedHookState, compressed_hook

__all__ = ["AutoFreeze", "CompressedHookState", "OneBitAdam", "compressed_hook"]
