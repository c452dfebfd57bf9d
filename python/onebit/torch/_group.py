"""The ranks of a process group of torch.distributed, which carries the library's messages where no MPI job is."""

import atexit
import ctypes
import weakref

import torch
import torch.distributed as dist

from onebit._library import Exchange, Transport, check, library, message


class _OnGpu:
    """Bytes of a GPU's memory, for torch.as_tensor."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2}


def _bytes(address, count, on_gpu):
    """A tensor of `count` bytes at an address, which it does not own."""
    if on_gpu:
        return torch.as_tensor(_OnGpu(address, count), device="cuda")
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


class _Kept:
    """Tensors of an object's exchanges, by a key: the same ones in every exchange.

    A thread of gloo lets go of a tensor a little after the exchange. If it were the last to do so, it would need the
    interpreter, which may have ended meanwhile; that ends the process. So the tensors are kept, also beyond the
    interpreter's end.
    """

    _all = weakref.WeakSet()

    def __init__(self):
        self._tensors = {}
        _Kept._all.add(self)

    def __call__(self, key, make):
        """\\returns what make() returned for this key"""
        if key not in self._tensors:
            self._tensors[key] = make()
        return self._tensors[key]

    def replace(self, key, tensor):
        self._tensors[key] = tensor
        return tensor

    @staticmethod
    @atexit.register
    def outlive():
        for kept in _Kept._all:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept._tensors))


class _Group:
    """A process group as an object's exchanges need it, and not kept: gloo's threads end only when nobody keeps it."""

    def __init__(self, group):
        self._group = weakref.ref(group)

    def __call__(self):
        """\\returns the group"""
        group = self._group()
        if group is None:
            raise ValueError(message("ranks", "the process group has been destroyed",
                                     "call torch.distributed.destroy_process_group last"))
        return group


class Carrier:
    """onebit_transport of a group: its functions exchange by torch.distributed. `group` is None for a rank alone, which
    has nobody to exchange with."""

    def __init__(self, group, rank, ranks, on_gpu):
        self._group, self._ranks, self._on_gpu, self._error = group, ranks, on_gpu, None
        self._kept = _Kept()
        # Kept, because the library calls them later.
        self._functions = [Exchange(self._caught(exchange)) for exchange in (self._all_to_all, self._all_gather)]
        self.transport = Transport(ctypes.sizeof(Transport), rank, ranks, None, *self._functions)

    def _caught(self, exchange):
        def call(_, send, received, count):
            try:
                exchange(send, received, count)
                if self._on_gpu:
                    torch.cuda.current_stream().synchronize()
                return 0
            except BaseException as error:  # it must not leave a function that C calls
                self._error = error
                return 1
        return call

    def _all_to_all(self, send, received, count):
        count *= self._ranks
        dist.all_to_all_single(self._memory(received, count), self._memory(send, count), group=self._group())

    def _all_gather(self, send, received, count):
        everything = self._memory(received, count * self._ranks)
        of_ranks = self._kept((received, count, "of ranks"), lambda: everything.split(count))
        dist.all_gather(list(of_ranks), self._memory(send, count), group=self._group())

    def _memory(self, address, count):
        return self._kept((address, count), lambda: _bytes(address, count, self._on_gpu))

    def check(self, status):
        """Raises what a call of the library reported; an error of an exchange as its cause."""
        error, self._error = self._error, None
        try:
            check(status)
        except Exception as reported:
            raise reported from error


class GroupRanks:
    """Those of a process group."""

    def __init__(self, group):
        """group: None for the default one"""
        self._is_default = group is None
        group = dist.group.WORLD if self._is_default else group
        self._group, self._kept = _Group(group), _Kept()
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(message("ranks", "this process is not in the group", "call it on the group's ranks alone"))
        self._device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")

    def make(self, length, options):
        on_gpu = options.backend in (b"cuda", b"hip")
        return _made(Carrier(self._group, self.rank, self.size, on_gpu), length, options)

    def _carried(self, x, exchange):
        """Exchanges x, or a copy in memory that the group takes."""
        there = self._kept.replace("carried", x.to(self._device).contiguous())
        exchange(there)
        if there.data_ptr() != x.data_ptr():
            x.copy_(there)

    def sum(self, x):
        self._carried(x, lambda there: dist.all_reduce(there, group=self._group()))

    def _source(self, rank):
        """Its number among all processes."""
        return rank if self._is_default else dist.distributed_c10d.get_global_rank(self._group(), rank)

    def broadcast(self, x):
        self._carried(x, lambda there: dist.broadcast(there, self._source(0), group=self._group()))

    def least(self, numbers):
        least = self._kept(len(numbers), lambda: torch.empty(len(numbers), dtype=torch.float64, device=self._device))
        least.copy_(torch.tensor(numbers, dtype=torch.float64))
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self._group())
        return least.tolist()

    def tell(self, value, rank=0):
        box = [value]
        dist.broadcast_object_list(box, self._source(rank), group=self._group())
        return box[0]

    def in_a_thread(self):
        # The collectives of a group run in the order in which they are called, the same on all ranks, which two threads
        # do not keep. So the thread has a group of its own. All processes must make it, so one for the default group.
        if not self._is_default or self._device.type != "cpu":
            return None
        return GroupRanks(dist.new_group())

    def alone(self):
        return Alone()


class Alone:
    """This rank as one of one, without MPI."""

    rank, size = 0, 1

    def make(self, length, options):
        return _made(Carrier(None, 0, 1, False), length, options)


def _made(carrier, length, options):
    handle = ctypes.c_void_p()
    carrier.check(library().onebit_allreduce_create_with(ctypes.byref(carrier.transport), length,
                                                         ctypes.byref(options), ctypes.byref(handle)))
    return handle, carrier
