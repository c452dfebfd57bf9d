"""OneBit for ReFrame: the sizes of docs/guide/run_rules.md on each backend.

    reframe -C packaging/reframe/settings.py -c packaging/reframe/onebit.py -n 'onebit.*size=smoke.*backend=openmp' -r

`-S NAME=VALUE` sets a variable of the class, for example `-S num_tasks=8` or `-S options=--set,comm.exchange=pairwise`.
CUDA and HIP run on partitions with the feature of that name.
"""

import pathlib

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.builtins import parameter, performance_function, run_after, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError

ROOT = pathlib.Path(__file__).resolve().parents[2]


@rfm.simple_test
class onebit(rfm.RunOnlyRegressionTest):
    size = parameter(["smoke", "node", "cluster"])
    backend = parameter(["openmp", "cuda", "hip"])

    program = variable(str, value="")  # empty: the preset's
    corpus = variable(str, value=str(ROOT / "corpus/kjv.txt"))
    options = variable(typ.List[str], value=[])  # further arguments of `onebit train`
    launcher_options = variable(typ.List[str], value=[])

    valid_prog_environs = ["*"]
    sourcesdir = None
    num_tasks = 4
    num_cpus_per_task = 1  # threads of a rank
    time_limit = "1h"
    keep_files = ["figures.json", "results/run.csv", "results/steps.csv", "results/input.resolved.yaml"]

    @run_after("init")
    def choose_partitions(self):
        self.valid_systems = ["*"] if self.backend == "openmp" else [f"+{self.backend}"]

    @run_before("run")
    def set_command(self):
        self.executable = self.program or str(ROOT / "build" / self.backend / "onebit")
        self.executable_opts = ["train", str(ROOT / "inputs/rules" / f"{self.size}.yaml"), "--json", "figures.json",
                                "--set", f"run.backend={self.backend}", "--set", "run.output=results",
                                "--set", f"data.corpus={self.corpus}", *self.options]
        self.env_vars["OMP_NUM_THREADS"] = self.num_cpus_per_task
        self.job.launcher.options += self.launcher_options

    @sanity_function
    def is_valid(self):
        # The reason of a failure is what the program says. mpirun's words about exit statuses follow it.
        said = [*sn.evaluate(sn.extractall(r"^(?:error: |  remedy: ).*", self.stderr)),
                *sn.evaluate(sn.extractall(r"^VALIDATION FAILED .*", self.stdout))]
        if self.job.exitcode != 0:
            raise SanityError(" ".join(map(str.strip, said)) or f"exit status {self.job.exitcode}")
        return sn.all([sn.assert_found(r"^VALIDATION PASSED ", self.stdout),
                       sn.assert_not_found(r"^VALIDATION FAILED ", self.stdout)])

    def figure(self, name):
        return sn.extractsingle(rf"^FOM {name} (\S+) \S+$", self.stdout, 1, float)

    @performance_function("1/s")
    def tokens_per_s(self):
        return self.figure("tokens_per_s")

    @performance_function("s")
    def step_s(self):
        return self.figure("step_s")

    @performance_function("nats")
    def final_loss(self):
        return self.figure("final_loss")

    @performance_function("nats")
    def final_validation_loss(self):
        return self.figure("final_validation_loss")

    @performance_function("B")
    def bytes_sent(self):
        return self.figure("bytes_sent")

    @performance_function("times")
    def reduction(self):
        return self.figure("reduction")

    @performance_function("times")
    def reduction_vs_16bit(self):
        return self.figure("reduction_vs_16bit")
