#!/usr/bin/env python3
"""Predictions: the model against cases worked out by hand, the simulation and golden files; fits that find planted
numbers; crossovers against direct evaluation; and the words of scripts/predict.py.

tests/reference/predictions has files that scripts/predict.py wrote, with the measurements that they are fitted to.
They change with the model and with nothing else. Cells are the same texts. Numbers of fits agree to seven digits,
because versions of SciPy round otherwise.

Usage: predict_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import math
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips
import support
from lib import tables
from lib.predict import fit, inputs, model, report, simulate, steps
from lib.predict.model import FORMS, PARTS, Cluster, Machine, Width
from support import ROOT

REFERENCE = ROOT / "tests/reference/predictions"
EVERY = f"[{', '.join(FORMS)}]"
GOLDEN = {  # {directory: (input, settings of section predict)}
    "ethernet": ("inputs/predict/paper_ethernet.yaml", {"ranks": "[4, 16, 256]"}),
    "crossover": ("inputs/predict/crossover_bert_large.yaml", {"ranks": "[8, 1024]", "bandwidths_gbit_per_s": "[10]"}),
    "forms": ("", {"collectives": EVERY, "ranks": "[6, 64]", "bandwidths_gbit_per_s": "[0.5, 100]", "error": 0.2,
                   "overlap_buckets": 25, "compressed_buckets": 4, "least_gain": 0.05}),
    "hosts_of_three": ("", {"collectives": EVERY, "ranks": "[3, 27]", "ranks_per_host": 3, "parameters": 1000,
                            "bandwidths_gbit_per_s": "[1]"}),
    "burst": ("", {"collectives": EVERY, "ranks": 8, "ranks_per_host": 1, "burst_kbyte": 500, "parameters": "1e6",
                   "bandwidths_gbit_per_s": 0.1, "compressed_bits": 4, "steps_per_exchange": 16, "shared_cores": 2}),
    "fit": ("", {"measurements": "[tests/reference/predictions/measurements.csv]", "shared_cores": 2,
                 "burst_kbyte": 32.768, "ranks": "[4]", "ranks_per_host": 1, "bandwidths_gbit_per_s": "[0.05, 1]",
                 "collectives": "[ring]"}),
    "dense_alone": ("", {"collectives": "[ring, tree]", "ranks": "[8]"}),
}
# Numbers that are easy to follow by hand: α 10, o 1, a byte 1 on a link; 2, 1 and 1/4 inside; work 0.01 an element.
SIMPLE = Machine(latency=10, bandwidth=1, overhead=1, inside_latency=2, inside_bandwidth=4,
                 **dict.fromkeys(model.COSTS, 0.01))
# From networks where latency is everything to those where bandwidth is.
MACHINES = [Machine(latency=latency, bandwidth=bandwidth, overhead=overhead, inside_latency=latency / 10,
                    inside_bandwidth=1e10)
            for latency in (1e-6, 3e-5, 1e-3) for bandwidth in (1e7, 1e9) for overhead in (0.0, 1e-6)]


def total(form, cluster, parameters, machine=SIMPLE):
    return model.total_seconds(form, Cluster(*cluster), parameters, Width(), machine)


def messages(form, cluster, parameters, machine=SIMPLE):
    return model.call(form, Cluster(*cluster), parameters, Width(), machine).messages


def simulated(form, cluster, parameters, machine):
    cluster = Cluster(*cluster)
    return simulate.simulate(simulate.schedule(form, cluster, parameters, Width(), machine), cluster, machine)


class ClosedForms(unittest.TestCase):
    def test_two_ranks_by_hand(self):
        # 100 elements are 400 bytes, a chunk 200; two messages one after the other, 50 elements added.
        for form in ("ring", "pairwise", "rabenseifner", "hierarchical"):
            self.assertAlmostEqual(total(form, (2, 1), 100), 2 * (10 + 1 + 200) + 0.5, msg=form)
        # The whole vector once, all of it added.
        self.assertAlmostEqual(total("tree", (2, 1), 100), 10 + 1 + 400 + 1.0)
        # A chunk in 16 bits is 100 bytes. Rounding and widening 100 elements are 100 sums, adding those received a
        # sixth.
        for form in ("pairwise_bf16", "hierarchical_bf16"):
            self.assertAlmostEqual(total(form, (2, 1), 100), 2 * (10 + 1 + 100) + 1 + 1 / 6, msg=form)
        # A chunk of 50 elements has two sign words and a scale: 12 bytes.
        self.assertAlmostEqual(total("compressed", (2, 1), 100), 2 * (10 + 1 + 12) + 3)
        # In parts, compression and average go on while messages travel; decompression does not.
        # Codes and scales are two messages.
        for form in ("pairwise_compressed", "hierarchical_compressed"):
            self.assertAlmostEqual(total(form, (2, 1), 100), 2 * (10 + 2 + 12) + 1, msg=form)
            parts = model.call(form, Cluster(2, 1), 100, Width(), SIMPLE.changed(compress=0.5)).parts
            self.assertEqual((parts["compress"], parts["all_to_all"], parts["all_gather"]), (50, 0, 10 + 2 + 12 - 1))

    def test_four_ranks_by_hand(self):
        # Chunks of 100 bytes.
        for form, seconds in (("ring", 6 * (10 + 1 + 100) + 0.75), ("pairwise", 2 * (10 + 3 + 300) + 0.75),
                              ("rabenseifner", 2 * (10 + 1 + 200) + 2 * (10 + 1 + 100) + 0.75),
                              ("tree", 2 * (10 + 1 + 400) + 2),
                              # 25 elements: one word and a scale, 8 bytes.
                              ("pairwise_compressed", 2 * (10 + 2 * 3 + 3 * 8) + 1),
                              # As a library chooses: Bruck's two rounds of two blocks are longer than the direct
                              # all-to-all; his all-gather of one block and then two is shorter than the ring's.
                              ("compressed", (10 + 3 + 24) + (10 + 1 + 8 + 10 + 1 + 16) + 3)):
            self.assertAlmostEqual(total(form, (4, 1), 100), seconds, msg=form)

    def test_a_grid_by_hand(self):
        # Two rows and two columns: two all-to-alls of two chunks of 8 bytes, an all-gather of one and one of two.
        self.assertAlmostEqual(total("grid_compressed", (4, 1), 100), 3 * (10 + 1 + 16) + (10 + 1 + 8) + 3)
        # A row is a host; both columns of a host share its link.
        self.assertAlmostEqual(messages("grid_compressed", (2, 2), 100),
                               (2 + 1 + 16 / 4) + (10 + 1 + 2 * 16) + (10 + 1 + 2 * 8) + (2 + 1 + 16 / 4))
        # Three rows and two columns of long messages, in turn: bundles of three chunks along a row, of two along a
        # column; the rings have two rounds of a chunk, and one of three.
        chunk = 2 * 32000 / 6
        self.assertAlmostEqual(messages("grid_bf16", (6, 1), 32000),
                               (10 + 1 + 3 * chunk) + 2 * (10 + 1 + 2 * chunk) + 2 * (10 + 1 + chunk)
                               + (10 + 1 + 3 * chunk))
        for ranks, columns in ((1, 1), (7, 1), (12, 3), (64, 8), (1024, 32)):
            self.assertEqual(model.grid_columns(ranks), columns)

    def test_a_library_exchanges_long_messages_in_turn(self):
        # Chunks of 8000 elements are 16000 bytes in 16 bits. Three rounds of the all-to-all, and of the ring.
        self.assertAlmostEqual(messages("bf16", (4, 1), 32000), 2 * 3 * (10 + 1 + 16000))
        # On two hosts of two: in two rounds two ranks share a link, in one both stay inside. Of the ring's three rounds
        # each has one message between hosts.
        self.assertAlmostEqual(messages("bf16", (2, 2), 32000),
                               2 * (10 + 1 + 2 * 16000) + (2 + 1 + 4000) + 3 * (10 + 1 + 16000))

    def test_two_hosts_of_two_by_hand(self):
        # Each of the ring's six rounds has a message of 100 bytes between hosts.
        self.assertEqual(messages("ring", (2, 2), 100), 6 * (10 + 1 + 100))
        # Two ranks of a host send 100 bytes to two ranks of the other, through one link.
        self.assertEqual(messages("pairwise", (2, 2), 100), 2 * (10 + 3 + 400))
        # Inside: 200 bytes there and back at 4 bytes a second. Between: in each of two rounds a link carries a message
        # of 100 bytes of each of two shards' rings.
        self.assertEqual(messages("hierarchical", (2, 2), 100), 2 * (2 + 1 + 50) + 2 * (10 + 1 + 2 * 100))
        # The same dense part before; then shards of 50 elements in chunks of 25 (8 bytes); two messages of a shard.
        self.assertEqual(messages("hierarchical_compressed", (2, 2), 100),
                         (2 + 1 + 50) + 2 * (10 + 2 + 2 * 8) + (2 + 1 + 16 / 4))

    def test_a_burst_passes_once_in_a_call(self):
        without = messages("pairwise", (4, 1), 100)  # two stages of 300 bytes
        for burst, seconds in ((120, without - 120),
                               # Nothing is left of the first stage's bytes, of the second's 200.
                               (400, (10 + 3) + (10 + 3 + 200)),
                               (1e6, 2 * (10 + 3))):
            self.assertAlmostEqual(messages("pairwise", (4, 1), 100, SIMPLE.changed(burst=burst)), seconds)

    def test_blocks_of_bruck_are_those_with_the_bit(self):
        for ranks in range(2, 70):
            for distance in model.bruck_distances(ranks):
                self.assertEqual(model.bruck_blocks("all_to_all", ranks, distance),
                                 sum(other & distance != 0 for other in range(ranks)))

    def test_link_bytes_are_those_of_the_schedule(self):
        for form in FORMS:
            for cluster in (Cluster(4, 1), Cluster(2, 2), Cluster(4, 4), Cluster(8, 2)):
                declared = model.call(form, cluster, 1000, Width(), SIMPLE).link_bytes
                sent = sum(size for one in simulate.schedule(form, cluster, 1000, Width(), SIMPLE)
                           for sender, receiver, size in one
                           if sender // cluster.ranks_per_host != receiver // cluster.ranks_per_host)
                self.assertAlmostEqual(declared, sent / cluster.hosts, delta=1e-9 * declared, msg=(form, cluster))

    def test_they_are_monotonic(self):
        draws = random.Random(1)

        def draw(low, high):
            return low * (high / low) ** draws.random()

        for _ in range(60):
            latency = draw(1e-7, 1e-2)
            machine = Machine(latency=latency, bandwidth=draw(1e6, 1e11), overhead=draw(1e-8, 1e-4),
                              inside_latency=latency * draw(1e-3, 1), inside_bandwidth=draw(1e8, 1e11),
                              **dict.fromkeys(model.COSTS, draw(1e-12, 1e-9)))
            cluster, d = (1 << draws.randrange(8), 1 << draws.randrange(4)), draw(1e2, 1e10)
            for form in FORMS:
                time = total(form, cluster, d, machine) * (1 + 1e-12)
                self.assertGreaterEqual(time, total(form, cluster, d / 2, machine), form)
                for better in (machine.changed(bandwidth=2 * machine.bandwidth), machine.changed(latency=latency / 2),
                               machine.slowed_down(0)):
                    self.assertLessEqual(total(form, cluster, d, better), time, form)


def passes_overheads_beside_bytes(form, cluster, parameters, machine):
    """Whether the simulation may be shorter than the closed form: its direct messages arrive one after the other."""
    return machine.overhead > 0 and any(
        stage.algorithm == "direct" for stage in model.stages(form, Cluster(*cluster), parameters, Width(), machine))


class Simulation(unittest.TestCase):
    def test_it_equals_closed_forms_with_one_rank_on_a_host(self):
        for machine in MACHINES:
            for form in FORMS:
                for hosts in (2, 4, 16):
                    for parameters in (1e3, 1e8):
                        closed = messages(form, (hosts, 1), parameters, machine)
                        ratio = simulated(form, (hosts, 1), parameters, machine) / closed
                        beside = passes_overheads_beside_bytes(form, (hosts, 1), parameters, machine)
                        least = 0.5 if beside else 1 - 1e-6
                        self.assertTrue(least < ratio < 1 + 1e-6, (form, hosts, parameters, machine, ratio))

    def test_it_is_near_closed_forms_with_several_ranks_on_a_host(self):
        for machine in MACHINES:
            for form in FORMS:
                for cluster in ((1, 8), (2, 4), (8, 4)):
                    for parameters in (1e3, 1e6, 1e8):
                        ratio = simulated(form, cluster, parameters, machine) / messages(form, cluster, parameters,
                                                                                          machine)
                        beside = passes_overheads_beside_bytes(form, cluster, parameters, machine)
                        self.assertTrue((0.4 if beside else 0.65) < ratio < 1.2,
                                        (form, cluster, parameters, machine, ratio))

    def test_messages_queue_where_many_send_to_one(self):
        machine, five = SIMPLE.changed(overhead=0), Cluster(5, 1)
        # Four messages to host 0 arrive at once and go in one after the other.
        self.assertEqual(simulate.simulate([[(i, 0, 100) for i in (1, 2, 3, 4)]], five, machine), 10 + 400)
        # Each rank first sends to rank 0: its link in is busy with the others' while the others' links are idle.
        naive = [[(rank, to, 100) for to in range(5) for rank in range(5) if to != rank]]
        rotated = [[(rank, (rank + distance) % 5, 100) for distance in range(1, 5) for rank in range(5)]]
        self.assertEqual(simulate.simulate(rotated, five, machine), 10 + 400)
        self.assertGreater(simulate.simulate(naive, five, machine), 10 + 600)
        # A chain: the second message is posted when the first has arrived.
        self.assertEqual(simulate.simulate([[(0, 1, 100)], [(1, 2, 100)]], five, machine), 2 * (10 + 100))
        # Inside a host nothing crosses the link.
        self.assertEqual(simulate.simulate([[(0, 1, 100)]], Cluster(1, 2), machine), 2 + 25)


def planted(collective, machine, share, noise=0.0):
    """Rows as a machine with these numbers would give them, each wrong by up to `noise`."""
    draws, rows = random.Random(7), []
    for hosts in (2, 3, 4, 8):
        for link in (6e6, 25e6, 1.2e8):
            for parameters in (1e4, 1e6, 2.5e7):
                parts = model.call(fit.FORM_OF[collective], Cluster(hosts, 1), parameters, Width(),
                                   machine.changed(bandwidth=share * link)).parts
                rows.append(fit.Measurement(
                    collective, parameters, hosts, hosts, model.total(parts) * (1 + noise * draws.uniform(-1, 1)),
                    parts["compress"], parts["average"], parts["decompress"], link))
    return rows


class Fits(unittest.TestCase):
    def test_least_squares_finds_the_numbers_and_none_below_zero(self):
        for rows, right, x in (([[1, 2], [3, 4], [5, 7]], [8, 18, 31], (2, 3)),
                               # Without the bound x would be (2, -1).
                               ([[1, 2], [1, 1], [1, 0]], [0, 1, 2], (1, 0)),
                               # Columns that say the same: the first one has it all.
                               ([[1, 2], [2, 4]], [3, 6], (3, 0)),
                               ([[0, 2], [0, 4]], [3, 6], (0, 1.5)), ([[0]], [1], (0,))):
            for found, wanted in zip(fit.least_squares(rows, right), x):
                self.assertAlmostEqual(found, wanted)

    def test_planted_numbers_are_found(self):
        machine = Machine(latency=3e-4, inside_bandwidth=1e10, reduce=2e-9, compress=3e-9, average=5e-9,
                          decompress=1e-9)
        start = Machine(inside_bandwidth=1e10, **dict.fromkeys(model.COSTS, 1e-10))  # what an input says
        for collective in ("mpi_allreduce", "mpi_reduce_scatter", "pairwise_allreduce", "mpi_compressed",
                           "pairwise_compressed"):
            with self.subTest(collective):
                exact, = fit.fit(planted(collective, machine, 0.8), start, 0)
                self.assertTrue(exact.work_fitted)
                self.assertAlmostEqual(exact.share, 0.8, delta=1e-6)
                self.assertAlmostEqual(exact.latency, 3e-4, delta=1e-9)
                for cost in model.COSTS[1:] if model.is_compressed(exact.form) else ("reduce",):
                    self.assertAlmostEqual(getattr(exact, cost), getattr(machine, cost), delta=1e-14)
                self.assertLess(exact.largest_error, 1e-6)
                noisy, = fit.fit(planted(collective, machine, 0.8, 0.05), start, 0)
                self.assertAlmostEqual(noisy.share, 0.8, delta=0.08)
                self.assertTrue(0.002 < noisy.median_error < 0.06, noisy.median_error)

    def test_work_is_left_to_the_phases_where_one_rate_was_measured(self):
        machine = Machine(latency=1e-4, compress=4e-9, average=4e-9, decompress=4e-9)
        rows = [row for row in planted("mpi_compressed", machine, 0.7) if row.link == 25e6]
        found, = fit.fit(rows, Machine(), 0)
        self.assertFalse(found.work_fitted)
        self.assertAlmostEqual(found.compress, 4e-9, delta=1e-13)
        self.assertAlmostEqual(found.share, 0.7, delta=1e-4)

    def test_shared_cores_make_work_longer(self):
        self.assertEqual([fit.slowdown(*one) for one in ((4, 0), (2, 4), (8, 4))], [1, 1, 2])
        rows = planted("pairwise_allreduce", Machine(reduce=2e-9), 0.9)
        for row in rows:  # two rounds wait for their rank's turn
            work = row.parameters * (row.ranks - 1) / row.ranks * 2e-9
            row.seconds += (work + 2 * 5e-3) * (fit.slowdown(row.ranks, 2) - 1)
        found, = fit.fit(rows, Machine(reduce=1e-9), 2)
        self.assertAlmostEqual(found.reduce, 2e-9, delta=1e-13)
        self.assertAlmostEqual(found.wait, 5e-3, delta=1e-8)
        self.assertAlmostEqual(found.share, 0.9, delta=1e-6)
        self.assertEqual(fit.fit(rows, Machine(reduce=1e-9), 0)[0].wait, 0)


class Script(unittest.TestCase):
    def setUp(self):
        self.directory = support.scratch(self)
        (self.directory / "empty.yaml").write_text("predict:\n")

    def run_it(self, input_file, settings=(), expected=0, cwd=ROOT):
        """Standard output, and the errors behind it."""
        settings = settings.items() if isinstance(settings, dict) else settings
        done = support.run(self, [sys.executable, ROOT / "scripts/predict.py", input_file, *support.overrides(
            [f"run.output={self.directory / 'out'}", *(f"predict.{key}={value}" for key, value in settings)])],
            expected, cwd=cwd)
        return done.stdout + done.stderr

    def rows(self, name="predict.csv"):
        return support.read_csv(self.directory / "out" / name)

    def model(self, keys):
        (self.directory / "model.yaml").write_text(f"predict: {{{keys}}}\n")
        return steps.Model(inputs.read_input(self.directory / "model.yaml"))

    def equal(self, found, wanted, is_fit):
        """Cells are the same texts; numbers of fits agree to seven digits."""
        if is_fit and math.isfinite(number := tables.number(wanted)):
            return math.isclose(tables.number(found), number, rel_tol=1e-7)
        return found == wanted

    def test_golden_files(self):
        for name, (source, settings) in GOLDEN.items():
            words = self.run_it(source or self.directory / "empty.yaml", settings)
            golden = {path.name for path in (REFERENCE / name).glob("*.csv")}
            with self.subTest(name):
                self.assertEqual({path.name for path in (self.directory / "out").iterdir()}, golden)
                for file in golden:
                    found, wanted = self.rows(file), support.read_csv(REFERENCE / name / file)
                    self.assertEqual(len(found), len(wanted), file)
                    for row, of_golden in zip(found, wanted):
                        self.assertEqual(list(row), list(of_golden))
                        for column, cell in of_golden.items():
                            self.assertTrue(self.equal(row[column], cell, "measurements" in settings),
                                            (file, column, row[column], cell, row))
                if (REFERENCE / name / "printed").exists():
                    printed = (REFERENCE / name / "printed").read_text(encoding="utf-8")
                    self.assertEqual(words.replace(str(self.directory / "out"), "OUTPUT"), printed)
            for path in (self.directory / "out").iterdir():
                path.unlink()

    def test_rows_agree_with_each_other(self):
        self.run_it("inputs/predict/large_scale.yaml", {"simulate_up_to": 64})
        rows = self.rows()
        self.assertEqual(len(rows), 3 * 5 * 9)
        for row in rows:
            value = {k: float(row[k]) for k in row if k.endswith("_s") and row[k] != ""}
            self.assertAlmostEqual(sum(value[f"{part}_s"] for part in PARTS), value["call_s"],
                                   delta=1e-6 * value["call_s"])
            self.assertAlmostEqual(value["forward_s"] + value["backward_s"] + value["update_s"] + value["call_s"]
                                   - value["hidden_s"], value["step_s"], delta=1e-6 * value["step_s"])
            self.assertLessEqual(value["messages_s"], value["call_s"] * (1 + 1e-9))
            # The speed-up is over the fastest dense average of the same network and ranks.
            dense = min(float(r["step_s"]) for r in rows if not model.is_compressed(r["form"])
                        and (r["network"], r["ranks"]) == (row["network"], row["ranks"]))
            self.assertAlmostEqual(dense / value["step_s"], float(row["speedup"]), delta=1e-6 * float(row["speedup"]))
        for limit in self.rows("pays_below.csv"):
            # The table and the rows of predict.csv agree: at each rate it pays or not.
            for row in rows:
                if (row["ranks"], row["collective"]) == (limit["ranks"], limit["collective"]):
                    self.assertEqual(float(row["speedup"]) > 1,
                                     float(row["link_bit_per_s"]) < float(limit["pays_below_bit_per_s"]), (row, limit))

    def test_crossovers_agree_with_direct_evaluation(self):
        crossings = 0
        for keys in ("ranks_per_host: 8", "ranks_per_host: 1, message_overhead_us: 10",
                     "ranks_per_host: 4, memory_bandwidth_gbyte_per_s: 5, parameters: 1e6",
                     "ranks_per_host: 1, overlap_buckets: 10, backward_ms: 200"):
            predictor = self.model(keys)
            for ranks in (8, 64, 1024):
                cluster, d = predictor.cluster(ranks), predictor.input.parameters

                def gain(parameters, link, predictor=predictor, cluster=cluster):
                    return (predictor.shortest(False, cluster, parameters, link) -
                            predictor.shortest(True, cluster, parameters, link)).item()
                for link in (0.1 * steps.GBIT, 10 * steps.GBIT, 400 * steps.GBIT):
                    above = predictor.crossover_parameters(cluster, link)
                    if 0 < above < math.inf:
                        crossings += 1
                        self.assertTrue(all(gain(above * factor, link) > 0 for factor in (1 + 1e-9, 2, 10, 100)), keys)
                        self.assertLessEqual(gain(above * (1 - 1e-9), link), 1e-12)
                    else:
                        self.assertEqual(gain(1e13, link) > 0, above == 0)
                below = predictor.crossover_link(cluster, d)
                if 0 < below < math.inf:
                    crossings += 1
                    self.assertTrue(all(gain(d, below / factor) > 0 for factor in (1 + 1e-9, 2, 10, 100)), keys)
                    self.assertLessEqual(gain(d, below * (1 + 1e-9)), 1e-12)
                else:
                    self.assertEqual(gain(d, 1e2) > 0, math.isinf(below))
        self.assertGreater(crossings, 10)

    def test_limits_of_one_average_agree_with_direct_evaluation(self):
        predictor, crossings = self.model(
            "ranks_per_host: 4, overlap_buckets: 16, bytes_per_element: 2, error: 0.2, compressed_buckets: 4, "
            "least_gain: 0.05, collectives: [ring, pairwise_bf16, compressed, hierarchical_compressed]"), 0
        for cluster in map(predictor.cluster, (8, 64, 1024)):
            for candidate in predictor.of(True):
                limits = predictor.rate_limit(candidate, cluster, predictor.input.parameters)
                self.assertEqual(sorted(limits), list(limits))
                for rate, compressed, dense in zip(limits, (1.2, 1, 0.8), (0.8, 1, 1.2)):
                    def gain(link, candidate=candidate, cluster=cluster, compressed=compressed, dense=dense):
                        given = cluster, predictor.input.parameters, link
                        shortest = min(predictor.seconds(one, *given, dense).item() for one in predictor.of(False))
                        return 0.95 * shortest - predictor.seconds(candidate, *given, compressed).item()
                    if 0 < rate < math.inf:
                        crossings += 1
                        self.assertGreater(gain(rate * (1 - 1e-9)), 0)
                        self.assertLessEqual(gain(rate * (1 + 1e-9)), 1e-12)
        self.assertGreater(crossings, 6)

    def test_measurements_are_fitted_and_predicted(self):
        # Four hosts: seconds of a call are 1 ms for each of 6 rounds, and 150 % of the vector at 80 % of the line rate.
        lines = ["collective,parameters,ranks,hosts,p50_s,compress_s,average_s,decompress_s,network"]
        for mbit in (100, 400):
            for parameters in (10000, 1000000):
                seconds = 6e-3 + 1.5 * 4 * parameters / (0.8 * mbit * 1e6 / 8)
                lines.append(f'mpi_allreduce,{parameters},4,4,{seconds},0,0,0,"links (measured {mbit}.0), short"')
        path = self.directory / "rows.csv"
        path.write_text("\n".join(lines) + "\n")
        settings = {"measurements": "[rows.csv]", "ranks": "[4]", "ranks_per_host": 1, "parameters": 5e5,
                    "bandwidths_gbit_per_s": "[0.2]", "collectives": "[compressed]", "message_overhead_us": 0}
        self.assertIn("mpi_allreduce", self.run_it("empty.yaml", settings, cwd=self.directory))
        found, = self.rows("fit.csv")
        self.assertAlmostEqual(float(found["line_rate_share"]), 0.8, places=4)
        self.assertAlmostEqual(float(found["latency_s"]), 1e-3, places=6)
        row, = [row for row in self.rows() if row["numbers"] == "measured"]
        self.assertAlmostEqual(float(row["call_s"]), 6e-3 + 1.5 * 2e6 / (0.8 * 25e6), places=5)
        # The same file as spreadsheets and other systems save it.
        plain = path.read_bytes()
        for content in (b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain.rstrip(b"\n"), plain + b"\n\r\n"):
            path.write_bytes(content)
            self.run_it("empty.yaml", settings, cwd=self.directory)
            self.assertEqual(self.rows("fit.csv"), [found])
        path.write_bytes(plain.replace(b",", b";"))
        self.assertIn("semicolons", self.run_it("empty.yaml", settings, 2, self.directory))

    def test_a_fit_that_misses_its_measurements_fails(self):
        # Times that fall with the length.
        (self.directory / "rows.csv").write_text(
            "collective,parameters,ranks,hosts,p50_s,compress_s,average_s,decompress_s,network\n" + "".join(
                f'mpi_allreduce,{parameters},4,4,{seconds},0,0,0,"links (measured {mbit}.0), short"\n'
                for mbit in (100, 400) for parameters, seconds in ((1e4, 10), (1e5, 1), (1e6, 1e-4))))
        done = self.run_it("empty.yaml", {"measurements": "rows.csv", "ranks": 4, "ranks_per_host": 1}, 1,
                           self.directory)
        self.assertRegex(done, r"VALIDATION FAILED the fit of mpi_allreduce misses its rows by \S+ % \(median\)\n"
                         r"error: validation: the fit of .*\n  remedy: check the files of predict.measurements\n$")
        found, = self.rows("fit.csv")
        self.assertIn(f"FOM fit_median_error {float(found['median_error']):.6g} fraction\n", done)

    def test_figures_of_merit(self):
        words = self.run_it(self.directory / "empty.yaml", {
            "ranks": "[4, 16]", "ranks_per_host": 2, "bandwidths_gbit_per_s": "[0.1, 2.5]", "parameters": 1e8,
            "collectives": "[ring, compressed, hierarchical_compressed]"})
        figures, passed, verdict = support.figures(self, words)
        self.assertEqual((passed, verdict), (True, "12 predicted steps are finite and positive times"))
        expected = {"ranks": ("16", "ranks")}
        for row, name in zip([row for row in self.rows("crossover.csv") if row["ranks"] == "16"],
                             ("100_mbit_per_s", "2_5_gbit_per_s")):
            for figure, unit in (("dense_step_s", "s"), ("compressed_step_s", "s"), ("speedup", "times")):
                expected[f"{figure}_at_{name}"] = (f"{float(row[figure]):.6g}", unit)
            expected["pays_below_bit_per_s"] = (f"{float(row['pays_below_bit_per_s']):.6g}", "bit/s")
        self.assertEqual(figures, expected)

    def test_buckets_bits_and_local_steps(self):
        def step(keys=""):
            predictor = self.model("ranks_per_host: 1, backward_ms: 100, collectives: [pairwise_compressed]" + keys)
            return predictor.step(predictor.candidates[0], Cluster(16, 1), 1e8, steps.GBIT)
        plain, overlapped, local = step(), step(", compressed_buckets: 16"), step(", steps_per_exchange: 4")
        self.assertEqual(plain.hidden, 0)
        self.assertTrue(0 < overlapped.hidden <= 0.1 and overlapped.step < plain.step, overlapped)
        self.assertGreater(step(", compressed_bits: 4").link_bytes, 3.99 * plain.link_bytes)
        self.assertAlmostEqual(local.step, 0.15 + plain.call / 4)
        self.assertEqual(local.call, plain.call)

    def test_servers_of_whole_tensors(self):
        def step(ranks, keys="", form="pairwise_compressed"):
            predictor = self.model(f"ranks_per_host: 1, collectives: [{form}]{keys}")
            return predictor.step(predictor.candidates[0], Cluster(ranks, 1), 1e8, steps.GBIT)
        largest = ", largest_tensor: 3.2e6"  # the chunk of 31.25 ranks
        for form in ("pairwise_compressed", "compressed"):
            self.assertEqual(step(31, largest, form), step(31, "", form))
            longer, plain = step(62, largest, form), step(62, "", form)
            self.assertAlmostEqual(longer.link_bytes / plain.link_bytes, 62 * 3.2e6 / 1e8, places=3)
            # From 63 ranks on chunks are equal, and floats of a tensor go to its server and back.
            for ranks in (63, 1024):
                moved, plain = step(ranks, largest, form), step(ranks, "", form)
                bytes_of_tensor = 4 * 3.2e6 * (ranks - 1) / ranks
                self.assertAlmostEqual(moved.link_bytes - plain.link_bytes, 2 * bytes_of_tensor)
                self.assertGreater(moved.call - plain.call, 2 * bytes_of_tensor / steps.GBIT)
        # Half a nanosecond for each element that a rank serves.
        self.assertAlmostEqual(step(8, ", server_ns: 0.5").step - step(8).step, 0.5e-9 * 1e8 / 8)
        for ranks in (62, 1024):
            self.assertAlmostEqual(step(ranks, ", server_ns: 0.5" + largest).parts["average"] -
                                   step(ranks, largest).parts["average"], 0.5e-9 * 3.2e6)
        # The ranks of one host do the same through its memory.
        predictor = self.model("ranks: 8, ranks_per_host: 8, parameters: 1e6, collectives: [pairwise_compressed], "
                               "largest_tensor: 5e5")
        moved = predictor.step(predictor.candidates[0], Cluster(1, 8), 1e6, steps.GBIT)
        self.assertEqual(moved.link_bytes, 0)
        self.assertGreater(moved.messages, 2 * 4 * 5e5 / 1e10)
        # Every message of the simulation has the length of the longest chunk.
        rounds = simulate.schedule("pairwise_compressed", Cluster(4, 1), 1000, Width(largest_tensor=400), SIMPLE)
        self.assertEqual({size * model.PARTS_OF_MESSAGE for one in rounds for _, _, size in one},
                         {float(model.message_bytes(400, 1))})

    def test_bad_input(self):
        path = self.directory / "input.yaml"
        for text, *fragments in (
                ("", "input.yaml: the input is empty"),
                ("predict: [1", "input.yaml:1:12: this is not YAML"),
                ("- 1\n", "input.yaml:1:1: the input is not a map"),
                ("predikt:\n  ranks: [8]\n", "input.yaml:1:1: unknown section 'predikt'", "did you mean 'predict'?"),
                ("train:\n  steps: 8\n", "input.yaml:1:1: unknown section 'train'", "use one of run, predict"),
                ("run: {seed: 1}\n", "input.yaml:1:7: unknown key 'run.seed'"),
                ("predict:\n  latency: 8\n", "2:3: unknown key 'predict.latency'", "'predict.latency_us'?"),
                ("predict: {ranks: 8}\npredict: {}\n", "2:1: section 'predict' is given twice, first at", ":1:1"),
                ("predict:\n  error: 0\n  error: 0.1\n", "3:3: key 'predict.error' is given twice, first at", ":2:3"),
                ("predict:\n  ranks: [12]\n", "2:3: predict.ranks holds 12, which do not fill hosts of 8 ranks"),
                ("predict:\n  ranks_per_host: 5\n", "(predict.ranks has its default): predict.ranks holds 8"),
                ("predict:\n  ranks: 8,64\n", "2:3: predict.ranks is '8,64', which", "write [8,64]"),
                ("predict:\n  ranks: []\n", "2:3: predict.ranks is an empty list"),
                ("predict:\n  ranks: [{a: 1}]\n", "2:3: predict.ranks holds something that is not a single value"),
                ("predict:\n  ranks: [4.5]\n", "predict.ranks is '4.5', which is not an integer", "[2, 65536]"),
                ("predict:\n  error: [0.1]\n", "2:3: predict.error is a list"),
                ("predict:\n  error:\n", "2:3: predict.error has no value"),
                ("predict:\n  error: 1\n", "predict.error is '1', which is out of range", "[0, 0.99]"),
                ("predict:\n  largest_tensor: 1e8\n", "2:3: predict.largest_tensor is 1e+08, and there are 2.5e+07"),
                ("predict: {compressed_buckets: 4, largest_tensor: 9, collectives: ring}\n", "there are 4 buckets"),
                ("predict:\n  largest_tensor: 9\n", "2:3: hierarchical_compressed has no servers", "collectives"),
                ("predict:\n  parameters: 1_000\n", "which is not a finite number", "without separators"),
                ("predict:\n  latency_us: .nan\n", "which is not a finite number"),
                ("predict:\n  collectives: [rings]\n", "which is not one of its values", "did you mean 'ring'?"),
                ("run:\n  output: ~/out\n", "2:3: run.output is '~/out', which holds ~ or $", "the whole path"),
                ("predict:\n  measurements: [none.csv]\n", "2:3: none.csv: the file cannot be read: No such file"),
                ("a: " + "[" * 3000, "input.yaml", "this is not YAML")):
            path.write_text(text)
            with self.assertRaises(inputs.InputError) as caught:
                report.Prediction(inputs.read_input(path))
            for fragment in (*fragments, "\n  remedy: "):
                self.assertIn(fragment, str(caught.exception), text)
        for override, *fragments in (("predict.error", "not of the form section.key=value"),
                                     ("predict.eror=1", "--set predict.eror=1: unknown key", "'predict.error'?"),
                                     ("predict.ranks=[12]", "--set predict.ranks=[12]: predict.ranks holds 12")):
            path.write_text("predict: {}\n")
            with self.assertRaises(inputs.InputError) as caught:
                inputs.read_input(path, [override])
            for fragment in fragments:
                self.assertIn(fragment, str(caught.exception))
        said = self.run_it(self.directory / "none.yaml", expected=2)
        self.assertRegex(said, "^error: .*none.yaml: .* cannot be read")
        self.assertFalse((self.directory / "out").exists())

    def test_bad_measurements(self):
        path = self.directory / "rows.csv"
        header = "hosts,collective,parameters,ranks,new_column,p50_s,compress_s,average_s,decompress_s,network\n"
        for row, fragment in (("2,gossip,9,2,,1,0,0,0,", "gossip"), ("2,mpi_allreduce,9,2,,x,0,0,0,", "p50_s is 'x'"),
                              ("2,mpi_allreduce,9,2,,-1,0,0,0,", "p50_s is '-1'"),
                              ("2,mpi_allreduce,9,3,,1,0,0,0,", "3 ranks on 2 hosts"),
                              ("2,mpi_allreduce,9,2,,1,0,0,0,", "line rate"), ("2,mpi_allreduce,9", "3 cells for 10"),
                              ("0,mpi_allreduce,9,2,,1,0,0,0,", "hosts is '0'")):
            path.write_text(header + row + "\n")
            with self.assertRaisesRegex(inputs.InputError, f"rows.csv:2: .*{fragment}.*\n  remedy: "):
                fit.read_measurements(path, 0)
        path.write_text("a,b\n1,2\n")
        with self.assertRaisesRegex(inputs.InputError, "no column 'collective'"):
            fit.read_measurements(path, 0)
        # Columns are found by name. One rank communicates with nobody.
        path.write_text(header + '2,mpi_allreduce,9,4,x,0.5,0,0,0,"2 hosts (measured 48.0), 90 us"\n'
                        "1,mpi_allreduce,9,1,,1,0,0,0,\n2,mpi_allreduce,9,2,,1,0,0,0,\n")
        rows = fit.read_measurements(path, 1e6)
        self.assertEqual([(row.link, row.cluster, row.seconds) for row in rows],
                         [(48e6 / 8, Cluster(2, 2), 0.5), (1e6, Cluster(2, 1), 1)])
        # What is read is not written.
        (self.directory / "out").mkdir()
        path.rename(self.directory / "out/fit.csv")
        self.assertIn("would be written, and it is read", self.run_it(
            self.directory / "empty.yaml", {"measurements": self.directory / "out/fit.csv", "measured_gbit_per_s": 1},
            2))

    def test_the_page_has_the_keys(self):
        page = ROOT / "docs/reference/prediction.md"
        self.assertTrue(inputs.markdown() in page.read_text(encoding="utf-8"),
                        f"remedy: put what scripts/predict.py --keys prints into {page}")


if __name__ == "__main__":
    skips.main(sys.argv[2:])
