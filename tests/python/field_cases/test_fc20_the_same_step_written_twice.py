"""FC-20: a step that is saved again, by fewer ranks, is wholly the old one or wholly the new one at any instant."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from fills import sharded
from on_ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh

import lamina
from lamina.cli import main

TRIALS = int(os.environ.get("LAMINA_KILL_TRIALS", "10"))
TRIAL_JOB = Path(__file__).with_name("same_step_job.py")


def save_first(root: Path) -> None:
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(5, {"w": sharded(torch.full((64,), 1.0), init_device_mesh("cpu", (dist.get_world_size(),)))}).wait()


def save_again(root: Path, finds_it: bool) -> None:
    state = {"w": sharded(torch.zeros(64), init_device_mesh("cpu", (2,)))}
    with lamina.Checkpointer(root) as ckpt:
        assert ckpt.restore(state).step == (5 if finds_it else None)
        state["w"].to_local().fill_(2)
        ckpt.save(5, state).wait()


def packs(root: Path) -> list[str]:
    return sorted(path.parent.name + "/" + path.name for path in (root / "steps").rglob("*.pack"))


def test_fc20_the_same_step_written_twice(tmp_path: Path) -> None:
    root, crashed = tmp_path / "root", tmp_path / "crashed"
    on_ranks(8, save_first, root)
    assert len(packs(root)) == 8
    # As of a job that died: three of eight files, and nothing that names them.
    shutil.copytree(root, crashed)
    (attempt,) = (crashed / "steps" / "000000000005").iterdir()
    for path in [*sorted(attempt.glob("*.pack"))[3:], attempt / "catalog", attempt / "packs", max((crashed / "log").iterdir())]:
        path.unlink()
    on_ranks(2, save_again, root, True)
    on_ranks(2, save_again, crashed, False)
    for each in (root, crashed):
        assert lamina.open(each).load()["w"].tolist() == [2] * 64
        assert lamina.open(each).verify()["ok"]
        assert main(["gc", str(each), "--grace", "0"]) == 0  # at once, for the job's own sweep comes after a time of grace
        assert len(packs(each)) == 2


def test_fc20_killed_at_any_moment(tmp_path: Path) -> None:
    on_ranks(8, save_first, tmp_path / "root")
    environment = {**os.environ, "PYTHONPATH": str(Path(lamina.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(TRIAL_JOB), str(tmp_path / "root"), str(TRIALS)],
        capture_output=True,
        text=True,
        timeout=570,
        check=True,
        env=environment,
    )
    found = json.loads(done.stdout)
    assert len(found) == TRIALS
    assert all(values in ([1.0] * 64, [2.0] * 64) for values in found), found
    assert [1.0] * 64 in found  # some were killed before the end
