"""A communication hook for torch.nn.parallel.DistributedDataParallel."""

import torch
from mpi4py import MPI

from onebit.torch._average import average, compressed_average


class CompressedHookState:
    """What `compressed_hook` keeps for one DistributedDataParallel: the residuals of its buckets."""

    def __init__(self, comm=MPI.COMM_WORLD, dense_steps=1, **options):
        """comm: a communicator of mpi4py, of the same ranks as DDP's process group
        dense_steps: so many steps at first average densely. DDP cuts its final buckets after the first step
        options: of CompressedAllreduce: bits, group, error_feedback, message_bytes, backend
        """
        self.comm, self.dense_steps, self.options = comm, dense_steps, options
        self.step = 0
        self._buckets = {}  # the identities of a bucket's parameters → (the parameters, their CompressedAllreduce)

    def compressed(self, parameters, gradient):
        """\\returns the bucket's CompressedAllreduce. DDP may cut buckets anew; then residuals begin at 0."""
        key = tuple(map(id, parameters))
        if key not in self._buckets:
            for other in [other for other in self._buckets if set(other) & set(key)]:
                self._buckets.pop(other)[1].close()
            self._buckets[key] = parameters, compressed_average(self.comm, gradient, self.options)
        return self._buckets[key][1]


def compressed_hook(state, bucket):
    """Averages gradients compressed with error feedback.

    `ddp.register_comm_hook(CompressedHookState(), compressed_hook)` sets it.

    This is DoubleSqueeze (Tang et al., ICML 2019) in front of any optimizer. It is not 1-bit Adam, which compresses the
    momentum and freezes the variance: see OneBitAdam. The exchange runs over MPI and ends before the hook returns.
    """
    gradient = bucket.buffer()
    if state.step < state.dense_steps:
        average(state.comm, gradient)
    else:
        state.compressed(bucket.parameters(), gradient)(gradient)
    if bucket.is_last():
        state.step += 1
    future = torch.futures.Future()
    future.set_result(gradient)
    return future
