"""What fails on some ranks of a job, and what every rank is told. One launch for all of it."""

import contextlib
import ctypes
import errno
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import lamina
from lamina import _core
from lamina.errors import Error, ResourceExhaustedError, SaveFailedError, StateError, UnavailableError, UnsupportedError

testing: Any = _core.testing  # type: ignore[attr-defined]


def state() -> dict[str, Any]:
    """Every rank has a part to write."""
    return {"shared": torch.ones(3), "rows": DTensor.from_local(torch.arange(300_000.0), mesh(), [Shard(0)], run_check=False)}


@functools.cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


@contextlib.contextmanager
def told_within(seconds: float, kind: type[Error], *parts: str) -> Iterator[list[Error]]:
    """This rank is told within so many seconds; the list is for the error."""
    found: list[Error] = []
    began_s = time.monotonic()
    with pytest.raises(kind) as caught:
        yield found
    found.append(caught.value)
    assert time.monotonic() - began_s < seconds
    for part in parts:
        assert part in str(caught.value)


def sparse() -> torch.Tensor:
    return torch.eye(2).to_sparse()


def refused_by_one(root: Path) -> None:
    """What one rank cannot hand over, the others learn at once, not after begin_timeout_s."""
    rank = dist.get_rank()
    with lamina.Checkpointer(root) as ckpt:
        bad = {**state(), "odd": sparse()}
        with told_within(20, UnsupportedError, "odd"):
            ckpt.save(1, bad if rank == 1 else state())
        ckpt.save(2, state()).wait()
        handle = ckpt.save(3, bad if rank == 2 else state())
        with told_within(20, UnsupportedError, "rank 2", "odd", "step 3") as found:
            handle.wait()
        assert isinstance(found[0], SaveFailedError)
        assert found[0].rank == 2
        assert ckpt.save(4, state()).wait().outcome == "committed"


class Broken:
    def state_dict(self) -> Any:
        raise KeyError("pos")

    def load_state_dict(self, state: Any) -> None: ...


def refused_by_the_trainers_own_code(root: Path) -> None:
    rank = dist.get_rank()
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(1, state()).wait()
        with told_within(20, Error, "rank 1", "KeyError: 'pos'") as found:
            ckpt.save(2, {**state(), "data": Broken()} if rank == 1 else state()).wait()
        assert not isinstance(found[0], lamina.InternalError)
        assert found[0].rank == 1


def several_causes(root: Path) -> None:
    """The first cause's class on every rank, and the causes of all."""
    rank = dist.get_rank()
    env = testing.FaultEnv()
    with lamina.Checkpointer(root, options={"env": env}) as ckpt:
        ckpt.save(1, state()).wait()
        if rank > 0:
            env.fail("write", errno.ENOSPC if rank == 2 else errno.EIO, "steps/", 1, -1)
        with told_within(30, SaveFailedError, "step 2") as found:
            ckpt.save(2, state()).wait()
        error = found[0]
        assert (type(error).__mro__[1], error.rank, error.errno) in (
            (ResourceExhaustedError, 2, errno.ENOSPC),
            (UnavailableError, 1, errno.EIO),
        )
        assert error.phase == "writing"
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, (error.rank, error.errno, error.causes))
        assert told == [told[0]] * len(told)
        env.heal(0)


def none_tolerated(root: Path) -> None:
    """Save n judges the saves up to n - 2, so that all ranks raise at the same call."""
    rank = dist.get_rank()
    env = testing.FaultEnv()
    with lamina.Checkpointer(root, failures_tolerated=0, options={"env": env}) as ckpt:
        ckpt.save(1, state()).wait()
        rule = env.fail("write", errno.EIO, "steps/", 1, -1) if rank == 1 else None
        failed = ckpt.save(2, state())
        assert failed.exception() is not None
        if rule is not None:
            env.heal(rule)
        ckpt.save(3, state()).wait()
        with told_within(20, SaveFailedError, "step 2", "rank 1", "EIO"):
            ckpt.save(4, state())
        assert ckpt.save(5, state()).wait().outcome == "committed"


class Guard:
    """Refuses what it is told to."""

    def __init__(self, **refused: int) -> None:
        self.refused = refused
        self.passed_over: list[int] = []

    def may_commit(self, step: int) -> str | None:
        return "the loss is no number" if step == self.refused.get("commit") else None

    def may_restore(self, step: int) -> bool:
        return step != self.refused.get("restore")

    def restore_passed_over(self, event: Any) -> None:
        self.passed_over.append(event.step)


class BrokenHook:
    def may_commit(self, step: int) -> str | None:
        raise KeyError("x")


def refusals_of_hooks(root: Path) -> None:
    rank = dist.get_rank()
    with lamina.Checkpointer(root, hooks=[Guard(commit=2), BrokenHook()] if rank == 1 else []) as ckpt:
        for step in (1, 2, 3):
            report = ckpt.save(step, state()).wait()
            assert report.outcome == ("skipped" if step == 2 else "committed")
            assert step != 2 or "rank 1, writing: may_commit of step 2: Guard: the loss is no number" in report.reason
        guard = Guard(restore=3)
    with lamina.Checkpointer(root, hooks=[guard]) as ckpt:
        with told_within(20, StateError, "may_restore of step 3", "Guard"):
            ckpt.restore(state(), step=3)
        info = ckpt.restore(state())
        assert info.step == 1
        ((step, reason),) = info.passed_over  # on all ranks, though rank 0 alone was asked
        assert step == 3
        assert "Guard" in reason
    assert guard.passed_over == ([3] if rank == 0 else [])
    assert [step["step"] for step in lamina.open(root).steps()] == [1]


def second_trainer(root: Path) -> None:
    with lamina.Checkpointer(root) as first:
        with pytest.raises(StateError, match=r"trains on .* already"):
            lamina.Checkpointer(root)
        assert first.save(1, state()).wait().outcome == "committed"
        with lamina.Checkpointer(root, mode="read") as reader:
            assert reader.restore(state()).step == 1
    with lamina.Checkpointer(root) as again:
        assert again.restore(state()).step == 1


def gil_held(root: Path) -> None:
    """One long call that holds the GIL, longer than every timeout there is, kills no save: the rank shows life by a file."""
    with lamina.Checkpointer(root, options={"begin_timeout_s": 3.0, "beat_s": 0.2, "beat_timeout_s": 3.0}) as ckpt:
        ckpt.save(1, state()).wait()
        dist.barrier()
        handle = ckpt.save(2, state())
        if dist.get_rank() == 1:
            ctypes.PyDLL(None).sleep(7)
        assert handle.wait().outcome == "committed"
    dist.barrier()
    assert list((root / "writers").iterdir()) == []


def cases(folder: Path) -> None:
    for case in (
        second_trainer,
        gil_held,
        refused_by_one,
        refused_by_the_trainers_own_code,
        several_causes,
        none_tolerated,
        refusals_of_hooks,
    ):
        dist.barrier()
        case(folder / case.__name__)


def test_every_rank_is_told_what_failed_on_any(tmp_path: Path) -> None:
    on_ranks(3, cases, tmp_path)
