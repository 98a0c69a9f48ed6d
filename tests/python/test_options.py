"""lamina.options and lamina.mismatch: names, types and hints."""

import pytest

from lamina.errors import InvalidArgumentError
from lamina.mismatch import Problems, combine
from lamina.options import checked, default_run_id


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
    ],
)
def test_run_id_comes_from_the_launcher(environment: dict[str, str], run_id: str) -> None:
    assert default_run_id(environment) == run_id


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
