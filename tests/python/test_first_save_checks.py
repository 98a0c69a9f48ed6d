"""The first save checks root and room before it writes anything of the state."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from on_ranks import on_ranks

import lamina
from lamina import _core


def huge(count: int) -> dict[str, torch.Tensor]:
    """A state that claims so many bytes, and takes four."""
    return {"w": torch.zeros(1).expand(count // 4)}


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*.pack"))


def free_bytes(path: Path) -> int:
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def test_a_state_that_finds_no_room_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with (
        lamina.Checkpointer(root) as ckpt,
        pytest.raises(lamina.ResourceExhaustedError, match=r"space: .* room for 0 saves; expected") as told,
    ):
        ckpt.save(1, huge(10**16))
    for part in ("room for 0 saves; expected", "free room there"):
        assert part in str(told.value)
    assert files(root) == []


def test_little_room_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lamina")
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        handle = ckpt.save(1, huge(free_bytes(tmp_path) * 2 // 3))
        assert isinstance(handle.exception(), lamina.ResourceExhaustedError)  # a copy of it does not fit into the memory
        handle.seen = True
    lines = [record.getMessage() for record in caplog.records if "space: " in record.getMessage()]
    assert len(lines) == 1
    assert "room for 1 save" in lines[0]


@pytest.mark.parametrize(
    ("faults", "kind", "text"),
    [
        ((("link", errno.EPERM), ("rename", errno.EOPNOTSUPP)), lamina.PermissionDeniedError, "put-if-absent: nothing publishes a name"),
        ((("syncdir", errno.EIO),), lamina.UnavailableError, "durable-names: fsync directory"),
        ((("create", errno.EROFS),), lamina.PermissionDeniedError, "root: create "),
    ],
)
@pytest.mark.parametrize("restores", [False, True])
def test_a_root_without_what_the_log_stands_on(tmp_path: Path, faults: Any, kind: type[Exception], text: str, restores: bool) -> None:
    env = _core.testing.FaultEnv()
    for call, number in faults:
        env.fail(call, number, count=-1)
    state = {"w": torch.ones(4)}
    with lamina.Checkpointer(tmp_path / "root", options={"env": env}) as ckpt:
        first = ckpt.restore if restores else lambda state: ckpt.save(1, state)
        with pytest.raises(kind, match=text) as told:
            first(state)
    assert "; expected " in str(told.value)
    assert list(tmp_path.iterdir()) == []


def _saves(root: str) -> str:
    with lamina.Checkpointer(root) as ckpt:
        with pytest.raises(lamina.ResourceExhaustedError) as told:
            ckpt.save(1, huge(10**16))
        ckpt.save(2, {"w": torch.ones(1000)}).wait()
    return str(told.value)


def test_all_ranks_raise_the_same(tmp_path: Path) -> None:
    told = on_ranks(2, _saves, str(tmp_path / "root"))
    assert told[0] == told[1]
    assert "space: " in told[0]
    assert lamina.open(tmp_path / "root").latest() == 2
