#!/usr/bin/env python3
"""Builds the fuzzers of tests/fuzz with clang and lets each look for a while.

Usage: fuzz_test.py SOURCE_DIRECTORY BUILD_DIRECTORY [--seconds 10 | --cpu-seconds N] [--only NAME] [CMake options…]

BUILD_DIRECTORY also keeps what was found: found/NAME, from which the next run goes on, and inputs that crashed.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

# Inputs that a fuzzer begins with, besides those of tests/fuzz/seeds, and its options.
FUZZERS = {
    "yaml": (["inputs"], ["-max_len=8192"]),
    "corpus": ([], []),
    "images": ([], []),
    "checkpoint": ([], ["-max_len=2000", "-len_control=0"]),
}
# MPI and HDF5 keep memory until the end. A single allocation of 500 MB is one that a file asked for.
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
COMMON = ["-timeout=60", "-rss_limit_mb=2000", "-malloc_limit_mb=500", "-print_final_stats=1"]


def cpu_seconds(process: int) -> float:
    """CPU time of a process and all its threads so far."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait(process: subprocess.Popen, most: "int | None") -> "tuple[int, float]":
    """Exit status and CPU seconds of a fuzzer, which is told to end once it has taken `most` of them."""
    while True:
        ended, status, usage = os.wait4(process.pid, 0 if most is None else os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime
        if cpu_seconds(process.pid) >= most:
            process.send_signal(signal.SIGUSR1)  # libFuzzer's to end in order
            most = None
        else:
            time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=int, default=10, help="of the clock")
    length.add_argument("--cpu-seconds", type=int, help="of each fuzzer's process")
    parser.add_argument("--only", choices=FUZZERS)
    arguments, options = parser.parse_known_args()
    source, build = arguments.source.resolve(), arguments.build.resolve()
    subprocess.run(["cmake", "--preset", "fuzz", "-B", build, *options], cwd=source, check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", "fuzzers"], check=True)

    running = {}
    for name in [arguments.only] if arguments.only else FUZZERS:
        seeds, own = FUZZERS[name]
        found = build / "found" / name
        found.mkdir(parents=True, exist_ok=True)
        folders = [found, source / "tests/fuzz/seeds" / name, *(source / seed for seed in seeds)]
        log = build / f"{name}.log"
        with log.open("w", encoding="utf-8") as file:
            running[name] = log, subprocess.Popen(
                [build / f"tests/fuzz/fuzz_{name}",
                 f"-max_total_time={0 if arguments.cpu_seconds else arguments.seconds}",
                 f"-artifact_prefix={build}/{name}-", *COMMON, *own, *folders],
                env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda one: wait(one[1], arguments.cpu_seconds), running.values()))
    failed = False
    for (name, (log, _)), (status, seconds) in zip(running.items(), ended):
        text = log.read_text(encoding="utf-8", errors="replace")
        executed = re.search(r"number_of_executed_units: (\d+)", text)
        print(f"{name}: {executed[1] if executed else 'no'} inputs in {seconds:.0f} s of CPU, status {status}")
        if status != 0 or not executed or int(executed[1]) == 0:
            failed = True
            print(text[-8000:])
    sys.exit(failed)


if __name__ == "__main__":
    main()
