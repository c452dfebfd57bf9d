"""When 1-bit Adam freezes the variance, T_w: src/optim/variance_monitor.hpp in Python."""

import collections
import dataclasses
import math
import operator

import torch

from onebit._library import message


def whole_number(where, name, value, least):
    """\\returns the int that `value` is, of any type of integers. \\raises ValueError below `least`"""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(message(where, f"{name} is {value!r}", f"give a whole number from {least} on"))
    return number


@dataclasses.dataclass(frozen=True)
class AutoFreeze:
    """Freezes the variance v when it is stable: at the first step t ≥ warmup_steps at which the ratio r of ‖v_t‖₁ to
    ‖v_{t−Δ}‖₁, with Δ = 1/(1−β2), satisfies min(r, 1/r) ≥ threshold; and at the latest after the fraction `at_most` of
    the run. docs/reference/algorithms/freeze.md says why.

    total_steps: of the run
    warmup_steps: of the learning rate's schedule; v is not frozen before
    """

    total_steps: int
    warmup_steps: int = 0
    at_most: float = 0.2
    threshold: float = 0.96

    def __post_init__(self):
        for name, least in (("total_steps", 1), ("warmup_steps", 0)):
            object.__setattr__(self, name, whole_number("torch.AutoFreeze", name, getattr(self, name), least))
        for name in ("at_most", "threshold"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(message("torch.AutoFreeze", f"{name} is {getattr(self, name)!r}",
                                         "give a number above 0 and at most 1"))

    def latest(self):
        # A product such as 0.07 · 100 = 7.000000000000001 must not count a step more.
        fraction = math.ceil(self.at_most * self.total_steps - 1e-6)
        return max(1, self.warmup_steps, min(fraction, self.total_steps - 1))

    def is_stable(self, step, ratio):
        if step < self.warmup_steps or not ratio > 0:  # NaN, too
            return False
        return min(ratio, 1 / ratio) >= self.threshold


class VarianceMonitor:
    """Watches ‖v‖₁ from step to step."""

    def __init__(self, rule, beta2):
        self._rule = rule
        self.restore([], beta2)

    def restore(self, norms, beta2):
        """norms: ‖v‖₁ of the last Δ steps"""
        self.norms, self._delta = collections.deque(norms), round(1 / (1 - beta2))

    def watches(self, beta2):
        """Whether Δ is that of β2, where the rule needs one."""
        return isinstance(self._rule, int) or self._delta == round(1 / (1 - beta2))

    def is_due(self, step, variance):
        """Whether v is frozen at this step, by this rank's v."""
        if isinstance(self._rule, int):
            return step >= self._rule
        norm, ratio = variance.sum(dtype=torch.float64).item(), math.nan
        if len(self.norms) == self._delta:
            oldest = self.norms.popleft()
            ratio = norm / oldest if oldest else norm * math.inf
        self.norms.append(norm)
        return step >= self._rule.latest() or self._rule.is_stable(step, ratio)
