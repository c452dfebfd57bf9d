"""Philox4x32-10 in numpy: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

It is written from the paper, not from src/base/random.hpp, which it checks.
"""
import numpy as np

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
KEY_INCREMENTS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, WORD = np.uint64(0xFFFFFFFF), np.uint64(32)

# (counter, key, words) of the authors' library Random123, file kat_vectors, for 10 rounds.
KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)


def philox4x32(counter, key):
    """Four arrays of 32-bit words, held in uint64, of four counter words (arrays that broadcast) and two key words."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> WORD) ^ c1 ^ k0, p1 & LOW, (p0 >> WORD) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + KEY_INCREMENTS[0]) & LOW, (k1 + KEY_INCREMENTS[1]) & LOW
    return c0, c1, c2, c3


def stream_key(seed, stream):
    """The two key words of a stream of random numbers in a run with this seed."""
    key = (seed * 0x9E3779B97F4A7C15 + stream) % 2**64
    return key & 0xFFFFFFFF, key >> 32
