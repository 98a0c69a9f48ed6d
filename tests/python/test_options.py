"""lamina.options and lamina.mismatch: names, types and hints."""

from pathlib import Path

import pytest
import torch

import lamina
from lamina import _core
from lamina.errors import InvalidArgumentError
from lamina.mismatch import Problems, combine
from lamina.options import checked, default_run_id, local_rank_count


def test_options_take_their_type() -> None:
    found = checked({"beat_s": 1, "io_threads": 4})
    assert found == {"beat_s": 1.0, "io_threads": 4}
    assert type(found["beat_s"]) is float
    for wrong in ({"beat_s": "1"}, {"io_threads": True}, {"beat_s": None}):
        with pytest.raises(InvalidArgumentError, match="expected"):
            checked(wrong)


@pytest.mark.parametrize(
    ("environment", "run_id"),
    [
        ({}, ""),
        ({"TORCHELASTIC_RUN_ID": "job7"}, "job7"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "12"}, "12"),
        ({"TORCHELASTIC_RUN_ID": "0e0a1d1c-5d0f-4b4e-9d0b-0b7b6f4f2f11"}, ""),
        ({"TORCHELASTIC_RUN_ID": "", "LSB_JOBID": "9"}, "9"),
        ({"TORCHELASTIC_RUN_ID": "job7", "LAMINA_RUN_ID": "mine"}, "mine"),
    ],
)
def test_run_id_comes_from_the_launcher(environment: dict[str, str], run_id: str) -> None:
    assert default_run_id(environment) == run_id


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 64),
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_TASKS_PER_NODE": "1(x8)"}, 8),
        ({"LOCAL_WORLD_SIZE": "100"}, 64),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"SLURM_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "1"}, 8),
        ({"SLURM_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "2"}, 4),
        ({"SLURM_TASKS_PER_NODE": "8(x8)", "SLURM_STEP_TASKS_PER_NODE": "6(x8)", "SLURM_NODEID": "7"}, 6),
        ({"SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_NODEID": "2"}, 64),
        ({"SLURM_TASKS_PER_NODE": "many"}, 64),
    ],
)
def test_ranks_of_this_machine_come_from_the_launcher(environment: dict[str, str], count: int) -> None:
    assert local_rank_count(64, environment) == count


def test_the_environment_sets_what_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"ROOT": "/nowhere", "MODE": "read", "RANK": "3", "RANK_COUNT": "9", "KEEP": "1", "RUN_ID": "mine"}
    for name, value in {**told, "EXIT_GRACE_S": "7", "FAILURES_TOLERATED": "1", "IO_THREADS": "65"}.items():
        monkeypatch.setenv(f"LAMINA_{name}", value)
    root = tmp_path / "root"
    with pytest.raises(InvalidArgumentError, match="io_threads is '65'"):
        lamina.Checkpointer(root)
    with lamina.Checkpointer(root, keep=3, options={"io_threads": 1}) as ckpt:
        for step in range(5):
            ckpt.save(step, {"w": torch.ones(2)}).wait()
        assert (ckpt._exit_grace_s, ckpt._failures_tolerated) == (7, 1)
    assert [step["step"] for step in lamina.open(root).steps()] == [4, 3, 2]
    assert _core.look_at_root(str(root))["run_id"] == "mine"
    with lamina.Checkpointer(root, failures_tolerated=4, options={"io_threads": 1, "exit_grace_s": 2}) as ckpt:
        ckpt.restore({"w": torch.ones(2)})
        ckpt.save(5, {"w": torch.ones(2)}).wait()
        assert (ckpt._exit_grace_s, ckpt._failures_tolerated) == (2, 4)
    assert [step["step"] for step in lamina.open(root).steps()] == [5]


def test_unexpected_is_what_no_rank_has_a_place_for() -> None:
    ranks = [Problems(unexpected=["b", "c"], missing=["x"]), Problems(unexpected=["a", "c"], missing=["x", "y"])]
    found = combine(ranks)
    assert (found.unexpected, found.missing) == (["c"], ["x", "y"])


def test_message_names_all_with_the_nearest() -> None:
    problems = Problems(missing=["model.head.weight"], unexpected=["model.heat.weight", "zzz"], dtype=["w: float32 in the checkpoint"])
    text = problems.message(7, strict=True)
    assert "step 7" in text
    assert "missing in the checkpoint: model.head.weight (nearest: model.heat.weight)" in text
    assert "unexpected in the checkpoint: zzz\n" in text
    assert "cast=True" in text
    assert "zzz" not in problems.message(7, strict=False)
    assert not Problems(missing=["a"]).is_fatal(strict=False)
