"""Who averages: the ranks of an MPI communicator, or of a process group of torch.distributed.

Both kinds have `rank` and `size`, and
- `make(length, options)`: a handle of the library's compressed allreduce over them, and what must live as long;
- `sum(x)`: x ← Σ_i x_i, a tensor in place; `broadcast(x)`: x ← that of rank 0;
- `least(numbers)`: the minimum over ranks of each number of a list;
- `tell(value, rank)`: that rank's value, on all ranks;
- `in_a_thread()`: the same ranks for a thread beside others that use these, or None if there is no such thing;
- `alone()`: this rank as one of one.
All of these are collective, except for the last one.
"""

import ctypes
import functools
import os
import sys

from onebit._library import check, library, message

_bad = functools.partial(message, "ranks")
START = ("start the processes by mpirun; or by torchrun, call torch.distributed.init_process_group first, and leave "
         "comm out")


def _mpi():
    """mpi4py's MPI. Its import starts MPI, so it is imported where MPI is wanted alone."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ValueError(_bad(f"without a process group of torch.distributed the ranks are MPI's, and mpi4py cannot be "
                              f"imported: {error}", f"install mpi4py; or {START}")) from error
    return MPI


def check_library(MPI):
    """Refuses an mpi4py of another MPI library than libonebit's, to which its communicators mean nothing."""
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()  # the longest of MPICH's; Open MPI's are shorter
    library().MPI_Get_library_version(text, ctypes.byref(length))  # found among what the library is linked with
    own, others = (name.rstrip("\0").replace("\t", " ").split("\n")[0].split(",")[0]  # mpi4py 3 leaves a NUL
                   for name in (text.value.decode(errors="replace"), MPI.Get_library_version()))
    if own != others:
        raise ValueError(_bad(f"libonebit is linked with {own}, and mpi4py with {others}", "build one of them with the "
                              "MPI library of the other (docs/guide/python.md)"))


class MpiRanks:
    """Those of a communicator of mpi4py."""

    def __init__(self, comm):
        MPI = _mpi()
        if not MPI.Is_initialized() or MPI.Is_finalized():
            raise ValueError(_bad("MPI is not running", "make it after MPI.Init and before MPI.Finalize"))
        check_library(MPI)
        if comm != MPI.COMM_SELF:
            check(library().onebit_check_launch())
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    def make(self, length, options):
        handle = ctypes.c_void_p()
        check(library().onebit_allreduce_create_f(self.comm.py2f(), length, ctypes.byref(options),
                                                  ctypes.byref(handle)))
        return handle, None

    def sum(self, x):
        host = x.cpu()  # because not every MPI library knows a GPU's memory
        self.comm.Allreduce(_mpi().IN_PLACE, host.numpy())
        if x.is_cuda:
            x.copy_(host)

    def broadcast(self, x):
        host = x.cpu().contiguous()
        self.comm.Bcast(host.numpy())
        x.copy_(host)

    def least(self, numbers):
        import numpy as np
        least = np.array(numbers, np.float64)
        self.comm.Allreduce(_mpi().IN_PLACE, least, _mpi().MIN)
        return least.tolist()

    def tell(self, value, rank=0):
        return self.comm.bcast(value, rank)

    def in_a_thread(self):
        own = _mpi().Query_thread() == _mpi().THREAD_MULTIPLE
        return self if self.least([float(own)])[0] else None  # the same on all ranks

    def alone(self):
        return MpiRanks(_mpi().COMM_SELF)


def _started_by_torchrun():
    """How many processes torchrun's variables speak of; 1 without them."""
    size, rank = (os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK"))
    return int(size) if size.isdecimal() and rank.isdecimal() else 1


def _launched_by_mpi():
    """How many processes a launcher of MPI started, as far as it says."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # below torchrun several processes would take the place of one rank
        return 1
    sizes = (os.environ.get(name, "") for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                                   "SLURM_STEP_NUM_TASKS"))
    return max((int(size) for size in sizes if size.isdecimal()), default=1)


def _mpi_size(launched):
    """The ranks of MPI's world; 0 where nobody has started MPI, and its launcher did not start `launched` processes."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    runs = mpi4py is not None and mpi4py.Is_initialized() and not mpi4py.Is_finalized()
    if not runs and _launched_by_mpi() != launched:
        return 0
    try:
        return _mpi().COMM_WORLD.size
    except ValueError:  # no mpi4py
        return 0


def _group_size():
    """The number of processes of torch.distributed's default group; 0 if it has none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return distributed.get_world_size()


def default_ranks():
    """MPI's world if it is the job; else the default group of torch.distributed."""
    size, launched = _group_size(), _started_by_torchrun()
    if size > 1 and _mpi_size(size) != size or size == 1 and _launched_by_mpi() == 1:
        from onebit.torch._group import GroupRanks
        return GroupRanks(None)
    if size == 0 and launched > 1 and _mpi_size(launched) != launched:
        raise ValueError(_bad(f"torchrun started {launched} processes, torch.distributed has no process group, and MPI "
                              "does not connect them", START))
    return MpiRanks(_mpi().COMM_WORLD)


def ranks_of(comm):
    """The ranks that `comm` names: a communicator of mpi4py, a process group of torch.distributed, or None for the
    default ones; or ranks of this module."""
    if comm is None:
        return default_ranks()
    if hasattr(comm, "make"):
        return comm
    if hasattr(comm, "py2f"):
        return MpiRanks(comm)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and isinstance(comm, distributed.ProcessGroup):
        from onebit.torch._group import GroupRanks
        return GroupRanks(comm)
    raise TypeError(_bad(f"comm is {comm!r}", "give a communicator of mpi4py or a process group of torch.distributed, "
                         "or leave it out"))
