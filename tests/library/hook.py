"""onebit.torch.compressed_hook under DistributedDataParallel with several buckets; runs on every rank."""

import io
import os
import threading
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import onebit
import skips
from onebit.torch import CompressedHookState, compressed_hook

COMM = MPI.COMM_WORLD
SIZES, STEPS = (3008, 512, 1696, 896, 1216, 1088), 60  # multiples of the 32 elements that share a scale
BUCKET_BYTES = 4096


class Weights(torch.nn.Module):
    """Parameters whose gradients are constant: those of this rank's coefficients, each of another magnitude."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(COMM.rank)
        self.params = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(size)) for size in SIZES])
        self.coefficients = [10.0**k * (torch.rand(size) + 0.5) * torch.randn(size).sign()
                             for k, size in enumerate(SIZES)]

    def forward(self, _):
        return sum((p * c).sum() for p, c in zip(self.params, self.coefficients))


class Training:
    """SGD with lr 1 / STEPS behind the hook."""

    def __init__(self, hook=compressed_hook, **options):
        self.net = Weights()
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=BUCKET_BYTES / 2**20)
        self.state = CompressedHookState(COMM, **options)
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
        onebit.CompressedAllreduce(COMM, 100)(x)  # with OpenMP in this thread
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

    def test_errors(self):
        model = DistributedDataParallel(torch.nn.Linear(3, 1))  # one bucket: nothing else is under way
        model.register_comm_hook(CompressedHookState(COMM, dense_steps=0, bits=17), compressed_hook)
        with self.assertRaisesRegex(ValueError, "no OpenMP\n.*remedy: "):
            CompressedHookState(COMM, backend="openmp")
        with self.assertRaisesRegex(RuntimeError, "17 bits.*\n.*remedy: "):
            model(torch.ones(1, 3)).sum().backward()
        double = DistributedDataParallel(torch.nn.Linear(3, 1).double())
        double.register_comm_hook(CompressedHookState(COMM), compressed_hook)
        with self.assertRaisesRegex(Exception, "torch.float64.*\n.*remedy: "):
            double(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
        state = CompressedHookState(COMM)
        with self.assertRaisesRegex(ValueError, f"rank {COMM.rank + 1} of .*\n.*remedy: "):
            state.load_state_dict({**state.state_dict(), "rank": COMM.rank + 1})

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
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=COMM.rank, world_size=COMM.size)
    skips.main(["--failfast"])
