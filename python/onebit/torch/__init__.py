"""1-bit Adam and 1-bit Muon for PyTorch, and compressed gradients for its DistributedDataParallel. docs/guide/python.md
shows them."""

from onebit.torch._adam import OneBitAdam
from onebit.torch._freeze import AutoFreeze
from onebit.torch._hook import CompressedHookState, compressed_hook
from onebit.torch._muon import OneBitMuon

__all__ = ["AutoFreeze", "CompressedHookState", "OneBitAdam", "OneBitMuon", "compressed_hook"]
