"""lamina.checkpointer: what is refused, whom a failure reaches and when, and how things end."""

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_core
import pytest
import torch

import lamina
from lamina.errors import (
    DeadlineError,
    FencedError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SaveFailedError,
    StateError,
    UnavailableError,
    UnsupportedError,
)

STATE = {"w": torch.ones(2)}


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    fake_core.install(monkeypatch)
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"snapshot": "deferred"}, UnsupportedError, "not in this version"),
        ({"snapshot": "copy"}, InvalidArgumentError, "'copy'; expected"),
        ({"keep": "newest"}, UnsupportedError, "takes a number of steps"),
        ({"keep": True}, UnsupportedError, "takes a number of steps"),
        ({"keep": 0}, InvalidArgumentError, "expected a number of steps of 1 or more"),
        ({"memory": 0}, InvalidArgumentError, "memory is 0"),
        ({"options": {"begin_timeout": 3}}, InvalidArgumentError, "'begin_timeout': did you mean 'begin_timeout_s'"),
        ({"options": {"io_threads": 1.5}}, InvalidArgumentError, "io_threads is 1.5; expected an integer"),
        ({"options": {"keep": 2}}, InvalidArgumentError, "argument of Checkpointer"),
        ({"hooks": [type("Hook", (), {"comitted": lambda self, event: None})()]}, InvalidArgumentError, "did you mean committed"),
    ],
)
def test_arguments_are_checked_before_anything_starts(tmp_path: Path, how: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        lamina.Checkpointer(tmp_path, **how)


def test_options_reach_the_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.chdir(tmp_path)
    with lamina.Checkpointer("run", memory=1000, save_timeout_s=5, options={"beat_s": 1}) as ckpt:
        options = ckpt._runtime.engine.options  # type: ignore[union-attr]
    assert (options["root"], options["run_id"], options["memory_bytes"]) == (str(tmp_path / "run"), "77", 1000)
    assert (options["beat_s"], options["save_timeout_s"], options["rank"], options["rank_count"]) == (1.0, 5.0, 0, 1)
    assert len(options["coordination_prefix"]) == 32


def test_many_writers_without_a_process_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StateError, match="init_process_group"):
        lamina.Checkpointer(tmp_path)


@pytest.mark.parametrize("step", [-1, 1.0, True, "3"])
def test_step_is_a_number(tmp_path: Path, step: Any) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt, pytest.raises(InvalidArgumentError, match="step is"):
        ckpt.save(step, STATE)


def test_a_reader_saves_nothing(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path, mode="read") as ckpt, pytest.raises(StateError, match="train"):
        ckpt.save(1, STATE)


def test_closed_is_closed(tmp_path: Path) -> None:
    ckpt = lamina.Checkpointer(tmp_path)
    ckpt.close()
    ckpt.close()
    for call in (lambda: ckpt.save(1, STATE), lambda: ckpt.restore(STATE), ckpt.fence):
        with pytest.raises(StateError, match="closed"):
            call()


def test_what_restore_does_not_have_is_refused(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        for how in ({"pad": 0}, {"verify": "while"}):
            with pytest.raises(UnsupportedError, match="in this version"):
                ckpt.restore({}, **how)  # type: ignore[arg-type]


def test_handle_reports(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        handle = ckpt.save(1, STATE)
        ckpt.fence()
        report = handle.wait(10)

        async def awaited() -> lamina.SaveReport:
            return await handle

        assert asyncio.run(awaited()) == report
    assert (report.step, report.outcome, report.written_bytes, handle.done(), handle.exception()) == (1, "committed", 8, True, None)
    assert report.total is not None
    assert report.total.written_bytes == 8
    assert report.hold_s == handle.hold_s > 0


def fails(step: int) -> None:
    fake_core.Engine.faults[step] = ResourceExhaustedError(f"step {step}: disk full", rank=1, errno=28)


def test_wait_raises_what_went_wrong(tmp_path: Path) -> None:  # FC-14
    with lamina.Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, STATE)
        fails(2)
        handle = ckpt.save(2, STATE)
        with pytest.raises(SaveFailedError, match="step 2: disk full") as caught:
            handle.wait()
        assert isinstance(caught.value, ResourceExhaustedError)
        assert (caught.value.rank, caught.value.errno) == (1, 28)
        assert isinstance(handle.exception(), SaveFailedError)
        ckpt.save(4, STATE).wait()


def test_a_failure_that_is_tolerated_is_logged_and_raised_by_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ckpt = lamina.Checkpointer(tmp_path)
    fails(2)
    for step in range(1, 5):
        ckpt.save(step, STATE)
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.ERROR, "the save of step 2 failed, 1 in a row: step 2: disk full")
    ]
    with pytest.raises(SaveFailedError, match="step 2"):
        ckpt.close()


def test_the_very_first_failure_raises_at_the_third_save(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        fails(1)
        ckpt.save(1, STATE)
        ckpt.save(2, STATE)
        with pytest.raises(SaveFailedError, match="step 1"):
            ckpt.save(3, STATE)
        ckpt.save(3, STATE).wait()


@pytest.mark.parametrize("tolerated", [0, 2])
def test_too_many_failures_in_a_row_raise(tmp_path: Path, tolerated: int) -> None:
    with lamina.Checkpointer(tmp_path, failures_tolerated=tolerated) as ckpt:
        ckpt.save(1, STATE)
        for step in range(2, 3 + tolerated):
            fails(step)
            ckpt.save(step, STATE)
        last = 2 + tolerated
        ckpt.save(last + 1, STATE)
        with pytest.raises(SaveFailedError, match=f"step {last}"):
            ckpt.save(last + 2, STATE)
        for handle in ckpt._runtime.unseen:  # type: ignore[union-attr]
            handle.exception()


def test_a_success_ends_the_row(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path, failures_tolerated=1) as ckpt:
        handles = [ckpt.save(1, STATE)]
        for step in range(2, 12):
            if step % 2:
                fails(step)
            handles.append(ckpt.save(step, STATE))
        assert sum(handle.exception() is not None for handle in handles) == 5


@pytest.mark.parametrize("failed_before", [False, True])
def test_being_fenced_is_not_tolerated(tmp_path: Path, failed_before: bool) -> None:
    with lamina.Checkpointer(tmp_path, failures_tolerated=9) as ckpt:
        ckpt.save(1, STATE)
        if failed_before:
            fails(2)
        before = ckpt.save(2, STATE)
        fake_core.Engine.faults[3] = FencedError("step 3: another trainer took over")
        ckpt.save(3, STATE)
        after = ckpt.save(4, STATE)
        with pytest.raises(FencedError, match="step 3") as caught:
            ckpt.save(5, STATE)
        assert isinstance(caught.value, SaveFailedError)
        assert (before.exception() is not None, after.exception()) == (failed_before, None)


def test_a_save_whose_judgement_was_interrupted_is_judged_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        fails(1)
        ckpt.save(1, STATE)
        ckpt.save(2, STATE)
        with monkeypatch.context() as patch:
            patch.setattr(fake_core.SaveTicket, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ckpt.save(3, STATE)
        with pytest.raises(SaveFailedError, match="step 1"):
            ckpt.save(3, STATE)


def interrupted(ticket: Any, timeout_s: float | None) -> Any:
    raise KeyboardInterrupt


def test_an_interrupted_close_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = lamina.Checkpointer(tmp_path)
    engine = ckpt._runtime.engine  # type: ignore[union-attr]
    ckpt.save(1, STATE)
    monkeypatch.setattr(fake_core.SaveTicket, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ckpt.close()
    assert engine.closed_with == [0]


def test_a_failed_save_tells_more_than_the_end_that_took_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = fake_core.Engine.close

    def late(engine: Any, grace_s: float | None) -> None:
        close(engine, grace_s)
        raise DeadlineError("closing")

    monkeypatch.setattr(fake_core.Engine, "close", late)
    with pytest.raises(DeadlineError, match="closing"):
        lamina.Checkpointer(tmp_path).close()
    ckpt = lamina.Checkpointer(tmp_path)
    fails(1)
    ckpt.save(1, STATE)
    with pytest.raises(SaveFailedError, match="step 1"):
        ckpt.close()


def test_the_grace_is_for_all_saves_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, asked = 100.0, []

    def wait(ticket: Any, timeout_s: float) -> Any:
        nonlocal now_s
        asked.append(timeout_s)
        now_s += min(2, timeout_s)
        raise DeadlineError("not yet")

    monkeypatch.setattr(fake_core.SaveTicket, "wait", wait)
    monkeypatch.setattr(fake_core.SaveTicket, "done", lambda ticket: False)
    monkeypatch.setattr(lamina.runtime, "time", types.SimpleNamespace(monotonic=lambda: now_s))
    ckpt = lamina.Checkpointer(tmp_path, options={"exit_grace_s": 3})
    engine = ckpt._runtime.engine  # type: ignore[union-attr]
    for step in range(3):
        ckpt._unjudged.clear()
        ckpt.save(step, STATE)
    with pytest.raises(ValueError, match="x"), ckpt:
        raise ValueError("x")
    assert (asked, engine.closed_with) == ([3, 1, 0], [0])


@pytest.mark.parametrize("saves", [1, 3])
def test_a_failure_keeps_no_engine_alive(tmp_path: Path, saves: int) -> None:
    fails(1)
    ckpt: Any = lamina.Checkpointer(tmp_path)
    engine = weakref.ref(ckpt._runtime.engine)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(SaveFailedError):  # of the third save
            for step in range(1, saves + 1):
                ckpt.save(step, STATE)
        with contextlib.suppress(SaveFailedError):  # of one alone
            ckpt.close()
        del ckpt
        assert engine() is None
    finally:
        gc.enable()


def test_finished_saves_are_forgotten(tmp_path: Path) -> None:  # FC-17
    with lamina.Checkpointer(tmp_path) as ckpt:
        for step in range(40):
            ckpt.save(step, STATE)
        assert len(ckpt._runtime.unseen) <= 3  # type: ignore[union-attr]


def test_an_exception_is_not_masked(tmp_path: Path) -> None:  # FC-14
    fails(6)
    error = ValueError("x")
    ckpt = lamina.Checkpointer(tmp_path, options={"exit_grace_s": 3})
    engine = ckpt._runtime.engine  # type: ignore[union-attr]

    def fail_inside() -> None:
        with ckpt:
            ckpt.save(6, STATE)
            raise error

    with pytest.raises(ValueError, match="x") as caught:
        fail_inside()
    assert caught.value is error
    assert type(error) is ValueError
    (grace_s,) = engine.closed_with
    assert 0 <= grace_s <= 3
    if sys.version_info >= (3, 11):
        assert "step 6: disk full" in error.__notes__[0]


def test_forgotten_checkpointer_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ckpt = lamina.Checkpointer(tmp_path)
    engine = ckpt._runtime.engine  # type: ignore[union-attr]
    fails(1)
    ckpt.save(1, STATE)
    del ckpt
    (grace_s,) = engine.closed_with
    assert 0 <= grace_s <= 30
    assert "forgotten without close(): step 1: disk full" in caplog.text


def test_a_forked_child_does_nothing(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        handle = ckpt.save(0, STATE)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            text = ""
            for call in (lambda: ckpt.save(1, STATE), handle.wait, handle.done, handle.exception):
                try:
                    call()
                except StateError as error:
                    text += str(error)
            ckpt.close()
            os.write(write, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 1000).count(b"forked") == 4
        os.close(read)
        os.close(write)
        assert ckpt.save(1, STATE).wait().outcome == "committed"


PROGRAM = """
import sys
sys.path[:0] = {path!r}
import fake_core, torch, lamina.runtime
lamina.runtime._core = fake_core._fake
fake_core.Engine.faults = {faults}
ckpt = lamina.Checkpointer({root!r})
ckpt.save(1, {{"w": torch.ones(2)}})
{end}
"""


@pytest.mark.parametrize(
    ("faults", "end", "code", "text"),
    [
        ("{}", "", 0, ""),
        ('{1: lamina.CorruptionError("step 1: bad")}', "", 75, "lamina: at exit: step 1: bad\n"),
        ('{1: lamina.CorruptionError("step 1: bad")}', 'raise KeyError("x")', 1, "lamina: at exit: step 1: bad\n"),
    ],
)
def test_the_end_of_the_program(tmp_path: Path, faults: str, end: str, code: int, text: str) -> None:  # FC-14
    program = PROGRAM.format(path=sys.path, faults=faults, root=str(tmp_path), end=end)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert (end == "") == ("KeyError" not in done.stderr)


def test_events_reach_hooks_and_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[tuple[str, int, int]] = []

        def committed(self, event: lamina.Event) -> None:
            self.seen.append((event.kind, event.step, threading.get_ident()))

        def save_failed(self, event: lamina.Event) -> None:
            raise RuntimeError("hook is broken")

        def _private(self) -> None: ...

    hook, other = Hook(), Hook()
    with caplog.at_level(logging.INFO, "lamina"), lamina.Checkpointer(tmp_path, hooks=[hook, other]) as ckpt:
        put = ckpt._runtime.engine.events.put  # type: ignore[union-attr]
        for step in (1, 2):
            put({"kind": "Committed", "step": step, "bytes": 2_000_000, "duration_ns": 5 * 10**8})
        put({"kind": "SaveFailed", "step": 3, "rank": 1, "cause": "disk full"})
        put({"kind": "Committed", "step": 4})
    assert [kind_and_step[:2] for kind_and_step in hook.seen] == [("Committed", 1), ("Committed", 2)]
    assert {thread for _, _, thread in hook.seen + other.seen}.isdisjoint({threading.get_ident()})
    lines = [record.message for record in caplog.records]
    assert lines[0] == "step 1 committed: 2.0 MB in 0.50 s"
    assert sum("committed:" in line for line in lines) == 1  # at most one a minute
    assert "save failed: step 3, rank 1: disk full" in lines
    assert sum("raised at SaveFailed and is called no more" in line for line in lines) == 2


def test_a_hook_that_stalls_or_quits_holds_up_neither_the_log_nor_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    seen: list[int] = []

    class Hook:
        def committed(self, event: lamina.Event) -> None:
            seen.append(event.step)

    class Quits:
        def committed(self, event: lamina.Event) -> None:
            sys.exit()

    class Stalls:
        def committed(self, event: lamina.Event) -> None:
            go.wait(60)

    ckpt = lamina.Checkpointer(tmp_path, hooks=[Hook(), Quits(), Stalls()], options={"verdict_timeout_s": 1})
    put = ckpt._runtime.engine.events.put  # type: ignore[union-attr]
    for step in (1, 2):
        put({"kind": "Committed", "step": step})
    put({"kind": "SaveFailed", "step": 3, "cause": "disk full"})
    ckpt.close()  # although one hook is still at its first event
    assert not go.is_set()
    assert seen == [1, 2]
    assert "save failed: step 3, rank 0: disk full" in caplog.text
    assert "Quits raised at Committed and is called no more" in caplog.text
    assert "Stalls has not returned" in caplog.text
    go.set()
    for thread in threading.enumerate():
        if thread.name == "lamina-hook":
            thread.join(60)


def test_a_slow_hook_misses_what_may_be_dropped_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(lamina.events, "_HELD_MAX", 2)
    go, begun = threading.Event(), threading.Event()
    seen: list[tuple[str, int]] = []

    class Slow:
        def write_done(self, event: lamina.Event) -> None:
            begun.set()
            go.wait(60)
            seen.append((event.kind, event.step))

        def committed(self, event: lamina.Event) -> None:
            seen.append((event.kind, event.step))

    ckpt = lamina.Checkpointer(tmp_path, hooks=[Slow()])
    put = ckpt._runtime.engine.events.put  # type: ignore[union-attr]
    put({"kind": "WriteDone", "step": 0})
    assert begun.wait(60)
    for step in range(1, 5):
        put({"kind": "WriteDone", "step": step})
    put({"kind": "Committed", "step": 5})
    threading.Timer(0.2, go.set).start()
    ckpt.close()
    assert seen == [("WriteDone", 0), ("WriteDone", 1), ("WriteDone", 2), ("Committed", 5)]
    assert "Slow was too slow for 2 events, which were dropped" in caplog.text


def test_unavailable_is_no_save_failure_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        handle = ckpt.save(1, STATE)
        with monkeypatch.context() as patch:
            patch.setattr(fake_core.SaveTicket, "done", lambda self: False)
            patch.setattr(handle._ticket, "error", UnavailableError("not yet"))
            with pytest.raises(UnavailableError) as caught:
                handle.wait(0.1)
            assert not isinstance(caught.value, SaveFailedError)
