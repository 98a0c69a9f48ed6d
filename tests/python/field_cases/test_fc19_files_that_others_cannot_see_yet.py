"""FC-19: a shared file system shows new names late, and a path that is not shared is found before anything is written."""

import contextlib
import ctypes
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fills import sharded
from on_ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh

import lamina
from lamina import _core

testing: Any = _core.testing  # type: ignore[attr-defined]
SAVES = 30
RETRY_S = 2  # how long the default waits, here and for a root that is not shared, is tried in simulated time: tests/sim/job_sim_test.cc


def late_names(root: Path) -> None:
    env = testing.FaultEnv()
    env.set_hidden_from_others_s(0.5)
    env.set_stale_open_every(10)
    whole = torch.arange(64.0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with lamina.Checkpointer(root, options={"env": env}) as ckpt:
        for step in range(1, SAVES + 1):
            handle = ckpt.save(step, {"w": sharded(whole + step, mesh)})
            if step % 10 == 0:
                assert handle.wait().outcome == "committed"
                found = {"w": sharded(whole, mesh)}
                assert ckpt.restore(found).step == step
                assert torch.equal(found["w"].to_local(), sharded(whole + step, mesh).to_local())
    assert env.fault_count > 0
    assert [step["step"] for step in lamina.open(root).steps()] == list(range(SAVES, 0, -1))
    one_is_gone(root, whole + SAVES)


def one_is_gone(root: Path, newest: torch.Tensor) -> None:
    """For the time of one restore the pack that rank 5 wrote of step 25 is away: what else there is can then be read."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    (pack,) = (root / "steps" / "000000000025").glob("*/00005.pack")
    state = {"w": sharded(torch.zeros(64), mesh)}
    with lamina.Checkpointer(root, mode="read", options={"restore_retry_s": RETRY_S}) as ckpt:
        dist.barrier()
        if dist.get_rank() == 0:
            pack.rename(root.parent / "gone.pack")
        dist.barrier()
        began_s = time.monotonic()
        with warnings_of_lamina() as lines, pytest.raises(lamina.CorruptionError, match=re.escape(str(pack.relative_to(root)))):
            ckpt.restore(state, step=25)
        assert time.monotonic() - began_s < 45
        # Whoever looks on learns what is waited for, and how long, while it is waited for.
        (line,) = (each for each in lines if "asked for again" in each)
        assert str(pack.relative_to(root)) in line
        assert f"for up to {RETRY_S} s" in line
        assert not state["w"].to_local().any()
        assert ckpt.restore(state, step=24).step == 24
        assert ckpt.restore(state).step == SAVES
        assert torch.equal(state["w"].to_local(), sharded(newest, mesh).to_local())
        dist.barrier()
        if dist.get_rank() == 0:
            (root.parent / "gone.pack").rename(pack)


@contextlib.contextmanager
def warnings_of_lamina() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lamina")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def test_fc19_files_that_others_cannot_see_yet(tmp_path: Path) -> None:
    on_ranks(8, late_names, tmp_path / "root")


CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def mount_own(path: Path, own: Path) -> bool:
    """Whether `own` is now mounted at `path`, for this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return False
    return bool(libc.mount(os.fsencode(own), os.fsencode(path), None, MS_BIND, None) == 0)


def two_directories(path: Path, own: Path) -> str:
    rank, count = dist.get_rank(), dist.get_world_size()
    mounted = mount_own(path, own / str(rank * 2 // count))
    everywhere: list[Any] = [None] * count
    dist.all_gather_object(everywhere, mounted)
    if not all(everywhere):
        return "no right to mount"
    began_s = time.monotonic()
    options = {"restore_retry_s": 0.0}  # what a rank does not see is not asked for again
    with (
        lamina.Checkpointer(path / "root", options=options) as ckpt,
        pytest.raises(lamina.UnsupportedError, match=r"not shared: ranks 4, 5, 6 and 7"),
    ):
        ckpt.save(1, {"w": sharded(torch.zeros(64), init_device_mesh("cpu", (count,)))})
    assert time.monotonic() - began_s < 30
    assert not [file for folder in ("log", "steps", "probe") for file in (path / "root" / folder).rglob("*") if file.is_file()]
    return "found"


def test_fc19_two_directories_at_one_path(tmp_path: Path) -> None:
    path, own = tmp_path / "mounted", tmp_path / "own"
    for folder in (path, own / "0", own / "1"):
        folder.mkdir(parents=True)
    said = on_ranks(8, two_directories, path, own)
    if "no right to mount" in said:
        pytest.skip("needs the right to mount in a namespace of its own")
    assert set(said) == {"found"}
