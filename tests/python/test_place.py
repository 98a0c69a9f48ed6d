"""lamina.place: what a rank saved as its own is checked whole before any of it is used."""

import json
from typing import Any

import pytest
import torch

import lamina
from lamina import place
from lamina.errors import CorruptionError
from lamina.state import Capture


def whole(**changed: Any) -> Any:
    return {"rng": {}, "per_rank": {}, "modules": {}, "optimizers": {}, **changed}


def of_optimizer(**changed: Any) -> Any:
    return whole(optimizers={"adam": {"groups": [], "slots": [], "rest": [], **changed}})


def test_what_a_rank_saves_is_let_through() -> None:
    model = torch.nn.Linear(2, 1)
    lbfgs = torch.optim.LBFGS(model.parameters())
    lbfgs.step(lambda: model(torch.ones(2)).square().sum().backward() or 1.0)
    state = {
        "model": model,
        "a.b": {"adam": torch.optim.Adam(model.parameters())},
        "lbfgs": lbfgs,
        "rng": lamina.Rng(),
        "n": lamina.PerRank(1),
    }
    saved = json.loads(json.dumps(Capture(state).place))
    assert place.checked(saved) is saved
    assert set(saved["optimizers"]) == {'"a.b".adam', "lbfgs"}


@pytest.mark.parametrize(
    "parsed",
    [
        [],
        None,
        {},
        whole(more={}),
        *(whole(**{kind: []}) for kind in ("rng", "per_rank", "modules", "optimizers")),
        *(whole(**{kind: {"(": []}}) for kind in ("rng", "per_rank", "modules", "optimizers")),
        whole(modules={"a": 5}),
        whole(modules={"a": [5]}),
        whole(modules={"a": [["b"]]}),
        whole(modules={"a": [[5, 1]]}),
        whole(modules={"a": [["(", 1]]}),
        whole(modules={"a": [["b", 1], ["b", 2]]}),
        whole(optimizers={"a": {}}),
        whole(optimizers={"a": []}),
        of_optimizer(more=[]),
        *(of_optimizer(**{part: body}) for part in ("groups", "slots", "rest") for body in (None, 5, {}, [5], [[5]], [["a", 5, 6]])),
        of_optimizer(groups=[{}]),
        of_optimizer(groups=[{"options": [], "params": "a"}]),
        of_optimizer(groups=[{"options": [], "params": [5]}]),
        of_optimizer(groups=[{"options": [[5, 1]], "params": []}]),
        of_optimizer(groups=[{"options": [["lr", 1], ["lr", 2]], "params": []}]),
        of_optimizer(groups=[{"options": [["params", 1]], "params": []}]),
        of_optimizer(groups=[{"options": [["param_names", 1]], "params": []}]),
        of_optimizer(groups=[{"options": [], "params": [], "more": 1}]),
        of_optimizer(slots=[[5, []]]),
        of_optimizer(slots=[["w", [5]]]),
        of_optimizer(slots=[["w", []], ["w", []]]),
    ],
    ids=lambda parsed: str(parsed)[:90],
)
def test_another_form_is_damage(parsed: Any) -> None:
    with pytest.raises(CorruptionError):
        place.checked(parsed)
