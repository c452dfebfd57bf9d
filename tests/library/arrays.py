"""What onebit.CompressedAllreduce takes and refuses; runs on every rank."""

import unittest
import unittest.mock

import numpy as np
import torch
from mpi4py import MPI

import onebit
import skips

COMM = MPI.COMM_WORLD
LAST = COMM.rank == COMM.size - 1


class Arrays(unittest.TestCase):
    def refuse(self, error, text, call, *arguments, **options):
        with self.assertRaisesRegex(error, text) as caught:
            call(*arguments, **options)
        self.assertIn("remedy: ", str(caught.exception))

    def test_averages_in_place(self):
        # Two magnitudes of one size, so that one scale loses nothing; the ranks have the same vector.
        for x in (np.array([[3], [-3]], np.float32), torch.tensor([3.0, -3.0])):
            with onebit.CompressedAllreduce(COMM, 2) as allreduce:
                self.assertIs(allreduce(x), x)
                self.assertEqual(x.reshape(-1).tolist(), [3, -3])
                self.assertEqual(allreduce.bytes_sent > 0, COMM.size > 1)
            self.refuse(ValueError, "closed", allreduce, x)

    def test_the_mean_of_many_calls_is_exact(self):
        allreduce, calls = onebit.CompressedAllreduce(COMM, 3, group=32), 400
        x = np.array([COMM.rank, 1, -0.25], np.float32)
        mean = sum(allreduce(x.copy()).astype(float) for _ in range(calls)) / calls
        exact = [(COMM.size - 1) / 2, 1, -0.25]
        # What is still to be added: residuals of a few magnitudes.
        np.testing.assert_allclose(mean, exact, atol=4 * COMM.size / calls)

    def test_ranks_of_another_communicator(self):
        half = COMM.Split(COMM.rank % 2)
        x = np.full(64, COMM.rank % 2 + 1, np.float32)
        onebit.CompressedAllreduce(half, 64)(x)
        self.assertEqual(set(x), {COMM.rank % 2 + 1})

    def test_a_server(self):
        for x in (np.full((2, 50), 3, np.float32), torch.full((2, 50), 3.0)):
            allreduce, served = onebit.CompressedAllreduce(COMM, 100, chunk_borders=range(0, 100, 50)), []

            def serve(chunk, served=served):
                served.append(chunk)
                chunk *= 2

            self.assertIs(allreduce.run_served(x, serve), x)
            self.assertEqual(set(x.reshape(-1).tolist()), {6.0})
            own = x.reshape(-1)[allreduce.chunk]
            self.assertIn(len(own), (0, 50, 100))
            self.assertEqual(len(served), len(own) > 0)
            for chunk in served:  # it is that part of x itself
                chunk[0] = 7
                self.assertEqual((len(chunk), own[0]), (len(own), 7))

    def test_a_server_that_raises(self):
        allreduce = onebit.CompressedAllreduce(COMM, 100)

        def serve(chunk):
            if COMM.rank == 0:
                raise KeyError("lost")

        error, text = (KeyError, "lost") if COMM.rank == 0 else (ValueError, "server of a rank failed")
        with self.assertRaisesRegex(error, text):
            allreduce.run_served(np.ones(100, np.float32), serve)

    def test_refuses_vectors(self):
        allreduce = onebit.CompressedAllreduce(COMM, 4)
        floats = np.zeros(8, np.float32)
        fixed = np.zeros(4, np.float32)
        fixed.flags.writeable = False
        for error, text, x in ((TypeError, "float64", np.zeros(4)), (TypeError, "torch.float16", torch.zeros(4).half()),
                               (TypeError, "byte order", np.zeros(4, ">f4")), (TypeError, "list", [0.0] * 4),
                               (ValueError, "gaps", floats[::2]), (ValueError, "gaps", torch.zeros(2, 4).t()[:2]),
                               (ValueError, "read-only", fixed), (ValueError, "has 8 elements", floats),
                               (ValueError, "layout", torch.zeros(2, 2).to_sparse()),
                               (ValueError, "is on meta", torch.zeros(4, device="meta"))):
            self.refuse(error, text, allreduce, x)

    def test_refuses_options(self):
        for text, options in (("bits is -1", {"bits": -1}), ("17 bits", {"bits": 17}), ("group is 1.5", {"group": 1.5}),
                              ("multiple of 32", {"group": 33}), ("chunk_borders is", {"chunk_borders": [0, 1.5]}),
                              ("group_begins is", {"group_begins": [-1, 2]}),
                              ("has 4 for a vector of 4", {"group_begins": [0, 4]}),
                              ("no backend 'gpu'", {"backend": "gpu"}), ("grid is 'yes'", {"grid": "yes"}),
                              ("error_feedback is 2", {"error_feedback": 2})):
            self.refuse(ValueError, text, onebit.CompressedAllreduce, COMM, 4, **options)
        self.refuse(ValueError, "length is 0", onebit.CompressedAllreduce, COMM, 0)

    def test_refuses_another_mpi_library(self):
        other = "Another MPI:\t1.0\nwith a second line"
        with unittest.mock.patch.object(MPI, "Get_library_version", return_value=other):
            self.refuse(ValueError, r"and mpi4py with Another MPI: 1\.0\n", onebit.CompressedAllreduce, COMM, 4)
        onebit.CompressedAllreduce(COMM, 4)

    @unittest.skipIf(COMM.size == 1, "nothing is left out: one rank cannot differ")
    def test_refuses_ranks_that_differ(self):
        self.refuse(ValueError, "length is 4 on rank 0 and 5", onebit.CompressedAllreduce, COMM, 5 if LAST else 4)
        self.refuse(ValueError, "bits is 1 on rank 0 and 4", onebit.CompressedAllreduce, COMM, 4,
                    bits=4 if LAST else 1)

    def test_refuses_residuals(self):
        allreduce = onebit.CompressedAllreduce(COMM, 64)
        state = allreduce.state_dict()
        self.assertEqual(state["worker"].shape, (64,))
        state["server"] = state["server"][1:]
        self.refuse(ValueError, "'server' has", allreduce.load_state_dict, state)


class WithoutMpi(unittest.TestCase):
    """Ends MPI, so it is the last class."""

    def test_refuses(self):
        allreduce = onebit.CompressedAllreduce(COMM, 4)
        MPI.Finalize()
        with self.assertRaisesRegex(ValueError, "MPI has ended"):
            allreduce(np.zeros(4, np.float32))
        with self.assertRaisesRegex(ValueError, "MPI is not running"):
            onebit.CompressedAllreduce(COMM, 4)


if __name__ == "__main__":
    skips.main(["--failfast"])
