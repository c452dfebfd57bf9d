"""1-bit Adam as an optimizer of PyTorch."""

from onebit.torch._average import average
from onebit.torch._freeze import AutoFreeze, VarianceMonitor, whole_number
from onebit.torch._optimizer import DataParallelOptimizer, quotient


class OneBitAdam(DataParallelOptimizer):
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
        options: of CompressedAllreduce: bits, group, error_feedback, message_bytes, backend, scale, grid
        """
        if not isinstance(freeze_step, AutoFreeze):
            freeze_step = whole_number("torch.OneBitAdam", "freeze_step", freeze_step, 1)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, on_nonfinite,
                         comm)
        if isinstance(freeze_step, AutoFreeze) and len({group["betas"][1] for group in self.param_groups}) > 1:
            raise ValueError(self._bad("the groups have different β2, and AutoFreeze watches all of v by one",
                                       "give all groups the same β2, or a number as freeze_step"))
        self.frozen_at, self._bias_correction = None, bias_correction
        self._monitor = VarianceMonitor(freeze_step, self._beta2())
        self._exp_avg, self._exp_avg_sq = (self._zeros(len(self._gradient)) for _ in range(2))
        self._begin(self._exp_avg, options)

    def _beta2(self):
        return self.param_groups[0]["betas"][1]

    def _check(self):
        if self.frozen_at is None and not all(self._monitor.watches(g["betas"][1]) for g in self.param_groups):
            raise ValueError(self._bad("β2 has changed, and AutoFreeze watches v by the first one",
                                       "leave β2 as it is until the freeze, or give a number as freeze_step"))

    def _move(self):
        if self.frozen_at is None:
            average(self.comm, self._gradient)
        for segment in self._segments:
            _, beta1, beta2, _, _ = self._hyperparameters(self.param_groups[segment.group])
            part, gradient = segment.range, self._gradient[segment.range]
            self._exp_avg[part].mul_(beta1).add_(gradient, alpha=1 - beta1)
            if self.frozen_at is None:
                self._exp_avg_sq[part].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if self.frozen_at is not None:
            self._allreduce(self._exp_avg)
        self._update_parameters()
        # Rank 0 decides for all, because another number of threads may add v up to another last bit.
        if self.frozen_at is None and self.comm.tell(self._monitor.is_due(self._steps, self._exp_avg_sq)):
            self.frozen_at = self._steps

    def _update_parameters(self):
        """x ← x − γ (m / (√v + η) + λ x)"""
        t = self.frozen_at or self._steps
        for segment in self._segments:
            lr, beta1, beta2, eps, weight_decay = self._hyperparameters(self.param_groups[segment.group])
            correction1, correction2 = (1 - beta**t if self._bias_correction else 1 for beta in (beta1, beta2))
            v, step = self._exp_avg_sq[segment.range], self._gradient[segment.range]  # the gradient has done its work
            quotient(self._exp_avg[segment.range], v, eps, correction2, lr / correction1, out=step)
            if weight_decay:
                for p, place in segment.places(self._gradient):
                    place.add_(p, alpha=lr * weight_decay)
            if self.frozen_at is not None:
                step.masked_fill_(v == 0, 0)
            for p, place in segment.places(self._gradient):
                p.sub_(place)

    def _vectors(self):
        return {"exp_avg": self._exp_avg, "exp_avg_sq": self._exp_avg_sq}

    def _numbers(self):
        return {"frozen_at": self.frozen_at, "variance_norms": list(self._monitor.norms),
                "bias_correction": self._bias_correction}

    def _restore(self, state_dict):
        self.frozen_at, self._bias_correction = state_dict["frozen_at"], state_dict["bias_correction"]
        self._monitor.restore(state_dict["variance_norms"], self._beta2())
