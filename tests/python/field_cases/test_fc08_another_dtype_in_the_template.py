"""FC-08: nothing is cast without a word, and no template is touched before all checks have passed."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fills import blank, check_same, iota, load, raw, save
from on_ranks import on_ranks

import lamina

WEIGHT = (1 + torch.arange(12, dtype=torch.float64) * 2.0**-20).to(torch.float32).reshape(4, 3)
VECTOR = iota([5], torch.float32, 0)


def template(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"v": blank(VECTOR), "w": weight}


def refused(root: Path, state: dict[str, torch.Tensor], cast: bool = False) -> str:
    """What the error says, after a look at the template."""
    before = {name: raw(value) for name, value in state.items()}
    with pytest.raises(lamina.MismatchError) as caught:
        load(root, state, cast=cast)
    assert {name: raw(value) for name, value in state.items()} == before
    return str(caught.value)


def written(root: Path) -> Path:
    save(root, {"w": WEIGHT.clone(), "v": VECTOR.clone()})
    return root


def test_fc08_another_dtype_is_an_error_that_names_both(tmp_path: Path) -> None:
    text = refused(written(tmp_path), template(torch.full((4, 3), 7, dtype=torch.bfloat16)))
    assert "w: float32 in the checkpoint, bfloat16 in the template" in text
    assert "restore(cast=True)" in text
    assert not re.search(r"^\s*(other dtype: )?v:", text, re.MULTILINE)


def another_on_the_second_rank(root: Path) -> str:
    written(root)
    return refused(root, template(torch.full((4, 3), 7, dtype=torch.bfloat16 if dist.get_rank() == 1 else torch.float32)))


def test_fc08_another_dtype_on_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    for text in on_ranks(2, another_on_the_second_rank, tmp_path):
        assert "w: float32 in the checkpoint, bfloat16 in the template" in text


def test_fc08_casts_that_are_asked_for_round_to_nearest_even(tmp_path: Path) -> None:
    state = template(torch.zeros(4, 3, dtype=torch.bfloat16))
    load(written(tmp_path), state, cast=True)
    check_same("w", state["w"], torch.ones(4, 3, dtype=torch.bfloat16))
    check_same("v", state["v"], VECTOR)


def test_fc08_ties_go_to_the_even_neighbour(tmp_path: Path) -> None:
    halves = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20])  # bfloat16 has steps of 2**-7 there
    save(tmp_path, {"w": halves})
    state = {"w": torch.zeros(3, dtype=torch.bfloat16)}
    load(tmp_path, state, cast=True)
    assert state["w"].tolist() == [1, 1 + 2**-6, 1 + 2**-7]


def test_fc08_a_wider_dtype_is_exact(tmp_path: Path) -> None:
    save(tmp_path, {"w": WEIGHT.to(torch.bfloat16) * 1.5})
    state = {"w": torch.zeros(4, 3)}
    load(tmp_path, state, cast=True)
    check_same("w", state["w"], torch.full((4, 3), 1.5))


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (12,)])
def test_fc08_another_shape_is_an_error(tmp_path: Path, shape: tuple[int, ...], cast: bool) -> None:
    text = refused(written(tmp_path), template(torch.full(shape, 7.0)), cast)
    assert f"w: [4, 3] in the checkpoint, {list(shape)} in the template" in text
