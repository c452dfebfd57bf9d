"""What the programs of scripts/ share.

launch       mpirun, and overrides of an input's keys
runs         the files that a run leaves in its directory
tables       CSV files, tables, and numbers as text
yaml_file    a script's YAML file, whose mistakes have lines
provenance   the commit and the machine that a result comes from
laboratory   measurements in the network laboratory (netlab.py)
smpi         the program on simulated networks
plots        styles and axes of figures; needs matplotlib
loss_over_time   the rows and the figure of the paper's Figure 4(b)
models       shapes and operation counts of the transformers that are timed
predict      the model behind scripts/predict.py
chakra       execution traces of MLCommons Chakra: their messages; needs protobuf
document     a page as HTML and as Markdown
tasks        what is held out of a task, and how its files are written
"""

import importlib
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def program_name():
    """The name of the running program for its messages, without .py."""
    return pathlib.PurePath(sys.argv[0]).name.removesuffix(".py")


def require(packages):
    """Ends the program with a remedy where modules are missing; `packages` is {module: its name for people}."""
    try:
        for module in packages:
            importlib.import_module(module)
    except ImportError as missing:
        # Debian's packages belong to Debian's Python, which another one on PATH may hide.
        debian = "/usr/bin/python3"
        if os.path.exists(debian) and not os.path.samefile(debian, sys.executable):
            os.execv(debian, [debian, *sys.argv])
        debian_names = " ".join(f"python3-{name.lower().replace('py', '', 1)}" for name in packages.values())
        sys.exit(f"{program_name()}: {missing}. Install {' and '.join(packages.values())} (Debian: {debian_names})")
