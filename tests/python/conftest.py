"""What all Python tests share: one thread a process, repeatable examples, and real jobs that leave nothing behind."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from every_root import every_root  # noqa: F401
from forked_job import ForkedJob

from launch import Event, Job

hypothesis.settings.register_profile("lamina", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("lamina")
torch.set_num_threads(1)

Launch = Callable[..., Job]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Starts a job: launch(script, ranks, *arguments) -> Job. The script gets a file for its report, one JSON line an event, as
    first argument. Whatever still runs at the end of the test is killed."""
    jobs: list[Job] = []
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'python'}{os.pathsep}{ROOT / 'examples'}")

    def start(script: Path, ranks: int, *arguments: str) -> Job:
        report = tmp_path / f"job{len(jobs)}.jsonl"
        jobs.append(ForkedJob(ranks, script, [str(report), *arguments], report))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def run_ranks(launch: Launch) -> Callable[..., list[Event]]:
    """run_ranks(script, ranks, *arguments) -> what a job that must end well has told."""

    def run(script: Path, ranks: int, *arguments: str) -> list[Event]:
        return launch(script, ranks, *arguments).wait()

    return run
