"""The compressed allreduce for arrays and tensors in place."""

import ctypes
import functools
import sys
import weakref

import numpy as np

from onebit._library import Options, Server, check, library, message
from onebit._ranks import ranks_of

INT_MAX, SIZE_MAX = 2**31 - 1, 2 ** (8 * ctypes.sizeof(ctypes.c_size_t)) - 1  # of the library's arguments
DEVICE_BACKENDS = {"cuda": "cuda", "hip": "cuda"}  # the type of PyTorch's device for a backend on GPUs


def _destroy(handle, carrier):
    """Ends an object of the library; at exit Python calls this before mpi4py ends MPI. The carrier lives until then."""
    library().onebit_allreduce_destroy(handle)


_bad = functools.partial(message, "CompressedAllreduce")


def _whole_number(name, value, most):
    """ctypes would cut a longer number without a word."""
    if not isinstance(value, (int, np.integer)) or not 0 <= value <= most:
        raise ValueError(_bad(f"{name} is {value!r}", f"give a whole number from 0 to {most}"))
    return int(value)


def _places(name, values):
    """\\returns first elements of parts of a vector as the library takes them, and their number; None for none"""
    places = np.asarray([] if values is None else values)
    if places.size == 0:
        return None, 0
    if places.ndim != 1 or places.dtype.kind not in "iu" or places.min() < 0:
        raise ValueError(_bad(f"{name} is {values!r}", "give whole numbers, ascending from 0"))
    # An array of ctypes, unlike a pointer into one of NumPy, lives as long as a structure that holds its address.
    return (ctypes.c_size_t * places.size).from_buffer(places.astype(np.uintp)), places.size


def _finish(x):
    """Waits until PyTorch has written a tensor on a GPU, because the library has another stream."""
    if not isinstance(x, np.ndarray) and x.device.type == "cuda":
        sys.modules["torch"].cuda.current_stream(x.device).synchronize()


class CompressedAllreduce:
    """x ← (1/n) Σ_i x_i in place, compressed with error feedback: the error of one call is added to the next one's
    vector. docs/reference/library.md has the options, docs/reference/algorithms/averages.md the result.

    An object belongs to one vector. Call it from the thread that made the process's first object, or with the backend
    "serial" from any one thread at a time.
    """

    def __init__(self, comm, length, bits=1, group=0, error_feedback=True, message_bytes=0, backend="",
                 group_begins=None, chunk_borders=None, scale="l1", grid=False):
        """Collective, with the same arguments on every rank.

        comm: a communicator of mpi4py, of which the object makes a duplicate; or a process group of torch.distributed;
            or None for MPI's world, or under torchrun for the default group of torch.distributed
        length: elements of the vector
        bits: sent for an element: 1 for signs, 2 to 16 for a grid
        group: elements that share a scale, a multiple of 32; 0 for the whole vector
        error_feedback: False leaves errors of compression uncorrected
        message_bytes: most bytes of a message between a pair of MPI's ranks; 0 for collectives
        backend: "openmp", "serial", or "cuda" or "hip" for tensors on a GPU; "" for the host's
        group_begins: the first element of each group that shares a scale, ascending from 0; in the place of `group`
        chunk_borders: where a rank's chunk may begin, ascending from 0; None for chunks of one length
        scale: of signs: "l1" for the mean magnitude of a group, "l2" for its root mean square, which is greater
        grid: True for exchanges along the rows and columns of a grid of MPI's ranks, which for hundreds of them sends
            far fewer messages
        """
        length, bits, group, message_bytes = (
            _whole_number(name, value, most) for name, value, most in
            (("length", length, SIZE_MAX), ("bits", bits, INT_MAX), ("group", group, SIZE_MAX),
             ("message_bytes", message_bytes, SIZE_MAX)))
        for name, value in (("error_feedback", error_feedback), ("grid", grid)):
            if value not in (True, False):
                raise ValueError(_bad(f"{name} is {value!r}", "give True or False"))
        if not isinstance(backend, str):
            raise ValueError(_bad(f"backend is {backend!r}", "give its name, or '' for the host's"))
        if not isinstance(scale, str):
            raise ValueError(_bad(f"scale is {scale!r}", "give 'l1' or 'l2'"))
        ranks = ranks_of(comm)
        self.length, self._device = length, DEVICE_BACKENDS.get(backend, "cpu")
        options = Options(ctypes.sizeof(Options), bits, bool(error_feedback), group, message_bytes, backend.encode(),
                          *_places("group_begins", group_begins), *_places("chunk_borders", chunk_borders),
                          scale.encode(), bool(grid))
        self._handle, carrier = ranks.make(length, options)
        self._check = carrier.check if carrier else check
        # At exit Python calls what was not called before, the newest first: the same order on every rank.
        self._finalizer = weakref.finalize(self, _destroy, self._handle, carrier)

    def __call__(self, x, residual_factor=1.0):
        """Collective. Averages x in place and returns it.

        x: a NumPy array or a PyTorch tensor of `length` float32 numbers without gaps, of any shape
        residual_factor: multiplies the error of the last call; γ_{t−1}/γ_t where averages are weighted by γ_t
        """
        self._check(library().onebit_allreduce_run(self._open(), self._address(x), residual_factor))
        return x

    def run_served(self, x, server):
        """Collective. Averages x in place, and makes of the average what the ranks' servers make of their chunks.

        x: as above
        server: called with this rank's chunk, the part `chunk` of x without its shape, which it overwrites; not called
            for an empty one. What it raises leaves the call, and all other ranks raise that the average is not finite
        """
        address, flat, errors = self._address(x), x.reshape(-1), []

        def serve(_, chunk, first, length):
            try:
                server(flat[first:first + length])
                _finish(x)
                return 0
            except BaseException as error:  # it must not leave a function that C calls
                errors.append(error)
                return 1

        status = library().onebit_allreduce_run_served(self._open(), address, Server(serve), None)
        if errors:
            raise errors[0]
        self._check(status)
        return x

    @property
    def chunk(self):
        """The slice of the vector that this rank averages; it may be empty."""
        first, length = self._lengths("onebit_allreduce_chunk")
        return slice(first, first + length)

    @property
    def bytes_sent(self):
        """Bytes that this rank has sent to others."""
        sent = ctypes.c_uint64()
        check(library().onebit_allreduce_bytes_sent(self._open(), ctypes.byref(sent)))
        return sent.value

    def state_dict(self):
        """This rank's residuals, all of the object's state, as NumPy arrays: `worker` (length) and `server`."""
        worker, server = (np.empty(length, np.float32) for length in self._residual_lengths())
        check(library().onebit_allreduce_get_residuals(self._open(), worker.ctypes.data, server.ctypes.data))
        return {"worker": worker, "server": server}

    def load_state_dict(self, state):
        """Goes on where the object stood whose `state_dict` this is: one of the same rank, with the same options."""
        names, lengths = ("worker", "server"), self._residual_lengths()
        worker, server = (np.ascontiguousarray(state[name], np.float32).reshape(-1) for name in names)
        for name, given, length in zip(names, (worker, server), lengths):
            if given.size != length:
                raise ValueError(_bad(f"the residual '{name}' has {given.size} elements, and {length} are needed",
                                      "load it on as many ranks as saved it, for a vector of the same length"))
        check(library().onebit_allreduce_set_residuals(self._open(), worker.ctypes.data, server.ctypes.data))

    def close(self):
        """Collective: frees the memory and the communicator. Otherwise the garbage collector or the exit does it."""
        self._finalizer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        if not self._finalizer.alive:
            raise ValueError(_bad("the object is closed", "make another one"))
        return self._handle

    def _lengths(self, function):
        """\\returns the two numbers that a function of the library gives"""
        lengths = ctypes.c_size_t(), ctypes.c_size_t()
        check(getattr(library(), function)(self._open(), *map(ctypes.byref, lengths)))
        return [length.value for length in lengths]

    def _residual_lengths(self):
        return self._lengths("onebit_allreduce_residual_lengths")

    def _address(self, x):
        """The address of x, which the library reads and writes. No array is converted, because that would copy it."""
        torch = sys.modules.get("torch")  # whoever has a tensor has imported it
        if torch is not None and isinstance(x, torch.Tensor):
            self._check_place(x)
            count, dtype, contiguous, writable = x.numel(), str(x.dtype), x.is_contiguous(), True
        elif isinstance(x, np.ndarray):
            if self._device != "cpu":
                raise ValueError(_bad("an array of NumPy is in host memory, and this object's backend is for GPUs",
                                      "pass a tensor on the GPU, or make the object with backend=''"))
            count, dtype, contiguous, writable = x.size, str(x.dtype), x.flags.c_contiguous, x.flags.writeable
            if not x.dtype.isnative:
                dtype = f"{dtype} of another byte order"
        else:
            raise TypeError(_bad(f"{type(x).__name__} is not averaged", "pass a NumPy array or a PyTorch tensor"))
        if dtype not in ("float32", "torch.float32"):
            raise TypeError(_bad(f"the vector has the type {dtype}, not float32",
                                 "convert it, for example by x.astype(numpy.float32) or x.float()"))
        if not contiguous:
            raise ValueError(_bad("the vector has gaps or another order in memory",
                                  "pass a contiguous one: numpy.ascontiguousarray(x) or x.contiguous() copies it"))
        if not writable:
            raise ValueError(_bad("the array is read-only", "pass an array that may be changed in place"))
        if count != self.length:
            raise ValueError(_bad(f"the vector has {count} elements, and this object averages {self.length}",
                                  "use one object for each vector"))
        return x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr()

    def _check_place(self, tensor):
        if tensor.device.type != self._device:
            wanted = "backend='cuda' or 'hip'" if tensor.device.type == "cuda" else "backend=''"
            raise ValueError(_bad(f"the tensor is on {tensor.device}, and this object averages on {self._device}",
                                  f"move the tensor, or make the object with {wanted} where the library has it"))
        if str(tensor.layout) != "torch.strided":
            raise ValueError(_bad(f"the tensor has the layout {tensor.layout}", "pass a dense tensor"))
        _finish(tensor)
