#!/usr/bin/env python3
"""The traces of scripts/chakra.py, which a reader of protobuf's wire format reads back. It shares nothing with the
writer, neither code nor library: field numbers are those of Chakra's et_def.proto.

Usage: chakra_test.py PROGRAM MPIEXEC [unittest arguments]
"""

import collections
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from support import ROOT, read_csv

COMPUTATION, COLLECTIVE = 4, 7                      # values of NodeType
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = 0, 2, 6        # values of CollectiveCommType
DENSE = ["forward", "backward", "check", "agree", "allreduce", "update"]
COMPRESSED = ["forward", "backward", "check", "agree", "compress", "all_to_all", "average", "all_gather", "update"]
KINDS = {"agree": ALL_REDUCE, "allreduce": ALL_REDUCE, "all_to_all": ALL_TO_ALL, "all_gather": ALL_GATHER}
# {phase: measure of profile.csv}
MEASURES = {"forward": "forward", "backward": "backward_everything_else", "check": "check", "agree": "agree",
            "compress": "step_compress", "allreduce": "backward_allreduce", "all_to_all": "step_all_to_all",
            "average": "step_average", "all_gather": "step_all_gather", "update": "step_update"}
RANKS, STEPS, FREEZE = 3, 12, 5
TRAINING = {"workload.kind": "quadratic", "quadratic.dimension": 1000, "optimizer.algorithm": "onebit_adam",
            "train.steps": STEPS, "train.batch": RANKS, "freeze.step": FREEZE}


def varint(data, at):
    """(number, place behind it)"""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def fields(data):
    """{field number: [integer or bytes, …]} of a message of varints and of what has a length."""
    found, at = collections.defaultdict(list), 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        elif tag & 7 != 0:
            raise ValueError(f"wire type {tag & 7}")
        found[tag >> 3].append(value)
    return found


def attributes(message):
    """{name: value} of the field of attributes, whose values are int64_val (9), bool_val (27) or string_val (29)."""
    read = {}
    for attribute in message:
        attribute = fields(attribute)
        [(_, [value])] = [item for item in attribute.items() if item[0] != 1]
        read[attribute[1][0].decode()] = value.decode() if 29 in attribute else value
    return read


def read_trace(path):
    """(attributes of the metadata, nodes) of a trace."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        length, at = varint(data, at)
        messages.append(fields(data[at:at + length]))
        at += length
    nodes = []
    for node in messages[1:]:
        step, phase = node[2][0].decode().removeprefix("step ").split(": ")
        packed, at, parents = b"".join(node[5]), 0, []
        while at < len(packed):
            parent, at = varint(packed, at)
            parents.append(parent)
        nodes.append({"id": (node[1] or [0])[0], "step": int(step), "phase": phase, "type": node[3][0],
                      "parents": parents, "duration": (node[7] or [0])[0], **attributes(node[10])})
    return attributes(messages[0][2]), nodes


class Chakra(unittest.TestCase):
    def run_it(self, settings=()):
        """The directory of a run, and its rows of steps.csv."""
        directory = support.scratch(self)
        (directory / "input.yaml").write_text("run: {seed: 3}\n")
        steps = support.train(self, {**TRAINING, **dict(settings)}, directory / "some_run", directory / "input.yaml",
                              RANKS)[1]
        return directory / "some_run", steps

    def convert(self, run, *options, expected=0):
        """The traces of a run by rank, or what the script says where it refuses."""
        output = run.parent / "traces"
        done = support.run(self, [ROOT / "scripts/chakra.py", run, "--output", output, *options], expected)
        if expected:
            self.assertFalse(output.exists())
            return done.stderr
        return [read_trace(path) for path in sorted(output.iterdir())]

    def test_a_run_read_back(self):
        run, steps = self.run_it()
        traces = self.convert(run)
        self.assertEqual(sorted(path.name for path in (run.parent / "traces").iterdir()),
                         [f"some_run.{rank}.et" for rank in range(RANKS)])
        for trace in traces[1:]:
            self.assertEqual(trace, traces[0])
        metadata, nodes = traces[0]
        self.assertEqual((metadata["ranks"], metadata["algorithm"], metadata["durations"]),
                         (RANKS, "onebit_adam", "measured on rank 0"))

        with self.subTest("nodes and kinds"):
            expected = [(t, phase) for t in range(1, STEPS + 1) for phase in (DENSE if t <= FREEZE else COMPRESSED)]
            self.assertEqual([(node["step"], node["phase"]) for node in nodes], expected)
            for node in nodes:
                self.assertEqual(node["type"], COLLECTIVE if node["phase"] in KINDS else COMPUTATION)
                self.assertEqual(node.get("comm_type"), KINDS.get(node["phase"]))
                self.assertEqual(node["is_cpu_op"], 0)
        with self.subTest("each node waits for the one before"):
            self.assertEqual([node["id"] for node in nodes], list(range(len(nodes))))
            self.assertEqual([node["parents"] for node in nodes], [[], *([node["id"]] for node in nodes[:-1])])
        with self.subTest("bytes"):
            self.check_bytes(nodes, steps)
        with self.subTest("durations"):
            self.check_durations(nodes, steps, read_csv(run / "profile.csv"))

        _, part = self.convert(run, "--steps", FREEZE, FREEZE + 1)[0]
        self.assertEqual([node["phase"] for node in part], DENSE + COMPRESSED)
        self.assertEqual(self.sent(part), {step: sent for step, sent in self.sent(nodes).items()
                                           if step in (FREEZE, FREEZE + 1)})

    def sent(self, nodes):
        """{step: bytes that a rank sends}, from the sizes of the collectives; without the message of `agree`."""
        sums = collections.Counter()
        for node in nodes:
            if node["phase"] in KINDS and node["phase"] != "agree":
                size = node["comm_size"]
                sent = {ALL_REDUCE: 2 * (RANKS - 1) * size // RANKS, ALL_TO_ALL: (RANKS - 1) * size // RANKS,
                        ALL_GATHER: (RANKS - 1) * size}[node["comm_type"]]
                self.assertEqual(node["bytes_sent"], sent)
                sums[node["step"]] += sent
        return sums

    def check_bytes(self, nodes, steps):
        self.assertEqual(self.sent(nodes), {int(step["step"]): int(step["bytes_sent"]) for step in steps})
        sizes = {node["phase"]: node["comm_size"] for node in nodes if node["phase"] in KINDS}
        self.assertEqual((sizes["agree"], sizes["allreduce"]), (32, 4 * TRAINING["quadratic.dimension"]))
        # A rank receives, and then sends, one chunk of each: 1/n of the vector.
        self.assertEqual(sizes["all_to_all"], RANKS * sizes["all_gather"])

    def check_durations(self, nodes, steps, profile):
        for phase, measure in MEASURES.items():
            micros = sum(node["duration"] for node in nodes if node["phase"] == phase)
            self.assertAlmostEqual(micros, 1e6 * sum(float(step[f"{phase}_s"]) for step in steps), delta=1, msg=phase)
            # Of all ranks: the sums of the least and the greatest.
            rows = [row for row in profile if row["measure"] == measure]
            self.assertEqual(len(rows), 2)
            least, most = (sum(1e6 * float(row[name]) * int(row["steps"]) for row in rows)
                           for name in ("min_s", "max_s"))
            self.assertGreaterEqual(micros, least - 1, phase)
            self.assertLessEqual(micros, most + 1, phase)

    def test_what_is_refused(self):
        for exchange in ("grid", "pairwise"):
            run, _ = self.run_it({"comm.exchange": exchange})
            self.assertIn("run it with comm.exchange=collective", self.convert(run, expected=1))
        (run / "profile.csv").unlink()
        self.assertIn("it is not a whole run (no profile.csv)", self.convert(run, expected=1))

        run, steps = self.run_it({"optimizer.algorithm": "adam", "train.steps": 3})
        self.assertIn("its steps are 1 to 3", self.convert(run, "--steps", 2, 4, expected=1))
        # One byte more than run.csv has is found.
        text = (run / "steps.csv").read_text()
        (run / "steps.csv").write_text(text.replace(f",{steps[-1]['bytes_sent']},",
                                                    f",{int(steps[-1]['bytes_sent']) + 1},", 1))
        self.assertIn("cannot be told step by step", self.convert(run, expected=1))

    def test_without_protobuf(self):
        directory = support.scratch(self)
        (directory / "google").mkdir()
        (directory / "google/__init__.py").write_text("raise ImportError('no protobuf here')\n")
        done = subprocess.run([sys.executable, ROOT / "scripts/chakra.py", "--help"], capture_output=True, text=True,
                              timeout=30, env={**support.ENVIRONMENT, "PYTHONPATH": str(directory)})
        self.assertEqual(done.returncode, 1)
        self.assertIn("chakra: no protobuf here. Install protobuf (Debian: python3-protobuf)", done.stderr)


if __name__ == "__main__":
    skips.main(sys.argv[3:])
