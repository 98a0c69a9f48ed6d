"""FC-14: a failure in the background reaches every rank, and the next save goes well. Ends of programs: tests/python/test_exits.py."""

import errno
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
ELEMENTS = 2 * (2 << 20)  # 8 MiB of float32 on each of two ranks


def run(root: Path) -> None:
    state = {"w": sharded(torch.arange(ELEMENTS, dtype=torch.float32), init_device_mesh("cpu", (2,)))}
    env = testing.FaultEnv()
    env.set_write_bytes_max(1 << 20)
    with lamina.Checkpointer(root, options={"env": env}) as ckpt:
        ckpt.save(1, state).wait()
        if dist.get_rank() == 1:
            env.fail("write", errno.EIO, "steps/", 2)
        with pytest.raises(lamina.UnavailableError, match=r"step 2 .*rank 1.*EIO") as caught:
            ckpt.save(2, state).wait()
        assert (caught.value.rank, caught.value.errno) == (1, errno.EIO)
        assert lamina.open(root).latest() == 1
        assert ckpt.save(4, state).wait().outcome == "committed"
    assert [step["step"] for step in lamina.open(root).steps()] == [4, 1]


def test_fc14_a_failure_in_the_background(tmp_path: Path) -> None:
    on_ranks(2, run, tmp_path / "root")
    assert lamina.open(tmp_path / "root").verify()["ok"]
