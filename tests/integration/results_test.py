#!/usr/bin/env python3
"""Results in docs/results and README can be traced to a commit, a machine, a number of runs and a CSV file.

Usage: results_test.py SOURCE_DIRECTORY [unittest arguments]

The numbers of README's results and of docs/results/README.md are computed again from the CSV files under docs/results
and must be what is printed, to the last digit printed. So are numbers of other pages that these sum up. CLAIMS names
the sentence or row and the computation of each; a sentence that changes changes there too.
"""

import argparse
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(ROOT / "scripts"),
                str(ROOT / "scripts/experiments")]
import parts
import study_claims

import skips
import study_runs
import support
from lib import intervals, laboratory
from lib.tables import mean, read_csv

RESULTS = ROOT / "docs/results"
COUNTS = ("runs", "repetitions", "seed", "run")  # columns that say how many runs there are, or number them
COMMIT = re.compile(r"[0-9a-f]{7,40}|\S+-\d+-g([0-9a-f]{7,40})")  # as `git describe --always` names it


# --- numbers of README and of docs/results ------------------------------------


def rows_of(path, processor="", **wanted):
    """Rows of a CSV file under docs/results with these values, of the first machine with `processor` in its name that
    has such rows."""
    rows = [row for row in read_csv(RESULTS / path) if processor in row.get("machine", "")
            and all(row[column] == str(value) for column, value in wanted.items())]
    return [row for row in rows if row.get("machine") == rows[0].get("machine")]


def loss_behind_adam(path, run="onebit_adam"):
    """Mean final loss over the seeds of a run, less Adam's."""
    loss, adam = (mean(float(row["final_validation_loss"]) for row in rows_of(path, run=name))
                  for name in (run, "adam"))
    return loss - adam


def of_best(study, run, column="final_validation_loss"):
    """Mean of a column over the seeds of a run of the study of the best optimisers."""
    page = "one_bit_base" if study == "base" else "one_bit"
    return mean(float(row[column]) for row in read_csv(RESULTS / f"{page}/best_{study}_runs.csv") if row["run"] == run)


def behind_best(study, adams, run="onebit_muon", muons=("muon",)):
    """What 1-bit Muon's mean loss is above the best mean of Adam's runs, and of Muon's."""
    return [of_best(study, run) - min(of_best(study, other) for other in others) for others in (adams, muons)]


def step_over_eager():
    """A step of BERT-Large on the GPU over PyTorch's eager one of the same machine, of the last commit."""
    rows = [row for row in read_csv(RESULTS / "gpu/steps.csv") if row["model"] == "bert_large"]
    eager = [row for row in rows if row["mode"] == "eager"][-1]
    ours = [row for row in rows if row["program"] == "onebit" and row["git"] == eager["git"]][-1]
    return float(ours["median_ms"]) / float(eager["median_ms"])


def one_bit_from_the_start(study, column, run="adam"):
    """Mean of a column over the seeds of Efficient-Adam, and of `run`. The two may be of different machines."""
    rows = read_csv(RESULTS / f"thirty/{study}_runs.csv")
    return [mean(float(row[column]) for row in rows if row["run"] == name) for name in ("efficient_adam", run)]


def fewer_bytes(study):
    efficient_adam, adam = one_bit_from_the_start(study, "bytes_sent")
    return adam / efficient_adam


def loss_of_one_bit(study, run="adam"):
    efficient_adam, adam = one_bit_from_the_start(study, "final_validation_loss", run)
    return efficient_adam - adam


def losses_of_one_seed(study, run):
    """Final loss of a run with one seed, and of Efficient-Adam with the same seed."""
    rows = read_csv(RESULTS / f"thirty/{study}_runs.csv")
    (other,) = [row for row in rows if row["run"] == run]
    (one_bit,) = [row for row in rows if (row["run"], row["seed"]) == ("efficient_adam", other["seed"])]
    return [float(row["final_validation_loss"]) for row in (other, one_bit)]


def fastest_average(rate, kind):
    """The row of figure9.csv at this rate that takes least: the slowest rank's median, as long as without bursts."""
    rows = rows_of("communication/figure9.csv", rate=rate, parameters=25000000, hosts=4)
    return laboratory.fastest(laboratory.with_smallest_bursts(rows), kind)


def average_gain(rate, beside="dense"):
    dense, compressed = (laboratory.steady_s(fastest_average(rate, kind)) for kind in (beside, "compressed"))
    return dense / compressed


def bytes_gain():
    dense, compressed = (float(fastest_average("200mbit", kind)["wire_bytes"]) for kind in ("dense", "compressed"))
    return dense / compressed


def step_ms(model, processor, peer=False):
    """Median step in fp32 on a processor, of OneBit or of the fastest PyTorch."""
    times = {}
    for row in rows_of("performance/steps.csv", processor, model=model, precision="fp32"):
        if row["program"].startswith("torch") if peer else row["program"] == "onebit":
            times.setdefault((row["program"], row["version"], row.get("mode")), []).append(float(row["median_ms"]))
    return min(map(statistics.median, times.values()))


def network_gain(network):
    """Step of a network in float in the fastest PyTorch over OneBit's with FQT."""
    rows = rows_of("quantized_training/networks.csv", model=network, pixels=32)
    steps = {row["layers"]: float(row["step_s"]) for row in rows}
    return min(step for layers, step in steps.items() if layers.startswith("fp32, torch")) / steps["fqt, b = 4"]


def optimizer_row(processor):
    """Milliseconds of the optimiser and its compression, the same in PyTorch, and the second over the first."""
    own, peer = (step_ms("optimizer", processor, peer) for peer in (False, True))
    return [own, peer, peer / own]


def algorithm_step(name):
    """Its step of BERT-Base in float over 1-bit Adam's of the same turn, on average."""
    own, other = (rows_of("performance/algorithms.csv", "model 167", algorithm=algorithm, precision="fp32")
                  for algorithm in (name, "1-bit Adam"))
    return statistics.mean(float(one["step_s"]) / float(two["step_s"]) for one, two in zip(own, other, strict=True))


def peer_time(method, rate):
    """How many times as long another library's average takes as OneBit's compressed one."""
    peer, own = (float(rows_of("communication/peers.csv", rate=rate, method=name)[0]["p50_s"])
                 for name in (method, "pairwise_compressed"))
    return peer / own


def hidden_steps(rate):
    """Seconds of a hidden step, of Adam's with bf16 averages, and of Adam's if these ran at the line rate."""
    (row,) = rows_of("communication/hidden.csv", rate=rate, compute_time_ms=1000, parameters=25000000, hosts=4)
    hosts, parameters, bit_per_s = (float(row[name]) for name in ("hosts", "parameters", "link_bit_per_s"))
    line_s = 2 * (hosts - 1) / hosts * 16 * parameters / bit_per_s
    return [float(row["overlapped_s"]), float(row["adam_bf16_s"]), max(line_s, float(row["compute_time_ms"]) / 1e3)]


def hidden_row(hidden_s, adam_s, line_rate_s):
    """As communication/steps.md has it: two times, and how much shorter the hidden step is than two of Adam."""
    return [adam_s, hidden_s, adam_s / hidden_s, line_rate_s / hidden_s]


def time_gain(method, rate):
    """Measured time of Adam with 16-bit averages to the loss of time_to_target.csv, over the method's."""
    adam_s, own_s = (float(row["time_to_target_s"]) for name in ("Adam, bf16", method)
                     for row in rows_of("time_to_target.csv", method=name, rate=rate) if row["time_to_target_s"])
    return adam_s / own_s


def simulated_gain(platform, ranks):
    """Seconds of the fastest average of BERT-Large in bf16 over those of the fastest compressed one."""
    rows = rows_of("many_ranks.csv", platform=platform, ranks=ranks, parameters=336000000)
    half, compressed = (min(float(row["seconds"]) for row in rows if row["collective"].endswith(kind))
                        for kind in ("_bf16", "_compressed"))
    return half / compressed


def grid_gain(platform, ranks):
    """Seconds of the library's compressed average of BERT-Large over those on a grid of ranks."""
    library, on_grid = (float(row["seconds"]) for name in ("mpi_compressed", "grid_compressed") for row in rows_of(
        "many_ranks.csv", platform=platform, ranks=ranks, parameters=336000000, collective=name))
    return library / on_grid


def simulated_step(algorithm, ranks):
    """Milliseconds of a step of a simulated training."""
    row, = rows_of("simulated_training.csv", algorithm=algorithm, exchange="collective", ranks=ranks)
    return 1000 * float(row["step_s"])


def accuracy(run):
    """Median over the seeds of a run's accuracy in the fine-tuning with 1-bit layers, in percent."""
    rows = rows_of("quantized_training/binary_fine_tune_runs.csv", run=run)
    return 100 * statistics.median(float(row["final_validation_accuracy"]) for row in rows)


def layers_gain(network, peer, **wanted):
    """How many times less time a network's layers take with one bit on average than with a peer's kernels, with AMX.

    Without the first convolution, which the paper keeps in float.
    """
    def seconds(kernel):
        return sum(float(row["median_s"]) * float(row["count"]) * float(row["rows"]) / float(row["measured_rows"])
                   for row in rows_of("quantized_training/layers.csv", "AMX", network=network, kernel=kernel, **wanted)
                   if row["layer"] != "conv1")
    return seconds(peer) / seconds("fqt_layer")


def quantized_step_gain(precision):
    """How many times less time a step of BERT-Base takes with one bit on average than in a precision, with AMX."""
    precise, quantized = (float(rows_of("quantized_training/step.csv", "AMX", layers=layers)[0]["step_s"])
                          for layers in (precision, "fqt, b = 4"))
    return precise / quantized


def bf16_steps():
    """Seconds of a step of BERT-Base in bfloat16 with AMX in two sessions, and what one bit gains over each."""
    rows = rows_of("performance/steps.csv", "AMX", model="bert_base", program="onebit", precision="bf16")
    session = statistics.median(float(row["median_ms"]) for row in rows) / 1e3
    bf16, quantized = (float(rows_of("quantized_training/step.csv", "AMX", layers=layers)[0]["step_s"])
                       for layers in ("bf16", "fqt, b = 4"))
    return [session / quantized, bf16 / quantized, session, bf16]


def prediction_errors():
    return [abs(float(row["predicted_s"]) / float(row["measured_s"]) - 1) for row in rows_of("prediction.csv")]


README, ANSWERS = "README.md", "docs/results/README.md"  # of the first the results, of the second the answers
CONVERGENCE, FINE_TUNING, THIRTY, COMMUNICATION, LIBRARIES, STEPS, TRAINING, SPEED, LAYERS, PERFORMANCE = (
    f"docs/results/{name}.md" for name in ("convergence", "fine_tuning/pretrain", "thirty", "communication",
                                           "communication/libraries", "communication/steps",
                                           "quantized_training/binary_fine_tune", "quantized_speed",
                                           "quantized_speed/layers", "performance"))
BERT, XEON = r"(?s)Masked-language-model BERT on the King James Bible:\n.*?", r"(?s)\n(?:### )?Intel.*?"  # to skip to

# (page, pattern of its text with a group for each number, the computed numbers in order). The other pages have the
# numbers that the answers sum up.
CLAIMS = [
    (README, r"(\d+) times fewer bytes than 32-bit averages", lambda: [bytes_gain()]),
    *((README, rf"\n\| {name} \| ([\d.]+) \| \| ([\d.]+) \| \|",
       lambda run=run: [of_best(study, run) for study in ("gpt", "base")])
      for name, run in (("Adam", "adam"), ("Muon", "muon"))),
    *((README, rf"\n\| {name} \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|",
       lambda runs=runs: [of_best(study, run, column) for study, run in zip(("gpt", "base"), runs)
                          for column in ("final_validation_loss", "reduction")])
      for name, runs in (("1-bit Adam", ("onebit_adam_l2", "onebit_adam")), ("1-bit Muon", ("l2", "onebit_muon")))),
    (README, r"(\d+) times as fast as a 16-bit one at 1 Gbit/s", lambda: [average_gain("1gbit", "bf16")]),

    # How well one bit trains.
    (ANSWERS,
     r"([+-][\d.]+) nats \(natural logarithm\) from Adam's for a GPT of characters and ([+-][\d.]+) for a "
     r"\[BERT of subwords\]",
     lambda: [loss_behind_adam("convergence/gpt_runs.csv"),
              loss_behind_adam("fine_tuning/pretrain_runs.csv", "onebit")]),
    (ANSWERS,
     r"For a GPT of characters 1-bit Muon ends at ([+-][\d.]+) nats from the best Adam that was found, and at "
     r"([+-][\d.]+) from Muon",
     lambda: behind_best("gpt", ("adam", "adam_06", "adam_averaging"), "onebit_muon_averaging",
                         ("muon", "muon_averaging"))),
    (ANSWERS,
     r"There 1-bit Muon ends at ([+-][\d.]+) nats from the best Adam that was found, and at ([+-][\d.]+) from Muon",
     lambda: behind_best("sections", ("adam", "adam_06", "adam_averaging"), "onebit_muon_averaging",
                         ("muon", "muon_averaging"))),
    (ANSWERS,
     r"on a GPU 1-bit Muon ends at ([+-][\d.]+) nats from the best Adam that was found, and at ([+-][\d.]+) from Muon",
     lambda: behind_best("base", ("adam",))),
    (ANSWERS,
     r"a step of a ResNet-18 takes ([\d.]+) times less time than in PyTorch in float, and of a VGG-16 ([\d.]+)",
     lambda: [network_gain("ResNet-18"), network_gain("VGG-16")]),
    (ANSWERS, r"A step of BERT-Large takes ([\d.]+) times as long as in PyTorch's eager mode",
     lambda: [step_over_eager()]),
    (CONVERGENCE, BERT + r"\n\| 1-bit Adam is as good as Adam \|[^|]*\| ([+-][\d.]+) ±",
     lambda: [loss_behind_adam("convergence/bert_runs.csv")]),
    (FINE_TUNING, r"\n\| control: dense averages, v frozen \|[^|]*\|[^|]*\| ([+-][\d.]+) \|",
     lambda: [loss_behind_adam("fine_tuning/pretrain_runs.csv", "control")]),
    (ANSWERS,
     r"Efficient-Adam sends ([\d.]+) times fewer bytes than 32-bit Adam for a GPT and ends at ([+-][\d.]+) nats",
     lambda: [fewer_bytes("thirty"), loss_of_one_bit("thirty")]),
    *((f"docs/results/thirty/{study}.md",
       rf"\n\| Efficient-Adam, β1 = 0\.6, γ = {rate} \|[^|]*\|[^|]*\| ([+-][\d.]+) \|[^|]*\| ([\d.]+) \| ([\d.]+) \|",
       lambda study=study: [loss_of_one_bit(study), fewer_bytes(study), fewer_bytes(study) / 2])
      for study, rate in (("thirty", "6e-3"), ("thirty_bert", "8e-3"))),
    ("docs/results/thirty/thirty.md", r"ends at\s(1\.\d+) with seed 1, where Efficient-Adam ends at (1\.\d+)",
     lambda: losses_of_one_seed("thirty", "adam_b9_6e_3")),
    (THIRTY,
     BERT + r"\n\| Efficient-Adam is as good as Adam with the same β1 and γ and bias correction \|[^|]*"
     r"\| ([+-][\d.]+) ±",
     lambda: [loss_of_one_bit("thirty_bert", "adam_b6_8e_3")]),

    # Bytes and times on slow networks.
    (ANSWERS,
     r"The compressed phase sends (\d+) times fewer bytes than 32-bit averages and (\d+) times fewer than 16-bit ones",
     lambda: [bytes_gain(), bytes_gain() / 2]),
    (ANSWERS,
     r"At 1 Gbit/s an average over 4 hosts is (\d+) times as fast as a 32-bit one and (\d+) times as fast as a "
     r"16-bit one",
     lambda: [average_gain("1gbit"), average_gain("1gbit", "bf16")]),
    *((COMMUNICATION, rf"\n\| {rate} \|(?:[^|]*\|){{8}} \*\*([\d.]+) ×\*\* \|[^|]*\| ([\d.]+) × \|",
       lambda rate=rate: [average_gain(rate), average_gain(rate, "bf16")]) for rate in ("200mbit", "1gbit", "3gbit")),
    (ANSWERS,
     r"DeepSpeed's compressed average takes ([\d.]+) times as long as OneBit's at 200 Mbit/s and ([\d.]+) times at 1 "
     r"Gbit/s",
     lambda: [peer_time("deepspeed_compressed", rate) for rate in ("200mbit", "1gbit")]),
    *((LIBRARIES, rf"\n\| {rate} \|[^|]*\|[^|]*\| `{method}` \|(?:[^|]*\|){{3}} ([\d.]+) \|",
       lambda rate=rate, method=method: [peer_time(method, rate)])
      for rate in ("200mbit", "1gbit")
      for method in ("powersgd_1", "gloo_fp32", "gloo_bf16", "pairwise_allreduce", "pairwise_bf16")),
    (ANSWERS,
     r"With a gradient of one second, a step at 200 Mbit/s takes ([\d.]+) s, and Adam's with bf16 averages takes "
     r"([\d.]+) s",
     lambda: hidden_steps("200mbit")[:2]),
    (ANSWERS, r"At (\d) Gbit/s it gains nothing over bf16 averages at the line rate",
     lambda: [gbit for gbit, rate in ((0.2, "200mbit"), (1, "1gbit")) if hidden_row(*hidden_steps(rate))[3] < 1]),
    *((STEPS,
       rf"\n\| 1 \| {rate} \|[^|]*\| ([\d.]+) \|[^|]*\| ([\d.]+) \|(?:[^|]*\|){{5}} ([\d.]+) × \| ([\d.]+) × \|",
       lambda rate=rate: hidden_row(*hidden_steps(rate))) for rate in ("200mbit", "1gbit")),
    (ANSWERS,
     r"on 64 hosts with links of 10 Gbit/s takes ([\d.]+) times less time with one bit than in bf16, and on 64 ranks "
     r"of the paper's Ethernet cluster ([\d.]+) times less",
     lambda: [simulated_gain("star", 64), simulated_gain("Ethernet cluster", 64)]),
    (ANSWERS,
     r"On 1024 hosts of a fat tree, an average of BERT-Large with one bit takes ([\d.]+) times less time on a grid of "
     r"ranks than by the library",
     lambda: [grid_gain("fat tree", 1024)]),

    (ANSWERS,
     r"In a simulation with links of 1 Gbit/s and 5 ms for a gradient, a step of a small GPT on 256 ranks takes "
     r"([\d.]+) ms with 1-bit Adam and ([\d.]+) ms with Adam",
     lambda: [simulated_step("onebit_adam", 256), simulated_step("adam", 256)]),

    (ANSWERS,
     r"At 200 Mbit/s 1-bit Muon takes ([\d.]+) times less time than Adam with 16-bit averages, and at 1 Gbit/s "
     r"([\d.]+) times less",
     lambda: [time_gain("1-bit Muon", rate) for rate in ("200mbit", "1gbit")]),

    # One bit for weights, activations and gradients.
    (ANSWERS,
     r"A small BERT fine-tunes to ([\d.]+) % with about one bit for each of them and to ([\d.]+) % in float",
     lambda: [accuracy(run) for run in ("fqt_4", "fp32")]),
    *((TRAINING, rf"\n\| {name} \| 3 \|[^|]*\| [+-][\d.]+ \| ([\d.]+) % \(",
       lambda run=run: [accuracy(run)])
      for name, run in (("QAT", "qat"), ("FQT, b = 4, with 1-bit Adam on 4 ranks", "onebit_4_ranks"),
                        ("full precision, not pre-trained", "scratch_fp32"))),
    (ANSWERS,
     r"a step of BERT-Base takes ([\d.]+) times less time than in float and ([\d.]+) to ([\d.]+) times less than in "
     r"bfloat16",
     lambda: [quantized_step_gain("fp32"), *bf16_steps()[:2]]),
    (PERFORMANCE, XEON + r"\n\| BERT-Base, T 128, vocabulary 30522, batch 8 \| bf16 \| ([\d.]+) \(",
     lambda: [1e3 * bf16_steps()[2]]),
    (SPEED, XEON + r"\n\| bf16 \| ([\d.]+) \|", lambda: [bf16_steps()[3]]),
    (LAYERS, r"\n\| bert_base \|[^|]*\| ([\d.]+) \|[^|]*\| ([\d.]+) \|[^|]*\| ([\d.]+) \|",
     lambda: [layers_gain("bert_base", f"{peer}_layer") for peer in ("fp32", "bf16", "int8")]),
    *((LAYERS, rf"\n\| resnet18 \| {pixels} \| ([\d.]+) \|",
       lambda pixels=pixels: [layers_gain("resnet18", "fp32_layer", pixels=pixels)]) for pixels in (32, 64, 128, 224)),

    # The cost of a step.
    (ANSWERS,
     r"For 25 million parameters the optimiser and its compression take ([\d.]+) ms of two cores of an EPYC, ([\d.]+) "
     r"times less than the same in PyTorch",
     lambda: optimizer_row("EPYC")[::2]),
    (ANSWERS,
     r"For BERT-Base in float on four ranks it is ([\d.]+) times as long as 1-bit Adam's, and ([\d.]+) times with "
     r"three iterations of Newton–Schulz",
     lambda: [algorithm_step(f"1-bit Muon{iterations}")
              for iterations in ("", ", three iterations of Newton–Schulz")]),
    (ANSWERS, r"A step of BERT-Base takes ([\d.]+) s on the EPYC, where PyTorch's takes ([\d.]+) s",
     lambda: [step_ms("bert_base", "EPYC", peer) / 1e3 for peer in (False, True)]),
    (PERFORMANCE,
     XEON + r"\n\| 1-bit Adam's compressed phase, 25 million parameters, nothing travels \| fp32 \| ([\d.]+) [^|]*\|"
     r"[^|]*\|[^|]*\| ([\d.]+) [^|]*\|[^|]*\| ([\d.]+) \|",
     lambda: optimizer_row("Xeon")),
    (PERFORMANCE,
     XEON + r"\n\| BERT-Base, T 128, vocabulary 30522, batch 8 \| fp32 \| (\d+) [^|]*\|[^|]*\|[^|]*\| (\d+) ",
     lambda: [step_ms("bert_base", "Xeon", peer) for peer in (False, True)]),

    # Predictions.
    (ANSWERS,
     r"Its median error is (\d+) % and its largest (\d+) % over (\d+) averages that it was not fitted to, on (\d) to "
     r"(\d) hosts of the shaped network that it was fitted to, up to 1 Gbit/s",
     lambda: [100 * statistics.median(prediction_errors()), 100 * max(prediction_errors()), len(prediction_errors()),
              *(choose(float(row["hosts"]) for row in rows_of("prediction.csv", "")) for choose in (min, max))]),
]


def as_printed(value, text):
    """The value with the sign and the decimals of the text."""
    return f"{value:{'+' if text[0] in '+-' else ''}.{len(text.partition('.')[2])}f}"


class Numbers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in {page for page, _, _ in CLAIMS}}
        cls.texts[README] = re.search(r"^## Results\n(.*?)^## ", cls.texts[README], re.M | re.S)[1]
        table = re.search(r"^\| page \| question \| answer \|\n\|[-|]+\|\n((?:\|.*\n)+)", cls.texts[ANSWERS], re.M)[1]
        cls.texts[ANSWERS] = "\n".join(row.split(" | ")[2] for row in table.splitlines())

    def test_numbers_are_those_of_the_csv_files(self):
        for page, pattern, compute in CLAIMS:
            with self.subTest(f"{page}: {pattern}"):
                found = re.search(pattern, self.texts[page])
                self.assertTrue(found, f"{page} has no such text; remedy: change CLAIMS in this test with it")
                computed = [as_printed(value, text) for value, text in zip(compute(), found.groups())]
                self.assertEqual(list(found.groups()), computed)

    def test_every_number_is_computed(self):
        for page in (README, ANSWERS):
            rest = self.texts[page]
            for _, pattern, _ in (claim for claim in CLAIMS if claim[0] == page):
                rest = re.sub(pattern, "", rest)
            rest = re.sub(r"\]\([^)]*\)", "]", rest)  # links
            self.assertEqual(re.findall(r"(?<![\w-])(?!1-bit)[+-]?\d[\d.]*[^|;,\n]*", rest), [],
                             f"{page}: no computation in CLAIMS for these numbers")

    def test_quick_start(self):
        table = subprocess.run([ROOT / "scripts/quickstart_table.py", RESULTS / "quickstart.csv"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        self.assertIn(f"```\n{table}```", (ROOT / README).read_text(encoding="utf-8"))


# --- every CSV file -----------------------------------------------------------


def provenance_errors(path, is_known):
    """What the rows of a CSV file lack; `is_known(commit)` says whether the repository has a commit."""
    rows = read_csv(path)
    columns = rows[0].keys() if rows else []
    errors = [f"no column {column}" for column in ("git", "machine") if column not in columns]
    if not any(column in columns for column in COUNTS):
        errors.append(f"no column {' or '.join(COUNTS)}")
    if errors:
        return errors
    for number, row in enumerate(rows, 2):
        if not row["machine"].strip():
            errors.append(f"line {number}: no machine")
        if not any(re.fullmatch(r"\d+", row.get(column) or "") for column in COUNTS):
            errors.append(f"line {number}: no number of runs")
        if "unknown" in (row["git"], row["machine"]) and not (row.get("note") or "").strip():
            errors.append(f"line {number}: git or machine is unknown, and no note says why")
        if row["git"] == "unknown":
            continue
        if not (commit := COMMIT.fullmatch(row["git"])):
            errors.append(f"line {number}: git '{row['git']}' is no commit")
        elif not is_known(commit[1] or commit[0]):
            errors.append(f"line {number}: this repository has no commit {row['git']} before this one")
    return errors


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


class Provenance(unittest.TestCase):
    def test_every_row_says_where_it_comes_from(self):
        shallow = git("rev-parse", "--is-shallow-repository").stdout.strip()
        known = {}

        def is_known(commit):
            if shallow == "false" and commit not in known:
                known[commit] = git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
            return known.get(commit, True)

        paths = sorted(path for path in RESULTS.rglob("*.csv") if path.parent.name != "paper")
        self.assertGreater(len(paths), 10)
        for path in paths:
            with self.subTest(str(path.relative_to(ROOT))):
                errors = provenance_errors(path, is_known)
                if errors:
                    self.fail("\n".join(errors[:5] + [f"and {len(errors) - 5} more"] * (len(errors) > 5)))
        if shallow != "false":
            self.skipTest("no git history here: whether the commits of the results exist")

    def test_transcriptions_name_their_source(self):
        for path in (RESULTS / "paper").glob("*.csv"):
            self.assertTrue(all(row["source"].strip() for row in read_csv(path)), path)

    def test_what_is_wrong_is_seen(self):
        def errors(text):
            with tempfile.TemporaryDirectory() as directory:
                path = pathlib.Path(directory) / "some.csv"
                path.write_text(text)
                return provenance_errors(path, lambda commit: commit != "fffffff")

        head = "value,git,machine,runs,note\n"
        for good in ("1,0123abc,a machine,3,\n", "1,v1.0-12-g0123abc,a machine,1,\n",
                     "1,unknown,a machine,1,measured before\n"):
            self.assertEqual(errors(head + good), [], good)
        for bad, said in (("1,0123abc-dirty,a machine,3,\n", "is no commit"), ("1,,a machine,3,\n", "is no commit"),
                          ("1,unknown,a machine,3,\n", "no note"), ("1,0123abc,unknown,3,\n", "no note"),
                          ("1,0123abc,,3,\n", "no machine"),
                          ("1,0123abc,a machine,,\n", "no number of runs"),
                          ("1,fffffff,a machine,3,\n", "has no commit")):
            self.assertRegex("\n".join(errors(head + bad)), said)
        self.assertEqual(len(errors("value\n1\n")), 3)


class Intervals(unittest.TestCase):
    def test_quantiles_of_students_t(self):
        for freedom, quantile in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228),
                                  (30, 2.042)):
            self.assertAlmostEqual(intervals.t_quantile(freedom), quantile, delta=5e-4)
        self.assertAlmostEqual(intervals.t_quantile(2, 0.99), 9.925, delta=5e-4)
        self.assertAlmostEqual(intervals.t_quantile(5, 0.9), 2.015, delta=5e-4)

    def test_half_width(self):
        # The standard deviation is 1, so 4.303 / sqrt(3).
        self.assertAlmostEqual(intervals.half_width([1, 2, 3]), 2.484, delta=1e-3)
        self.assertEqual(intervals.half_width([5, 5, 5]), 0)
        self.assertEqual(intervals.half_width([5]), math.inf)


class Claims(unittest.TestCase):
    """Claims hold where the seeds decide them, and the pages print what follows from the CSV files."""

    def judge(self, differences, **asked):
        """The words and the verdict for a study whose two runs differ by so much, seed by seed."""
        runs = {"run": differences, "against": [0.0] * len(differences)}
        study = mock.Mock()
        study.best.side_effect, study.present.return_value = lambda name: name, list(runs)
        study.values.side_effect = lambda name, column: dict(enumerate(runs[name]))
        return study_claims.judge(study, {"run": "run", "against": "against", **asked})

    def test_the_interval_decides(self):
        near = [0.010, 0.020, 0.030]  # 0.02 ± 0.0248
        for asked, verdict in (({"at_most": 0.05}, "yes"), ({"at_most": 0.04}, "undecided (3 seeds do not tell)"),
                               ({"at_most": -0.01}, "no"), ({"at_least": -0.01}, "yes"),
                               ({"at_least": 0.0}, "undecided (3 seeds do not tell)"), ({"at_least": 0.05}, "no"),
                               ({"within": 0.05}, "yes"), ({"within": 0.03}, "undecided (3 seeds do not tell)")):
            self.assertEqual(self.judge(near, **asked), ("+0.0200 ± 0.0248", verdict), asked)
        for far in ([0.2, 0.21, 0.22], [-0.2, -0.21, -0.22]):
            self.assertEqual(self.judge(far, within=0.05)[1], "no")
        # The seeds of Distributed Lion by majority: a mean of −0.06 that says nothing.
        self.assertEqual(self.judge([0.364, -0.196, -0.345], at_most=0.1)[1], "undecided (3 seeds do not tell)")

    def test_runs_that_failed(self):
        infinite = math.inf
        self.assertEqual(self.judge([infinite] * 3, at_least=10), ("3 of 3 runs failed", "yes"))
        self.assertEqual(self.judge([infinite] * 3, at_most=10)[1], "no")
        self.assertEqual(self.judge([infinite, 1.0, 2.0], at_most=10)[1], "undecided (3 seeds do not tell)")
        self.assertEqual(self.judge([math.nan] * 3, at_most=10)[1], "undecided (3 seeds do not tell)")

    def test_too_few_seeds_decide_nothing(self):
        self.assertEqual(self.judge([0.0, 0.0], within=1), ("results of 2 seeds", "no"))

    def test_pages_print_what_the_csv_files_say(self):
        for pages in parts.STUDIES:
            page = RESULTS / f"{pages.page}.md"
            text = page.read_text(encoding="utf-8")
            arguments = argparse.Namespace(results="nowhere", page=page, ranks=4, set=[], onebit="onebit",
                                           mpiexec="mpirun")
            for name in pages.inputs:
                with self.subTest(name):
                    study = study_runs.Study(ROOT / name, arguments)
                    study.collect(from_results=False)
                    self.assertEqual(len(study.rows), len(study.cells), "runs without results, or of another input")
                    if study.claims:
                        self.assertIn(study_claims.claims_table(study), text)


class Pages(unittest.TestCase):
    def test_a_range_is_printed_only_where_there_is_one(self):
        for path in sorted(RESULTS.rglob("*.md")):
            with self.subTest(path.name):
                alike = re.findall(r"\(([\d.]+) – \1\)", path.read_text(encoding="utf-8"))
                self.assertEqual(alike, [], "one run, or runs that agree, and a range")

    def test_figures_can_be_read(self):
        figures = sorted(RESULTS.rglob("*.svg"))
        self.assertGreater(len(figures), 20)
        for path in figures:
            with self.subTest(path.name):
                support.check_figure(self, path)


if __name__ == "__main__":
    skips.main(sys.argv[2:])
