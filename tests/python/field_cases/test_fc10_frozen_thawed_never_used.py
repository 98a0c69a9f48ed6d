"""FC-10: what existed is restored, what did not exist stays absent, and weights are saved whether or not they train."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fills import iota, load, raw, save
from torch import nn

import lamina


class Three(nn.Module):
    """Three weights; `used` are those that the output depends on."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.A, self.B, self.C = (nn.Parameter(torch.full((4, 4), float(fill * factor))) for factor in (1, 2, 3))

    def forward(self, used: str) -> torch.Tensor:
        return sum((getattr(self, name) @ iota([4, 4], torch.float32, 1) / 100).square().mean() for name in used)  # type: ignore[return-value]


def made(fill: float) -> dict[str, Any]:
    model = Three(fill)
    return {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=1e-2)}


def train(state: dict[str, Any], used: str, steps: int) -> None:
    for _ in range(steps):
        state["optim"].zero_grad()
        state["model"](used).backward()
        state["optim"].step()


def after_six_steps() -> dict[str, Any]:
    state = made(1)
    train(state, "AC", 3)
    state["model"].A.requires_grad_(False)
    train(state, "C", 3)
    return state


def bytes_of(state: dict[str, Any]) -> dict[str, bytes]:
    """All weights and slots."""
    model, slots = state["model"], state["optim"].state
    weights = {name: raw(weight) for name, weight in model.named_parameters()}
    return {
        **weights,
        **{f"{name}.{slot}": raw(value) for name, weight in model.named_parameters() for slot, value in slots.get(weight, {}).items()},
    }


def test_fc10_frozen_thawed_and_never_used(tmp_path: Path) -> None:
    state = after_six_steps()
    save(tmp_path, state)
    fresh = made(9)
    load(tmp_path, fresh)
    model, slots = fresh["model"], fresh["optim"].state
    assert slots[model.A]["step"].item() == 3
    assert slots[model.C]["step"].item() == 6
    assert model.B not in slots
    assert bytes_of(fresh) == bytes_of(state)
    for each in (state, fresh):
        each["model"].A.requires_grad_(True)
        train(each, "AC", 1)
    assert slots[model.A]["step"].item() == 4
    assert bytes_of(fresh) == bytes_of(state)


def test_fc10_what_is_left_out_is_listed_as_missing(tmp_path: Path) -> None:
    model = after_six_steps()["model"]
    model.B.requires_grad_(False)
    save(tmp_path, {"model": {name: weight for name, weight in model.named_parameters() if weight.requires_grad}})
    whole = Three(9)
    before = {name: raw(weight) for name, weight in whole.named_parameters()}
    state = {"model": dict(whole.named_parameters())}
    with pytest.raises(lamina.MismatchError) as caught:
        load(tmp_path, state)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert [line for line in lines if line.startswith(("missing", "unexpected"))] == [
        "missing in the checkpoint: model.A",
        "missing in the checkpoint: model.B",
    ]
    info = load(tmp_path, state, strict=False)
    assert (info.missing, info.unexpected) == (("model.A", "model.B"), ())
    assert raw(whole.C) == raw(model.C)
    assert (raw(whole.A), raw(whole.B)) == (before["A"], before["B"])
