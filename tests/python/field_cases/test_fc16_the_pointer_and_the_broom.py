"""FC-16: only durable steps count, and deleting never stands in the way of a save."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fills import sharded
from on_ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh

import lamina
from lamina import _core
from lamina.ranks import Ranks

COUNT = 2_000_000  # 4 MB on each of two ranks
OPTIONS: dict[str, Any] = {"gc_grace_s": 0.0, "beat_timeout_s": 30.0}


def whole(step: int) -> torch.Tensor:
    return torch.full((COUNT,), float(step))


def save_and_be_killed(root: Path, first: int, steps: list[int], reached: Callable[[Path], bool]) -> None:
    """Has step `first` complete, starts `steps` on a slow disk, and kills all ranks by SIGKILL as soon as `reached`."""
    pids = [int(each) for each in Ranks().gather(str(os.getpid()).encode())]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    env = _core.testing.FaultEnv()
    ckpt = lamina.Checkpointer(root, keep=1, options={**OPTIONS, "env": env})
    if not ckpt.restore({"w": sharded(torch.zeros(COUNT), mesh)}):
        ckpt.save(first, {"w": sharded(whole(first), mesh)}).wait()
    env.set_write_bytes_per_second(2 << 20)
    for step in steps:
        ckpt.save(step, {"w": sharded(whole(step), mesh)})
    deadline_s = time.monotonic() + 120
    while dist.get_rank() != 0 or not reached(root):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    for pid in (*pids[1:], pids[0]):
        os.kill(pid, signal.SIGKILL)


def is_half_written(root: Path) -> bool:
    return any(pack.stat().st_size > 1 << 20 for pack in root.glob("steps/000000001000/*/*.pack"))


def is_thousand_complete(root: Path) -> bool:
    return lamina.open(root).latest() == 1000


class Watcher:
    """Loads the newest step again and again."""

    def __init__(self, root: Path) -> None:
        self.root, self.seen, self.problems = root, list[int](), list[str]()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watcher":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(0.05):
            try:
                self.seen.append(newest(self.root))
            except lamina.Error as error:
                if self.seen or not isinstance(error, lamina.NotFoundError):
                    self.problems.append(repr(error))


def newest(root: Path) -> int:
    """The newest step, read back and whole."""
    values = lamina.open(root).load()["w"]
    assert values.shape == (COUNT,)
    (step,) = values.unique().tolist()
    return int(step)


def test_a_killed_job_leaves_the_newest_durable_step(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with Watcher(root) as watcher:
        with pytest.raises(AssertionError):
            on_ranks(2, save_and_be_killed, root, 500, [1000], is_half_written)
        assert newest(root) == 500
        with pytest.raises(AssertionError):
            on_ranks(2, save_and_be_killed, root, 500, [1000, 1500], is_thousand_complete)
        assert newest(root) == 1000
    assert watcher.problems == []
    assert list(dict.fromkeys(watcher.seen)) == [500, 1000]
    assert len(watcher.seen) > 10
    with lamina.Checkpointer(root, keep=1, options=OPTIONS) as ckpt:
        found = {"w": torch.zeros(COUNT)}
        assert ckpt.restore(found).step == 1000
        assert found["w"].unique().tolist() == [1000]
        ckpt.save(2000, {"w": whole(2000)}).wait()
    assert [step["step"] for step in lamina.open(root).steps(all=True)] == [2000]
    assert lamina.open(root).verify()["ok"]


def test_the_next_save_starts_while_ten_thousand_files_are_deleted(tmp_path: Path) -> None:
    root = tmp_path / "root"
    state = {"w": np.ones(8, dtype=np.float32)}
    with lamina.Checkpointer(root, keep=1, options=OPTIONS) as ckpt:
        ckpt.save(1, dict(state)).wait()
        (old,) = root.glob("steps/000000000001/*")
        for number in range(1, 10_000):
            (old / f"{number:05d}.pack").touch()
        ckpt.save(2, dict(state)).wait()
        handle = ckpt.save(3, dict(state))
        while not list(root.glob("steps/000000000003/*")):
            assert not handle.done()
        assert len(list(old.glob("*"))) > 0
        handle.wait()
        deadline_s = time.monotonic() + 120
        while old.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
