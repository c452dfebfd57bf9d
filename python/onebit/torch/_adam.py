"""1-bit Adam as an optimizer of PyTorch."""

import functools

import torch
from mpi4py import MPI

from onebit._library import message
from onebit.torch._average import (
    average,
    check_rank,
    compressed_average,
    first_nonfinite,
    is_finite,
    load_residuals,
    rank_of,
    residuals_of,
)
from onebit.torch._freeze import AutoFreeze, VarianceMonitor

_bad = functools.partial(message, "torch.OneBitAdam")


class OneBitAdam(torch.optim.Optimizer):
    """1-bit Adam (Tang et al., ICML 2021) for data-parallel training over MPI: each rank has its own batch.

    Until `freeze_step` it is AdamW with gradients that are averaged densely. Then the variance v is frozen, and a step
    averages the momentum, compressed with error feedback: a bit for each parameter instead of 32. The model needs no
    DistributedDataParallel, which would average the gradients once more. docs/guide/python.md shows a script, and
    docs/reference/algorithms.md defines the algorithm (`onebit_adam`).

    - Weight decay is decoupled, as in AdamW.
    - A parameter without a gradient has the gradient 0, because other ranks may have one.
    - A parameter that requires no gradient when the optimizer is made stays as it is, and is not averaged.
    - After the freeze an element whose v is 0 does not move: no gradient has ever reached it.
    - All ranks agree in each step whether all gradients are finite (`on_nonfinite`).
    """

    def __init__(self, params, freeze_step, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *,
                 bias_correction=True, on_nonfinite="abort", comm=MPI.COMM_WORLD, **options):
        """Collective, with the same arguments on every rank. Rank 0's parameters go to all ranks.

        params: float32 tensors on one device, or groups of them, each with its own lr, betas, eps and weight_decay
        freeze_step: T_w, the last step of the dense phase, at least 1; or an AutoFreeze
        bias_correction: divide m and v by 1 − βᵗ; t stays at T_w after the freeze
        on_nonfinite: where a gradient on any rank holds NaN or infinity: "abort" raises FloatingPointError on every
            rank, "skip" leaves the step out on every rank; neither changes any state
        comm: a communicator of mpi4py
        options: of CompressedAllreduce: bits, group, error_feedback, message_bytes, backend
        """
        if on_nonfinite not in ("abort", "skip"):
            raise ValueError(_bad(f"on_nonfinite is {on_nonfinite!r}", "give 'abort' or 'skip'"))
        if not isinstance(freeze_step, AutoFreeze) and (not isinstance(freeze_step, int) or freeze_step < 1):
            raise ValueError(_bad(f"freeze_step is {freeze_step!r}", "give a whole number from 1 on, or an AutoFreeze"))
        self._complete = False
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._complete = True  # no group can be added
        self.comm, self.frozen_at, self._on_nonfinite = comm, None, on_nonfinite
        if isinstance(freeze_step, AutoFreeze) and len({group["betas"][1] for group in self.param_groups}) > 1:
            raise ValueError(_bad("the groups have different β2, and AutoFreeze watches all of v by one",
                                  "give all groups the same β2, or a number as freeze_step"))
        self._bias_correction, self._steps = bias_correction, 0
        self._monitor = VarianceMonitor(freeze_step, self._beta2())

        first = self.param_groups[0]["params"][0]
        length = 0
        self._ranges, self._trained = [], []  # of each group: its range of the vectors, and its parameters there
        for group in self.param_groups:
            for p in group["params"]:
                if p.dtype != torch.float32 or p.device != first.device:
                    raise TypeError(_bad(f"a parameter is {p.dtype} on {p.device}",
                                         "give float32 tensors on one device"))
            self._trained.append([p for p in group["params"] if p.requires_grad])
            begin, length = length, length + sum(p.numel() for p in self._trained[-1])
            self._ranges.append(slice(begin, length))
        if length == 0:
            raise ValueError(_bad("no parameter requires a gradient", "give those that are to be trained"))
        vectors = torch.zeros(3, length, dtype=torch.float32, device=first.device)
        self._gradient, self._exp_avg, self._exp_avg_sq = vectors
        self._allreduce = compressed_average(comm, self._exp_avg, options)
        self._broadcast_parameters()

    @torch.no_grad()
    def _broadcast_parameters(self):
        for group in self.param_groups:
            for p in group["params"]:
                host = torch.empty(p.shape, dtype=torch.float32).copy_(p)
                self.comm.Bcast(host.numpy())
                p.copy_(host)

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

    @torch.no_grad()
    def step(self, closure=None):
        """Collective: one step. `closure`, if there is one, computes this rank's gradients and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._collect_gradients()
        rank = first_nonfinite(self.comm, self._gradient)
        if rank is not None and self._on_nonfinite == "skip":
            return loss
        if rank is not None:
            raise FloatingPointError(self._nonfinite(rank))
        self._steps += 1
        if self.frozen_at is None:
            average(self.comm, self._gradient)
        for group, part in zip(self.param_groups, self._ranges):
            (beta1, beta2), gradient = group["betas"], self._gradient[part]
            self._exp_avg[part].mul_(beta1).add_(gradient, alpha=1 - beta1)
            if self.frozen_at is None:
                self._exp_avg_sq[part].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if self.frozen_at is not None:
            self._allreduce(self._exp_avg)
        self._update_parameters()
        # Rank 0 decides for all, because another number of threads may add v up to another last bit.
        if self.frozen_at is None and self.comm.bcast(self._monitor.is_due(self._steps, self._exp_avg_sq)):
            self.frozen_at = self._steps
        return loss

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
        name = None
        if self.comm.rank == rank:
            name = next(f"parameter {number} of group {index}, of shape {tuple(p.shape)}"
                        for index in range(len(self.param_groups))
                        for number, (p, place) in enumerate(self._places(index)) if not is_finite(place))
        return _bad(f"the gradient of {self.comm.bcast(name, rank)} is not finite on rank {rank}",
                    "lower the learning rate, clip the gradients, or give on_nonfinite='skip'")

    def _update_parameters(self):
        """x ← x − γ (m / (√v + η) + λ x)"""
        t = self.frozen_at or self._steps
        for index, (group, part) in enumerate(zip(self.param_groups, self._ranges)):
            correction1, correction2 = (1 - beta**t if self._bias_correction else 1 for beta in group["betas"])
            v, step = self._exp_avg_sq[part], self._gradient[part]  # the gradient has done its work
            torch.div(v, correction2, out=step).sqrt_().add_(group["eps"])
            torch.div(self._exp_avg[part], step, out=step).mul_(group["lr"] / correction1)
            if group["weight_decay"]:
                for p, place in self._places(index):
                    place.add_(p, alpha=group["lr"] * group["weight_decay"])
            if self.frozen_at is not None:
                step.masked_fill_(v == 0, 0)
            for p, place in self._places(index):
                p.sub_(place)

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
        check_rank(self.comm, state_dict, "OneBitAdam")
        load_residuals(self._allreduce, state_dict["residuals"])
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        self._steps, self.frozen_at = state_dict["step"], state_dict["frozen_at"]
        self._exp_avg.copy_(state_dict["exp_avg"])
        self._exp_avg_sq.copy_(state_dict["exp_avg_sq"])
        self._bias_correction = state_dict["bias_correction"]
        self._monitor.restore(state_dict["variance_norms"], self._beta2())
