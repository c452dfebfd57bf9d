"""The shared library: where it is found, and the functions of src/comm/library/onebit.h."""

import ctypes
import functools
import os
import pathlib

ABI_VERSION = 1  # ONEBIT_ABI_VERSION of the header that this module was written for
BAD_INPUT = 2  # ONEBIT_BAD_INPUT
NAME = "libonebit.so"


class Error(RuntimeError):
    """What the library reports: what is wrong, and the remedy."""


class Options(ctypes.Structure):
    """onebit_options"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("bits", ctypes.c_int),
        ("error_feedback", ctypes.c_int),
        ("group", ctypes.c_size_t),
        ("message_bytes", ctypes.c_size_t),
        ("backend", ctypes.c_char_p),
        ("group_begins", ctypes.POINTER(ctypes.c_size_t)),
        ("groups", ctypes.c_size_t),
        ("chunk_borders", ctypes.POINTER(ctypes.c_size_t)),
        ("borders", ctypes.c_size_t),
        ("scale", ctypes.c_char_p),
        ("grid", ctypes.c_size_t),
    ]


# onebit_server: context, chunk, first, length → 0, or another number for a failure
Server = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)

# onebit_transport's functions: context, send, received, bytes → 0, or another number for a failure
Exchange = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Transport(ctypes.Structure):
    """onebit_transport"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("ranks", ctypes.c_int),
        ("context", ctypes.c_void_p),
        ("all_to_all", Exchange),
        ("all_gather", Exchange),
    ]


def message(where, what, remedy):
    """The text of an error. where: the name below `onebit`"""
    return f"onebit.{where}: {what}\n  remedy: {remedy}"


def candidates():
    """Where the library may be, the first one first. A name without a directory is for the system's loader."""
    if os.environ.get("ONEBIT_LIBRARY"):
        return [os.environ["ONEBIT_LIBRARY"]]
    package = pathlib.Path(__file__).resolve().parent  # where pip puts it
    places = [package, package.parents[1] / "build/openmp"]  # the second in a checkout
    return [str(place / NAME) for place in places if (place / NAME).is_file()] + [f"{NAME}.{ABI_VERSION}"]


def load(path):
    """The library at `path` with the types of its functions."""
    library = ctypes.CDLL(path)
    handle, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    options, made = ctypes.POINTER(Options), ctypes.POINTER(handle)
    library.onebit_last_error.restype = text
    for name, arguments in {
        "onebit_check_launch": [],
        "onebit_allreduce_create_f": [ctypes.c_int, size, options, made],
        "onebit_allreduce_create_with": [ctypes.POINTER(Transport), size, options, made],
        "onebit_allreduce_run": [handle, handle, ctypes.c_float],
        "onebit_allreduce_run_served": [handle, handle, Server, handle],
        "onebit_allreduce_chunk": [handle, ctypes.POINTER(size), ctypes.POINTER(size)],
        "onebit_allreduce_bytes_sent": [handle, ctypes.POINTER(ctypes.c_uint64)],
        "onebit_allreduce_residual_lengths": [handle, ctypes.POINTER(size), ctypes.POINTER(size)],
        "onebit_allreduce_get_residuals": [handle, handle, handle],
        "onebit_allreduce_set_residuals": [handle, handle, handle],
        "onebit_allreduce_destroy": [handle],
    }.items():
        getattr(library, name).argtypes = arguments
    return library


@functools.cache
def library():
    """\\returns the library, loaded once"""
    errors = []
    for path in candidates():
        try:
            found = load(path)
        except (OSError, AttributeError) as error:
            errors.append(f"{path}: {error}")
            continue
        version = found.onebit_abi_version()
        if version != ABI_VERSION:
            raise Error(f"onebit: {path} has ABI version {version}, this package needs {ABI_VERSION}\n"
                        "  remedy: install library and package from the same sources")
        return found
    raise Error("onebit: the library cannot be loaded: " + "; ".join(errors) + "\n  remedy: build OneBit "
                f"(docs/guide/python.md), and set ONEBIT_LIBRARY to the path of its {NAME}")


def check(status):
    """Raises what the last call of this thread reported: ValueError for bad input, else Error."""
    if status != 0:
        message = library().onebit_last_error().decode(errors="replace")
        raise (ValueError if status == BAD_INPUT else Error)(message)
