"""What the optimizers share: one vector of all gradients, and what the ranks agree on in each step."""

import builtins
import dataclasses
import itertools
import math

import torch

from onebit._library import message
from onebit._ranks import ranks_of
from onebit.torch._average import check_rank, compressed_average, is_finite, load_residuals, rank_of, residuals_of


def _not_compiled(function):
    """Leaves a function out of torch.compile, which would take numbers that change from step to step for constants."""
    if not hasattr(torch, "compile"):
        return function
    from torch import _dynamo
    return _dynamo.disable(function)


def quotient(m, v, eps, correction, factor, out):
    """out ← factor · m / (√(v / correction) + eps), Adam's quotient"""
    torch.div(v, correction, out=out).sqrt_().add_(eps)
    torch.div(m, out, out=out).mul_(factor)


def _parts(shapes):
    """The parts of `_shapes` that are not empty, which a state may hold as lists."""
    return [[tuple(shape) for shape in part] for part in shapes if part]


@dataclasses.dataclass
class Segment:
    """The trained parameters of a group that are of one kind. They lie side by side in the vectors."""

    kind: int
    group: int  # its number
    numbers: list  # of the parameters within the group
    params: list
    range: slice  # of a vector

    def places(self, vector):
        """\\returns (parameter, its place in a vector, of its shape) for each"""
        places = vector[self.range].split([p.numel() for p in self.params])
        return [(p, place.view(p.shape)) for p, place in zip(self.params, places)]


class DataParallelOptimizer(torch.optim.Optimizer):
    """Moves the parameters of all ranks alike. A derived class has

    - `_move()`: the step, with this rank's gradients in `_gradient`, when the ranks have agreed on it;
    - `_vectors()`: the tensors of its state by name, first one that has the same length on all ranks;
    - `_numbers()` and `_restore(state_dict)`: the rest of its state;
    - `_check()`: raises what else it finds wrong before a step;
    - `HYPERPARAMETERS`: the names of what `_hyperparameters(group)` returns.
    """

    HYPERPARAMETERS = ("lr", "β1", "β2", "eps", "weight_decay")

    def __init__(self, params, defaults, on_nonfinite, comm, kind=lambda p: 0):
        """Collective. kind: a function of a parameter; vectors hold the parameters by its numbers, then by group"""
        if on_nonfinite not in ("abort", "skip"):
            raise ValueError(self._bad(f"on_nonfinite is {on_nonfinite!r}", "give 'abort' or 'skip'"))
        self._complete = False
        super().__init__(params, defaults)
        self._complete = True  # no group can be added
        self.comm, self._on_nonfinite, self._steps = ranks_of(comm), on_nonfinite, 0
        first = self.param_groups[0]["params"][0]
        self._given = []  # of each group: every parameter, with its shape and whether it is trained
        for group in self.param_groups:
            for p in group["params"]:
                if p.dtype != torch.float32 or p.device != first.device:
                    raise TypeError(self._bad(f"a parameter is {p.dtype} on {p.device}",
                                              "give float32 tensors on one device"))
            self._given.append([(p, p.shape, p.requires_grad) for p in group["params"]])
        self._segments = self._cut(kind)
        if not self._segments:
            raise ValueError(self._bad("no parameter requires a gradient", "give those that are to be trained"))
        self._gradient = self._zeros(self._segments[-1].range.stop)

    def _cut(self, kind):
        """\\returns the segments that have elements, in the order of their elements"""
        trained = [(kind(p), index, number, p) for index, group in enumerate(self.param_groups)
                   for number, p in enumerate(group["params"]) if p.requires_grad and p.numel()]
        segments, end = [], 0
        for (of_kind, index), members in itertools.groupby(sorted(trained, key=lambda of: of[:3]), lambda of: of[:2]):
            _, _, numbers, params = zip(*members)
            begin, end = end, end + sum(p.numel() for p in params)
            segments.append(Segment(of_kind, index, list(numbers), list(params), slice(begin, end)))
        return segments

    def _zeros(self, length):
        return torch.zeros(length, dtype=torch.float32, device=self.param_groups[0]["params"][0].device)

    def _begin(self, x, options):
        """Collective, at the end of the constructor: makes the compressed average of vectors like x, and gives all
        ranks the parameters of rank 0."""
        self._allreduce = compressed_average(self.comm, x, options)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    self.comm.broadcast(p)

    @classmethod
    def _bad(cls, what, remedy):
        return message(f"torch.{cls.__name__}", what, remedy)

    def _number(self, name, value, holds, remedy):
        """\\returns the float that `value` is. \\raises ValueError unless `holds`"""
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            number = math.nan
        if not (math.isfinite(number) and holds(number)):
            raise ValueError(self._bad(f"{name} is {value!r}", remedy))
        return number

    def _hyperparameters(self, group):
        """\\returns lr, β1, β2, eps, weight_decay. \\raises ValueError for what AdamW refuses, or infinity"""
        betas = group["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ValueError(self._bad(f"betas is {betas!r}", "give two numbers from 0 to below 1"))
        return [
            self._number("lr", group["lr"], lambda lr: lr >= 0, "give a number from 0 on"),
            *(self._number(f"β{k}", beta, lambda beta: 0 <= beta < 1, "give betas from 0 to below 1")
              for k, beta in enumerate(betas, 1)),
            *(self._number(name, group[name], lambda value: value >= 0, "give a number from 0 on")
              for name in ("eps", "weight_decay")),
        ]

    def add_param_group(self, param_group):
        if self._complete:
            raise RuntimeError(self._bad("it averages one vector of all parameters, which cannot grow",
                                         "give all groups when you make it"))
        super().add_param_group(param_group)
        self._hyperparameters(self.param_groups[-1])

    @_not_compiled
    @torch.no_grad()
    def step(self, closure=None):
        """Collective: one step. `closure`, if there is one, computes this rank's gradients and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rank = self._agree()
        if rank is not None and self._on_nonfinite == "skip":
            return loss
        if rank is not None:
            raise FloatingPointError(self._nonfinite(rank))
        self._steps += 1
        self._move()
        return loss

    def _agree(self):
        """Collective: collects the gradients. \\returns the first rank with one that is not finite; None without any

        Raises on all ranks what one of them finds wrong: a rank that raised alone would leave the others waiting.
        """
        fault, finite = None, True
        hyperparameters = [0.0] * (len(self.HYPERPARAMETERS) * len(self.param_groups))
        try:
            self._check_parameters()
            hyperparameters = list(itertools.chain(*map(self._hyperparameters, self.param_groups)))
            self._check()
            self._collect_gradients()
            finite = is_finite(self._gradient)
        except Exception as error:
            kind = type(error).__name__
            fault = kind if kind in ("TypeError", "ValueError") else "RuntimeError", str(error)
        comm = self.comm
        least = comm.least([comm.size if fault is None else comm.rank, comm.size if finite else comm.rank,
                            *hyperparameters, *(-value for value in hyperparameters)])
        rank_of_fault, rank_of_nonfinite = map(int, least[:2])
        if rank_of_fault < comm.size:
            kind, text = comm.tell(fault, rank_of_fault)
            raise getattr(builtins, kind)(text)
        lowest, highest = least[2:2 + len(hyperparameters)], least[2 + len(hyperparameters):]
        for place, (low, high) in enumerate(zip(lowest, highest)):
            if low != -high:
                group, which = divmod(place, len(self.HYPERPARAMETERS))
                raise ValueError(self._bad(f"{self.HYPERPARAMETERS[which]} of group {group} is {low:g} on one rank and "
                                           f"{-high:g} on another", "set it from what all ranks know, such as the step "
                                           "or the mean of their losses"))
        return None if rank_of_nonfinite == comm.size else rank_of_nonfinite

    def _check(self):
        pass

    def _check_parameters(self):
        """The vectors have a fixed place for each parameter that is trained."""
        for index, (group, given) in enumerate(zip(self.param_groups, self._given)):
            now = group["params"]
            same = len(now) == len(given) and all(p is before for p, (before, _, _) in zip(now, given))
            what = None if same else f"the parameters of group {index} are not those of the beginning"
            for number, (p, shape, trained) in enumerate(given if same else ()):
                name = f"parameter {number} of group {index}"
                if p.requires_grad != trained:
                    what = f"{name} required {'a' if trained else 'no'} gradient at the beginning, which has changed"
                elif p.dtype != torch.float32 or p.device != self._gradient.device or p.shape != shape:
                    what = f"{name} is {p.dtype}, {tuple(p.shape)} on {p.device}, unlike at the beginning"
            if what:
                raise ValueError(self._bad(what, "make a new optimizer when the model changes"))

    def _collect_gradients(self):
        for segment in self._segments:
            for p, place in segment.places(self._gradient):
                if p.grad is None:
                    place.zero_()
                elif p.grad.is_sparse:
                    raise TypeError(self._bad("a gradient is sparse", "make the layer with sparse=False"))
                else:
                    place.copy_(p.grad)

    def _nonfinite(self, rank):
        """Collective. \\returns the message for a gradient that is not finite on `rank` and maybe on later ones."""
        what = None
        if self.comm.rank == rank:
            what = next(f"parameter {number} of group {segment.group}, of shape {tuple(p.shape)} is "
                        f"{'2⁶³ or more' if place.isfinite().all() else 'not finite'}"
                        for segment in self._segments
                        for number, (p, place) in zip(segment.numbers, segment.places(self._gradient))
                        if not is_finite(place))
        return self._bad(f"the gradient of {self.comm.tell(what, rank)} on rank {rank}",
                         "lower the learning rate, clip the gradients, or give on_nonfinite='skip'")

    def _shapes(self):
        """What a state must have in common with the parameters, beside the number of elements."""
        return [[tuple(p.shape) for p in segment.params] for segment in self._segments]

    def state_dict(self):
        """This rank's state. The residuals differ from rank to rank, so each rank saves and loads a file of its own."""
        return {
            **super().state_dict(),
            "step": self._steps,
            **{name: vector.clone() for name, vector in self._vectors().items()},
            **self._numbers(),
            "residuals": residuals_of(self._allreduce),
            "shapes": self._shapes(),
            **rank_of(self.comm),
        }

    def load_state_dict(self, state_dict):
        """Goes on, bit for bit, where the optimizer of the same rank stood whose state this is."""
        missing = {"step", "residuals", *self._vectors(), *self._numbers()} - set(state_dict)
        if missing:
            raise ValueError(self._bad(f"the state has no {', '.join(sorted(missing))}",
                                       f"load what {type(self).__name__} has saved"))
        name, vector = next(iter(self._vectors().items()))
        if len(state_dict[name]) != len(vector):
            raise ValueError(self._bad(f"the state is of {len(state_dict[name])} parameters, and there are "
                                       f"{len(vector)}", "load the state of the same model"))
        if _parts(state_dict.get("shapes", self._shapes())) != _parts(self._shapes()):
            raise ValueError(self._bad("the state is of groups with parameters of other shapes",
                                       "make the optimizer with the groups with which the state was saved"))
        for group in state_dict["param_groups"]:
            self._hyperparameters(group)
        check_rank(self.comm, state_dict, type(self).__name__)
        # Both check what they are given before they change anything.
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        load_residuals(self._allreduce, state_dict["residuals"])
        self._steps = state_dict["step"]
        for name, vector in self._vectors().items():
            vector.copy_(state_dict[name])
        self._restore(state_dict)

    def _numbers(self):
        return {}

    def _restore(self, state_dict):
        pass
