"""A communication hook for torch.nn.parallel.DistributedDataParallel."""

import contextlib
import functools
import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from onebit._allreduce import CompressedAllreduce
from onebit._library import message
from onebit._ranks import ranks_of
from onebit.torch._average import (
    average,
    check_rank,
    compressed_average,
    is_finite,
    load_residuals,
    rank_of,
    residuals_of,
)
from onebit.torch._freeze import whole_number


def _group_sizes():
    """The sizes of the process groups that DDP may have been given; none before there is one."""
    if not (dist.is_available() and dist.is_initialized()):
        return set()
    c10d = dist.distributed_c10d
    groups = c10d._world.pg_map if hasattr(c10d, "_world") else getattr(c10d, "_pg_map", ())
    sizes = {group.size() for group in list(groups) if isinstance(group, dist.ProcessGroup)}
    return sizes | {dist.get_world_size()}


def _reach(reached, parameter, _):
    """A hook of a parameter, which changes nothing."""
    reached.add(parameter)


def _result(future):
    """Raises in a place whose errors DDP passes on, which are not those that a future holds itself."""
    return future.wait()


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
        self.used = [True] * len(self.parameters)  # whether this rank's backward pass reached each
        # Its place and its shapes: what is the same after a restart.
        self.name = bucket.index(), tuple(tuple(p.shape) for p in self.parameters)
        self.gpus = [self.gradient.device] if self.gradient.is_cuda else []
        self._written = [torch.cuda.current_stream(gpu).record_event() for gpu in self.gpus]

    def parts(self):
        """\\returns the range of each parameter in the gradient"""
        ends = list(itertools.accumulate(p.numel() for p in self.parameters))
        return [slice(begin, end) for begin, end in zip([0, *ends], ends)]

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

    def __init__(self, comm=None, dense_steps=1, overlap=True, **options):
        """Collective.

        comm: a communicator of mpi4py or a process group of torch.distributed, of the same ranks as DDP's process
            group; backward passes use it. None: MPI's world if it is the job, or else torch.distributed's default group
        dense_steps: so many steps at first average densely. DDP cuts its final buckets after the first step
        overlap: average in one thread beside the backward pass, where one can: if MPI has THREAD_MULTIPLE, for which
            mpi4py asks, or by the default group of torch.distributed on CPUs, of which the state then makes a copy
        options: of CompressedAllreduce: bits, group, error_feedback, message_bytes, backend, scale, grid
        """
        self.comm, self._options = ranks_of(comm), options
        self.dense_steps = whole_number("torch.CompressedHookState", "dense_steps", dense_steps, 0)
        self._check_size()
        beside = self.comm.in_a_thread() if overlap else None
        # Refuses wrong options here. OpenMP then belongs to this thread, and not to that of the averages.
        CompressedAllreduce(self.comm.alone(), 1, **options).close()
        self.step = 0
        self._buckets = {}  # a bucket's key → (the bucket, its CompressedAllreduce)
        self._loaded = {}  # a bucket's name → residuals that no bucket has taken yet
        self._watched, self._reached = {}, set()  # parameters by id; those that a backward pass has reached
        # All averages run in one thread, in DDP's order, which is the same on all ranks.
        self._thread = _thread() if beside else None
        self.comm = beside or self.comm
        if self._thread and options.get("backend") == "openmp":
            raise ValueError(message("torch.CompressedHookState", "the thread beside the backward pass has no OpenMP",
                                     "leave backend out, or give overlap=False"))

    def _check_size(self):
        sizes = _group_sizes()
        if sizes and self.comm.size not in sizes:
            raise ValueError(message("torch.CompressedHookState", f"comm has {self.comm.size} rank(s), and the process "
                                     f"group of torch.distributed has {dist.get_world_size()}: gradients of some ranks "
                                     "would not be averaged", "leave comm out, or give the ranks of DDP's process "
                                     "group"))

    def reached(self, parameters):
        """\\returns whether the backward pass has reached each parameter, as DDP counts with find_unused_parameters

        DDP leaves the gradient of a parameter that no rank has reached as it is. Its bucket holds zeros for it.
        """
        reached = []
        for p in parameters:
            if id(p) in self._watched:
                reached.append(id(p) in self._reached)
                self._reached.discard(id(p))
            else:  # DDP has set the gradient before it calls the hook
                reached.append(p.grad is not None)
                self._watched[id(p)] = p
                # Other gradients than those that are accumulated do not count; PyTorch before 2.1 has no hook for it.
                register = getattr(p, "register_post_accumulate_grad_hook", p.register_hook)
                register(functools.partial(_reach, self._reached, id(p)))
        return reached

    def start(self, work):
        """Calls work() after what was started before, and in the averages' thread if there is one."""
        if self._thread:
            self._thread.submit(work)
        else:
            work()

    def average(self, bucket):
        """Collective: averages the bucket's gradient in place."""
        if not self._buckets:
            self._check_size()  # the process group may be younger than the state
        with bucket.ready():
            compressed = self._compressed(bucket) if self.step >= self.dense_steps else None
            # What all ranks must know before they choose.
            finite, *unused = self.comm.least([float(is_finite(bucket.gradient)),
                                               *(float(not used) for used in bucket.used)])
            if compressed and finite:
                parts = [part for part, left_out in zip(bucket.parts(), unused) if left_out]
                self._average_compressed(bucket.gradient, compressed, parts)
            else:
                average(self.comm, bucket.gradient, divide_first=not finite)
        if bucket.is_last:
            self._end_step()

    def _average_compressed(self, gradient, compressed, unused):
        """unused: ranges of parameters that no rank has used. DDP drops their average; it returns to the residuals."""
        kept = [gradient[part].clone() for part in unused]
        for part in unused:
            gradient[part] = 0
        compressed(gradient)
        if not unused:
            return
        residuals = compressed.state_dict()
        for part, before in zip(unused, kept):
            residuals["worker"][part] += gradient[part].cpu().numpy()  # on every rank, so that their mean grows by it
            gradient[part] = before
        compressed.load_state_dict(residuals)

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
    momentum and freezes the variance: see OneBitAdam. The exchange runs beside the rest of the backward pass.

    A bucket that is not finite on some rank, or 2⁶³ or more, is averaged densely. So NaN and infinity reach every rank,
    as without the hook, and stay out of the residuals.
    """
    if not isinstance(state, CompressedHookState):
        raise TypeError(message("torch.compressed_hook", f"the state is {state!r}, not a CompressedHookState",
                                "call register_comm_hook(CompressedHookState(), compressed_hook)"))
    kept = _Bucket(bucket)
    kept.used = state.reached(kept.parameters)
    future = torch.futures.Future(devices=kept.gpus)

    def work():
        try:
            state.average(kept)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(kept.gradient)

    state.start(work)
    return future.then(_result)
