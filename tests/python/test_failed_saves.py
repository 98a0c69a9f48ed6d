"""Saves that fail, and the ends of programs, on the real core."""

import errno
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina import _core
from lamina.errors import ResourceExhaustedError, SaveFailedError, UnavailableError

testing: Any = _core.testing  # type: ignore[attr-defined]


def state() -> dict[str, Any]:
    return {"w": torch.arange(300_000.0), "epoch": 1}


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, ResourceExhaustedError), (errno.EDQUOT, ResourceExhaustedError), (errno.EIO, UnavailableError)]
)
def test_a_failed_save_says_why_and_leaves_the_rest(tmp_path: Path, number: int, kind: type[Exception]) -> None:  # FC-14, FC-18
    env = testing.FaultEnv()
    with lamina.Checkpointer(tmp_path / "root", options={"env": env}) as ckpt:
        ckpt.save(1, state()).wait()
        rule = env.fail("write", number, "steps/", 1, -1)
        handle = ckpt.save(2, state())
        with pytest.raises(SaveFailedError) as caught:
            handle.wait()
        assert isinstance(caught.value, kind)
        assert (caught.value.rank, caught.value.errno) == (0, number)
        env.heal(rule)
        assert [step["step"] for step in lamina.open(tmp_path / "root").steps()] == [1]
        ckpt.save(4, state()).wait()
        found = {"w": torch.zeros(300_000), "epoch": 0}
        assert ckpt.restore(found).step == 4
        assert torch.equal(found["w"], state()["w"])


def test_training_goes_on_while_it_is_saved(tmp_path: Path) -> None:  # FC-13
    env = testing.FaultEnv()
    env.set_write_bytes_per_second(4 << 20)
    with lamina.Checkpointer(tmp_path / "root", options={"env": env}) as ckpt:
        current = {"w": torch.ones(1 << 20), "step": torch.tensor(1.0), "log": ["a"]}
        handle = ckpt.save(1, current)
        for _ in range(10):
            current["w"] += 1
            current["step"] += 1
            current["log"].append("b")
        handle.wait()
        ckpt.restore(current)
    assert (current["w"].unique().tolist(), current["step"].item(), current["log"]) == ([1], 1, ["a"])


def test_a_signal_ends_the_wait_for_a_slow_save(tmp_path: Path) -> None:
    class Preempted(Exception): ...

    def preempt(*_: object) -> None:
        raise Preempted

    def preempted_soon(end: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        end()

    before = signal.signal(signal.SIGALRM, preempt)
    threads = threading.active_count()
    env = testing.FaultEnv()
    env.set_write_bytes_per_second(1 << 18)
    ckpt = lamina.Checkpointer(tmp_path / "root", options={"env": env})
    handle = ckpt.save(1, state())
    try:
        for end in (handle.wait, ckpt.close):
            with pytest.raises(Preempted):
                preempted_soon(end)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert threading.active_count() == threads


def test_signal_handlers_run_while_a_save_or_a_restore_waits(tmp_path: Path) -> None:
    class Preempted(Exception): ...

    env = testing.FaultEnv()
    raised: list[type[Exception]] = []

    def heal(*_: object) -> None:
        env.hang(None)
        for kind in raised:
            raise kind

    before = signal.signal(signal.SIGALRM, heal)
    try:
        with lamina.Checkpointer(tmp_path / "root", options={"env": env, "restore_seconds_max": 120}) as ckpt:
            ckpt.save(1, state()).wait()
            env.hang("steps/")
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            assert ckpt.restore(state()).step == 1  # storage hangs until the handler runs
            env.hang("steps/")
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            for step in (2, 3, 4):  # one of them is held by those before it, which hang
                handle = ckpt.save(step, state())
            handle.wait()
            env.hang("steps/")
            raised.append(Preempted)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Preempted):
                ckpt.restore(state())
    finally:
        signal.signal(signal.SIGALRM, before)


def test_storage_that_hangs_after_the_last_save_is_told_and_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = testing.FaultEnv()
    with lamina.Checkpointer(tmp_path / "root", options={"env": env}) as ckpt:
        ckpt.save(1, state()).wait()
        env.hang("writers/")
    env.hang(None)
    assert "the lease on the root runs out by itself" in caplog.text
    assert [step["step"] for step in lamina.open(tmp_path / "root").steps()] == [1]


TWO = """
import atexit, os, sys
import torch, lamina
from lamina import _core
atexit.register(lambda: os.write(2, b"the older handler ran\\n"))
slow, bad = _core.testing.FaultEnv(), _core.testing.FaultEnv()
slow.set_write_bytes_per_second(4 << 20)
bad.fail("write", 5, "steps/", 1, -1)
first = lamina.Checkpointer(sys.argv[1], options={"env": slow})
second = lamina.Checkpointer(sys.argv[2], options={"env": bad})
kept = first.save(1, {"w": torch.ones(1 << 20)}), second.save(1, {"w": torch.ones(9)})
sys.stdout = None
"""


def test_a_failure_at_exit_cuts_nothing_else_off(tmp_path: Path) -> None:
    roots = [str(tmp_path / name) for name in ("first", "second")]
    done = subprocess.run([sys.executable, "-c", TWO, *roots], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 75, done.stderr
    assert "lamina: at exit: " in done.stderr
    assert "the older handler ran" in done.stderr
    assert lamina.open(roots[0]).latest() == 1


PROGRAM = """
import os, sys
import torch, lamina
from lamina import _core
env = _core.testing.FaultEnv()
env.set_write_bytes_per_second(4 << 20)
ckpt = lamina.Checkpointer(sys.argv[1], options={{"env": env}})
handle = ckpt.save(1, {{"w": torch.ones(1 << 20)}})
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ('raise KeyError("x")', 1),
        # A forked child that runs to its end: it neither waits nor writes.
        ("child = os.fork()\nif child: assert os.waitpid(child, 0)[1] == 0; print('child ended')", 0),
        ("handle.wait(); del ckpt, handle", 0),
    ],
)
def test_the_end_of_a_program_finishes_the_save(tmp_path: Path, end: str, code: int) -> None:  # FC-14
    program = PROGRAM.format(end=end)
    root = tmp_path / "root"
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert ("child ended" in done.stdout) == ("fork" in end)
    assert lamina.open(root).latest() == 1
    assert lamina.open(root).verify()["ok"]
