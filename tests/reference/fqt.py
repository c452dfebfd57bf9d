"""Quantisers of gradients in float64 (numpy): an independent implementation of src/nn/quantizer/gradient_quantizer.hpp.

A matrix is quantised in groups, its rows. For a quantisation by columns, the caller transposes.
The random draws are a contract with src; `rounding_draws` and `pruning_draws` state it.
"""
import math
from typing import NamedTuple

import numpy as np

import philox

ROUNDING, PRUNING = 8, 9  # streams of random numbers
PRUNINGS = "bernoulli", "systematic", "topk"
INPUT, WEIGHT = 0, 1  # the products of a layer's backward pass, by the gradient that they give


class Key(NamedTuple):
    """What the draws of a layer depend on in a step."""
    seed: int
    step: int
    first_sample: int
    layer: int


class Quantized(NamedTuple):
    """A quantised matrix (groups, elements) and how it came about."""
    Z: np.ndarray  # (groups) least element
    R: np.ndarray  # (groups) greatest element minus least
    p: np.ndarray  # (groups) probability to be kept
    kept: np.ndarray  # (groups) bool
    q: np.ndarray  # (groups, elements) integers in 0 … 2^b − 1; 0 where the group is not kept
    value: np.ndarray  # (groups, elements) the estimate of the matrix
    rounding_margin: float  # least change of an element, in units of R, that changes a q
    pruning_margin: float  # least change of a probability, or relative change of max|g|, that changes what is kept


def _counter(key, product, group, call):
    """Counter words of draws; `group` and `call` are arrays that broadcast."""
    low = np.uint64((2 * key.layer + product) << 16) | np.asarray(call, dtype=np.uint64)
    return low, np.asarray(group, dtype=np.uint64), np.uint64(key.first_sample % 2**32), np.uint64(key.step)


def rounding_draws(key, product, groups, elements):
    """U (groups, elements) of the stochastic rounding: (n + ½)/2^16, eight 16-bit n from four words."""
    calls = np.arange((elements + 7) // 8)
    counter = _counter(key, product, np.arange(groups)[:, None], calls[None, :])
    words = np.stack(philox.philox4x32(counter, philox.stream_key(key.seed, ROUNDING)), axis=-1)
    halves = np.concatenate((words & np.uint64(0xFFFF), words >> np.uint64(16)), axis=-1)
    return (halves.reshape(groups, 8 * len(calls))[:, :elements] + 0.5) / 2.0**16


def pruning_draws(key, product, groups):
    """U (groups) of the pruning: (n + ½)/2^32."""
    words = philox.philox4x32(_counter(key, product, np.arange(groups), 0), philox.stream_key(key.seed, PRUNING))
    return (words[0] + 0.5) / 2.0**32


def probabilities(R, Z, bits):
    """p (groups) with p_i = min(1, c R_i) and Σ p_i = groups / bits.

    A constant group (R_i = 0) stays, with p_i = 1, and is not counted in the sum; if it is zero, it goes: p_i = 0.
    """
    p = np.where((R == 0) & (Z != 0), 1.0, 0.0)
    budget = len(R) / bits
    order = [i for i in np.argsort(-R, kind="stable") if R[i] > 0]
    for full, group in enumerate(order):  # the `full` greatest have p = 1; the others share the rest of the budget
        c = (budget - full) / math.fsum(R[order[full:]])
        if budget <= full or c * R[group] < 1:
            p[order[full:]] = max(c, 0) * R[order[full:]]
            break
        p[group] = 1
    return p


def keep(p, largest, bits, pruning, key, product):
    """Which groups stay, of their probabilities and their max|g|, and the margin of that decision."""
    groups = len(p)
    if pruning == "bernoulli":
        U = pruning_draws(key, product, groups)
        inside = (p > 0) & (p < 1)
        return p > U, min(np.abs(U - p)[inside], default=1.0)
    if pruning == "systematic":
        sums = np.array([math.fsum(p[: i + 1]) for i in range(groups)]) + pruning_draws(key, product, 1)[0]
        steps = np.floor(sums)
        fractions = sums - steps
        # A sum that no fractional p has entered is exact.
        open_sums = np.cumsum((p > 0) & (p < 1)) > 0
        return (np.diff(steps, prepend=0) > 0), min(np.minimum(fractions, 1 - fractions)[open_sums], default=1.0)
    if pruning == "topk":
        count = max(1, groups // bits)
        order = np.argsort(-largest, kind="stable")
        kept = np.zeros(groups, dtype=bool)
        kept[order[:count]] = True
        if count == groups:
            return kept, 1.0
        return kept, (largest[order[count - 1]] - largest[order[count]]) / largest[order[count - 1]]
    raise ValueError(f"{pruning}: a pruning is one of {', '.join(PRUNINGS)}")


def quantize(matrix, bits, pruning, key, product):
    """Quantises the rows of a float64 matrix to `bits` bits; prunes them first unless `pruning` is None."""
    groups, elements = matrix.shape
    B = 2**bits - 1
    Z = matrix.min(axis=1)
    R = matrix.max(axis=1) - Z
    p, kept, pruning_margin = np.ones(groups), np.ones(groups, dtype=bool), 1.0
    if pruning is not None and bits > 1:
        p = probabilities(R, Z, bits)
        kept, pruning_margin = keep(p, np.abs(matrix).max(axis=1), bits, pruning, key, product)
        if pruning == "topk":
            p = kept.astype(float)
    shares = np.where(R > 0, R, 1)[:, None]
    u = B * (matrix - Z[:, None]) / shares
    shifted = u + rounding_draws(key, product, groups, elements)
    q = np.where(kept[:, None], np.minimum(B, np.floor(shifted)), 0)
    value = np.where(kept, 1 / np.where(kept, p, 1), 0)[:, None] * (q * (R / B)[:, None] + Z[:, None])
    # A decision falls at 1 … B. The least element has u = 0 in every arithmetic.
    nearest = np.clip(np.round(shifted), 1, B)
    decides = kept[:, None] & (u > 0)
    margin = (np.abs(shifted - nearest) / B)[decides].min(initial=1.0)
    return Quantized(Z, R, p, kept, q.astype(np.int64), value, float(margin), float(pruning_margin))


def variance(matrix, bits, pruning):
    """The exact variances of the elements of an estimate without bias:
    (1/p_i − 1) g_ij² + R_i²/(B² p_i) f_ij (1 − f_ij) with f the fractional part of u = B (g − Z)/R."""
    B = 2**bits - 1
    Z = matrix.min(axis=1)
    R = matrix.max(axis=1) - Z
    p = np.ones(len(R)) if pruning is None or bits == 1 else probabilities(R, Z, bits)
    p = np.where(p > 0, p, 1)  # a group of zeros
    f = B * (matrix - Z[:, None]) / np.where(R > 0, R, 1)[:, None] % 1
    p, R = p[:, None], R[:, None]
    return (1 / p - 1) * matrix**2 + (R / B) ** 2 / p * f * (1 - f)
