"""Stage 4: kernels against the machine, and steps of BERT beside PyTorch's."""

import os
import pathlib
import re
import statistics
import subprocess
import tempfile

from gpu_check.training import compare_pages
from gpu_check.verdicts import PASS, Failed, Skipped
from lib import ROOT, launch, tables
from lib.models import MODELS

PASSES = ("gradient_norm", "variance_norm", "adam", "momentum_compress", "compress", "residual_norm",
          "average_recompress", "decompress_update")
LEAST_OF_COPY = 0.8    # bandwidth of a pass over parameters, over that of a copy
LEAST_OF_COMPILED = 0.7  # speed of a bf16 step, over that of torch.compile
LARGE = 336_000_000    # parameters, BERT-Large's
BATCHES = (16, 32, 64, 128, 256)
LEAST_GAIN = 1.05      # tokens/s of twice the batch; a GPU that gains less is full
STEPS, WARM_UP = 20, 5
KERNEL_LIMIT_S, STEP_LIMIT_S, TORCH_LIMIT_S = 150, 60, 150
# Name of a measurement, and its keys.
CASES = {**{precision: {"model.precision": precision} for precision in ("fp32", "tf32", "bf16")},
         "large": {"bench.smallest": LARGE, "bench.largest": LARGE, "bench.repetitions": 5}}


class Kernels:
    """Runs of `onebit bench kernels`, with all of their rows in kernels.csv."""

    def __init__(self, report, here, directory):
        self.report, self.here, self.directory, self.rows = report, here, directory, []

    def measure(self, case, backend, settings):
        output = self.directory / case
        settings = {"run.output": output, "run.backend": backend, "train.batch": 64, **settings}
        command = self.here.on_ranks(1, self.here.program, "bench", "kernels", "inputs/bench_kernels.yaml",
                                     *launch.overrides(settings))
        environment = {**self.here.environment, "OMP_NUM_THREADS": str(os.cpu_count() or 1)}
        self.report.run(command, KERNEL_LIMIT_S, environment, self.here.root).expect()
        rows = tables.read_csv(output / "kernels.csv")
        self.rows += [{"case": case, **row} for row in rows]
        tables.write_csv(self.report.output / "kernels.csv", self.rows)
        rates = {row["kernel"]: row for row in rows}
        return f"{len(rows)} kernels, all right; copy {rate(rates['copy'], 'bytes'):.0f} GB/s, " + ", ".join(
            f"{name} {rate(rates[name], 'flop') / 1000:.0f} TFLOP/s" for name in rates if name.startswith("gemm"))

    def judge_pass(self, kernel):
        rows = {row["kernel"]: row for row in self.rows if row["case"] == "large"}
        if kernel not in rows:
            raise Failed("no such kernel was measured")
        return share_of_copy(rows[kernel], rows["copy"])


def rate(row, column):
    """10⁹ bytes, or operations, a second."""
    return float(row[column]) / float(row["median_s"]) / 1e9


def share_of_copy(row, copy):
    share = rate(row, "bytes") / rate(copy, "bytes")
    words = f"{rate(row, 'bytes'):.0f} GB/s, {tables.percent(share)} of copy's {rate(copy, 'bytes'):.0f} GB/s"
    if share < LEAST_OF_COPY:
        raise Failed(words + f", not {tables.percent(LEAST_OF_COPY)}", "profile it with ncu")
    return words


class Steps:
    """Times of training steps, with all rows in steps.csv."""

    COLUMNS = ("model", "program", "version", "mode", "precision", "batch", "steps", "median_ms", "tokens_per_s")

    def __init__(self, report, here, python):
        self.report, self.here, self.python, self.rows = report, here, python, []
        self.without_torch = None  # why there is no PyTorch, or ""

    def add(self, model, program, version, mode, batch, milliseconds):
        tokens = batch * MODELS[model].tokens / milliseconds * 1000
        self.rows.append(dict(zip(self.COLUMNS, (model, program, version, mode, "bf16", batch, STEPS,
                                                 f"{milliseconds:.3f}", f"{tokens:.0f}"))))
        tables.write_csv(self.report.output / "steps.csv", self.rows)
        return tokens

    def onebit(self, model, batch):
        """Tokens a second of one run."""
        with tempfile.TemporaryDirectory() as scratch:
            settings = {"run.output": f"{scratch}/run", "run.backend": "cuda", "data.cache": scratch,
                        "model.preset": model.replace("bert_", ""), "model.precision": "bf16", "train.batch": batch,
                        "train.validation_batch": batch, "train.steps": WARM_UP + STEPS}
            command = self.here.on_ranks(1, self.here.program, "train", "inputs/performance/bert_base.yaml",
                                         *launch.overrides(settings))
            self.report.run(command, STEP_LIMIT_S, self.here.environment, self.here.root).expect(
                remedy="see the log; where memory is short, a GPU with more of it takes this batch")
            run, = tables.read_csv(f"{scratch}/run/run.csv")
            times = [float(row["step_s"]) for row in tables.read_csv(f"{scratch}/run/steps.csv")[WARM_UP:]]
        return self.add(model, "onebit", run["git"], "", batch, 1e3 * statistics.median(times))

    def fill(self, model):
        """Doubles the batch until the GPU is full. Returns what was found in words."""
        fastest, found = 0.0, ""
        for batch in BATCHES:
            try:
                tokens = self.onebit(model, batch)
            except Failed:
                if not found:
                    raise
                return f"{found}; batch {batch} does not run"
            if found and tokens < LEAST_GAIN * fastest:
                return found
            fastest, found = tokens, f"{self.rows[-1]['median_ms']} ms at batch {batch}, {tokens:.0f} tokens/s"
        return found

    def fastest(self, model, mode=""):
        rows = [row for row in self.rows if row["model"] == model and row["mode"] == mode]
        if not rows:
            raise Failed("there is no such measurement", "see the checks above")
        return max(rows, key=lambda row: float(row["tokens_per_s"]))

    def torch(self, model, mode):
        """A step of PyTorch at the batch at which OneBit is fastest."""
        if self.without_torch is None:
            asked = subprocess.run([self.python, "-c", "import torch; assert torch.cuda.is_available(), 'no GPU'"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.without_torch = asked.stdout.strip().splitlines()[-1] if asked.returncode != 0 else ""
        if self.without_torch:
            raise Skipped(f"{self.python} has no PyTorch with CUDA: {self.without_torch}",
                          "name one that has with --python")
        batch = int(self.fastest(model)["batch"])
        command = [self.python, ROOT / "scripts/experiments/step_time.py", model, "--mode", mode, "--precision",
                   "bf16", "--batch", batch, "--device", "cuda", "--steps", STEPS, "--warm-up", WARM_UP]
        # Without the environment of this build, whose libraries are not PyTorch's.
        output = self.report.run(command, TORCH_LIMIT_S, dict(os.environ)).expect().output
        version, milliseconds = re.search(r"^torch (\S+),.* median ([0-9.]+) ms$", output, re.M).groups()
        tokens = self.add(model, "pytorch", version, mode, batch, float(milliseconds))
        return f"{milliseconds} ms at batch {batch}, {tokens:.0f} tokens/s"

    def judge(self, model):
        return share_of_compiled(self.fastest(model), self.fastest(model, "compile"))


def share_of_compiled(onebit, compiled):
    share = float(onebit["tokens_per_s"]) / float(compiled["tokens_per_s"])
    words = f"{share:.2f} of torch.compile's tokens/s at batch {compiled['batch']}"
    if share < LEAST_OF_COMPILED:
        raise Failed(words + f", not {LEAST_OF_COMPILED}", "profile a step with nsys")
    return words


def check_kernels(report, kernels, options):
    if not options.without_gpu:
        for case, settings in CASES.items():
            verdict = report.check(f"kernels:{case}", kernels.measure, case, "cuda", settings)
        if verdict == PASS:
            for kernel in PASSES:
                report.check(f"kernels:large:{kernel}", kernels.judge_pass, kernel)


def compare_kernels(report, directory):
    if not (directory / "fp32/kernels.csv").is_file():
        raise Failed("there are no kernels of CUDA in fp32", "run both with --only 'kernels*'")
    return compare_pages(report, [directory / "openmp", directory / "fp32"], report.output / "kernels")


def check_steps(report, steps):
    for model in ("bert_base", "bert_large"):
        if report.check(f"step:{model}", steps.fill, model) != PASS:
            continue
        for mode in ("eager", "compile"):
            verdict = report.check(f"step:{model}:{mode}", steps.torch, model, mode)
        if verdict == PASS:
            report.check(f"step:{model}:ratio", steps.judge, model)


def run_stage(report, here, options):
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        kernels = Kernels(report, here, directory)
        check_kernels(report, kernels, options)
        if not options.without_gpu:
            check_steps(report, Steps(report, here, options.python))
        # At last, because it needs no GPU.
        measured = report.check("kernels:openmp", kernels.measure, "openmp", "openmp", {"bench.repetitions": 5})
        if measured == PASS and not options.without_gpu:
            report.check("kernels:openmp:compare_backends", compare_kernels, report, directory)
        report.keep(directory)
