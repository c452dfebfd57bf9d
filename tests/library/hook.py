"""onebit.torch.compressed_hook under DistributedDataParallel with several buckets; runs on every rank."""

import os
import unittest

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

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


class Hook(unittest.TestCase):
    def descend(self, **options):
        """\\returns the parameters after STEPS steps of SGD with lr 1 / STEPS, their exact values, and the state"""
        net = Weights()
        model = DistributedDataParallel(net, bucket_cap_mb=BUCKET_BYTES / 2**20)
        state = CompressedHookState(COMM, **options)
        model.register_comm_hook(state, compressed_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1 / STEPS)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.zeros(1)).backward()
            optimizer.step()
        exact = [-sum(COMM.allgather(c)) / COMM.size for c in net.coefficients]
        return [p.detach() for p in net.params], exact, state

    def test_each_bucket_has_its_residuals(self):
        for dense_steps in (0, 1):  # with 0 DDP cuts its buckets anew after a compressed step
            params, exact, state = self.descend(dense_steps=dense_steps, group=32)
            self.assertEqual(state.step, STEPS)
            buckets = [parameters for parameters, _ in state._buckets.values()]
            self.assertGreater(len(buckets), 2)
            self.assertEqual(sum(map(len, buckets)), len(SIZES), "a parameter is in one bucket alone")
            for k, (p, e) in enumerate(zip(params, exact)):
                self.assertEqual(len(set(COMM.allgather(p.numpy().tobytes()))), 1, "the replicas differ")
                # What is still to be added is a few times the gradient, over STEPS.
                error = (p - e).abs().max() / 10.0**k
                self.assertLess(error, 0.6, f"parameter {k}")

    def test_without_error_feedback_the_mean_is_another(self):
        params, exact, _ = self.descend(error_feedback=False)
        self.assertGreater((params[0] - exact[0]).abs().max(), 1)

    def test_dense_steps(self):
        params, exact, state = self.descend(dense_steps=STEPS)
        self.assertFalse(state._buckets)
        for p, e in zip(params, exact):
            torch.testing.assert_close(p, e, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    dist._DEFAULT_FIRST_BUCKET_BYTES = BUCKET_BYTES  # of the first bucket; a MiB
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=COMM.rank, world_size=COMM.size)
    skips.main(["--failfast"])
