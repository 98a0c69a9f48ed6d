"""lamina.per_rank and lamina.rng: what belongs to a rank stays there, and another number of ranks needs a rule (FC-25)."""

import random
import struct
from collections.abc import Callable
from typing import Any

import fake_core  # noqa: F401  # stands in for the core at import
import numpy as np
import pytest
import torch

import lamina
from lamina import inline
from lamina.errors import CorruptionError, InvalidArgumentError, MismatchError, UnsupportedError
from lamina.matching import Match
from lamina.per_rank import ranks_text
from lamina.state import Capture

State = dict[str, Any]
POSITIONS = [223, 220, 221, 225]


def saved_by(states: list[State]) -> tuple[Any, dict[int, Any]]:
    captures = [Capture(state) for state in states]
    assert all(capture.tree == captures[0].tree for capture in captures)
    return captures[0].tree, {rank: capture.place for rank, capture in enumerate(captures)}


def restore(saved: tuple[Any, dict[int, Any]], make: Callable[[], State], rank: int, count: int) -> tuple[State, Match]:
    state = make()
    match = Match(state, [], *saved, rank, count)
    assert not match.problems.is_fatal(strict=True), match.problems
    match.finish()
    return state, match


def data(**rules: Any) -> Callable[[], State]:
    return lambda: {"data": lamina.PerRank(0, **rules)}


def test_each_rank_gets_its_own() -> None:
    saved = saved_by([{"data": lamina.PerRank(position)} for position in POSITIONS])
    assert [restore(saved, data(), rank, 4)[0]["data"].value for rank in range(4)] == POSITIONS


@pytest.mark.parametrize("rank", [0, 1])
def test_fewer_ranks_need_a_merge_rule(rank: int) -> None:
    saved = saved_by([{"data": lamina.PerRank(position)} for position in POSITIONS])
    with pytest.raises(MismatchError, match=r"^data: .*ranks 2 and 3 are unclaimed.*merge"):
        restore(saved, data(seed=1), rank, 2)
    seen: list[list[int]] = []

    def merge(values: list[int]) -> int:
        seen.append(values)
        return sum(values)

    assert restore(saved, data(merge=merge), rank, 2)[0]["data"].value == sum(POSITIONS)
    assert seen == [POSITIONS]
    assert restore(saved, data(merge="first"), rank, 2)[0]["data"].value == 223
    assert restore(saved, data(merge="drop"), rank, 2)[0]["data"].value == POSITIONS[rank]


@pytest.mark.parametrize("rank", [0, 7])
def test_more_ranks_need_a_seed_rule(rank: int) -> None:
    saved = saved_by([{"data": lamina.PerRank(position)} for position in POSITIONS])
    with pytest.raises(MismatchError, match=r"^data: .*ranks 4–7 have none.*seed"):
        restore(saved, data(merge="first"), rank, 8)
    expected = POSITIONS[rank] if rank < 4 else 1000 + rank
    assert restore(saved, data(seed=lambda rank: 1000 + rank), rank, 8)[0]["data"].value == expected
    assert restore(saved, data(seed=5), rank, 8)[0]["data"].value == (POSITIONS[rank] if rank < 4 else 5)


class Loader:
    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> Any:
        return {"at": self.at, "buffer": torch.full((2,), self.at)}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"] + int(state["buffer"].sum())


def test_values_of_all_kinds() -> None:
    saved = saved_by([{"data": lamina.PerRank({"a": [1, torch.ones(2, dtype=torch.bfloat16)]}), "loader": lamina.PerRank(Loader(3))}])
    inner: dict[str, Any] = {"a": [], "gone": 1}
    state, _ = restore(saved, lambda: {"data": lamina.PerRank(inner), "loader": lamina.PerRank(Loader(0))}, 0, 1)
    assert state["data"].value is inner
    assert (inner["a"][0], inner["a"][1].dtype, inner["a"][1].tolist()) == (1, torch.bfloat16, [1, 1])
    assert state["loader"].value.at == 9
    tensor = torch.zeros(2)
    restore(saved_by([{"t": lamina.PerRank(torch.ones(2))}]), lambda: {"t": lamina.PerRank(tensor)}, 0, 1)
    assert tensor.tolist() == [1, 1]


def test_rules_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="merge='last'"):
        lamina.PerRank(1, merge="last")
    with pytest.raises(UnsupportedError, match="not in this version"):
        lamina.PerRank(1, axis="dp")


def draws() -> list[Any]:
    return [random.random(), np.random.rand(), torch.rand(1).item()]


def test_generators_go_on_where_they_were() -> None:
    states, expected = [], []
    for rank in range(4):
        random.seed(1234 + rank)
        np.random.seed(1234 + rank)
        torch.manual_seed(1234 + rank)
        for _ in range(10 * (rank + 1)):
            draws()
        np.random.randn()  # leaves a second normal number waiting
        states.append(Capture({"rng": lamina.Rng()}))
        expected.append([np.random.randn(), *draws(), *draws()])
    saved = states[0].tree, {rank: state.place for rank, state in enumerate(states)}
    for rank in range(4):
        restore(saved, lambda: {"rng": lamina.Rng()}, rank, 4)
        assert [np.random.randn(), *draws(), *draws()] == expected[rank]


def test_generators_of_new_ranks_are_seeded() -> None:
    saved = saved_by([{"rng": lamina.Rng()}] * 2)
    with pytest.raises(MismatchError, match=r"^rng: .*ranks 2 and 3 of this job have none.*seed"):
        restore(saved, lambda: {"rng": lamina.Rng()}, 0, 4)
    found = []
    for rank in (2, 3, 2):
        restore(saved, lambda: {"rng": lamina.Rng(seed=1234)}, rank, 4)
        found.append(draws())
    assert found[0] == found[2]
    assert all(one != other for one, other in zip(found[0], found[1]))


def test_generators_of_ranks_that_are_gone_are_listed() -> None:
    saved = saved_by([{"rng": lamina.Rng()}] * 4)
    with pytest.raises(MismatchError, match=r"those of ranks 1–3 are unclaimed"):
        restore(saved, lambda: {"rng": lamina.Rng()}, 0, 1)
    _, match = restore(saved, lambda: {"rng": lamina.Rng(seed=1)}, 0, 1)
    assert match.dropped == ["rng of rank 1", "rng of rank 2", "rng of rank 3"]


def test_generators_are_put_back_last() -> None:
    class Draws:
        def state_dict(self) -> Any:
            return {}

        def load_state_dict(self, state: Any) -> None:
            draws()

    random.seed(7)
    saved = saved_by([{"rng": lamina.Rng(), "z": Draws()}])
    expected = draws()
    restore(saved, lambda: {"rng": lamina.Rng(), "z": Draws()}, 0, 1)
    assert draws() == expected


def generators(**changed: Any) -> dict[str, Any]:
    """What `Rng.capture` writes down, with other parts."""
    twister = np.random.get_state(legacy=False)
    there = {"python": random.getstate(), "numpy": twister, "torch": torch.get_rng_state(), "cuda": []}
    return {**there, **changed}


def twister(**changed: Any) -> dict[str, Any]:
    state = np.random.get_state(legacy=False)
    return {**state, "state": {**state["state"], **changed}}


def torch_at(left: int, next_word: int, has_float: int = 0) -> torch.Tensor:
    data = bytearray(torch.get_rng_state().numpy().tobytes())
    struct.pack_into("=i", data, 8, left)
    struct.pack_into("=Q", data, 16, next_word)
    data[5052] = has_float
    return torch.frombuffer(data, dtype=torch.uint8)


HOSTILE_GENERATORS = {
    "a number": lambda: 5,
    "a list": list,
    "one key more": lambda: generators(more=1),
    **{f"no {key}": lambda key=key: {name: part for name, part in generators().items() if name != key} for key in generators()},
    **{
        f"numpy at {at}": lambda at=at: generators(numpy=twister(pos=at))
        for at in (-(2 * 10**9), -5, -1, 625, 1000, 10**6, 2 * 10**9, 1 << 70)
    },
    "numpy at true": lambda: generators(numpy=twister(pos=True)),
    "numpy of few words": lambda: generators(numpy=twister(key=np.zeros(10, "u4"))),
    "numpy of other words": lambda: generators(numpy=twister(key=np.zeros(624, "i8"))),
    "numpy of no words": lambda: generators(numpy=twister(key=3)),
    "numpy without a state": lambda: generators(numpy={"bit_generator": "MT19937"}),
    "numpy as a tuple": lambda: generators(numpy=np.random.get_state()),
    "numpy without a normal number": lambda: generators(numpy={**twister(), "gauss": "x"}),
    **{
        f"torch at {at}, {left} to go": lambda at=at, left=left: generators(torch=torch_at(left, at))
        for at, left in ((624, 624), (2, 624), (624, 2), (0, 0), (0, -1), (0, 625), (1 << 63, 1))
    },
    "torch with a flag of 2": lambda: generators(torch=torch_at(1, 0, has_float=2)),
    "torch cut short": lambda: generators(torch=torch.zeros(5055, dtype=torch.uint8)),
    "torch of other elements": lambda: generators(torch=torch.zeros(5056, dtype=torch.int8)),
    "torch of no tensor": lambda: generators(torch=None),
    "python of version 2": lambda: generators(python=(2, *random.getstate()[1:])),
    "python at 625": lambda: generators(python=(3, (*random.getstate()[1][:-1], 625), None)),
    "python with a text waiting": lambda: generators(python=(3, random.getstate()[1], "x")),
    "python as a list": lambda: generators(python=list(random.getstate())),
    "cuda of a number": lambda: generators(cuda=1),
    "cuda cut short": lambda: generators(cuda=[torch.zeros(15, dtype=torch.uint8)]),
    "cuda at an odd offset": lambda: generators(cuda=[torch.ones(16, dtype=torch.uint8)]),
}


@pytest.mark.parametrize("what", HOSTILE_GENERATORS)
def test_generators_that_none_could_be_are_damage_before_anything_is_touched(what: str) -> None:
    tree, places = saved_by([{"rng": lamina.Rng(), "w": 1}])
    places[0]["rng"]["rng"] = inline.encode(HOSTILE_GENERATORS[what]())
    with pytest.raises(CorruptionError, match=r"^rng: the random generators of rank 0"):
        Match({"rng": lamina.Rng(), "w": 2}, [], tree, places, 0, 1)


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_another_generator_of_numpy_comes_back_where_it_is_in_use(name: str) -> None:
    saved = saved_by([{"rng": lamina.Rng()}])
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(getattr(np.random, name)(7))
        with pytest.raises(UnsupportedError, match=f"^rng: .*MT19937.*{name}"):
            Match({"rng": lamina.Rng()}, [], *saved, 0, 1)
        saved, expected = saved_by([{"rng": lamina.Rng()}]), draws()
        restore(saved, lambda: {"rng": lamina.Rng()}, 0, 1)
        assert draws() == expected
        if name == "Philox":
            for at in (-1, 5):
                state = {**np.random.get_state(legacy=False), "buffer_pos": at}
                saved[1][0]["rng"]["rng"] = inline.encode(generators(numpy=state))
                with pytest.raises(CorruptionError, match="numpy stands at"):
                    Match({"rng": lamina.Rng()}, [], *saved, 0, 1)
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.parametrize("count", [0, 1, 311, 623, 624, 625, 1250])
def test_generators_come_back_at_every_position(count: int) -> None:
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    for _ in range(count):
        random.getrandbits(32), np.random.randint(1 << 32, dtype=np.uint32), torch.randint(2, (1,))
    saved, expected = saved_by([{"rng": lamina.Rng()}]), draws()
    restore(saved, lambda: {"rng": lamina.Rng()}, 0, 1)
    assert draws() == expected


def test_generators_are_not_touched_unasked() -> None:
    saved = saved_by([{"epoch": 1}])
    random.seed(7)
    expected = random.getstate()
    restore(saved, lambda: {"epoch": 0}, 0, 1)
    assert random.getstate() == expected


def test_text_of_ranks() -> None:
    texts = [ranks_text(ranks) for ranks in ([3], [2, 3], [4, 5, 6, 7], [1, 3, 5])]
    assert texts == ["rank 3", "ranks 2 and 3", "ranks 4–7", "ranks 1, 3 and 5"]


def test_stages_of_a_pipeline_have_settings_of_their_own() -> None:  # FC-12
    def stage(ordinal: int, rate: float) -> State:
        model = torch.nn.ModuleDict({str(at): torch.nn.Linear(2, 2) for at in (2 * ordinal, 2 * ordinal + 1)})
        return {"model": model, "optim": torch.optim.SGD(model.parameters(), lr=rate)}

    stages = [stage(0, 0.5), stage(1, 0.25)]
    captures = [Capture(each) for each in stages]
    assert captures[0].tree == captures[1].tree
    from lamina.targets import Saved

    entries = [Saved(name, "float32", tuple(entry.tensor.shape), "") for each in captures for name, entry in each.entries.items()]
    model = torch.nn.ModuleDict({str(at): torch.nn.Linear(2, 2) for at in range(4)})
    whole = {"model": model, "optim": torch.optim.SGD(model.parameters(), lr=9.0)}
    match = Match(whole, entries, captures[0].tree, {rank: each.place for rank, each in enumerate(captures)}, 0, 1)
    assert not match.problems.is_fatal(strict=True)
    match.finish()
    rates = {id(parameter): group["lr"] for group in whole["optim"].param_groups for parameter in group["params"]}
    assert [rates[id(model[str(at)].weight)] for at in range(4)] == [0.5, 0.5, 0.25, 0.25]
