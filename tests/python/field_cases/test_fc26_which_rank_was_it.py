"""FC-26, live: an error on one rank reaches the others as that error, at once."""

import errno
import time
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


class Position:
    def state_dict(self) -> Any:
        return {"pos": 1}

    def load_state_dict(self, state: Any) -> None:
        if dist.get_rank() == 1:
            raise KeyError("pos")


def run(root: Path) -> None:
    mesh = init_device_mesh("cpu", (4,))
    state = {"w": sharded(torch.arange(400_000.0), mesh)}
    env = testing.FaultEnv()
    with lamina.Checkpointer(root, options={"env": env}) as ckpt:
        ckpt.save(1, {**state, "data": Position()}).wait()
        if dist.get_rank() == 2:
            env.fail("write", errno.ENOSPC, "steps/", 1, -1)
        began_s = time.monotonic()
        with pytest.raises(lamina.ResourceExhaustedError, match=r"rank 2.*ENOSPC") as full:
            ckpt.save(2, state).wait()
        assert (full.value.rank, full.value.errno, full.value.phase) == (2, errno.ENOSPC, "writing")
        with pytest.raises(lamina.Error, match=r"rank 1: KeyError: 'pos'") as callback:
            ckpt.restore({**state, "data": Position()})
        assert callback.value.rank == 1
        assert time.monotonic() - began_s < 30


def test_fc26_which_rank_was_it(tmp_path: Path) -> None:
    on_ranks(4, run, tmp_path / "root")
