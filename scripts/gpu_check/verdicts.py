"""A stage's checks: each gets one line of verdict, and what it ran goes to one log."""

import concurrent.futures
import fnmatch
import os
import shlex
import signal
import subprocess
import tarfile
import threading
import time
import traceback

from lib import launch
from lib.tables import write_csv

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
GRACE_S = 10  # from SIGTERM, which mpirun passes on, to SIGKILL


class Failed(Exception):
    """A check has failed: what was found, and what to do."""

    def __init__(self, found, remedy=""):
        super().__init__(found)
        self.remedy = remedy


class Skipped(Failed):
    """A check cannot be made here: why, and what to do."""


class Done:
    """A command that has ended: `status` is None where its time limit ended it."""

    def __init__(self, command, status, output, seconds):
        self.command, self.status, self.output, self.seconds = command, status, output, seconds

    def last_words(self):
        """The error that the command printed, or else its last line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("error:", "ERROR", "terminate called", "what():"))]
        return (errors or lines or ["no output"])[-1][:300]

    def expect(self, status=0, remedy="see the log"):
        """Raises Failed on another exit status."""
        if self.status is None:
            raise Failed(f"beyond its {self.seconds:.0f} s", "look in the log for where it hangs")
        if self.status != status:
            raise Failed(f"status {self.status}, not {status}: {self.last_words()}", remedy)
        return self


def stop(process):
    """Ends a command and the processes of its session's group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=GRACE_S)[0]
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    return ""


class Report:
    """Runs the checks of one stage. Writes stage_N.csv and stage_N.log into the directory `output`."""

    COLUMNS = ("check", "verdict", "seconds", "detail", "remedy")

    def __init__(self, stage, output, minutes=9.0, only=("*",)):
        self.name, self.output, self.only = f"stage_{stage}", output, only
        self.minutes, self.deadline = minutes, time.monotonic() + 60 * minutes
        self.rows, self._lock = [], threading.Lock()
        output.mkdir(parents=True, exist_ok=True)
        self.log_path = output / f"{self.name}.log"
        self.log_path.write_text("")

    def wants(self, name):
        """Whether --only selects a check, or one that builds on it: `a:b` builds on `a`."""
        return any(fnmatch.fnmatchcase(name, one) or one.startswith(f"{name}:") for one in self.only)

    def check(self, name, work, *arguments):
        """Makes a check, `work(*arguments)`, which returns what was found or raises Failed. Returns its verdict."""
        if not self.wants(name):
            return None
        begin, remedy = time.monotonic(), ""
        try:
            if begin > self.deadline:
                raise Failed(f"not run: the stage's {self.minutes:g} minutes were over",
                             f"run the stage again with --only '{name}', or with more --minutes")
            verdict, detail = PASS, work(*arguments) or ""
        except Failed as problem:
            verdict, detail, remedy = SKIP if isinstance(problem, Skipped) else FAIL, str(problem), problem.remedy
        except Exception as problem:  # in these scripts: the other checks go on
            self.log(traceback.format_exc())
            verdict, detail, remedy = FAIL, f"{type(problem).__name__}: {problem}", "see the log"
        self._add(name, verdict, time.monotonic() - begin, detail, remedy)
        return verdict

    def check_all(self, checks, jobs):
        """Makes several checks (name, work, arguments…), `jobs` at a time."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            return [future.result() for future in [pool.submit(self.check, *check) for check in checks]]

    def run(self, command, limit, environment=None, directory=None):
        """Runs a command for at most `limit` seconds, and no longer than the stage has left; into the log."""
        command = [str(word) for word in command]
        begin = time.monotonic()
        limit = max(1.0, min(limit, self.deadline - begin))
        with launch.own_files(environment or os.environ) as own:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, text=True, errors="replace", env=own,
                                           cwd=directory, start_new_session=True)
            except OSError as error:
                raise Failed(f"{command[0]} did not start: {error.strerror}", "check the file") from None
            try:
                output, status = process.communicate(timeout=limit)[0], process.returncode
            except subprocess.TimeoutExpired:
                output, status = stop(process), None
        done = Done(command, status, output, time.monotonic() - begin)
        self.log(f"$ {shlex.join(command)}\n{output}\n[status {'time limit' if status is None else status}, "
                 f"{done.seconds:.1f} s]\n\n")
        return done

    def log(self, text):
        with self._lock, open(self.log_path, "a", encoding="utf-8") as file:
            file.write(text)

    def keep(self, directory):
        """Keeps a directory of results as stage_N_runs.tar.gz."""
        with tarfile.open(self.output / f"{self.name}_runs.tar.gz", "w:gz") as tar:
            for path in sorted(directory.iterdir()):
                tar.add(path, path.name)

    def _add(self, name, verdict, seconds, detail, remedy):
        detail, remedy = " ".join(detail.split()), " ".join(remedy.split())
        row = dict(zip(self.COLUMNS, (name, verdict, f"{seconds:.1f}", detail, remedy)))
        line = f"{verdict}  {name}: {detail}" + (f"; remedy: {remedy}" if remedy else "")
        self.log(line + "\n\n")
        with self._lock:
            self.rows.append(row)
            print(line, flush=True)
            # At once, because the next check may take the machine with it.
            write_csv(self.output / f"{self.name}.csv", self.rows, self.COLUMNS)

    def conclude(self):
        """Prints the stage's verdict. Returns the exit status: 0 where nothing failed and something passed."""
        counts = {kind: sum(row["verdict"] == kind for row in self.rows) for kind in (PASS, FAIL, SKIP)}
        good = counts[FAIL] == 0 and counts[PASS] > 0
        print(f"{self.name}: {PASS if good else FAIL} ({counts[PASS]} passed, {counts[FAIL]} failed, "
              f"{counts[SKIP]} skipped); {self.output}/{self.name}.csv and .log", flush=True)
        return 0 if good else 1
