"""FC-25: what is a rank's own belongs to its global rank, and nothing of it is dropped or copied without being asked."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fills import load, save
from on_ranks import on_ranks

import lamina

POSITIONS = [223, 220, 221, 225]
Draws = list[tuple[float, float, float]]


def draw(count: int) -> Draws:
    return [(random.random(), float(np.random.random()), torch.rand(()).item()) for _ in range(count)]


def write(root: Path) -> Draws:
    rank = dist.get_rank()
    random.seed(1234 + rank)
    np.random.seed(1234 + rank)
    torch.manual_seed(1234 + rank)
    draw(10 * (rank + 1))
    save(root, {"rng": lamina.Rng(), "data": lamina.PerRank(POSITIONS[rank])})
    return draw(5)


def read(root: Path, rng: dict[str, Any], data: dict[str, Any]) -> tuple[Draws, Any, tuple[str, ...]]:
    position = lamina.PerRank(-1, **data)
    info = load(root, {"rng": lamina.Rng(**rng), "data": position})
    return draw(5), position.value, info.unexpected


def refused(root: Path, rng: dict[str, Any], data: dict[str, Any]) -> str:
    state = {"rng": lamina.Rng(**rng), "data": lamina.PerRank(-1, **data)}
    before = random.getstate(), torch.get_rng_state().tolist()
    with pytest.raises(lamina.MismatchError) as caught:
        load(root, state)
    assert state["data"].value == -1
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    return str(caught.value)


def refusals(root: Path, seeded: dict[str, Any]) -> tuple[str, str]:
    """What is said without a rule for the position, and without one for the dice."""
    return refused(root, {"seed": 7}, {}), refused(root, {}, seeded)


def seen(values: list[int]) -> list[int]:
    return values


def by_rank(rank: int) -> int:
    return 1000 + rank


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Draws]]:
    """The root, and what each rank drew next after the save."""
    root = tmp_path_factory.mktemp("root")
    return root, on_ranks(4, write, root)


def test_fc25_each_rank_goes_on_with_its_own(saved: tuple[Path, list[Draws]]) -> None:
    root, next_draws = saved
    found = on_ranks(4, read, root, {}, {})
    assert [draws for draws, _, _ in found] == next_draws
    assert [position for _, position, _ in found] == POSITIONS
    assert len({str(draws) for draws in next_draws}) == 4


def test_fc25_ranks_that_are_gone_need_a_rule(saved: tuple[Path, list[Draws]]) -> None:
    root, next_draws = saved
    for position, dice in on_ranks(2, refusals, root, {"merge": seen}):
        assert "data: the checkpoint holds values of 4 ranks, and those of ranks 2 and 3 are unclaimed" in position
        assert "rng: the checkpoint holds random generators of 4 ranks, those of ranks 2 and 3 are unclaimed" in dice
    for rank, (draws, position, dropped) in enumerate(on_ranks(2, read, root, {"seed": 7}, {"merge": seen})):
        assert draws == next_draws[rank]
        assert position == POSITIONS
        assert dropped == ("rng of rank 2", "rng of rank 3")


def test_fc25_ranks_that_are_new_need_a_rule(saved: tuple[Path, list[Draws]]) -> None:
    root, next_draws = saved
    for position, dice in on_ranks(8, refusals, root, {"seed": by_rank}):
        assert "data: the checkpoint holds values of 4 ranks, and ranks 4–7 have none" in position
        assert "rng: the checkpoint holds random generators of 4 ranks, ranks 4–7 of this job have none" in dice
    found = on_ranks(8, read, root, {"seed": 7}, {"seed": by_rank})
    assert [position for _, position, _ in found] == [*POSITIONS, 1004, 1005, 1006, 1007]
    assert [draws for draws, _, _ in found[:4]] == next_draws
    assert len({str(draws) for draws, _, _ in found}) == 8
