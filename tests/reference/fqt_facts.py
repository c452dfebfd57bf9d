#!/usr/bin/env python3
"""Checks by Monte Carlo what theory says of 1-bit training, and prints tables. Ends with status 1 if a claim fails.

Usage: fqt_facts.py [--steps STEPS] [--deviation DEVIATION]

1. Stochastic rounding has the variance f (1 − f); all quantisations but `topk` have no bias, in ∇x and in ∇W neither.
2. The variance of a quantisation is that of fqt.variance. Beside it stands Eq. 4 of the paper, the sum
   D/(4 B²) Σ R_i² over the N/b groups that pruning keeps. It bounds the variance only if every p_i is 0 or 1.
3. Theorem 4.3 of the paper bounds the regret of SGD for a constant step. For α/√t, which it states, |θ| is a
   counterexample. On Σ |θ_i| with noise of deviation σ, the regret grows like σ² for SGD and like σ for Adam.

G has 64 rows and 32 columns, normal numbers times a log-normal factor for each row. --deviation is that of its
logarithm. Needs numpy alone.
"""
import argparse
import math
import sys

import numpy as np

import fqt

N, D, K = 64, 32, 16
failures = []


def claim(holds, text):
    if not holds:
        failures.append(text)
    return "yes" if holds else "NO"


def sign(t):
    return np.where(t > 0, 1.0, -1.0)


class Moments:
    """Sums of a random matrix and of its squares."""

    def __init__(self):
        self.count, self.sum, self.squares = 0, 0, 0

    def add(self, matrix):
        self.count, self.sum, self.squares = self.count + 1, self.sum + matrix, self.squares + matrix**2

    def bias(self, expected):
        """‖mean − expected‖ over its standard deviation √(Σ Var / count): about 1 without bias."""
        mean = self.sum / self.count
        variance = (self.squares / self.count - mean**2).sum() / (self.count - 1)
        return math.sqrt(((mean - expected) ** 2).sum() / variance)


def rounding(steps):
    print("1. Stochastic rounding: variance of ⌊u + U⌋ and f (1 − f)\n\n        u   measured  f (1 − f)")
    for u in (0.02, 0.25, 0.5, 1.7, 2.95):
        U = fqt.rounding_draws(fqt.Key(1, 0, 0, 0), 0, steps, 64)
        values = np.floor(u + U)
        f = u % 1
        print(f"{u:9.2f} {values.var():10.5f} {f * (1 - f):10.5f}")
        claim(abs(values.var() - f * (1 - f)) < 5 / math.sqrt(4 * values.size), f"variance of rounding {u}")


def quantisation(G, sign_x, sign_W, pruning, bits, steps):
    """The errors ‖Q(G) − G‖² of all steps, and the biases of Q(G), ∇x and ∇W."""
    moments, totals = (Moments(), Moments(), Moments()), []
    for step in range(steps):
        key = fqt.Key(2, step, 0, 1)
        rows = fqt.quantize(G, bits, pruning, key, fqt.INPUT).value
        columns = rows if pruning is None else fqt.quantize(G.T, bits, pruning, key, fqt.WEIGHT).value.T
        totals.append(((rows - G) ** 2).sum())
        for moment, matrix in zip(moments, (rows, rows @ sign_W, sign_x.T @ columns)):
            moment.add(matrix)
    expected = G, G @ sign_W, sign_x.T @ G
    return np.array(totals), [moment.bias(matrix) for moment, matrix in zip(moments, expected)]


def quantisations(steps, deviation):
    random = np.random.RandomState(1)
    G = random.standard_normal((N, D)) * np.exp(deviation * random.standard_normal((N, 1)))
    sign_x, sign_W = sign(random.standard_normal((N, K))), sign(random.standard_normal((D, K)))
    R = np.sort(np.ptp(G, axis=1))[::-1]
    print("\n2. Quantisation of G by rows: variance, and ‖bias‖ over its standard deviation, about 1 without bias\n\n"
          "kind             b   measured      exact      Eq. 4  bias of G  of ∇x  of ∇W")
    variants = [("psq", None, bits) for bits in (1, 2, 4, 8)]
    variants += [(f"fqt {pruning}", pruning, bits) for pruning in fqt.PRUNINGS for bits in (2, 4, 8)]
    exact = {}
    for name, pruning, bits in variants:
        totals, biases = quantisation(G, sign_x, sign_W, pruning, bits, steps)
        B, kept, what = 2**bits - 1, N if pruning is None else N // bits, f"{name}, {bits} bits"
        paper = D / (4 * B**2) * (R[:kept] ** 2).sum()
        if pruning == "topk":
            of_exact = f"{'':10}"
            claim(max(biases) > 5, f"{what}: no bias")
        else:
            exact[name, bits] = fqt.variance(G, bits, pruning).sum()
            of_exact = f"{exact[name, bits]:10.4g}"
            claim(max(biases) < 2, f"{what}: biased")
            claim(abs(totals.mean() - exact[name, bits]) < 5 * totals.std() / math.sqrt(steps),
                  f"{what}: another variance")
        if pruning is None:
            claim(exact[name, bits] <= paper, f"{what}: above the bound of PSQ")
        print(f"{name:16}{bits:2} {totals.mean():10.4g} {of_exact} {paper:10.4g} {biases[0]:10.2f} {biases[1]:6.2f} "
              f"{biases[2]:6.2f}")
    least = min((2, 4, 8), key=lambda bits: exact["fqt systematic", bits])
    print(f"\n   With pruning, {least} bits have the least variance: "
          f"{exact['psq', 1] / exact['fqt systematic', least]:.1f} times less than PSQ with 1 bit.")


def regret_of_absolute_value(start, alpha, T, falling):
    """Σ |θ_t| of SGD without noise on |θ|."""
    theta, regret = float(start), 0.0
    for t in range(1, T + 1):
        regret += abs(theta)
        theta -= (alpha / math.sqrt(t) if falling else alpha) * math.copysign(1, theta)
    return regret


def mean_regret(sigma, alpha, T, adam, dimension=64):
    """Mean over t and coordinates of |θ_i|, from θ = 0, of SGD or Adam with constant steps."""
    random = np.random.RandomState(3)
    theta, m, v = np.zeros(dimension), np.zeros(dimension), np.zeros(dimension)
    total = 0.0
    for t in range(1, T + 1):
        total += np.abs(theta).mean()
        g = np.sign(theta) + sigma * random.standard_normal(dimension)
        if adam:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            g = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        theta = theta - alpha * g
    return total / T


def regrets(T):
    start, alpha, steps = 30, 1, 225
    bound = start**2 / (2 * alpha) + alpha * steps / 2
    constant, falling = (regret_of_absolute_value(start, alpha, steps, falls) for falls in (False, True))
    print(f"\n3. Theorem 4.3 on |θ|, from θ = {start}, α = {alpha}, T = {steps}: bound {bound:.0f}\n"
          f"   step α: regret {constant:.0f}, within the bound: {claim(constant <= bound, 'Theorem 4.3')}\n"
          f"   step α/√t: regret {falling:.0f}, within the bound: {'yes' if falling <= bound else 'no'}")
    claim(falling > bound, "the counterexample")
    alpha, sigmas = 0.01, (2, 4, 8, 16)
    print(f"\n   Regret by step and coordinate on Σ |θ_i|, in units of α, α = {alpha}, T = {T}\n\n"
          "        σ        SGD  its bound (σ² + 1)/2       Adam")
    found = {False: [], True: []}
    for sigma in sigmas:
        for adam, values in found.items():
            values.append(mean_regret(sigma, alpha, T, adam) / alpha)
        bound = (sigma**2 + 1) / 2
        print(f"{sigma:9} {found[False][-1]:10.2f} {bound:21.1f} {found[True][-1]:10.2f}")
        # The regret reaches its bound, so the noise of the measurement gets 5 %.
        claim(found[False][-1] <= 1.05 * bound, f"the bound at σ = {sigma}")
    slopes = {adam: np.polyfit(np.log(sigmas), np.log(values), 1)[0] for adam, values in found.items()}
    print(f"\n   Regret ~ σ^{slopes[False]:.2f} for SGD, σ^{slopes[True]:.2f} for Adam")
    claim(abs(slopes[False] - 2) < 0.3 and abs(slopes[True] - 1) < 0.3, "the powers of σ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="draws of each quantisation (1000)")
    parser.add_argument("--deviation", type=float, default=1.5, help="of the logarithm of a row's factor (1.5)")
    arguments = parser.parse_args()
    rounding(arguments.steps)
    quantisations(arguments.steps, arguments.deviation)
    regrets(20000)
    for text in failures:
        print(f"claim fails: {text}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
