"""onebit.torch.OneBitAdam: its two phases, its rule for the freeze, checkpoints and errors; runs on every rank."""

import io
import math
import sys
import unittest

import numpy as np
import torch

import onebit
import skips
from job import COMM, GIVEN
from onebit.torch import AutoFreeze, OneBitAdam
from onebit.torch._freeze import VarianceMonitor

LR, BETAS, EPS, DECAY = 0.02, (0.9, 0.99), 1e-8, 0.1


def model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def groups(net):
    """Weights with a decay, biases without and with a learning rate of their own."""
    return [{"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0, "lr": 0.5 * LR}]


def one_bit_adam(net, freeze_step, **options):
    return OneBitAdam(groups(net), freeze_step, LR, BETAS, EPS, **options)


def backward(net, step):
    """The gradients of this rank's batch of a step."""
    batch = torch.Generator().manual_seed(100 * step + COMM.rank)
    x = torch.randn(16, 7, generator=batch)
    net.zero_grad()
    (net(x) - torch.stack([x.sum(1), x.prod(1), x[:, 0]], 1)).square().mean().backward()


def train(net, optimizer, steps, scheduler=None):
    for step in steps:
        backward(net, step)
        optimizer.step()
        if scheduler:
            scheduler.step()


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy().copy()


class Reference:
    """Algorithm 1 of the paper with decoupled weight decay, element by element in NumPy."""

    def __init__(self, net, freeze_step, bias_correction, **options):
        self.params = [p for group in groups(net) for p in group["params"]]
        self.x = flat(self.params)
        weights = sum(p.numel() for p in self.params if p.dim() > 1)
        is_weight = np.arange(self.x.size) < weights
        self.lr, self.decay = np.where(is_weight, LR, 0.5 * LR), np.where(is_weight, DECAY, 0)
        self.m, self.v = np.zeros_like(self.x), np.zeros_like(self.x)
        self.freeze_step, self.bias_correction = freeze_step, bias_correction
        self.allreduce = onebit.CompressedAllreduce(GIVEN, self.x.size, **options)

    def step(self, t):
        g = flat([p.grad for p in self.params])
        if t <= self.freeze_step:
            g = sum(COMM.allgather(g)) / np.float32(COMM.size)
            self.v = np.float32(BETAS[1]) * self.v + np.float32(1 - BETAS[1]) * g**2
        self.m = np.float32(BETAS[0]) * self.m + np.float32(1 - BETAS[0]) * g
        if t > self.freeze_step:
            self.allreduce(self.m)
        t = min(t, self.freeze_step)
        c1, c2 = (1 - beta**t if self.bias_correction else 1 for beta in BETAS)
        rate = self.lr * 0.5 ** ((self.steps_done) // 3)
        self.x = (self.x - rate * (self.m / c1 / (np.sqrt(self.v / c2) + EPS) + self.decay * self.x)).astype(np.float32)


class Optimizer(unittest.TestCase):
    def same_on_all_ranks(self, net):
        parts = COMM.allgather(flat(net.parameters()).tobytes())
        self.assertEqual(len(set(parts)), 1, "the replicas differ")

    def test_until_the_freeze_it_is_adamw(self):
        net, twin = model(), model()
        optimizer = one_bit_adam(net, 20)
        train(net, optimizer, range(10), halving(optimizer))
        expected = torch.optim.AdamW(groups(twin), LR, BETAS, EPS)
        scheduler = halving(expected)
        for step in range(10):
            backward(twin, step)
            for p in twin.parameters():
                p.grad.copy_(torch.from_numpy(sum(COMM.allgather(p.grad.numpy())) / COMM.size))
            expected.step()
            scheduler.step()
        self.assertIsNone(optimizer.frozen_at)
        np.testing.assert_allclose(flat(net.parameters()), flat(twin.parameters()), rtol=2e-5, atol=1e-6)
        self.same_on_all_ranks(net)

    def test_after_the_freeze_it_is_the_papers(self):
        for bias_correction in (True, False):
            for options in ({}, {"group": 64}, {"bits": 4}):
                net = model()
                reference = Reference(net, 4, bias_correction, **options)
                optimizer = one_bit_adam(net, 4, bias_correction=bias_correction, **options)
                scheduler = halving(optimizer)
                for step in range(9):
                    backward(net, step)
                    reference.steps_done = step
                    reference.step(step + 1)
                    optimizer.step()
                    scheduler.step()
                self.assertEqual(optimizer.frozen_at, 4)
                np.testing.assert_allclose(flat(reference.params), reference.x, rtol=1e-4, atol=1e-5)
                self.same_on_all_ranks(net)

    def test_elements_without_a_variance_stay(self):
        used, unread = torch.nn.Parameter(torch.ones(50)), torch.nn.Parameter(torch.ones(50))
        optimizer = OneBitAdam([used, unread], 2, LR, weight_decay=DECAY)
        for step in range(6):
            optimizer.zero_grad()
            (used[:40] * (COMM.rank + step)).square().sum().backward()
            optimizer.step()
            if step == 1:
                frozen = flat([used, unread])
        moved = flat([used, unread]) != frozen
        self.assertTrue(moved[:40].all())
        self.assertFalse(moved[40:].any())

    def test_parameters_that_require_no_gradient_stay(self):
        def trained(frozen):
            net = model()
            optimizer = OneBitAdam([*net.parameters(), *frozen], 4, LR, BETAS, EPS, DECAY)
            train(net, optimizer, range(1, 9))
            return flat(net.parameters()).tobytes()

        frozen = torch.nn.Parameter(torch.full((5000,), float(COMM.rank)), requires_grad=False)
        self.assertEqual(trained([frozen]), trained([]))  # as if it were not there, also for the scale of the signs
        self.assertTrue((frozen == 0).all())  # rank 0's

    def test_the_groups_beta2_sets_the_distance_of_the_rule(self):
        net = model()
        optimizer = OneBitAdam([{"params": net.parameters(), "betas": (0.9, 0.9)}], AutoFreeze(1000, at_most=0.5), LR)
        train(net, optimizer, range(1, 41))
        self.assertLess(len(optimizer.state_dict()["variance_norms"]), 11)  # Δ = 1/(1 − 0.9)

    def test_rank_0_gives_the_parameters(self):
        net = model(seed=COMM.rank)
        one_bit_adam(net, 1)
        np.testing.assert_array_equal(flat(net.parameters()), flat(model(seed=0).parameters()))

    def test_checkpoint(self):
        for freeze_step in (2, 9, AutoFreeze(20, at_most=0.2), AutoFreeze(50)):
            net = model()
            optimizer = one_bit_adam(net, freeze_step)
            scheduler, file = halving(optimizer), io.BytesIO()
            train(net, optimizer, range(5), scheduler)
            torch.save([part.state_dict() for part in (net, optimizer, scheduler)], file)
            train(net, optimizer, range(5, 12), scheduler)

            file.seek(0)
            other = model(seed=2)
            restarted = one_bit_adam(other, freeze_step)
            for part, state in zip((other, restarted, again := halving(restarted)), torch.load(file)):
                part.load_state_dict(state)
            train(other, restarted, range(5, 12), again)
            self.assertEqual(flat(other.parameters()).tobytes(), flat(net.parameters()).tobytes())
            ours, theirs = optimizer.state_dict(), restarted.state_dict()
            for name in ("worker", "server"):
                self.assertTrue(ours["residuals"][name].equal(theirs["residuals"][name]), name)
            self.assertEqual(ours["frozen_at"], theirs["frozen_at"])
            self.assertEqual(ours["variance_norms"], theirs["variance_norms"])

    def spoil(self, net, value):
        """Makes one gradient of the last rank NaN or infinite."""
        if COMM.rank == COMM.size - 1:
            list(net.parameters())[2].grad[1, 3] = value

    def test_a_gradient_that_is_not_finite_is_skipped(self):
        """Nor one whose square is not."""
        for value in (float("nan"), float("inf"), -float("inf"), 3e38, 1e20):
            net, twin = model(), model()
            optimizer, expected = (one_bit_adam(n, 3, on_nonfinite="skip") for n in (net, twin))
            for step in range(9):
                backward(net, step)
                if step in (1, 3, 6):  # in 3 the freeze is due
                    self.spoil(net, value)
                else:
                    backward(twin, step)
                    expected.step()
                optimizer.step()
            self.assertEqual(flat(net.parameters()).tobytes(), flat(twin.parameters()).tobytes())
            self.assertEqual(optimizer.frozen_at, 3)
            for name, residual in optimizer.state_dict()["residuals"].items():
                self.assertTrue(residual.equal(expected.state_dict()["residuals"][name]), name)

    def test_a_gradient_that_is_not_finite_ends_the_step(self):
        net = model()
        optimizer = one_bit_adam(net, 2)
        train(net, optimizer, range(4))
        before = flat(net.parameters()).tobytes()
        backward(net, 4)
        self.spoil(net, float("nan"))
        with self.assertRaisesRegex(FloatingPointError, rf"parameter 1 of group 0, of shape \(3, 40\) is not finite on "
                                    rf"rank {COMM.size - 1}\n.*remedy: "):
            optimizer.step()
        self.assertEqual(flat(net.parameters()).tobytes(), before)

    def test_a_large_finite_gradient_ends_the_step(self):
        net = model()
        optimizer = one_bit_adam(net, 2)
        backward(net, 0)
        self.spoil(net, 1e20)
        with self.assertRaisesRegex(FloatingPointError, rf"is 2⁶³ or more on rank {COMM.size - 1}\n.*remedy: "):
            optimizer.step()

    def test_no_gradient_on_some_ranks_is_the_gradient_0(self):
        net, twin = model(), model()
        optimizers = [one_bit_adam(n, 2) for n in (net, twin)]
        for step in range(5):
            for n, optimizer, nothing in zip((net, twin), optimizers, (None, 0.0)):
                backward(n, step)
                for p in list(n.parameters())[COMM.rank::2]:
                    p.grad = None if nothing is None else torch.zeros_like(p)
                optimizer.step()
        self.assertEqual(flat(net.parameters()).tobytes(), flat(twin.parameters()).tobytes())
        self.same_on_all_ranks(net)

    def test_any_order_in_memory(self):
        net, twin = model(), model()
        for p in twin.parameters():
            if p.dim() > 1:
                p.data = p.data.t().contiguous().t()  # by columns
        optimizers = [one_bit_adam(n, 2) for n in (net, twin)]
        for step in range(5):
            for n, optimizer in zip((net, twin), optimizers):
                backward(n, step)
                if n is twin:
                    for p, q in zip(twin.parameters(), net.parameters()):
                        p.grad = q.grad.t().contiguous().t() if p.dim() > 1 else q.grad.expand_as(p).clone()
                else:
                    kept = [p.grad.clone() for p in net.parameters()]
                optimizer.step()
                if n is net:
                    for p, gradient in zip(net.parameters(), kept):
                        p.grad = gradient
        np.testing.assert_array_equal(flat(net.parameters()), flat(twin.parameters()))

    def test_parameters_that_change_end_the_step_on_all_ranks(self):
        def freeze(net, _):
            next(net.parameters()).requires_grad_(False)

        def replace(_, optimizer):
            optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(torch.ones(40, 7))

        def widen(net, _):
            p = next(net.parameters())
            p.data, p.grad = p.data.double(), None

        def reshape(net, _):
            p = next(net.parameters())
            p.data, p.grad = torch.ones(3, 3), None

        for change, text in ((freeze, "required a gradient at the beginning"), (replace, "not those of the beginning"),
                             (widen, "torch.float64"), (reshape, r"\(3, 3\)")):
            net = model()
            optimizer = one_bit_adam(net, 2)
            train(net, optimizer, range(3))
            before = flat(net.parameters()) if change is not reshape else None
            backward(net, 3)
            if COMM.rank == COMM.size - 1:
                change(net, optimizer)
            with self.assertRaisesRegex(ValueError, text + r"(.|\n)*remedy: "):
                optimizer.step()
            if before is not None:
                np.testing.assert_array_equal(flat(net.parameters()), before)
        frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        net = model()
        optimizer = OneBitAdam([*net.parameters(), frozen], 2)
        train(net, optimizer, range(3))
        frozen.requires_grad_(True)
        with self.assertRaisesRegex(ValueError, "required no gradient at the beginning"):
            optimizer.step()

    def test_hyperparameters_that_change(self):
        net = model()
        optimizer = one_bit_adam(net, 3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [LR, LR], total_steps=20)  # changes β1, too
        train(net, optimizer, range(1, 10), scheduler)
        self.same_on_all_ranks(net)
        for name, value in (("lr", float("nan")), ("betas", (0.9, 1.0)), ("eps", -1.0)):
            kept = optimizer.param_groups[1][name]
            optimizer.param_groups[1][name] = value if COMM.rank == COMM.size - 1 else kept
            with self.assertRaisesRegex(ValueError, "remedy: "):
                optimizer.step()
            optimizer.param_groups[1][name] = kept
        train(net, optimizer, range(10, 11))
        optimizer = one_bit_adam(model(), AutoFreeze(1000))
        optimizer.param_groups[1]["betas"] = (0.9, 0.9)
        with self.assertRaisesRegex(ValueError, "β2 has changed.*\n.*remedy: "):
            optimizer.step()

    @unittest.skipIf(COMM.size == 1, "nothing is left out: one rank cannot differ")
    def test_a_learning_rate_of_one_rank_alone(self):
        net = model()
        optimizer = one_bit_adam(net, 2)
        backward(net, 0)
        optimizer.param_groups[1]["lr"] = 0.1 if COMM.rank == 0 else 0.2
        with self.assertRaisesRegex(ValueError, "lr of group 1 is 0.1 on one rank and 0.2 on another\n.*remedy: "):
            optimizer.step()

    @unittest.skipUnless(hasattr(torch, "compile"), "nothing is left out: this PyTorch has no torch.compile")
    def test_step_is_not_compiled(self):
        net, twin = model(), model()
        optimizer, expected = (one_bit_adam(n, 3, bias_correction=False) for n in (net, twin))
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        for number in range(7):
            backward(net, number)
            step()
        train(twin, expected, range(7))
        self.assertEqual(optimizer.frozen_at, 3)
        self.assertEqual(flat(net.parameters()).tobytes(), flat(twin.parameters()).tobytes())

    def test_hyperparameters(self):
        """Those that torch.optim.AdamW refuses."""
        net = model()
        for wrong in ({"lr": -0.01}, {"lr": float("nan")}, {"lr": float("inf")}, {"lr": "fast"}, {"betas": (0.9, 1.0)},
                      {"betas": (-0.1, 0.9)}, {"betas": (0.9, float("nan"))}, {"betas": 0.9}, {"eps": -1.0},
                      {"weight_decay": -0.1}):
            for params, keywords in ((net.parameters(), wrong), ([{"params": net.parameters(), **wrong}], {})):
                with self.assertRaisesRegex(ValueError, "remedy: "):
                    OneBitAdam(params, 5, **keywords)
        for freeze_step in (np.int64(5), np.int32(5), AutoFreeze(np.int64(50), np.int32(2))):
            OneBitAdam(net.parameters(), freeze_step, lr=np.float32(0.1))
        for wrong in ({"bits": 2**32 + 1}, {"group": -32}, {"group": 2**64 - 32}, {"group": 2**64 + 32},
                      {"message_bytes": 2**64}, {"scale": "l3"}, {"scale": 2}, {"scale": "l2", "bits": 4}):
            with self.assertRaisesRegex(ValueError, "remedy: "):
                OneBitAdam(net.parameters(), 5, **wrong)

    def test_a_state_of_other_groups(self):
        net, twin = model(), model()
        optimizer = one_bit_adam(net, 2)
        train(net, optimizer, range(4))
        other = OneBitAdam(groups(twin)[::-1], 2, LR, BETAS, EPS)
        before = other.state_dict()
        with self.assertRaisesRegex(ValueError, "parameters of other shapes\n.*remedy: "):
            other.load_state_dict(optimizer.state_dict())
        with self.assertRaises(ValueError):
            other.load_state_dict({**before, "param_groups": before["param_groups"][:1]})
        wrong = {**before, "param_groups": [{**group, "lr": -1.0} for group in before["param_groups"]]}
        with self.assertRaisesRegex(ValueError, "lr is -1.0\n.*remedy: "):
            other.load_state_dict(wrong)
        self.assertTrue(other.state_dict()["exp_avg"].equal(before["exp_avg"]))

    def test_closure(self):
        net = model()
        optimizer = one_bit_adam(net, 100)

        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(1, 7)).square().sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(20)]
        self.assertLess(losses[-1], 0.2 * losses[0])

    def test_errors(self):
        net = model()
        for freeze_step in (0, -1, 2.5, "auto"):
            with self.assertRaisesRegex(ValueError, "freeze_step is .*\n.*remedy: "):
                one_bit_adam(net, freeze_step)
        with self.assertRaisesRegex(TypeError, "torch.float64.*\n.*remedy: "):
            one_bit_adam(model().double(), 1)
        with self.assertRaisesRegex(ValueError, "on_nonfinite is 'stop'.*\n.*remedy: "):
            one_bit_adam(net, 1, on_nonfinite="stop")
        with self.assertRaisesRegex(ValueError, "17 bits.*\n.*remedy: "):
            one_bit_adam(net, 1, bits=17)
        optimizer = one_bit_adam(net, 1)
        with self.assertRaisesRegex(RuntimeError, "cannot grow\n.*remedy: "):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        with self.assertRaisesRegex(ValueError, "the state has no bias_correction, exp_avg, .*\n.*remedy: "):
            optimizer.load_state_dict(torch.optim.Adam(net.parameters()).state_dict())
        with self.assertRaisesRegex(ValueError, "the state is of 1 parameters.*\n.*remedy: "):
            optimizer.load_state_dict(OneBitAdam([torch.nn.Parameter(torch.ones(1))], 1).state_dict())
        other = {**optimizer.state_dict(), "rank": COMM.rank + 1}
        with self.assertRaisesRegex(ValueError, f"rank {COMM.rank + 1} of .*\n.*remedy: "):
            optimizer.load_state_dict(other)
        two = [{"params": [p], "betas": (0.9, 0.9 + 0.01 * k)} for k, p in enumerate(model().parameters())]
        with self.assertRaisesRegex(ValueError, "different β2.*\n.*remedy: "):
            OneBitAdam(two, AutoFreeze(10))
        with self.assertRaisesRegex(ValueError, "no parameter requires a gradient\n.*remedy: "):
            OneBitAdam([torch.nn.Parameter(torch.ones(1), requires_grad=False)], 1)
        table = torch.nn.Embedding(4, 2, sparse=True)
        table(torch.tensor([1])).sum().backward()
        with self.assertRaisesRegex(TypeError, "sparse.*\n.*remedy: "):
            OneBitAdam(table.parameters(), 1).step()


class Freeze(unittest.TestCase):
    """The same numbers as in tests/unit: Check.latest_freeze and VarianceMonitor."""

    def test_latest(self):
        self.assertEqual([AutoFreeze(steps).latest() for steps in range(1, 12)], [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3])
        for expected, at_most, warmup in ((7, 0.07, 0), (99, 1, 0), (1, 1e-9, 0), (30, 1e-9, 30)):
            self.assertEqual(AutoFreeze(100, warmup, at_most).latest(), expected)

    def frozen_at(self, rule, norm_of):
        monitor = VarianceMonitor(rule, 0.9)
        return next(t for t in range(1, 1000) if monitor.is_due(t, torch.tensor([norm_of(t)])))

    def test_rule(self):
        def growing(t):
            return 1 - 0.9**t

        settled = next(t for t in range(11, 1000) if growing(t - 10) / growing(t) >= 0.96)
        self.assertGreater(settled, 30)
        for expected, options in ((settled, {}), (60, {"warmup_steps": 60}), (20, {"at_most": 0.02})):
            self.assertEqual(self.frozen_at(AutoFreeze(1000, **options), growing), expected, options)
        # r falls below 1 without end.
        self.assertEqual(self.frozen_at(AutoFreeze(1000), lambda t: 0.9**t), 200)
        self.assertEqual(self.frozen_at(5, growing), 5)
        self.assertEqual(self.frozen_at(AutoFreeze(1000), lambda t: 0.0), 200)
        for text, wrong in (("total_steps is 0", {"total_steps": 0}),
                            ("total_steps is 2.5", {"total_steps": 2.5}), ("warmup_steps is -1", {"warmup_steps": -1}),
                            ("at_most is 0", {"at_most": 0}), ("threshold is nan", {"threshold": math.nan})):
            with self.assertRaisesRegex(ValueError, text):
                AutoFreeze(**{"total_steps": 1000, **wrong})


if __name__ == "__main__":
    skips.main(["--failfast", *sys.argv[1:]])
