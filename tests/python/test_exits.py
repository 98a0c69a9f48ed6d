"""How programs of two ranks end while a save is under way: what is there afterwards, the exit code, and that nothing hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from exits_job import CASES, STEP

import lamina

SCRIPT = Path(__file__).with_name("exits_job.py")


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All cases at once: most of their time is spent waiting."""
    folder = tmp_path_factory.mktemp("exits")
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2] / "python")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=240, check=True, env=environment
    )
    return folder, json.loads(done.stdout)


# The exit code of each rank, the newest step afterwards, and what each rank says.
EXPECTED: dict[str, tuple[tuple[int, int], int, tuple[str, str]]] = {
    "plain_end": ((0, 0), STEP, ("", "")),
    "env_end": ((0, 0), STEP, ("", "")),
    "rank_0_first": ((0, 0), STEP, ("", "")),
    "exit_code": ((3, 3), STEP, ("", "")),
    "exception": ((1, 1), STEP, ("ValueError: x", "ValueError: x")),
    "exception_while_it_fails": ((1, 1), STEP - 1, ("ValueError: x", "ValueError: x")),
    "stalled_hook": ((1, 1), STEP, ("ValueError: x", "Stalls has not returned in time and is left behind")),
    "destroyed_before_close": ((0, 0), STEP, ("committed", "committed")),
    "rank_1_vanishes": ((0, 7), STEP - 1, ("UnavailableError 1", "")),
    "rank_1_is_terminated": ((0, -15), STEP - 1, ("UnavailableError 1", "")),
    "rank_0_is_killed": ((-9, 0), STEP - 1, ("", "UnavailableError")),
    "store_dies": ((0, 0), STEP - 1, ("UnavailableError", "UnavailableError")),
    "forked_child": ((0, 0), STEP, ("child 0", "child 0")),
}


def test_every_case_is_expected() -> None:
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.parametrize("case", EXPECTED)
def test_the_end_of_a_program(ends: tuple[Path, dict[str, Any]], case: str) -> None:  # FC-14
    folder, found = ends
    codes, newest, said = EXPECTED[case]
    for rank, (code, _, text) in enumerate(found[case]):
        assert code == codes[rank], f"rank {rank}: {text}"
        assert said[rank] in text
        assert "terminate called" not in text
    root = folder / f"{case}_root"
    assert lamina.open(root).latest() == newest
    assert lamina.open(root).verify()["ok"]


def test_a_failing_save_is_told_beside_the_exception_and_not_in_its_place(ends: tuple[Path, dict[str, Any]]) -> None:  # FC-14
    for _, _, text in ends[1]["exception_while_it_fails"]:
        assert "lamina: while leaving the Checkpointer" in text
        assert "EIO" in text
        assert text.index("ValueError: x\n") < text.rindex("lamina: while leaving")


def test_a_rank_that_is_gone_is_noticed_soon(ends: tuple[Path, dict[str, Any]]) -> None:  # FC-14: within 30 s
    for case, rank in (("rank_1_vanishes", 0), ("rank_1_is_terminated", 0), ("rank_0_is_killed", 1), ("store_dies", 0), ("store_dies", 1)):
        text = ends[1][case][rank][2]
        waited_s = float(text.split(" after ")[1].split(" s:")[0])
        assert waited_s < 30, text
