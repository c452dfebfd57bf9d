"""What the package says in a process that a launcher started as one of several, and MPI connects with no other; and
what it takes all the same. The test that starts it has set the variables of the launcher."""

import os
import sys
import unittest

import numpy as np
import torch

import onebit
import skips
from onebit.torch import CompressedHookState, OneBitAdam

TORCHRUN = "WORLD_SIZE" in os.environ


def parameters():
    return torch.nn.Linear(2, 1).parameters()


class Launchers(unittest.TestCase):
    def refuse(self, text, call, *arguments, **options):
        with self.assertRaisesRegex(ValueError, text + r"(.|\n)*remedy: "):
            call(*arguments, **options)

    def test_1_without_a_communicator(self):
        text = "torch.distributed has no process group" if TORCHRUN else "PMI_SIZE: .*started 3 processes"
        self.refuse(text, onebit.CompressedAllreduce, None, 2)
        self.refuse(text, OneBitAdam, parameters(), 5)
        self.refuse(text, CompressedHookState)
        self.assertEqual("mpi4py" in sys.modules, not TORCHRUN, "MPI starts where it is wanted alone")

    def test_2_with_mpis_world(self):
        from mpi4py import MPI
        text = "WORLD_SIZE: torchrun started 2 processes" if TORCHRUN else "PMI_SIZE: "
        for comm in (MPI.COMM_WORLD, MPI.COMM_WORLD.Dup()):
            self.refuse(text, onebit.CompressedAllreduce, comm, 2)
            self.refuse(text, OneBitAdam, parameters(), 5, comm=comm)
            self.refuse(text, CompressedHookState, comm)

    def test_3_this_rank_alone(self):
        from mpi4py import MPI
        x = np.array([3, -3], np.float32)
        onebit.CompressedAllreduce(MPI.COMM_SELF, 2)(x)
        self.assertEqual(x.tolist(), [3, -3])
        OneBitAdam(parameters(), 5, comm=MPI.COMM_SELF)


if __name__ == "__main__":
    skips.main(["--failfast"])
