#!/usr/bin/env python3
"""The reference of 1-bit training, tests/reference: its random numbers, quantisers and stored cases; numpy alone.

Usage: fqt_reference_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import math
import pathlib
import sys
import unittest

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/reference"), str(ROOT / "scripts")]
from lib import require

require({"numpy": "NumPy"})
import numpy as np

import fqt
import fqt_cases
import philox
import skips


def rows(groups, elements, seed=1):
    """A gradient whose rows differ in size."""
    random = np.random.RandomState(seed)
    return random.standard_normal((groups, elements)) * np.exp(random.standard_normal((groups, 1)))


def key(step, seed=7):
    return fqt.Key(seed, step, 0, 3)


class Draws(unittest.TestCase):
    def test_known_answers(self):
        for counter, words, expected in philox.KNOWN_ANSWERS:
            self.assertEqual(tuple(map(int, philox.philox4x32(counter, words))), expected)

    def test_contract(self):
        """One draw of each kind in plain integers, from the contract's text."""
        seed, step, first_sample, layer, product, group = 2**63 + 5, 2**31 + 3, 9, 1001, 1, 77
        high = step << 32 | first_sample

        def words(stream, call):
            low = group << 32 | (2 * layer + product) << 16 | call
            stream_key = (seed * 0x9E3779B97F4A7C15 + stream) % 2**64
            counter = [counter >> shift & 0xFFFFFFFF for counter in (low, high) for shift in (0, 32)]
            return [int(word) for word in philox.philox4x32(counter, (stream_key & 0xFFFFFFFF, stream_key >> 32))]

        of_layer = fqt.Key(seed, step, first_sample, layer)
        found = fqt.rounding_draws(of_layer, product, group + 1, 40)[group]
        for element in range(40):
            word = words(8, element // 8)[element % 4]
            n = word & 0xFFFF if element % 8 < 4 else word >> 16
            self.assertEqual(found[element], (n + 0.5) / 65536)
        self.assertEqual(fqt.pruning_draws(of_layer, product, group + 1)[group], (words(9, 0)[0] + 0.5) / 2**32)


class Quantizers(unittest.TestCase):
    def test_probabilities(self):
        for bits in (2, 4, 8):
            R = np.ptp(rows(64, 32), axis=1)
            p = fqt.probabilities(R, R, bits)
            self.assertAlmostEqual(p.sum(), 64 / bits, places=12)
            self.assertLessEqual(p.max(), 1)
            ratio = (p / R)[p < 1]
            np.testing.assert_allclose(ratio, ratio[0], rtol=1e-14)
            self.assertTrue((R[p == 1] * ratio[0] >= 1 - 1e-14).all())

    def test_constant_groups_cost_nothing(self):
        R, Z = np.array([1.0, 0, 2, 0, 3, 4]), np.array([0.0, 5, 0, 0, 0, 0])
        np.testing.assert_allclose(fqt.probabilities(R, Z, 2), [1 / 3, 1, 2 / 3, 0, 1, 1], rtol=1e-15)
        np.testing.assert_array_equal(fqt.probabilities(R[:2], Z[:2], 2), [1, 1])

    def test_what_is_kept(self):
        matrix, bits, steps = rows(30, 8), 4, 1000
        p = fqt.probabilities(np.ptp(matrix, axis=1), matrix.min(axis=1), bits)
        largest = np.abs(matrix).max(axis=1)
        for pruning in ("bernoulli", "systematic"):
            kept = np.array([fqt.keep(p, largest, bits, pruning, key(step), 0)[0] for step in range(steps)])
            deviation = np.sqrt(p * (1 - p) / steps)
            self.assertLess((np.abs(kept.mean(axis=0) - p) - 5 * deviation).max(), 1e-12, pruning)
            if pruning == "systematic":
                self.assertEqual(set(kept.sum(axis=1)), {7, 8})
        kept, _ = fqt.keep(p, largest, bits, "topk", key(0), 0)
        self.assertEqual(kept.sum(), 7)
        self.assertGreater(largest[kept].min(), largest[~kept].max())

    def test_bit_planes(self):
        """scale · Σ 2^p s_p + offset of the kernels is the estimate."""
        for bits, pruning in ((1, None), (2, "systematic"), (4, "bernoulli"), (8, "systematic")):
            found = fqt.quantize(rows(24, 20), bits, pruning, key(5), 1)
            B, p = 2**bits - 1, np.where(found.kept, found.p, 1)
            planes = [found.q >> plane & 1 for plane in range(bits)]
            signs = sum(2**plane * (2 * s - 1) for plane, s in enumerate(planes))
            scale, offset = found.R / (2 * B * p), (found.Z + found.R / 2) / p
            estimate = found.kept[:, None] * (scale[:, None] * signs + offset[:, None])
            np.testing.assert_allclose(estimate, found.value, atol=1e-13 * np.abs(found.value).max())

    def test_unbiased_with_the_exact_variance(self):
        matrix, steps = rows(12, 6), 1000
        for bits, pruning in ((1, None), (2, "systematic"), (4, "bernoulli"), (8, "systematic"), (2, "topk")):
            found = np.array([fqt.quantize(matrix, bits, pruning, key(step), 0).value for step in range(steps)])
            error = np.abs(found.mean(axis=0) - matrix)
            if pruning == "topk":  # drops the same groups whatever the draws
                self.assertEqual((found != 0).any(axis=(0, 2)).sum(), 6)
                continue
            variance = fqt.variance(matrix, bits, pruning)
            # U is a multiple of 2^-16, plus 2^-17.
            self.assertLess((error - 5 * np.sqrt(variance / steps)).max(), 2**-16 * np.ptp(matrix), (bits, pruning))
            squares = ((found - matrix) ** 2).sum(axis=(1, 2))
            self.assertLess(abs(squares.mean() - variance.sum()), 5 * squares.std() / math.sqrt(steps),
                            (bits, pruning))


class Fixture(unittest.TestCase):
    def test_stored_cases_are_those_of_the_reference(self):
        """HDF5 stores the bytes of an array as they are, so this needs no reader of it."""
        file = (ROOT / "tests/reference/fixtures/fqt_layer.h5").read_bytes()
        inputs = {shape: fqt_cases.clear_inputs(shape) for shape in fqt_cases.SHAPES}
        for shape, arrays in inputs.items():
            for name, values in arrays.items():
                self.assertIn(values.tobytes(), file, (shape, name))
        for name in fqt_cases.WITH_QUANTIZER:
            case = fqt_cases.CASES[name]
            for product, found in fqt_cases.quantized(inputs[case[0]], case).items():
                for field, values in fqt_cases.stored(found).items():
                    self.assertTrue(values.tobytes() in file,
                                    f"{name}, product {product}: {field} is not in the fixture; remedy: make it again "
                                    "by tests/reference/make_fqt_fixtures.py")


if __name__ == "__main__":
    skips.main(sys.argv[2:])
