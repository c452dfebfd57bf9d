"""Compressed averages over MPI or torch.distributed: `CompressedAllreduce` for NumPy arrays and PyTorch tensors, and
`onebit.torch`."""

import importlib.metadata
import pathlib
import re

from onebit._allreduce import CompressedAllreduce
from onebit._library import Error

__all__ = ["CompressedAllreduce", "Error", "__version__"]


def _version():
    """That of CMakeLists.txt, which pip gives to what it installs."""
    lists = pathlib.Path(__file__).resolve().parents[2] / "CMakeLists.txt"  # of a checkout
    if lists.is_file():
        return re.search(r"project\(OneBit VERSION ([\d.]+)", lists.read_text(encoding="utf-8"))[1]
    return importlib.metadata.version("onebit")


__version__ = _version()
