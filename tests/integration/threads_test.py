#!/usr/bin/env python3
"""Runs a test executable with several thread counts and compares the bits of its results.

usage: threads_test.py EXECUTABLE GOOGLETEST_FILTER

The tests that the filter selects print lines "bits NAME HASH" (print_bits in tests/support.hpp). A thread count is
fixed when Kokkos starts, so one process cannot compare two.
"""

import os
import subprocess
import sys

THREAD_COUNTS = (1, 2, 3, 4)


def bits(executable: str, test_filter: str, threads: int) -> dict[str, str]:
    """Hash of each result by its name."""
    run = subprocess.run(
        [executable, f"--gtest_filter={test_filter}"],
        # More threads than cores must not spin.
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},
        stdout=subprocess.PIPE,
        text=True,
    )
    if run.returncode != 0:
        sys.exit(f"{run.stdout}\nwith {threads} threads {executable} ended with status {run.returncode}")
    return dict(line.split()[1:] for line in run.stdout.splitlines() if line.startswith("bits "))


def main() -> None:
    executable, test_filter = sys.argv[1:]
    expected = bits(executable, test_filter, THREAD_COUNTS[0])
    if not expected:
        sys.exit(f"no test that {test_filter} selects prints its bits")
    failed = False
    for threads in THREAD_COUNTS[1:]:
        found = bits(executable, test_filter, threads)
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                failed = True
                print(f"{name}: {expected.get(name)} with 1 thread, {found.get(name)} with {threads}")
    print(f"{len(expected)} results compared at {THREAD_COUNTS} threads")
    sys.exit(failed)


if __name__ == "__main__":
    main()
