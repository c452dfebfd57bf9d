"""The claims of study.py: what was asked, what was measured, and whether the seeds decide it."""

import math

from lib.intervals import half_width
from lib.tables import markdown, mean
from study_file import ACCURACY, F1, KINDS, LOSS, NAMES
from study_runs import LEAST_SEEDS

RATIOS = tuple(column for column, name in NAMES.items() if name.startswith("ratio"))
EXPLANATION = (
    "Measured is the mean over the seeds of the difference between two runs of the same seed, ± half of its 95 % "
    "interval (Student's t). A claim holds if the whole interval is within the bound. It does not hold if the whole "
    "interval is beyond the bound. Otherwise the seeds do not decide it. The interval of three seeds is wide, 4.3 "
    "standard errors of the mean to each side. An infinite loss has no interval; the claim is then decided if all "
    "seeds agree.")


def kind_of(claim):
    return next(kind for kind in KINDS if kind in claim)


def decide(low, high, kind, bound):
    """"yes" where all of [low, high] is what is asked, "no" where none of it is, else "undecided"."""
    if kind == "at_least":
        low, high, bound = -high, -low, -bound
    least = -bound if kind == "within" else -math.inf
    if low >= least and high <= bound:
        return "yes"
    # With NaN nothing is decided.
    return "no" if low > bound or high < least else "undecided"


def compared(study, run, against, column):
    """[run − against, or run / against for RATIOS] of each seed that both have."""
    mine, theirs = study.values(run, column), study.values(against, column)
    seeds = sorted(mine.keys() & theirs.keys())
    return [mine[seed] / theirs[seed] if column in RATIOS else mine[seed] - theirs[seed] for seed in seeds]


def in_words(values, column):
    """Mean and half width, as the page prints them."""
    middle, width = mean(values), half_width(values)
    if not all(map(math.isfinite, values)):
        return f"{sum(map(math.isinf, values))} of {len(values)} runs failed"
    if column in RATIOS:
        return f"{middle:.3f} ± {width:.3f} times"
    if column in (ACCURACY, F1):
        return f"{100 * middle:+.1f} ± {100 * width:.1f} points"
    return f"{middle:+.4f} ± {width:.4f}" if abs(middle) < 100 else f"{middle:+.2g} ± {width:.2g}"


def judge(study, claim):
    """(the measured value in words, the verdict in words)"""
    run, against = (study.best(claim[side]) or claim[side] for side in ("run", "against"))
    if missing := [name for name in (run, against) if name not in study.present()]:
        return f"no results of {', '.join(missing)}", "no"
    column = claim.get("of", LOSS)
    values = compared(study, run, against, column)
    if len(values) < LEAST_SEEDS:
        return f"results of {len(values)} seeds", "no"
    middle, width = mean(values), half_width(values)
    finite = all(map(math.isfinite, values))
    interval = (middle - width, middle + width) if finite else (min(values), max(values))
    kind = kind_of(claim)
    verdict = decide(*interval, kind, float(claim[kind]))
    if verdict == "undecided":
        verdict += f" ({len(values)} seeds do not tell)"
    return in_words(values, column), verdict


def asked(claim):
    column, kind = claim.get("of", LOSS), kind_of(claim)
    bound = f"{100 * float(claim[kind]):g} points" if column in (ACCURACY, F1) else claim[kind]
    return f"{NAMES[column]} {kind.replace('_', ' ')} {bound}"


def claims_table(study):
    rows = []
    for claim in study.claims:
        words, verdict = judge(study, claim)
        rows.append([claim["text"], asked(claim), words, verdict if verdict == "yes" else f"**{verdict}**"])
    return markdown(["claim", "asked", "measured, 95 % interval", "holds"], rows)
