"""`lamina gc`, `lamina pin` and `Checkpointer(keep=...)`, on the real core."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina.cli import main


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((1000,), float(step)), "epoch": step}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        for step in range(1, 5):
            ckpt.save(step, state(step)).wait()
    return tmp_path / "root"


def steps(root: Path) -> list[int]:
    return [step["step"] for step in lamina.open(root).steps(all=True)]


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def gc(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()  # of earlier commands
    assert main(["gc", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_dry_run_tells_what_a_run_does(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(root)
    planned = gc(capsys, str(root), "--keep", "2", "--grace", "0", "--dry-run")
    assert files(root) == before
    assert planned["dry_run"]
    done = gc(capsys, str(root), "--keep", "2", "--grace", "0")
    assert steps(root) == [4, 3]
    assert [step["step"] for step in done["dropped"]] == [step["step"] for step in planned["dropped"]] == [1, 2]
    assert done["removed"] == planned["removed"]
    assert set(before) - set(files(root)) == {name for name, _ in done["removed"]}
    assert len(done["removed"]) == 2 * 3
    assert all(size > 0 for _, size in done["removed"])
    assert (done["waiting"], done["disk_bytes"]) == ([], done["needed_bytes"])
    assert gc(capsys, str(root), "--keep", "2")["dropped"] == []


def test_what_stays_and_why_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = root / "readers/0123456789abcdef"
    reader.touch()
    assert main(["gc", f"{root}@2"]) == 0
    assert main(["gc", str(root)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "step 2 dropped"
    for line in (out[1], out[3]):
        assert line.startswith("step 2: ")
        assert "readers at work: 1, 6" in line or "readers at work: 1, 5" in line  # of 600 s
        assert line.endswith("s for readers that cannot register; a later gc or the trainer removes them")
    assert f"under {root}/steps" in out[2]
    assert steps(root) == [4, 3, 1]
    assert (root / "steps/000000000002").exists()
    thread = threading.Timer(1, reader.unlink)
    thread.start()
    found = gc(capsys, str(root), "--grace", "0", "--wait", "60")
    thread.join()
    assert len(found["removed"]) == 3
    assert not (root / "steps/000000000002").exists()
    assert main(["gc", f"{root}@4", "--grace", "0"]) == 0  # the newest: no trainer is there any more
    assert "removed: steps/000000000004/1-3, 3 files," in capsys.readouterr().out
    assert steps(root) == [3, 1]


@pytest.mark.damages_roots
def test_wrong_use_and_damage_have_codes_of_their_own(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", f"{root}@7"]) == 2
    assert "there is no step 7" in capsys.readouterr().err
    assert main(["gc", str(root), "--keep", "0"]) == 2
    assert main(["gc", f"{root}@1", "--keep", "1"]) == 2
    assert main(["gc", str(root / "none")]) == 2
    assert main(["pin", str(root)]) == 2
    with lamina.Checkpointer(root) as ckpt:
        ckpt.restore(state(0))
        assert main(["gc", f"{root}@4"]) == 2
        assert "a trainer builds on it" in capsys.readouterr().err
    newest = max(root.glob("log/0*"))
    newest.write_bytes(bytes(len(newest.read_bytes())))
    before = files(root)
    assert main(["gc", str(root), "--keep", "1"]) == 1
    assert "damaged" in capsys.readouterr().err
    assert files(root) == before


def test_a_pinned_step_outlives_retention(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pin", f"{root}@2"]) == 0
    assert main(["gc", f"{root}@2"]) == 2
    assert "is pinned" in capsys.readouterr().err
    with lamina.Checkpointer(root, keep=1, options={"gc_grace_s": 0.0}) as ckpt:
        ckpt.restore(state(0))
        ckpt.save(5, state(5)).wait()
    assert steps(root) == [5, 2]
    main(["ls", str(root)])
    assert capsys.readouterr().out.splitlines()[-1].endswith("\tline, pinned")
    assert main(["pin", f"{root}@2", "--off"]) == 0
    assert [step["step"] for step in gc(capsys, str(root), "--keep", "1")["dropped"]] == [2]


def test_abandoned_steps_go_after_their_time(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lamina.Checkpointer(root, keep=9) as ckpt:
        ckpt.restore(state(0), step=2)
        ckpt.save(10, state(10)).wait()
    assert steps(root) == [10, 2, 1, 4, 3]
    assert gc(capsys, str(root))["dropped"] == []
    assert [step["step"] for step in gc(capsys, str(root), "--abandoned", "0")["dropped"]] == [3, 4]
    assert steps(root) == [10, 2, 1]


def test_a_store_that_is_merely_kept_holds_nothing_up(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = lamina.open(root)
    assert store.load(1)["w"].unique().tolist() == [1]
    assert list((root / "readers").iterdir()) == []
    gc(capsys, f"{root}@1", "--grace", "0")
    with pytest.raises(lamina.NotFoundError, match="no step 1"):
        store.load(1)
    assert store.load()["w"].unique().tolist() == [4]


def test_a_job_that_restarts_keeps_on_keeping(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lamina.Checkpointer(root, keep=2, options={"gc_grace_s": 0.0}) as ckpt:
        ckpt.restore(state(0))
        ckpt.save(4, state(4)).wait()  # supersedes the restored step
    assert steps(root) == [4, 3]
    with lamina.Checkpointer(root, keep=2, options={"gc_grace_s": 0.0}) as ckpt:
        ckpt.restore(state(0))
        for step in (5, 6, 7):
            ckpt.save(step, state(step))
    assert steps(root) == [7, 6]
    gc(capsys, str(root), "--grace", "0")  # what the job's end has left
    assert len(list(root.glob("steps/*"))) == 2
    assert lamina.open(root).verify()["ok"]
