"""A communication hook for torch.nn.parallel.DistributedDataParallel."""

import contextlib
import functools
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from mpi4py import MPI

from onebit._allreduce import CompressedAllreduce
from onebit._library import message
from onebit.torch._average import (
    average,
    check_rank,
    compressed_average,
    first_nonfinite,
    load_residuals,
    rank_of,
    residuals_of,
)


@functools.cache
def _start_library():
    """Makes an object in the calling thread. OpenMP then belongs to this thread, and not to that of the averages."""
    CompressedAllreduce(MPI.COMM_SELF, 1).close()


@functools.cache
def _thread():
    """The thread of all states: they may share a communicator, and the library takes calls of one thread at a time."""
    return ThreadPoolExecutor(1, "onebit")


class _Bucket:
    """What a hook keeps of a bucket when it returns before the bucket is averaged."""

    def __init__(self, bucket):
        self.gradient, self.parameters, self.is_last = bucket.buffer(), bucket.parameters(), bucket.is_last()
        if self.gradient.dtype != torch.float32 or self.gradient.is_sparse:
            raise TypeError(message("torch.compressed_hook",
                                    f"the gradients are {self.gradient.dtype}, {self.gradient.layout}",
                                    "make the model with float32 parameters and dense gradients"))
        self.key = tuple(map(id, self.parameters))
        # Its place and its shapes: what is the same after a restart.
        self.name = bucket.index(), tuple(tuple(p.shape) for p in self.parameters)
        self.gpus = [self.gradient.device] if self.gradient.is_cuda else []
        self._written = [torch.cuda.current_stream(gpu).record_event() for gpu in self.gpus]

    @contextlib.contextmanager
    def ready(self):
        """Begins when the gradient is written, with its GPU as this thread's, and ends when it is written again."""
        with torch.cuda.device(self.gpus[0] if self.gpus else -1):  # -1: as it is
            for event in self._written:
                event.synchronize()
            yield
            for gpu in self.gpus:
                torch.cuda.current_stream(gpu).synchronize()


class CompressedHookState:
    """What `compressed_hook` keeps for one DistributedDataParallel: the residuals of its buckets."""

    def __init__(self, comm=MPI.COMM_WORLD, dense_steps=1, overlap=True, **options):
        """comm: a communicator of mpi4py, of the same ranks as DDP's process group; backward passes use it
        dense_steps: so many steps at first average densely. DDP cuts its final buckets after the first step
        overlap: average in one thread beside the backward pass, if MPI has THREAD_MULTIPLE, for which mpi4py asks
        options: of CompressedAllreduce: bits, group, error_feedback, message_bytes, backend
        """
        self.comm, self.dense_steps, self._options = comm, dense_steps, options
        self.step = 0
        self._buckets = {}  # a bucket's key → (the bucket, its CompressedAllreduce)
        self._loaded = {}  # a bucket's name → residuals that no bucket has taken yet
        # All averages run in one thread, in DDP's order, which is the same on all ranks.
        self._thread = _thread() if overlap and MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        if self._thread and options.get("backend") == "openmp":
            raise ValueError(message("torch.CompressedHookState", "the thread beside the backward pass has no OpenMP",
                                     "leave backend out, or give overlap=False"))

    def start(self, work):
        """Calls work() after what was started before, and in the averages' thread if there is one."""
        if not self._thread:
            work()
            return
        _start_library()
        self._thread.submit(work)

    def average(self, bucket):
        """Collective: averages the bucket's gradient in place."""
        with bucket.ready():
            compressed = self._compressed(bucket) if self.step >= self.dense_steps else None
            if compressed and first_nonfinite(self.comm, bucket.gradient) is None:
                compressed(bucket.gradient)
            else:
                average(self.comm, bucket.gradient)
        if bucket.is_last:
            self._end_step()

    def _compressed(self, bucket):
        """\\returns the bucket's CompressedAllreduce. DDP may cut buckets anew; then residuals begin at 0."""
        if bucket.key not in self._buckets:
            for other in [other for other in self._buckets if set(other) & set(bucket.key)]:
                self._buckets.pop(other)[1].close()
            in_this_thread = {"backend": "serial"} if self._thread and not bucket.gpus else {}
            allreduce = compressed_average(self.comm, bucket.gradient, {**in_this_thread, **self._options})
            if bucket.name in self._loaded:
                load_residuals(allreduce, self._loaded.pop(bucket.name))
            self._buckets[bucket.key] = bucket, allreduce
        return self._buckets[bucket.key][1]

    def _end_step(self):
        if self._loaded and self.step >= self.dense_steps:
            warnings.warn(message("torch.CompressedHookState", f"{len(self._loaded)} buckets of the loaded state are "
                                  "none of this model's; their residuals are dropped", "load it with the model and the "
                                  "bucket_cap_mb with which it was saved"), stacklevel=3)
            self._loaded = {}
        self.step += 1

    def state_dict(self):
        """This rank's residuals. They differ from rank to rank, so each rank saves and loads a file of its own."""
        own = {bucket.name: residuals_of(allreduce) for bucket, allreduce in self._buckets.values()}
        return {"step": self.step, "residuals": {**self._loaded, **own}, **rank_of(self.comm)}

    def load_state_dict(self, state_dict):
        """Collective: goes on with the residuals of the same rank's `state_dict`.

        The next step averages densely, because DDP cuts its final buckets after it. The residuals wait for them.
        """
        check_rank(self.comm, state_dict, "CompressedHookState")
        for _, allreduce in self._buckets.values():
            allreduce.close()
        self._buckets = {}
        self._loaded = dict(state_dict["residuals"])
        self.step = state_dict["step"]
        self.dense_steps = max(self.dense_steps, self.step + 1)


def compressed_hook(state, bucket):
    """Averages gradients compressed with error feedback.

    `ddp.register_comm_hook(CompressedHookState(), compressed_hook)` sets it.

    This is DoubleSqueeze (Tang et al., ICML 2019) in front of any optimizer. It is not 1-bit Adam, which compresses the
    momentum and freezes the variance: see OneBitAdam. The exchange runs over MPI, beside the rest of the backward pass.

    A bucket that is not finite on some rank is averaged densely. So NaN and infinity reach every rank, as without the
    hook, and stay out of the residuals.
    """
    kept = _Bucket(bucket)
    future = torch.futures.Future(devices=kept.gpus)

    def work():
        try:
            state.average(kept)
        except Exception as error:
            traceback.print_exc()  # DDP does not show what a future raises
            future.set_exception(error)
        else:
            future.set_result(kept.gradient)

    state.start(work)
    return future
