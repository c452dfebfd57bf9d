"""onebit.torch.compressed_hook under DistributedDataParallel with several buckets; runs on every rank."""

import io
import sys
import threading
import unittest
import warnings
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import onebit
import skips
from job import COMM, GIVEN, TORCHRUN, init_process_group
from onebit.torch import CompressedHookState, compressed_hook

SIZES, STEPS = (3008, 512, 1696, 896, 1216, 1088), 60  # multiples of the 32 elements that share a scale
BUCKET_BYTES = 4096


class Weights(torch.nn.Module):
    """Parameters whose gradients are constant: those of this rank's coefficients, each of another magnitude."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(COMM.rank)
        self.params = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in SIZES])
        self.used = [True] * len(SIZES)
        self.coefficients = [10.0**k * (torch.rand(size) + 0.5) * torch.randn(size).sign()
                             for k, size in enumerate(SIZES)]

    def forward(self, _):
        return sum((p * c).sum() for p, c, used in zip(self.params, self.coefficients, self.used) if used)


class Training:
    """SGD with lr 1 / STEPS behind the hook."""

    def __init__(self, hook=compressed_hook, **options):
        self.net = Weights()
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=BUCKET_BYTES / 2**20)
        self.state = CompressedHookState(GIVEN, **options)
        self.model.register_comm_hook(self.state, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1 / STEPS)

    def run(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.zeros(1)).backward()
            self.optimizer.step()

    def parameters(self):
        return [p.detach() for p in self.net.params]


def bits(tensors):
    return [t.numpy().tobytes() for t in tensors]


def residuals(state):
    return [t for parts in state.state_dict()["residuals"].values() for t in parts.values()]


class Hook(unittest.TestCase):
    def descend(self, **options):
        """\\returns the parameters after STEPS steps, their exact values, and the state"""
        training = Training(**options)
        training.run(STEPS)
        exact = [-sum(COMM.allgather(c)) / COMM.size for c in training.net.coefficients]
        return training.parameters(), exact, training.state

    def test_each_bucket_has_its_residuals(self):
        for dense_steps in (0, 1):  # with 0 DDP cuts its buckets anew after a compressed step
            params, exact, state = self.descend(dense_steps=dense_steps, group=32)
            self.assertEqual(state.step, STEPS)
            buckets = [bucket.parameters for bucket, _ in state._buckets.values()]
            self.assertGreater(len(buckets), 2)
            self.assertEqual(sum(map(len, buckets)), len(SIZES), "a parameter is in one bucket alone")
            for k, (p, e) in enumerate(zip(params, exact)):
                self.assertEqual(len(set(COMM.allgather(p.numpy().tobytes()))), 1, "the replicas differ")
                # What is still to be added is a few times the gradient, over STEPS.
                error = (p - e).abs().max() / 10.0**k
                self.assertLess(error, 0.6, f"parameter {k}")

    def test_beside_the_backward_pass_are_the_same_bits(self):
        beside, _, _ = self.descend(group=32)
        inside, _, state = self.descend(group=32, overlap=False)
        self.assertIsNone(state._thread)
        self.assertEqual(bits(beside), bits(inside))
        x = torch.full((100,), float(COMM.rank))
        onebit.CompressedAllreduce(GIVEN, 100)(x)  # with OpenMP in this thread
        self.assertTrue(x.isfinite().all())

    def test_hooks_return_before_their_buckets_are_averaged(self):
        all_called, average = threading.Event(), CompressedHookState.average
        waited = []

        def average_when_all_are_called(state, bucket):
            waited.append(all_called.wait(30))
            average(state, bucket)

        def hook(state, bucket):
            future = compressed_hook(state, bucket)
            if bucket.is_last():
                all_called.set()
            return future

        training = Training(hook=hook)
        training.run(1)  # in one bucket
        all_called.clear()
        with mock.patch.object(CompressedHookState, "average", average_when_all_are_called):
            training.run(1)
        self.assertTrue(len(waited) > 1 and all(waited))

    def refuse(self, error, text, call, *arguments, **options):
        with self.assertRaisesRegex(error, text + r"(.|\n)*remedy: "):
            call(*arguments, **options)

    def test_options(self):
        for text, options in (("17 bits", {"bits": 17}), ("group of 33", {"group": 33}), ("bits is -1", {"bits": -1}),
                              ("dense_steps is -1", {"dense_steps": -1}), ("no OpenMP", {"backend": "openmp"})):
            self.refuse(ValueError, text, CompressedHookState, GIVEN, **options)
        state = CompressedHookState(GIVEN)
        self.refuse(ValueError, f"rank {COMM.rank + 1} of ", state.load_state_dict,
                    {**state.state_dict(), "rank": COMM.rank + 1})
        self.refuse(TypeError, "comm is 3", CompressedHookState, 3)

    @unittest.skipIf(TORCHRUN or COMM.size == 1, "nothing is left out: MPI's communicators, of which some differ")
    def test_a_communicator_of_other_ranks(self):
        from mpi4py import MPI
        self.refuse(ValueError, r"comm has 1 rank\(s\), and the process group .* has", CompressedHookState,
                    MPI.COMM_SELF)

    def backward(self, net, hook, state, dtype=torch.float32):
        model = DistributedDataParallel(net)  # one bucket: nothing else is under way
        model.register_comm_hook(state, hook)
        model(torch.ones(1, 3, dtype=dtype)).sum().backward()

    def test_errors(self):
        double = torch.nn.Linear(3, 1).double()
        self.refuse(Exception, "torch.float64", self.backward, double, compressed_hook, CompressedHookState(GIVEN),
                    torch.float64)
        self.refuse(Exception, "the state is None", self.backward, torch.nn.Linear(3, 1), compressed_hook, None)
        for overlap in (True, False):  # an error of the average reaches the caller, with its own words
            state = CompressedHookState(GIVEN, dense_steps=0, overlap=overlap)
            with mock.patch.object(state, "_compressed", side_effect=onebit.Error("no average\n  remedy: another")):
                self.refuse(RuntimeError, "no average", self.backward, torch.nn.Linear(3, 1), compressed_hook, state)

    def test_two_hooks_in_one_backward_pass(self):
        def trained(together):
            both = [Training(group=32) for _ in range(2)]
            for _ in range(5):
                for one in both:
                    one.optimizer.zero_grad()
                losses = [one.model(torch.zeros(1)) for one in both]
                for loss in [sum(losses)] if together else losses:
                    loss.backward()
                for one in both:
                    one.optimizer.step()
            return [bits(one.parameters()) for one in both]

        self.assertEqual(trained(together=True), trained(together=False))

    def test_without_error_feedback_the_mean_is_another(self):
        params, exact, _ = self.descend(error_feedback=False)
        self.assertGreater((params[0] - exact[0]).abs().max(), 1)

    def test_dense_steps(self):
        params, exact, state = self.descend(dense_steps=STEPS)
        self.assertFalse(state._buckets)
        for p, e in zip(params, exact):
            torch.testing.assert_close(p, e, rtol=1e-4, atol=1e-4)

    def test_checkpoint(self):
        training = Training(group=32)
        training.run(7)
        file = io.BytesIO()
        torch.save([training.net.state_dict(), training.state.state_dict()], file)
        file.seek(0)
        net, state = torch.load(file)
        self.assertTrue(any(t.any() for t in residuals(training.state)))

        restarted = Training(group=32)
        restarted.net.load_state_dict(net)
        for one in (training, restarted):  # the first one keeps its buckets, the second one cuts them anew
            one.state.load_state_dict(state)
            before = bits(residuals(one.state))
            one.run(1)
            self.assertEqual(bits(residuals(one.state)), before, "a dense step changes no residual")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                one.run(6)
            self.assertEqual(one.state.step, 14)
        # MPI's dense average adds in an order that depends on the bucket.
        torch.testing.assert_close(restarted.parameters(), training.parameters(), rtol=1e-5, atol=0)
        self.assertEqual(bits(residuals(restarted.state)), bits(residuals(training.state)))

    def test_a_state_of_another_model(self):
        training = Training()
        training.run(2)
        state = training.state.state_dict()
        state["residuals"] = {(place, ((1,),)): parts for (place, _), parts in state["residuals"].items()}
        training.state.load_state_dict(state)
        training.run(1)
        with self.assertWarnsRegex(UserWarning, "buckets of the loaded state.*\n.*remedy: "):
            training.run(1)

    def test_a_parameter_that_no_rank_uses_keeps_its_sum(self):
        """What DDP does not apply returns to the residuals: Σ truth = Σ applied + what the residuals hold."""
        for as_view, dense_steps, reset in ((False, 0, True), (True, 1, True), (False, 0, False)):
            net = Weights()
            for k, coefficient in enumerate(net.coefficients):
                coefficient.div_(10.0**k)
            model = DistributedDataParallel(net, find_unused_parameters=True, gradient_as_bucket_view=as_view)
            state = CompressedHookState(GIVEN, dense_steps=dense_steps)
            model.register_comm_hook(state, compressed_hook)
            sums = [torch.zeros(2, size, dtype=torch.float64) for size in SIZES]  # of the truth and of what is applied
            means = [sum(COMM.allgather(c)).double() / COMM.size for c in net.coefficients]
            for step in range(12):
                model.zero_grad(set_to_none=reset)
                # The last is used by all ranks, the second by one alone, the first by none in two steps of three.
                used = [step % 3 == 0 or k > 1 or k == 1 and COMM.rank == 0 for k in range(len(SIZES))]
                with mock.patch.object(net, "used", used):
                    model(torch.zeros(1)).backward()
                for k, (p, total) in enumerate(zip(net.params, sums)):
                    share = 1 if step % 3 == 0 or k > 1 else 0
                    total[0] += share * means[k]
                    if k == 1 and not share:
                        total[0] += COMM.allgather(net.coefficients[k])[0].double() / COMM.size
                    if p.grad is not None:
                        total[1] += p.grad.double()
            self.assertTrue(reset or sums[0][1].any())
            held = self.held_by(state)
            for k, (p, (truth, applied)) in enumerate(zip(net.params, sums)):
                self.assertLess((truth - applied - held[id(p)]).abs().max(), 1e-4, f"parameter {k}")

    def held_by(self, state):
        """\\returns the mean of the ranks' residuals by id of the parameter"""
        held = {}
        for bucket, allreduce in state._buckets.values():
            residual = allreduce.state_dict()
            mean = sum(map(torch.from_numpy, COMM.allgather(residual["worker"]))).double() / COMM.size
            mean += torch.from_numpy(np.concatenate(COMM.allgather(residual["server"]))[:len(mean)]).double()
            held.update(zip(bucket.key, mean.split([p.numel() for p in bucket.parameters])))
        return held

    def test_finite_gradients_that_float_cannot_add(self):
        training = Training(group=32)
        training.run(3)
        kept = [c.clone() for c in training.net.coefficients]
        for coefficient in training.net.coefficients:
            coefficient.fill_(3e38)
        training.run(1)
        self.assertTrue(all(p.isfinite().all() for p in training.parameters()), "their average is finite")
        for coefficient, before in zip(training.net.coefficients, kept):
            coefficient.copy_(before)
        training.run(1)
        self.assertTrue(all(t.isfinite().all() for t in residuals(training.state)))

    def test_nan_stays_out_of_the_residuals(self):
        training = Training(group=32)
        training.run(3)
        before, last = bits(residuals(training.state)), COMM.size - 1
        kept = [p.clone() for p in training.parameters()]
        for coefficient in training.net.coefficients:
            if COMM.rank == last:
                coefficient[0], value = float("nan"), coefficient[0].clone()
            training.run(1)
            if COMM.rank == last:
                coefficient[0] = value
        self.assertTrue(all(p[0].isnan() for p in training.parameters()), "every rank sees NaN")
        self.assertNotEqual(bits(residuals(training.state)), before, "the other buckets are compressed")
        self.assertTrue(all(t.isfinite().all() for t in residuals(training.state)))
        for p, k in zip(training.parameters(), kept):
            p.copy_(k)
        training.run(1)
        self.assertTrue(all(p.isfinite().all() for p in training.parameters()))


if __name__ == "__main__":
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES  # of the first bucket; a MiB
    init_process_group()
    skips.main(["--failfast", *sys.argv[1:]])
