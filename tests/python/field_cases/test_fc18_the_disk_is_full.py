"""FC-18: a full disk or a quota fails one save on all ranks, and leaves nothing of it behind."""

import contextlib
import errno
import os
import subprocess
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
from lamina.cli import main

testing: Any = _core.testing  # type: ignore[attr-defined]
ELEMENTS = 2 * (3 << 18)  # 3 MiB of float32 on each of two ranks
MIB = 1 << 20


def state(step: int) -> dict[str, Any]:
    return {"w": sharded(torch.full((ELEMENTS,), float(step)), init_device_mesh("cpu", (2,)))}


def free_bytes(path: Path) -> int:
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


@contextlib.contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path]:
    """A tmpfs of so many MiB. Needs the right to mount."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def wait_for_space(path: Path, bytes_min: int) -> None:
    """Files of a save that failed go soon after its end."""
    end_s = time.monotonic() + 30
    while free_bytes(path) < bytes_min:
        assert time.monotonic() < end_s, f"{free_bytes(path)} bytes are free, not {bytes_min}"
        time.sleep(0.05)


def fill(root: Path) -> None:
    with lamina.Checkpointer(root) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, state(step)).wait()
        dist.barrier()
        before = free_bytes(root)
        with pytest.raises(lamina.ResourceExhaustedError, match=r"step 4 .*rank [01].*ENOSPC") as caught:
            ckpt.save(4, state(4)).wait()
        assert caught.value.errno == errno.ENOSPC
        dist.barrier()
        wait_for_space(root, before - MIB)
        assert lamina.open(root).latest() == 3
    if dist.get_rank() == 0:
        assert main(["gc", f"{root}@1", "--grace", "0"]) == 0
    dist.barrier()
    with lamina.Checkpointer(root) as ckpt:
        found = state(0)
        assert ckpt.restore(found).step == 3
        assert ckpt.save(4, state(4)).wait().outcome == "committed"
    assert [step["step"] for step in lamina.open(root).steps()] == [4, 3, 2]


def test_fc18_no_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        on_ranks(2, fill, disk / "root")


def quota(root: Path) -> None:
    env = testing.FaultEnv()
    options = {"env": env}
    with contextlib.ExitStack() as stack:
        ckpt = stack.enter_context(lamina.Checkpointer(root, options=options))
        ckpt.save(4, state(4)).wait()
        if dist.get_rank() == 0:
            env.fail("write", errno.EDQUOT, "log/.tmp", 1)
        error = ckpt.save(5, state(5)).exception()
    committed = error is None
    assert lamina.open(root).latest() == (5 if committed else 4)
    dist.barrier()
    with lamina.Checkpointer(root) as ckpt:
        found = state(0)
        assert ckpt.restore(found).step == (5 if committed else 4)
        assert found["w"].to_local().unique().tolist() == [5.0 if committed else 4.0]
        assert ckpt.save(5, state(6)).wait().outcome == "committed"
        assert ckpt.restore(found).step == 5
        assert found["w"].to_local().unique().tolist() == [6.0]


def test_fc18_quota_at_the_commit(tmp_path: Path) -> None:
    on_ranks(2, quota, tmp_path / "root")
    assert lamina.open(tmp_path / "root").verify()["ok"]
