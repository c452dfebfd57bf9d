"""OneBit for Benchpark: the sizes of docs/guide/run_rules.md.

It has not been run: it was written after reading Benchpark's sources of 2026. packaging/README.md says where to copy
it. Then:

    benchpark experiment init --dest onebit SYSTEM onebit+openmp workload=node checkout=/path/to/onebit
"""

from benchpark.directives import variant
from benchpark.experiment import Experiment
from benchpark.programming_model import ProgrammingModel, ProgrammingModelType


class Onebit(
    Experiment,
    ProgrammingModel(ProgrammingModelType.Openmp, ProgrammingModelType.Cuda, ProgrammingModelType.Rocm),
):
    variant("workload", default="smoke", values=("smoke", "node", "cluster"), description="size of the run rules")
    variant("version", default="main", values=("main",), description="of OneBit's sources; there is no release yet")
    variant("checkout", default="/path/to/onebit", description="OneBit's checkout, with inputs and corpus")

    def compute_applications_section(self):
        backends = [("+cuda", "cuda"), ("+rocm", "hip"), ("+openmp", "openmp")]
        backend = next(name for model, name in backends if self.spec.satisfies(model))
        self.add_experiment_variable("backend", backend)
        self.add_experiment_variable("checkout", self.spec.variants["checkout"][0])
        if backend == "openmp":
            self.add_experiment_variable("n_ranks", 4, True)
            self.add_experiment_variable("n_threads_per_proc", 1, True)
        else:
            self.add_experiment_variable("n_gpus", 4, True)
        batch = {"smoke": 32, "node": 256, "cluster": 4096}[self.spec.variants["workload"][0]]
        resources = "n_ranks" if backend == "openmp" else "n_gpus"
        self.set_required_variables(n_resources=f"{{{resources}}}", total_problem_size=batch,
                                    process_problem_size=f"{batch}/{{{resources}}}")

    def compute_package_section(self):
        # Benchpark appends +openmp, +cuda cuda_arch=… or +rocm amdgpu_target=… to the text, which so ends with a space.
        self.add_package_spec(self.name, [f"onebit{self.determine_version()} "])
