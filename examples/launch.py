"""Starts a torchrun job, follows its report, and kills it for good."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class JobFailedError(RuntimeError):
    """The job ended, or did not get where it should, by itself."""


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, by the kernel's table of parents."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = children.get(pid, [])[:]
    for child in found:
        found += children.get(child, [])
    return found


class Job:
    """One torchrun launch of `script`, whose rank 0 writes a JSON line an event to `report`."""

    def __init__(self, ranks: int, script: Path, arguments: list[str], report: Path) -> None:
        self.report, self.log = report, report.with_suffix(".log")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a thread a core in each of four ranks would thrash
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment)

    def events(self) -> list[Event]:
        """What the job has told so far. A line cut by a kill is left out."""
        lines = self.report.read_text().splitlines(keepends=True) if self.report.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, reached: Callable[[list[Event]], bool], timeout_s: float = 180) -> list[Event]:
        """Returns the events as soon as `reached` holds for them. Raises JobFailedError when the job ends or the time is over before."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.process.poll() is not None
            events = self.events()
            if reached(events):
                return events
            if ended or time.monotonic() > deadline:
                self.kill()
                raise JobFailedError(f"the job {'ended' if ended else 'hung'}; its log says:\n{self._tail()}")
            time.sleep(0.005)

    def wait(self, timeout_s: float = 180) -> list[Event]:
        """Waits for the job's own, good end."""
        self.wait_for(lambda _: self.process.poll() is not None, timeout_s)
        if self.process.returncode != 0:
            raise JobFailedError(f"exit code {self.process.returncode}; its log says:\n{self._tail()}")
        return self.events()

    def kill(self) -> None:
        """SIGKILL to the launcher and to each process below it: torchrun's workers are in sessions of their own and would live on."""
        if self.process.poll() is None:
            for pid in [self.process.pid, *descendants(self.process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def _tail(self) -> str:
        """What the first rank to complain said; without one, the launcher's last words."""
        lines = self.log.read_text(errors="replace").splitlines()
        ranks = [line.split(":")[0] for line in lines if line.startswith("[rank")]
        told = [line for line in lines if line.startswith(f"{ranks[0]}:")] if ranks else lines
        return "\n".join(told[-40:])
