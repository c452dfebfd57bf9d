#!/usr/bin/env python3
"""How long does a step take on a network that you do not have, and does compression pay there?

Prints the times of dense and compressed averages, of steps, and advice; writes predict.csv, crossover.csv,
pays_below.csv and, with measurements, fit.csv into `run.output` (docs/reference/prediction.md).

Exit status: 0 success; 1 the predictions are no times, or the fits miss their measurements; 2 bad input.
"""

import argparse
import sys

from lib.predict import inputs, report


def predict(path, overrides):
    """Prints and writes a prediction. Returns the exit status."""
    prediction = report.Prediction(inputs.read_input(path, overrides))
    prediction.write()
    for line in report.lines(prediction):
        print(line)
    problems = prediction.problems()
    words = ", ".join(what for what, _ in problems)
    print(f"VALIDATION FAILED {words}" if problems else
          f"VALIDATION PASSED {len(prediction.steps)} predicted steps are finite and positive times")
    if problems:
        print(f"error: validation: {words}\n  remedy: {'; '.join(dict.fromkeys(remedy for _, remedy in problems))}",
              file=sys.stderr)
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", nargs="?", metavar="INPUT", help="YAML file, e.g. inputs/predict/large_scale.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE",
                        help="override a key; give it once for each key")
    parser.add_argument("--keys", action="store_true", help="print the tables of keys of docs/reference/prediction.md")
    arguments = parser.parse_args()
    if arguments.keys:
        print(inputs.markdown())
        return 0
    if arguments.input is None:
        parser.error("name an INPUT")
    try:
        return predict(arguments.input, arguments.set)
    except inputs.InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
