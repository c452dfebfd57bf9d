"""The hashes of bits.h by the Python package, with a restart before the last call; odd cases average PyTorch tensors,
even ones ranges of an array that begin anywhere. Under torchrun torch.distributed carries the messages."""

import itertools
import sys

import numpy as np
import torch

import onebit
from job import COMM, GIVEN, TORCHRUN

LENGTH, CALLS, CASES = 1000, 3, 32
NO_HASH = 0xCBF29CE484222325


def vector(rank, call):
    word = np.arange(LENGTH, dtype=np.uint32) * np.uint32(2654435761)
    word += np.uint32((rank * 40503 + call * 2246822519 + 1) % 2**32)
    word ^= word >> np.uint32(15)
    word *= np.uint32(2246822519)
    word ^= word >> np.uint32(13)
    return (word.view(np.int32) / 2147483648.0).astype(np.float32)


def hash_of(before, values):
    for byte in values.tobytes():
        before = (before ^ byte) * 0x100000001B3 % 2**64
    return before


def average(x, average_of, with_torch):
    """x ← its average, as a tensor or from an odd address on."""
    if with_torch:
        tensor = torch.from_numpy(x)
        assert average_of(tensor) is tensor
    else:
        shifted = np.empty(LENGTH + 1, np.float32)[1:]
        shifted[:] = x
        x[:] = average_of(shifted.reshape(10, -1)).reshape(-1)


def averaging(allreduce, number, factor):
    """\\returns what averages an array or a tensor in place"""
    def serve(chunk):
        place = torch.arange(LENGTH) if torch.is_tensor(chunk) else np.arange(LENGTH)
        chunk[:] = 2 * chunk + place[allreduce.chunk] % 7

    return (lambda x: allreduce.run_served(x, serve)) if number & 16 else (lambda x: allreduce(x, factor))


def run_case(number):
    options = {"bits": 4 if number & 1 else 1, "message_bytes": 256 if number & 12 == 4 and not TORCHRUN else 0,
               "grid": number & 12 == 12 and not TORCHRUN,
               "error_feedback": not number & 8, "scale": "l2" if number & 3 == 2 else "l1"}
    if number & 16:
        options.update(group_begins=range(0, LENGTH, 40 if number & 2 else 50), chunk_borders=[0, 100, 350, 400, 800])
    else:
        options.update(group=64 if number & 2 else 0)
    allreduce, sent, results = onebit.CompressedAllreduce(GIVEN, LENGTH, **options), 0, NO_HASH
    for call in range(CALLS):
        if call == CALLS - 1:
            state, sent = allreduce.state_dict(), allreduce.bytes_sent
            allreduce.close()
            allreduce = onebit.CompressedAllreduce(GIVEN, LENGTH, **options)
            allreduce.load_state_dict(state)
        x = vector(COMM.rank, call)
        average(x, averaging(allreduce, number, 0.5 if call == CALLS - 1 else 1.0), number % 2 == 1)
        results = hash_of(results, x)
    state = allreduce.state_dict()
    residuals = hash_of(hash_of(NO_HASH, state["worker"]), state["server"])
    sent += allreduce.bytes_sent
    return f"case {number} rank {COMM.rank} results {results:016x} residuals {residuals:016x} bytes {sent}"


if __name__ == "__main__":
    lines = COMM.allgather([run_case(number) for number in range(CASES)])
    if COMM.rank == 0:
        print("\n".join(itertools.chain(*lines)))
    assert not TORCHRUN or "mpi4py" not in sys.modules
