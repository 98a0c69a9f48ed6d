"""FC-09: the slots that a fresh optimizer lacks are made, in the layout of their parameters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fills import iota, load, raw, save
from on_ranks import on_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "amsgrad": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
}
SLOTS = {
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
    "amsgrad": {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "momentum": {"momentum_buffer"},
}
BATCH = iota([4, 8], torch.float32, 0) / 100


def made(kind: str) -> dict[str, Any]:
    """A model and its optimizer that has nothing in it yet; sharded when there are several ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if dist.is_initialized():
        for each in (*model, model):
            fully_shard(each)
    return {"model": model, "optim": OPTIMIZERS[kind](model.parameters())}


def train(state: dict[str, Any], steps: int) -> None:
    for _ in range(steps):
        state["optim"].zero_grad()
        state["model"](BATCH).square().mean().backward()
        state["optim"].step()


def whole(value: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    full = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full.dtype, tuple(full.shape), raw(full)


def slots_of(state: dict[str, Any]) -> dict[str, Any]:
    """All slots, whole, by parameter and slot."""
    return {
        f"{name}.{slot}": whole(value)
        for name, parameter in state["model"].named_parameters()
        for slot, value in state["optim"].state[parameter].items()
    }


def parameters_of(state: dict[str, Any]) -> dict[str, Any]:
    return {name: whole(parameter) for name, parameter in state["model"].named_parameters()}


def write(root: Path, kind: str) -> tuple[Any, Any, Any]:
    state = made(kind)
    train(state, 5)
    slots = slots_of(state)
    save(root, state)
    then = parameters_of(state)
    train(state, 5)
    return slots, then, parameters_of(state)


def read(root: Path, kind: str, steps: int) -> tuple[Any, Any, Any]:
    state = made(kind)
    assert not state["optim"].state
    info = load(root, state)
    assert (info.missing, info.unexpected) == ((), ())
    for parameter in state["model"].parameters():
        slots = state["optim"].state[parameter]
        assert set(slots) == SLOTS[kind]
        if "step" in slots:
            assert slots["step"].item() == 5.0
        assert all(type(value) is type(parameter.data) for slot, value in slots.items() if slot != "step"), "another layout"
    slots, then = slots_of(state), parameters_of(state)
    train(state, steps)
    return slots, then, parameters_of(state)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fc09_a_fresh_optimizer_gets_its_slots_and_trains_on(tmp_path: Path, kind: str) -> None:
    (written,) = on_ranks(1, write, tmp_path, kind)
    assert len(written[0]) == 4 * len(SLOTS[kind])
    assert on_ranks(1, read, tmp_path, kind, 5) == [written]


def write_all(root: Path) -> dict[str, Any]:
    return {kind: write(root / kind, kind)[:2] for kind in OPTIMIZERS}


def read_all(root: Path) -> dict[str, Any]:
    return {kind: read(root / kind, kind, 0)[:2] for kind in OPTIMIZERS}


def test_fc09_slots_are_made_on_another_number_of_ranks(tmp_path: Path) -> None:
    written = on_ranks(2, write_all, tmp_path)[0]
    assert on_ranks(4, read_all, tmp_path) == [written] * 4
