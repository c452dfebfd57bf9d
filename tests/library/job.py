"""The ranks of a test: those of MPI, or under torchrun those of torch.distributed, where mpi4py is not imported."""

import atexit
import os

import torch.distributed as dist

TORCHRUN = "RANK" in os.environ


@atexit.register
def _end():
    """Ends gloo's threads before the interpreter, which they need where they drop an exchange's last tensor."""
    if dist.is_initialized():
        dist.destroy_process_group()


class _Group:
    """What tests call of a communicator of mpi4py, for the default process group."""

    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def allgather(self, value):
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def init_process_group():
    """torch.distributed over the same ranks, for DistributedDataParallel."""
    if not TORCHRUN:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        dist.init_process_group("gloo", rank=COMM.rank, world_size=COMM.size)


if TORCHRUN:
    COMM, GIVEN = _Group(), None
else:
    from mpi4py import MPI
    COMM = GIVEN = MPI.COMM_WORLD  # GIVEN: as the argument `comm`
