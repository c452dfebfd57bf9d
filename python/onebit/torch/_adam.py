"""1-bit Adam as an optimizer of PyTorch."""

import builtins
import functools
import itertools
import math

import torch

from onebit._library import message
from onebit._ranks import ranks_of
from onebit.torch._average import (
    average,
    check_rank,
    compressed_average,
    is_finite,
    load_residuals,
    rank_of,
    residuals_of,
)
from onebit.torch._freeze import AutoFreeze, VarianceMonitor, whole_number

_bad = functools.partial(message, "torch.OneBitAdam")


def _not_compiled(function):
    """Leaves a function out of torch.compile, which would take numbers that change from step to step for constants."""
    if not hasattr(torch, "compile"):
        return function
    from torch import _dynamo
    return _dynamo.disable(function)


def _number(name, value, holds, remedy):
    """\\returns the float that `value` is. \\raises ValueError unless `holds`"""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not (math.isfinite(number) and holds(number)):
        raise ValueError(_bad(f"{name} is {value!r}", remedy))
    return number


def _hyperparameters(group):
    """\\returns lr, β1, β2, eps and weight_decay of a group. \\raises ValueError for what AdamW refuses, or infinity"""
    betas = group["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(_bad(f"betas is {betas!r}", "give two numbers from 0 to below 1"))
    return [
        _number("lr", group["lr"], lambda lr: lr >= 0, "give a number from 0 on"),
        *(_number(f"β{k}", beta, lambda beta: 0 <= beta < 1, "give betas from 0 to below 1")
          for k, beta in enumerate(betas, 1)),
        *(_number(name, group[name], lambda value: value >= 0, "give a number from 0 on")
          for name in ("eps", "weight_decay")),
    ]


HYPERPARAMETERS = ("lr", "β1", "β2", "eps", "weight_decay")  # as _hyperparameters returns them


class OneBitAdam(torch.optim.Optimizer):
    """1-bit Adam (Tang et al., ICML 2021) for data-parallel training: each rank has its own batch. The ranks are MPI's,
    or under torchrun the processes of torch.distributed's default group.

    Until `freeze_step` it is AdamW with gradients that are averaged densely. Then the variance v is frozen, and a step
    averages the momentum, compressed with error feedback: a bit for each parameter instead of 32. The model needs no
    DistributedDataParallel, which would average the gradients once more. docs/guide/python.md shows a script, and
    docs/reference/algorithms/README.md defines the algorithm (`onebit_adam`).

    - Weight decay is decoupled, as in AdamW.
    - A parameter without a gradient has the gradient 0, because other ranks may have one.
    - A parameter that requires no gradient when the optimizer is made stays as it is, and is not averaged.
    - After the freeze an element whose v is 0 does not move: no gradient has ever reached it.
    - All ranks agree in each step whether all gradients are finite (`on_nonfinite`), and raise an error together where
      a rank has another learning rate than the others, or parameters that are not those of the beginning.
    """

    def __init__(self, params, freeze_step, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *,
                 bias_correction=True, on_nonfinite="abort", comm=None, **options):
        """Collective, with the same arguments on every rank. Rank 0's parameters go to all ranks.

        params: float32 tensors on one device, or groups of them, each with its own lr, betas, eps and weight_decay
        freeze_step: T_w, the last step of the dense phase, at least 1; or an AutoFreeze
        bias_correction: divide m and v by 1 − βᵗ; t stays at T_w after the freeze
        on_nonfinite: where a gradient on any rank holds NaN, infinity, or a magnitude from 2⁶³ on, whose square float32
            soon cannot hold: "abort" raises FloatingPointError on every rank, "skip" leaves the step out on every rank;
            neither changes any state
        comm: a communicator of mpi4py, or a process group of torch.distributed; None: MPI's world if it is the job, or
            else torch.distributed's default group
        options: of CompressedAllreduce: bits, group, error_feedback, message_bytes, backend
        """
        if on_nonfinite not in ("abort", "skip"):
            raise ValueError(_bad(f"on_nonfinite is {on_nonfinite!r}", "give 'abort' or 'skip'"))
        if not isinstance(freeze_step, AutoFreeze):
            freeze_step = whole_number("torch.OneBitAdam", "freeze_step", freeze_step, 1)
        self._complete = False
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._complete = True  # no group can be added
        self.comm, self.frozen_at, self._on_nonfinite = ranks_of(comm), None, on_nonfinite
        if isinstance(freeze_step, AutoFreeze) and len({group["betas"][1] for group in self.param_groups}) > 1:
            raise ValueError(_bad("the groups have different β2, and AutoFreeze watches all of v by one",
                                  "give all groups the same β2, or a number as freeze_step"))
        self._bias_correction, self._steps = bias_correction, 0
        self._monitor = VarianceMonitor(freeze_step, self._beta2())

        first = self.param_groups[0]["params"][0]
        length = 0
        self._ranges, self._trained = [], []  # of each group: its range of the vectors, and its parameters there
        self._given = []  # of each group: every parameter, with its shape and whether it is trained
        for group in self.param_groups:
            for p in group["params"]:
                if p.dtype != torch.float32 or p.device != first.device:
                    raise TypeError(_bad(f"a parameter is {p.dtype} on {p.device}",
                                         "give float32 tensors on one device"))
            self._given.append([(p, p.shape, p.requires_grad) for p in group["params"]])
            self._trained.append([p for p in group["params"] if p.requires_grad])
            begin, length = length, length + sum(p.numel() for p in self._trained[-1])
            self._ranges.append(slice(begin, length))
        if length == 0:
            raise ValueError(_bad("no parameter requires a gradient", "give those that are to be trained"))
        vectors = torch.zeros(3, length, dtype=torch.float32, device=first.device)
        self._gradient, self._exp_avg, self._exp_avg_sq = vectors
        self._allreduce = compressed_average(self.comm, self._exp_avg, options)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    self.comm.broadcast(p)

    def _beta2(self):
        return self.param_groups[0]["betas"][1]

    def _places(self, index):
        """\\returns (parameter, its place in `_gradient`, of its shape) for the trained parameters of a group."""
        params = self._trained[index]
        places = self._gradient[self._ranges[index]].split([p.numel() for p in params])
        return [(p, place.view(p.shape)) for p, place in zip(params, places)]

    def add_param_group(self, param_group):
        if self._complete:
            raise RuntimeError(_bad("it averages one vector of all parameters, which cannot grow",
                                    "give all groups when you make it"))
        super().add_param_group(param_group)
        _hyperparameters(self.param_groups[-1])

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
        if self.frozen_at is None:
            average(self.comm, self._gradient)
        for group, part in zip(self.param_groups, self._ranges):
            (_, beta1, beta2, _, _), gradient = _hyperparameters(group), self._gradient[part]
            self._exp_avg[part].mul_(beta1).add_(gradient, alpha=1 - beta1)
            if self.frozen_at is None:
                self._exp_avg_sq[part].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if self.frozen_at is not None:
            self._allreduce(self._exp_avg)
        self._update_parameters()
        # Rank 0 decides for all, because another number of threads may add v up to another last bit.
        if self.frozen_at is None and self.comm.tell(self._monitor.is_due(self._steps, self._exp_avg_sq)):
            self.frozen_at = self._steps
        return loss

    def _agree(self):
        """Collective: collects the gradients. \\returns the first rank with one that is not finite; None without any

        Raises on all ranks what one of them finds wrong: a rank that raised alone would leave the others waiting.
        """
        fault, finite = None, True
        hyperparameters = [0.0] * (len(HYPERPARAMETERS) * len(self.param_groups))
        try:
            self._check_parameters()
            hyperparameters = list(itertools.chain(*map(_hyperparameters, self.param_groups)))
            if self.frozen_at is None and not all(self._monitor.watches(g["betas"][1]) for g in self.param_groups):
                raise ValueError(_bad("β2 has changed, and AutoFreeze watches v by the first one",
                                      "leave β2 as it is until the freeze, or give a number as freeze_step"))
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
                group, which = divmod(place, len(HYPERPARAMETERS))
                raise ValueError(_bad(f"{HYPERPARAMETERS[which]} of group {group} is {low:g} on one rank and {-high:g} "
                                      "on another", "set it from what all ranks know, such as the step or the mean of "
                                      "their losses"))
        return None if rank_of_nonfinite == comm.size else rank_of_nonfinite

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
                raise ValueError(_bad(what, "make a new optimizer when the model changes"))

    def _collect_gradients(self):
        for index in range(len(self.param_groups)):
            for p, place in self._places(index):
                if p.grad is None:
                    place.zero_()
                elif p.grad.is_sparse:
                    raise TypeError(_bad("a gradient is sparse", "make the layer with sparse=False"))
                else:
                    place.copy_(p.grad)

    def _nonfinite(self, rank):
        """Collective. \\returns the message for a gradient that is not finite on `rank` and maybe on later ones."""
        what = None
        if self.comm.rank == rank:
            what = next(f"parameter {number} of group {index}, of shape {tuple(p.shape)} is "
                        f"{'2⁶³ or more' if place.isfinite().all() else 'not finite'}"
                        for index in range(len(self.param_groups))
                        for number, (p, place) in enumerate(self._places(index)) if not is_finite(place))
        return _bad(f"the gradient of {self.comm.tell(what, rank)} on rank {rank}",
                    "lower the learning rate, clip the gradients, or give on_nonfinite='skip'")

    def _update_parameters(self):
        """x ← x − γ (m / (√v + η) + λ x)"""
        t = self.frozen_at or self._steps
        for index, (group, part) in enumerate(zip(self.param_groups, self._ranges)):
            lr, beta1, beta2, eps, weight_decay = _hyperparameters(group)
            correction1, correction2 = (1 - beta**t if self._bias_correction else 1 for beta in (beta1, beta2))
            v, step = self._exp_avg_sq[part], self._gradient[part]  # the gradient has done its work
            torch.div(v, correction2, out=step).sqrt_().add_(eps)
            torch.div(self._exp_avg[part], step, out=step).mul_(lr / correction1)
            if weight_decay:
                for p, place in self._places(index):
                    place.add_(p, alpha=lr * weight_decay)
            if self.frozen_at is not None:
                step.masked_fill_(v == 0, 0)
            for p, place in self._places(index):
                p.sub_(place)

    def _shapes(self):
        return [[tuple(p.shape) for p in trained] for trained in self._trained]

    def state_dict(self):
        """This rank's state. The residuals differ from rank to rank, so each rank saves and loads a file of its own."""
        return {
            **super().state_dict(),
            "step": self._steps,
            "frozen_at": self.frozen_at,
            "exp_avg": self._exp_avg.clone(),
            "exp_avg_sq": self._exp_avg_sq.clone(),
            "variance_norms": list(self._monitor.norms),
            "residuals": residuals_of(self._allreduce),
            "bias_correction": self._bias_correction,
            "shapes": self._shapes(),
            **rank_of(self.comm),
        }

    def load_state_dict(self, state_dict):
        """Goes on, bit for bit, where the optimizer of the same rank stood whose state this is."""
        needed = {"step", "frozen_at", "exp_avg", "exp_avg_sq", "variance_norms", "residuals", "bias_correction"}
        missing = needed - set(state_dict)
        if missing:
            raise ValueError(_bad(f"the state has no {', '.join(sorted(missing))}", "load what OneBitAdam has saved"))
        if len(state_dict["exp_avg"]) != len(self._exp_avg):
            raise ValueError(_bad(f"the state is of {len(state_dict['exp_avg'])} parameters, and there are "
                                  f"{len(self._exp_avg)}", "load the state of the same model"))
        if [[tuple(shape) for shape in group] for group in state_dict.get("shapes", self._shapes())] != self._shapes():
            raise ValueError(_bad("the state is of groups with parameters of other shapes",
                                  "make the optimizer with the groups with which the state was saved"))
        for group in state_dict["param_groups"]:
            _hyperparameters(group)
        check_rank(self.comm, state_dict, "OneBitAdam")
        # Both check what they are given before they change anything.
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        load_residuals(self._allreduce, state_dict["residuals"])
        self._steps, self.frozen_at = state_dict["step"], state_dict["frozen_at"]
        self._exp_avg.copy_(state_dict["exp_avg"])
        self._exp_avg_sq.copy_(state_dict["exp_avg_sq"])
        self._bias_correction = state_dict["bias_correction"]
        self._monitor.restore(state_dict["variance_norms"], self._beta2())
