"""What a user meets in one process, on the real core: damage that `lamina verify` must see, and steps that are no integers."""

import errno
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lamina
from lamina import _core
from lamina.cli import main

STATE = {"w": torch.ones(3), "epoch": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        for step in range(3):
            ckpt.save(step, dict(STATE)).wait()
    return tmp_path / "root"


def flip(path: Path, at: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(damaged)


@pytest.mark.damages_roots
@pytest.mark.parametrize("name", ["LAMINA", "log/000000000002", "log/000000000004", "steps/000000000001/1-1/packs"])
def test_the_verify_command_names_the_file_that_is_damaged(root: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(root)]) == 0
    flip(root / name, 200 if name.startswith("log") else 20)
    assert main(["verify", str(root)]) == 1
    assert name in "".join(capsys.readouterr())  # a root whose LAMINA is damaged cannot be opened: that is said on stderr


def test_a_step_is_named_on_the_command_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", f"{root}@1"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["step", "1"]
    for command in ("ls", "show", "verify"):
        assert main([command, f"{root}@7"]) == 2
        assert "there is no step 7" in capsys.readouterr().err
    root.rename(f"{root}@1")
    assert main(["ls", f"{root}@1"]) == 0  # a folder of that name is the root
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["verify", f"{root}@1@2"]) == 0


def test_tensors_that_shared_memory_share_it_where_they_are_made_anew(tmp_path: Path) -> None:
    both = torch.arange(6.0)
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        ckpt.save(1, {"x": [both, both, both.clone()]})
    found: dict[str, Any] = {"x": []}
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        assert ckpt.restore(found).step == 1
    assert found["x"][0] is found["x"][1]
    assert found["x"][2] is not found["x"][0]
    assert [part.tolist() for part in found["x"]] == [both.tolist()] * 3


@pytest.mark.damages_roots
def test_a_damaged_chunk_table_of_a_tensor_that_is_made_anew_is_passed_over(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"x": [torch.full((5,), float(step))]}).wait()
    (pack,) = (tmp_path / "root" / "steps" / f"{2:012}").glob("*/*.pack")
    sound = pack.read_bytes()
    for at in range(len(sound) - 1, 0, -32):  # until it is a table that is hit
        pack.write_bytes(sound)
        flip(pack, at)
        if any("chunk table" in problem["message"] for problem in lamina.open(tmp_path / "root").verify(2)["problems"]):
            break
    found: dict[str, Any] = {"x": []}
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        info = ckpt.restore(found)
    assert info.step == 1
    ((step, why),) = info.passed_over
    assert step == 2
    assert "chunk table" in why
    assert found["x"][0].tolist() == [1.0] * 5


def test_a_reader_that_cannot_register_says_so(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert lamina.open(root).load()["w"].tolist() == [1, 1, 1]
    assert caplog.messages == []
    (root / "readers").rmdir()
    (root / "readers").touch()
    assert lamina.open(root).load()["w"].tolist() == [1, 1, 1]
    (message,) = caplog.messages
    assert "gc_grace_s alone kept step 2 from deletion" in message
    assert "readers" in message


@pytest.mark.parametrize("root_of", [lamina.Checkpointer, lamina.open])
def test_the_folder_where_a_job_starts_is_no_default_root(root_of: Any) -> None:
    with pytest.raises(lamina.InvalidArgumentError, match='the root is ""'):
        root_of("")


@pytest.mark.parametrize("step", ["0", 0.0, 2**70, [], True, -1])
def test_a_step_that_is_none_is_refused(root: Path, step: Any) -> None:
    with lamina.Checkpointer(root) as ckpt:
        with pytest.raises(lamina.InvalidArgumentError, match="step is"):
            ckpt.restore(dict(STATE), step=step)
        assert ckpt.restore(dict(STATE), step=np.int64(1)).step == 1
        with pytest.raises(lamina.InvalidArgumentError, match="step is"):
            ckpt.save(step, dict(STATE))
        ckpt.save(np.int64(5), dict(STATE)).wait()


def test_files_that_cannot_be_removed_are_told(tmp_path: Path) -> None:
    told: list[str] = []

    class Hook:
        def fallback(self, event: Any) -> None:
            told.append(event.cause)

    faults = _core.testing.FaultEnv()
    with lamina.Checkpointer(tmp_path / "root", hooks=[Hook()], options={"env": faults}) as ckpt:
        ckpt.save(0, dict(STATE)).wait()
        faults.fail("sync", errno.EIO, "00000.pack")
        faults.fail("unlink", errno.EACCES, "steps", count=-1)
        with pytest.raises(lamina.UnavailableError):
            ckpt.save(1, dict(STATE)).wait()
        limit_s = time.monotonic() + 30  # the sweep comes after the outcome
        while not told and time.monotonic() < limit_s:
            time.sleep(0.01)
    assert len(told) == 1
    assert "stay on disk" in told[0]


@pytest.mark.damages_roots
def test_a_pack_that_cannot_be_opened_is_told_once(root: Path) -> None:
    flip(root / "steps/000000000001/1-1/00000.pack", 100)
    (problem,) = lamina.open(root).verify()["problems"]
    assert (problem["file"], problem["entry"]) == ("steps/000000000001/1-1/00000.pack", "")


@pytest.mark.damages_roots
def test_a_damaged_newest_record_is_passed_over_aloud(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    newest = root / "log/000000000004"
    newest.write_bytes(bytes(newest.stat().st_size))
    assert lamina.open(root).latest() == 1
    assert "'log/000000000004' is damaged in both copies" in caplog.text
    with pytest.raises(lamina.NotFoundError, match=r"no step 2.*'log/000000000004' is damaged"):
        lamina.open(root).load(2)
    caplog.clear()
    with lamina.Checkpointer(root) as ckpt:
        info = ckpt.restore(dict(STATE))
    assert info.step == 1
    ((step, reason),) = info.passed_over
    assert (step, "'log/000000000004' is damaged in both copies" in reason) == (-1, True)
    assert "restore passed over: rank 0: 'log/000000000004' is damaged in both copies" in caplog.text


@pytest.mark.damages_roots
def test_a_root_whose_only_commit_is_damaged_is_not_an_empty_one(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        ckpt.save(0, dict(STATE)).wait()
    (tmp_path / "root/log/000000000002").write_bytes(b"")
    with pytest.raises(lamina.CorruptionError, match="log/000000000002"):
        lamina.open(tmp_path / "root").load()
    with lamina.Checkpointer(tmp_path / "root") as ckpt, pytest.raises(lamina.CorruptionError, match="log/000000000002"):
        ckpt.restore(dict(STATE))
