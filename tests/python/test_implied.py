"""Steps of trainers that hand over named tensors and no plain values, as those in C++ do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from lamina import _core
from lamina.state import Entry, tensor_args


def save(root: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    engine = _core.Engine({"root": str(root)}, None)
    args, alive = tensor_args({name: Entry(tensor) for name, tensor in tensors.items()})
    engine.save(1, args, {"bytes": b"of the trainer's own", "place": b"\xff"}, []).wait(None)
    engine.close(None)
    del alive


def restore(root: Path, state: dict[Any, Any], **arguments: Any) -> Any:
    with lamina.Checkpointer(root, mode="read") as ckpt:
        return ckpt.restore(state, **arguments)


def test_names_are_paths_into_mappings_and_lists(tmp_path: Path) -> None:
    names = ("a.b", 'a."c.d"', "list[0]", "list[1].x", "pair[1]", "numbers[7]")
    save(tmp_path / "root", {name: torch.full((2,), float(number)) for number, name in enumerate(names)})
    state: dict[str, Any] = {
        "a": {"b": torch.zeros(2), "c.d": torch.zeros(2)},
        "list": [torch.zeros(2), {"x": torch.zeros(2)}],
        "pair": {1: torch.zeros(2)},
        "numbers": {7: torch.zeros(2)},
    }
    a, first = state["a"]["b"], state["list"][0]
    info = restore(tmp_path / "root", state)
    assert (info.step, info.metadata) == (1, None)
    found = [state["a"]["b"], state["a"]["c.d"], state["list"][0], state["list"][1]["x"], state["pair"][1], state["numbers"][7]]
    assert [tensor[0].item() for tensor in found] == [0, 1, 2, 3, 4, 5]
    assert state["a"]["b"] is a
    assert state["list"][0] is first


def test_names_that_are_no_paths_or_do_not_go_together_stand_for_themselves(tmp_path: Path) -> None:
    names = ("my tensor", "w", "w.moment", "flat.name")
    save(tmp_path / "root", {name: torch.tensor(float(number)) for number, name in enumerate(names)})
    state = {name: torch.tensor(-1.0) for name in names}
    restore(tmp_path / "root", state)
    assert [tensor.item() for tensor in state.values()] == [0, 1, 2, 3]


def test_modules_and_optimizers_take_what_is_below_their_names(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1, bias=False))
    adam = torch.optim.Adam([{"params": layer.parameters(), "lr": lr} for layer, lr in zip(model, (0.5, 0.25))])
    tensors = {f"model.{name}": torch.full_like(value, 2.0) for name, value in model.named_parameters()}
    for name in list(tensors):
        slots = {
            "exp_avg": torch.full_like(tensors[name], 3.0),
            "exp_avg_sq": torch.full_like(tensors[name], 4.0),
            "step": torch.tensor(5.0),
        }
        tensors |= {f"optim.state.{name}.{slot}": value for slot, value in slots.items()}
    save(tmp_path / "root", tensors)
    restore(tmp_path / "root", {"model": model, "optim": adam})
    assert all((parameter == 2).all() for parameter in model.parameters())
    assert len(adam.state) == 3
    for slots in adam.state.values():
        assert (slots["exp_avg"] == 3).all()
        assert (slots["exp_avg_sq"] == 4).all()
        assert slots["step"] == 5
    assert [group["lr"] for group in adam.param_groups] == [0.5, 0.25]


def test_what_does_not_fit_is_named_as_ever(tmp_path: Path) -> None:
    save(tmp_path / "root", {"model.weight": torch.ones(1, 2), "model.bias": torch.ones(1), "extra": torch.ones(1)})
    model = torch.nn.Linear(2, 1, bias=False)
    with pytest.raises(lamina.MismatchError) as caught:
        restore(tmp_path / "root", {"model": model, "rate": 0.1, "more": torch.zeros(1), "optim": torch.optim.Adam(model.parameters())})
    text = str(caught.value)
    for line in ("missing in the checkpoint: more", "missing in the checkpoint: rate", "missing in the checkpoint: optim"):
        assert line in text
    for line in ("unexpected in the checkpoint: model.bias", "unexpected in the checkpoint: extra"):
        assert line in text
    info = restore(tmp_path / "root", {"model": model}, strict=False)
    assert set(info.unexpected) == {"model.bias", "extra"}
    assert (model.weight == 1).all()


def test_a_name_of_more_components_than_a_value_may_have_stands_for_itself(tmp_path: Path) -> None:
    long, deep, least = ".".join("a" * 30_000), "d[" + "(" * 101 + ")" * 101 + "]", "[" + "(" * 100 + ")" * 100 + "]"
    save(tmp_path / "root", {name: torch.ones(()) for name in (long, deep, least, ".".join("b" * 100))})
    with pytest.raises(lamina.MismatchError) as caught:
        restore(tmp_path / "root", {})
    assert all(f"unexpected in the checkpoint: {name}" in str(caught.value) for name in (long, deep))
    nested: Any = torch.zeros(())
    for _ in range(99):
        nested = {"b": nested}
    state = {long: torch.zeros(()), deep: torch.zeros(()), "b": nested}
    restore(tmp_path / "root", state, strict=False)
    assert state[long] == state[deep] == 1


def test_metadata_of_the_trainers_own_is_not_read(tmp_path: Path) -> None:
    engine = _core.Engine({"root": str(tmp_path / "root")}, None)
    args, alive = tensor_args({"w": Entry(torch.ones(2))})
    engine.save(1, args, {"metadata": b"\xff\x00"}, []).wait(None)
    engine.close(None)
    del alive
    state = {"w": torch.zeros(2)}
    assert restore(tmp_path / "root", state).metadata is None
    assert state["w"].tolist() == [1, 1]
