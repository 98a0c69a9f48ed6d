"""Whole jobs on the real core: saved on some ranks, restored on others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

RunRanks = Callable[..., list[dict[str, Any]]]
JOB = Path(__file__).with_name("restart_job.py")


def test_a_job_goes_on_with_other_numbers_of_ranks(run_ranks: RunRanks, tmp_path: Path) -> None:
    def run(count: int, steps: int) -> list[dict[str, Any]]:
        (found,) = run_ranks(JOB, count, str(tmp_path / "root"), str(steps))
        ranks: list[dict[str, Any]] = found["ranks"]
        for key in ("restored", "digest", "saved", "log"):
            assert all(rank[key] == ranks[0][key] for rank in ranks), key
        return ranks

    first = run(2, 2)
    assert (first[0]["restored"], first[0]["log"]) == (None, [])
    assert [rank["position"] for rank in first] == [2, 102]
    second = run(3, 1)
    assert (second[0]["restored"], second[0]["digest"], second[0]["log"]) == (1, first[0]["saved"], [0, 1])
    assert [rank["position"] for rank in second] == [3, 103, -1]
    assert second[0]["source"] == {"dp": 2}
    third = run(1, 1)
    assert (third[0]["restored"], third[0]["digest"], third[0]["log"]) == (2, second[0]["saved"], [0, 1, 2])
    assert third[0]["position"] == 104  # the largest of all, and one step more
    assert third[0]["draw"] == second[0]["next_draw"]


def test_what_fails_on_one_rank_is_told_on_all(run_ranks: RunRanks, tmp_path: Path) -> None:  # FC-26
    (found,) = run_ranks(Path(__file__).with_name("failing_load_job.py"), 3, str(tmp_path / "root"))
    for rank, told in enumerate(found["ranks"]):
        kind, _, text, values = told["other shape"]
        assert (kind, set(values)) == ("MismatchError", {0.0})
        assert "w: [2] in the checkpoint, [3] in the template" in text
        kind, at, text, values = told["template"]
        assert (kind, at, values) == ("Error", 1, [0, 0])
        assert "rank 1: KeyError: 'template'" in text
        kind, at, text, values = told["callback"]
        assert (kind, at, values) == ("Error", 1, [1, 1]), rank
        assert "rank 1: KeyError: 'pos'" in text
        assert "filled: do not train on them" in text
        kind, text = told["saved"]
        assert kind == "StateError"
        assert "restore again" in text
        assert told["well"] == ["nothing", 1]  # the log was not rolled back to step 0
