"""Real processes, killed with SIGKILL at random moments again and again, each time resumed on another number of ranks.

Six rounds by default. LAMINA_KILL_ROUNDS sets another number (20 take about a minute), LAMINA_KILL_SEED other moments.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from launch import Event, Job, descendants

JOB = Path(__file__).with_name("kill_rounds_job.py")
ROUNDS = int(os.environ.get("LAMINA_KILL_ROUNDS", "6"))
SEED = int(os.environ.get("LAMINA_KILL_SEED", "1"))
WORLDS = (4, 1, 3, 6, 2)
LATEST_S = 1.5  # after what the round waits for


def kill(job: Job, chance: random.Random) -> None:
    """The launcher first, which would end the others in good order, then one rank after another: the last ones see the first ones gone."""
    ranks = descendants(job.process.pid)
    chance.shuffle(ranks)
    for pid in (job.process.pid, *ranks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(chance.uniform(0, 0.03))
    job.process.wait()


def has(kind: str, ranks: int = 1) -> Callable[[list[Event]], bool]:
    return lambda events: sum(event["event"] == kind for event in events) >= ranks


class Ledger:
    """What all launches so far have told, and what may be restored after it."""

    def __init__(self) -> None:
        self.saved: dict[int, tuple[str, str]] = {}  # by the newest launch that saved the step: older ones are fenced off
        self.acknowledged = -1
        self.restores = 0

    def add(self, events: list[Event]) -> None:
        """Judges what a launch restored, then takes in what it saved."""
        told = [event for event in events if event["event"] == "restored"]
        restored = {event["step"] for event in told}
        assert len(restored) <= 1, f"ranks restored the steps {restored}"
        assert len({event["digest"] for event in told}) <= 1, f"ranks hold different states of step {restored}"
        for event in told:
            step = event["step"]
            assert step >= self.acknowledged, f"restored step {step}, but wait() had returned for step {self.acknowledged}"
            digest, generator = self.saved[step]
            assert event["digest"] == digest, f"the state restored from step {step} is not the one that was saved last"
            assert event["rank"] != 0 or event["generator"] == generator, f"rank 0's generator in step {step}"
        if not told and self.acknowledged >= 0:
            assert not has("saving")(events), f"a launch began anew, but wait() had returned for step {self.acknowledged}"
        self.restores += bool(told)
        for event in events:
            if event["event"] == "saving":
                generator = event["generator"] if event["rank"] == 0 else self.saved.get(event["step"], ("", ""))[1]
                self.saved[event["step"]] = (event["digest"], generator)
        committed = [event["step"] for event in events if event["event"] == "committed"]
        assert set(committed) <= self.saved.keys()
        self.acknowledged = max([self.acknowledged, *committed])


def test_every_restore_yields_what_was_saved_and_no_acknowledged_step_is_lost(launch: Callable[..., Job], tmp_path: Path) -> None:
    chance, ledger = random.Random(SEED), Ledger()
    root = str(tmp_path / "root")
    for number in range(ROUNDS):
        ranks = WORLDS[number % len(WORLDS)]
        job = launch(JOB, ranks, root, str(number))
        # From there on it may die in the restore, in the first save, or later.
        job.wait_for(chance.choice([has("ready", ranks), has("saving"), has("saving"), has("committed"), has("committed")]))
        time.sleep(chance.uniform(0, LATEST_S))
        assert job.process.poll() is None, job.wait()
        kill(job, chance)
        ledger.add(job.events())
        print(f"round {number}: {ranks} ranks, {sum(e['event'] == 'restored' for e in job.events())} restored, up to {ledger.acknowledged}")
    acknowledged = ledger.acknowledged
    last = launch(JOB, WORLDS[ROUNDS % len(WORLDS)], root, str(ROUNDS), "2").wait()
    ledger.add(last)
    assert has("restored")(last) or acknowledged < 0
    assert ledger.acknowledged >= acknowledged + 2
    assert ledger.restores >= ROUNDS / 3
