"""The parts of docs/results: which commands make which files, and what they need. all.py runs them.

In a command `{onebit}`, `{results}` (the results' directory), `{runs}` (a directory for the output of runs) and
`{python}` (a Python with PyTorch) are replaced. The minutes are those of two cores: measured, or the sum of the times
in the CSV files. Those of a study of losses are the sum of its `wall_s`, of which a run of one rank takes half.
"""

import collections

from lib import ROOT
from lib.tables import number, read_csv

CORES = 2  # for which the minutes are
KJV, SECTIONS, DIGITS = "corpus/kjv.txt", "corpus/sections_train.tsv", "corpus/digits_train.tsv"
SMPI = "build/smpi/onebit_smpi"
ICONS, ANIMALS = "corpus/icons_train_images.idx", "corpus/animals_train_images.idx"
MNIST = "corpus/digits_train_images.idx"
# What makes the files that a part reads.
WORDNET = {f"corpus/{task}_train.tsv": f"scripts/text_tasks.py {task}"
           for task in ("noun_classes", "hypernyms", "same_class", "spans")}
REMEDIES = {KJV: "scripts/corpus.sh", SECTIONS: "scripts/classification_tasks.py sections",
            DIGITS: "scripts/classification_tasks.py digits", ICONS: "scripts/image_tasks.py icons",
            ANIMALS: "scripts/image_tasks.py animals", MNIST: "scripts/image_tasks.py digits",
            **WORDNET,
            SMPI: "scripts/setup.sh --smpi; cmake --preset smpi; cmake --build --preset smpi"}

# Rows of other machines stay in the files of a part that `keeps_machines`, so only this machine's rows are its own.
Part = collections.namedtuple("Part", "name group minutes needs files commands keeps_machines", defaults=[False])


class Study(collections.namedtuple("Study", "page needs studies")):
    """Studies of losses with one page."""

    @property
    def files(self):
        return [f"{self.page}/{study}_{kind}.csv" for study in self.studies for kind in ("runs", "steps")]

    @property
    def inputs(self):
        return [f"inputs/study/{study}.yaml" for study in self.studies]

    def part(self):
        rows = [row for name in self.files[::2] for row in read_csv(ROOT / "docs/results" / name)]
        seconds = sum(number(row["wall_s"]) * min(number(row["ranks"]), CORES) / CORES for row in rows)
        return Part(self.page, "losses", seconds / 60, self.needs, self.files,
                    [f"scripts/experiments/study.py --onebit {{onebit}} --results {{runs}}/study "
                     f"--page {{results}}/{self.page}.md {' '.join(self.inputs)}"])


STUDIES = (
    Study("one_bit", (KJV, SECTIONS), ("best_gpt", "best_bert", "best_sections")),
    Study("images", (ANIMALS, MNIST), ("resnet18", "resnet18_long", "dcgan", "fqt_resnet18", "fqt_vgg16", "fqt_mixer")),
    Study("fine_tuning", (SECTIONS, *WORDNET),
          ("pretrain", "pretrain_wordnet", "noun_classes", "hypernyms", "same_class", "spans")),
    Study("thirty", (KJV,), ("thirty", "thirty_bert")),
    Study("quantized_scratch", (SECTIONS,), ("binary_scratch", "binary_rates")),
    Study("convergence", (KJV,), ("gpt", "bert", "small", "variance", "ranks")),
    Study("quantized_training", (SECTIONS, DIGITS), ("binary_pretrain", "binary_fine_tune", "binary_digits")),
)


def laboratory(name, minutes, arguments="", needs=(), script=None):
    """An experiment in the network laboratory, which writes one CSV file."""
    return Part(name, "communication", minutes, ("idle", "root", *needs), [f"communication/{name}.csv"],
                [f"scripts/experiments/{script or name}.py --onebit {{onebit}} "
                 f"--output {{results}}/communication/{name}.csv {arguments}"])


def layers(name, minutes, files, output, command, needs=()):
    """Times of 1-bit layers."""
    return Part(name, "speed", minutes, ("idle", *needs), [f"quantized_training/{file}" for file in files],
                [f"scripts/experiments/{command} --onebit {{onebit}} "
                 f"--output {{results}}/quantized_training{output}"], True)


def performance(name, minutes, files, arguments="", needs=()):
    """A command of performance.py, and its page."""
    script = "scripts/experiments/performance.py"
    return Part(name, "speed", minutes, ("idle", *needs), [f"performance/{file}" for file in files],
                [f"{script} {name} --onebit {{onebit}} --output {{results}}/performance {arguments}",
                 f"{script} render --output {{results}}/performance"], True)


QUICKSTART = ("adam", "onebit_adam")
PARTS = [
    layers("products", 0.5, ["products.csv"], "/products.csv", "products.py"),
    layers("step", 4, ["step.csv"], "", "binary_step.py bert"),
    layers("networks", 60, ["networks.csv"], "", "binary_step.py images --peer torch={python}", ["python"]),
    layers("ranks", 2, ["ranks.csv"], "/ranks.csv", "binary_ranks.py", [KJV]),
    layers("layers", 2.5, ["layers.csv", "layer_passes.csv"], "", "layers.py"),
    performance("threads", 2, ["threads.csv"]),
    performance("checkpoints", 3, ["checkpoints.csv"]),
    performance("algorithms", 55, ["algorithms.csv"], "--runs 3"),
    performance("measure", 11, ["kernels.csv", "steps.csv"], "--peer torch={python}", ["python", ICONS]),
    Part("memory", "speed", 1, (), ["memory.csv"],
         ["scripts/experiments/memory.py --onebit {onebit} --output {results}/memory.csv"]),
    Part("quickstart", "speed", 0.7, ("idle", KJV), ["quickstart.csv"], [
        *(f"mpirun -n 4 {{onebit}} train inputs/quickstart_{name}.yaml --set run.output={{runs}}/quickstart/{name}"
          for name in QUICKSTART),
        "scripts/quickstart_table.py --csv {results}/quickstart.csv "
        + " ".join(f"{{runs}}/quickstart/{name}" for name in QUICKSTART)]),

    laboratory("figure5", 1.5),
    laboratory("table1", 2),
    laboratory("figure4b", 5, needs=(KJV,)),
    laboratory("figure9", 20, "--least-bursts 32768"),
    laboratory("whole_step", 6),
    laboratory("hierarchical", 12, "--least-bursts 32768 --ranks-per-host 2 inputs/figure9_hosts.yaml",
               script="figure9"),
    Part("laboratory", "communication", 8, ("idle", "root"), ["communication/laboratory.csv", "prediction.csv"], [
        "scripts/experiments/validation.py --onebit {onebit} --output {results}/communication/laboratory.csv "
        "--rates 100mbit,300mbit,1gbit",
        "scripts/experiments/validate_model.py --onebit {onebit} --output {results}/prediction.md "
        "{results}/communication/laboratory.csv"]),
    laboratory("peers", 12, "--python {python}", ["python"]),
    laboratory("hidden", 12, "--rates 50mbit,200mbit,1gbit --compute-ms 1000,200", script="whole_step"),
    Part("time_to_target", "communication", 40, ("idle", "root", KJV), ["time_to_target.csv"], [
        f"scripts/experiments/time_to_target.py {command} --onebit {{onebit}} --output {{results}}/time_to_target.csv"
        for command in ("losses", "measure", "page --page {results}/time_to_target.md")]),
    Part("crossover", "communication", 0.3, (), ["crossover.csv"],
         ["scripts/experiments/crossover.py --onebit {onebit} --output {results}/crossover.md"]),
    Part("many_ranks", "communication", 15, (SMPI,), ["many_ranks.csv"],
         ["scripts/experiments/many_ranks.py --output {results}/many_ranks.md"]),
    Part("simulated_training", "communication", 3, (SMPI, KJV), ["simulated_training.csv"],
         ["scripts/experiments/simulated_training.py --output {results}/simulated_training.md"]),
    Part("communication_page", "communication", 0.1, (), [],
         ["scripts/experiments/communication.py {results}/communication"]),

    *(Part(f"rules_{size}", "losses", minutes, (KJV,), [f"{size}.csv"],
           [f"scripts/experiments/rules.py {size} --onebit {{onebit}} --runs {{runs}}/rules/{size} "
            f"--output {{results}}/{size}.csv"])
      for size, minutes in (("smoke", 10), ("node", 280))),
    Part("gradient_groups", "losses", 4, (SECTIONS,), ["quantized_training/gradient_groups.csv"],
         ["scripts/experiments/gradient_groups.py sections --onebit {onebit} "
          "--output {results}/quantized_training/gradient_groups.csv"]),
    Part("image_groups", "losses", 7, (ANIMALS, MNIST), ["quantized_training/image_groups.csv"],
         ["scripts/experiments/gradient_groups.py images --onebit {onebit} "
          "--output {results}/quantized_training/image_groups.csv"]),
    *(study.part() for study in STUDIES),
]

# Files under docs/results that no command makes.
BY_HAND = {
    "paper/figures.csv": "transcribed from the 1-bit Adam paper",
    "paper/table1.csv": "transcribed from the 1-bit Adam paper",
    **{f"gpu/{name}.csv": "measured on a borrowed GPU by scripts/gpu_check.sh and runs of docs/results/gpu.md"
       for name in ("algorithms", "checks", "kernels", "losses", "node", "steps")},
    **{f"one_bit_base/best_base_{kind}.csv": "measured on a borrowed GPU: study.py inputs/study/best_base.yaml"
       for kind in ("runs", "steps")},
}
