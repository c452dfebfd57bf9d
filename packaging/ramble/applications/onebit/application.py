"""OneBit for Ramble: a workload for each size of docs/guide/run_rules.md.

    ramble repo add packaging/ramble          # then a workspace with packaging/ramble/ramble.yaml as its configuration

The figures and the verdict are those that the program prints.
"""

from ramble.appkit import *


class Onebit(ExecutableApplication):
    """Trains a transformer data-parallel over MPI with 1-bit Adam, as a Kokkos mini-app."""

    name = "onebit"

    tags("benchmark", "mini-app", "mpi", "kokkos", "machine-learning")

    executable(
        "train",
        "{program} train {inputs}/{workload_name}.yaml --json {experiment_run_dir}/figures.json"
        " --set run.backend={backend} --set run.output={experiment_run_dir}/results --set data.corpus={corpus} {options}",
        use_mpi=True,
    )

    workload("smoke", executables=["train"])
    workload("node", executables=["train"])
    workload("cluster", executables=["train"])

    sizes = ["smoke", "node", "cluster"]
    workload_variable("program", default="onebit", description="the program, or its path", workloads=sizes)
    workload_variable("checkout", default=".", description="OneBit's checkout", workloads=sizes)
    workload_variable("inputs", default="{checkout}/inputs/rules", description="folder of the inputs", workloads=sizes)
    workload_variable("corpus", default="{checkout}/corpus/kjv.txt", description="text to train on", workloads=sizes)
    workload_variable("backend", default="openmp", values=["openmp", "cuda", "hip"], description="run.backend",
                      workloads=sizes)
    workload_variable("options", default="", description="further arguments of 'onebit train'", workloads=sizes)

    figure_of_merit("tokens_per_s", fom_regex=r"^FOM tokens_per_s (?P<value>\S+) \S+$", group_name="value", units="1/s")
    figure_of_merit("step_s", fom_regex=r"^FOM step_s (?P<value>\S+) \S+$", group_name="value", units="s")
    figure_of_merit("final_loss", fom_regex=r"^FOM final_loss (?P<value>\S+) \S+$", group_name="value", units="nats")
    figure_of_merit("final_validation_loss", fom_regex=r"^FOM final_validation_loss (?P<value>\S+) \S+$",
                    group_name="value", units="nats")
    figure_of_merit("bytes_sent", fom_regex=r"^FOM bytes_sent (?P<value>\S+) \S+$", group_name="value", units="B")
    figure_of_merit("reduction", fom_regex=r"^FOM reduction (?P<value>\S+) \S+$", group_name="value", units="times")
    figure_of_merit("reduction_vs_16bit", fom_regex=r"^FOM reduction_vs_16bit (?P<value>\S+) \S+$", group_name="value",
                    units="times")

    success_criteria("validation", mode="string", match=r"^VALIDATION PASSED .*")
