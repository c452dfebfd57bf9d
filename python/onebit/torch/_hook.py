"""A communication hook for torch.nn.parallel.DistributedDataParallel."""

import warnings

import torch
from mpi4py import MPI

from onebit.torch._average import average, compressed_average, first_nonfinite


class CompressedHookState:
    """What `compressed_hook` keeps for one DistributedDataParallel: the residuals of its buckets."""

    def __init__(self, comm=MPI.COMM_WORLD, dense_steps=1, **options):
        """comm: a communicator of mpi4py, of the same ranks as DDP's process group
        dense_steps: so many steps at first average densely. DDP cuts its final buckets after the first step
        options: of CompressedAllreduce: bits, group, error_feedback, message_bytes, backend
        """
        self.comm, self.dense_steps, self.options = comm, dense_steps, options
        self.step = 0
        self._buckets = {}  # the identities of a bucket's parameters → (its name, the parameters, CompressedAllreduce)
        self._loaded = {}  # a bucket's name → residuals that no bucket has taken yet

    def compressed(self, bucket):
        """\\returns the bucket's CompressedAllreduce. DDP may cut buckets anew; then residuals begin at 0."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._buckets:
            for other in [other for other in self._buckets if set(other) & set(key)]:
                self._buckets.pop(other)[2].close()
            # Its place and its shapes: what is the same after a restart.
            name = bucket.index(), tuple(tuple(p.shape) for p in parameters)
            allreduce = compressed_average(self.comm, bucket.buffer(), self.options)
            if name in self._loaded:
                allreduce.load_state_dict(self._loaded.pop(name))
            self._buckets[key] = name, parameters, allreduce
        return self._buckets[key][2]

    def end_step(self):
        """Counts a step, whose buckets have all been averaged."""
        if self._loaded and self.step >= self.dense_steps:
            warnings.warn(f"onebit.torch.CompressedHookState: {len(self._loaded)} buckets of the loaded state are none "
                          "of this model's; their residuals are dropped\n  remedy: load it with the model and the "
                          "bucket_cap_mb with which it was saved", stacklevel=3)
            self._loaded = {}
        self.step += 1

    def state_dict(self):
        """This rank's residuals. They differ from rank to rank, so each rank saves and loads a file of its own."""
        residuals = {**self._loaded, **{name: allreduce.state_dict() for name, _, allreduce in self._buckets.values()}}
        return {"step": self.step,
                "residuals": {name: {part: torch.from_numpy(of) for part, of in parts.items()}
                              for name, parts in residuals.items()}}

    def load_state_dict(self, state_dict):
        """Collective: goes on with the residuals of the same rank's `state_dict`.

        The next step averages densely, because DDP cuts its final buckets after it. The residuals wait for them.
        """
        for _, _, allreduce in self._buckets.values():
            allreduce.close()
        self._buckets = {}
        self._loaded = {name: {part: of.numpy() for part, of in parts.items()}
                        for name, parts in state_dict["residuals"].items()}
        self.step = state_dict["step"]
        self.dense_steps = max(self.dense_steps, self.step + 1)


def compressed_hook(state, bucket):
    """Averages gradients compressed with error feedback.

    `ddp.register_comm_hook(CompressedHookState(), compressed_hook)` sets it.

    This is DoubleSqueeze (Tang et al., ICML 2019) in front of any optimizer. It is not 1-bit Adam, which compresses the
    momentum and freezes the variance: see OneBitAdam. The exchange runs over MPI and ends before the hook returns.

    A bucket that is not finite on some rank is averaged densely. So NaN and infinity reach every rank, as without the
    hook, and stay out of the residuals.
    """
    gradient = bucket.buffer()
    compressed = state.compressed(bucket) if state.step >= state.dense_steps else None
    if compressed and first_nonfinite(state.comm, gradient) is None:
        compressed(gradient)
    else:
        average(state.comm, gradient)
    if bucket.is_last():
        state.end_step()
    future = torch.futures.Future()
    future.set_result(gradient)
    return future
