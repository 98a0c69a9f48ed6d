"""FC-21: modes follow the umask, and only what Lamina made is removed."""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina

NOBODY = 65_534
OPTIONS = {"gc_grace_s": 0.0}


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((1000,), float(step)), "epoch": step}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place that other users may look into, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def as_nobody(function: Callable[[], Any]) -> Any:
    """What it returns in a child that is not root."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(write, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def error_of(function: Callable[[], Any]) -> list[str]:
    try:
        function()
    except lamina.Error as error:
        return [type(error).__name__, str(error)]
    return []


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)])
def test_modes_follow_the_umask(folder: Path, mask: int, file_mode: int, folder_mode: int) -> None:
    root = folder / "root"
    with umask(mask), lamina.Checkpointer(root) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).wait()
        for path in (root, *root.rglob("*")):
            expected = folder_mode if path.is_dir() else file_mode
            assert stat.S_IMODE(path.stat().st_mode) == expected, path
        assert list(root.glob("writers/*"))  # a lease too


def test_what_lamina_did_not_make_stays(folder: Path) -> None:
    (folder / "disk").mkdir()
    root = folder / "root"
    root.symlink_to(folder / "disk")
    archive = folder / "archive"
    archive.mkdir()
    with lamina.Checkpointer(root, keep=2, options=OPTIONS) as ckpt:
        for step in range(1, 7):
            ckpt.save(step, state(step)).wait()
            if step == 2:
                (root / "steps/000000000002").rename(archive / "step_2")
                (root / "steps/000000000002").symlink_to(archive / "step_2")
                for name in ("step_notes", "step_0003_backup"):
                    (root / "steps" / name).mkdir()
                    (root / "steps" / name / "packs").write_text("mine")
                (root / "steps/step_9").write_text("mine")
                (root / "step_9").write_text("mine")
    assert [step["step"] for step in lamina.open(root).steps(all=True)] == [6, 5]
    assert sorted(path.name for path in (archive / "step_2").rglob("*")) == ["00000.pack", "1-1", "catalog", "packs"]
    ours = {f"{step:012d}" for step in (5, 6)}
    theirs = {"000000000002", "step_notes", "step_0003_backup", "step_9"}
    assert {path.name for path in (root / "steps").iterdir()} == ours | theirs
    assert {path.read_text() for path in (*root.glob("steps/step_*/packs"), root / "steps/step_9", root / "step_9")} == {"mine"}
    assert lamina.open(root).verify()["ok"]


def test_no_permission_is_said(folder: Path) -> None:
    root = folder / "root"
    with umask(0o022), lamina.Checkpointer(root) as ckpt:
        for step in (5, 6):
            ckpt.save(step, state(step)).wait()
    sixth = root / "steps/000000000006"
    sixth.chmod(0)

    def read() -> dict[str, Any]:
        def restore() -> None:
            with lamina.Checkpointer(root, mode="read") as reader:
                reader.restore(state(0))

        fifth = lamina.open(root).load(5)["w"].unique().tolist()
        before = sorted(map(str, root.rglob("*")))
        told = [error_of(lambda: lamina.open(root).load(6)), error_of(restore)]
        return {"fifth": fifth, "told": told, "wrote": before != sorted(map(str, root.rglob("*")))}

    try:
        found = as_nobody(read)
    finally:
        sixth.chmod(0o755)
    assert found["fifth"] == [5]
    assert not found["wrote"]
    assert len(found["told"]) == 2
    for kind, text in found["told"]:
        assert kind == "PermissionDeniedError"
        assert "Permission denied" in text
        assert str(sixth) in text
