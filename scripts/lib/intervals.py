"""The mean of a few values with its 95 % interval, by Student's t."""

import math
import statistics

CONFIDENCE = 0.95


def probability_within(t, freedom):
    """The probability of |T| < t for Student's t with `freedom` degrees: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term = math.cos(angle) if odd else 1
    total = term if freedom > 1 else 0
    for k in range(3 if odd else 2, freedom - 1, 2):  # cos³, cos⁵ … with 2/3, 2·4/(3·5) …, or cos², … with 1/2 …
        term *= square * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def t_quantile(freedom, confidence=CONFIDENCE):
    """The t that |T| stays below with this probability: 4.303 for two degrees of freedom."""
    low, high = 0.0, 1.0
    while probability_within(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if probability_within(middle, freedom) < confidence else (low, middle)
    return high


def half_width(values):
    """Half of the 95 % interval of the mean of independent values; infinite for fewer than two, or if one is."""
    values = list(values)
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.inf
    return t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
