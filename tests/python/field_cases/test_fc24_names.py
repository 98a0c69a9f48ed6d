"""FC-24: wrappers never show in names, what does not fit is told by name, and names are data."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fills import bits, load, raw, save
from on_ranks import on_ranks
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel

import lamina

BARE = ["model.layers.0.attn.bias", "model.layers.0.attn.weight", "model.layers.1.attn.bias", "model.layers.1.attn.weight"]


class Block(nn.Module):
    def __init__(self, fill: float) -> None:
        super().__init__()
        self.attn = nn.Linear(2, 3)
        nn.init.constant_(self.attn.weight, fill)
        nn.init.constant_(self.attn.bias, -fill)


class Model(nn.Module):
    def __init__(self, fill: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(fill), Block(fill + 1)])


def wrapped(fill: float) -> nn.Module:
    model = Model(fill)
    model.layers[0] = checkpoint_wrapper(model.layers[0])
    model = nn.parallel.DistributedDataParallel(torch.compile(model, backend="eager"))  # type: ignore[assignment]
    assert "module._orig_mod.layers.0._checkpoint_wrapped_module.attn.weight" in dict(model.named_parameters())
    return model


def values_of(model: nn.Module) -> list[list[float]]:
    return [parameter.flatten().tolist() for parameter in model.parameters()]


def between_wrapped_and_bare(root: Path) -> None:
    wanted = values_of(Model(1))
    makers = [wrapped, Model, Model, wrapped, wrapped]
    save(root, {"model": makers[0](1)})
    for step, maker in enumerate(makers[1:], 1):
        assert [entry.name for entry in lamina.open(root).entries()] == BARE
        model = maker(step * 10)
        with lamina.Checkpointer(root) as ckpt:
            info = ckpt.restore({"model": model})
            assert (info.step, info.missing, info.unexpected) == (step - 1, (), ())
            assert values_of(model) == wanted
            ckpt.save(step, {"model": model}).wait()


def test_fc24_wrappers_do_not_show(tmp_path: Path) -> None:
    on_ranks(2, between_wrapped_and_bare, tmp_path)


def with_bits(model: nn.Module, first: int) -> nn.Module:
    with torch.no_grad():
        for at, parameter in enumerate(model.parameters()):
            parameter.copy_(bits(parameter.shape, parameter.dtype, first + at))
    return model


def in_fsdp1(model: nn.Module, use_orig_params: bool) -> nn.Module:
    """A unit inside checkpointing, one around it, and the rest in a third one, compiled."""

    def shard(inner: nn.Module) -> nn.Module:
        return FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=use_orig_params)

    model.layers[0] = checkpoint_wrapper(shard(model.layers[0]))
    model.layers[1] = shard(checkpoint_wrapper(model.layers[1]))
    model.rest = nn.Linear(3, 5)
    model = torch.compile(shard(model), backend="eager")  # type: ignore[assignment]
    if use_orig_params:
        raw_name = "_orig_mod._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module._fsdp_wrapped_module.attn.weight"
        assert raw_name in dict(model.named_parameters())
    return model


def bits_of(model: nn.Module) -> list[bytes]:
    with FullyShardedDataParallel.summon_full_params(getattr(model, "_orig_mod", model), writeback=False):
        return [raw(parameter.clone()) for parameter in model.parameters()]  # numpy would pin what FSDP1 frees


def bare_with_rest() -> nn.Module:
    model = Model(0)
    model.rest = nn.Linear(3, 5)
    return model


def between_fsdp1_and_bare(root: Path) -> None:
    if not dist.is_initialized():  # a job of one rank
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    wanted = bits_of(with_bits(bare_with_rest(), 7))
    for first in (False, True):
        makers = [lambda: bare_with_rest(), lambda: in_fsdp1(Model(0), first), lambda: in_fsdp1(Model(0), not first)]  # noqa: B023
        here = root / str(first)
        save(here, {"model": with_bits(bare_with_rest(), 7)})
        for step, maker in enumerate([makers[1], makers[2], makers[0], makers[1], makers[0]], 1):
            assert [entry.name for entry in lamina.open(here).entries()] == [*BARE, "model.rest.bias", "model.rest.weight"]
            model = maker()
            assert bits_of(model) != wanted
            with lamina.Checkpointer(here) as ckpt:
                info = ckpt.restore({"model": model})
                assert (info.step, info.missing, info.unexpected) == (step - 1, (), ())
                assert bits_of(model) == wanted
                ckpt.save(step, {"model": model}).wait()


@pytest.mark.parametrize("count", [1, 2])
def test_fc24_flattened_parameters_have_their_own_names_and_bits(count: int, tmp_path: Path) -> None:
    on_ranks(count, between_fsdp1_and_bare, tmp_path)


def test_fc24_names_of_wrappers_in_a_plain_mapping_are_data_that_rename_can_change(tmp_path: Path) -> None:
    raw_name, bare_name = "_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.attn.weight", "layers.0.attn.weight"
    save(tmp_path, {"model": {raw_name: torch.ones(2)}})
    state = {"model": {bare_name: torch.zeros(2)}}
    with pytest.raises(lamina.MismatchError, match="would match without wrapper prefixes"):
        load(tmp_path, state)
    load(tmp_path, state, rename=lambda name: name.replace("_fsdp_wrapped_module.", ""))
    assert state["model"] == {bare_name: state["model"][bare_name]}
    assert state["model"][bare_name].tolist() == [1, 1]


def test_fc24_missing_and_unexpected_names_are_told(tmp_path: Path) -> None:
    save(tmp_path, {"body.weight": torch.ones(3), "old.bias": torch.ones(4)})
    state = {"body.weight": torch.zeros(3), "head.weight": torch.full((2,), 7.0)}
    with pytest.raises(lamina.MismatchError) as caught:
        load(tmp_path, state)
    assert 'missing in the checkpoint: "head.weight"' in str(caught.value)
    assert 'unexpected in the checkpoint: "old.bias"' in str(caught.value)
    assert state["body.weight"].tolist() == [0, 0, 0]
    info = load(tmp_path, state, strict=False)
    assert (info.missing, info.unexpected) == (('"head.weight"',), ('"old.bias"',))
    assert raw(state["head.weight"]) == raw(torch.full((2,), 7.0))
    assert state["body.weight"].tolist() == [1, 1, 1]
    assert set(state) == {"body.weight", "head.weight"}


def test_fc24_missing_and_unexpected_names_of_modules_are_told(tmp_path: Path) -> None:
    def model(**parts: nn.Module) -> nn.ModuleDict:
        return nn.ModuleDict({"body": nn.Linear(2, 2, bias=False), **parts})

    save(tmp_path, {"model": model(old=nn.Linear(2, 2))})
    template = model(head=nn.Linear(2, 2, bias=False))
    before = raw(template["head"].weight)
    with pytest.raises(lamina.MismatchError) as caught:
        load(tmp_path, {"model": template})
    for line in (
        "missing in the checkpoint: model.head.weight",
        *(f"unexpected in the checkpoint: model.old.{it}" for it in ("weight", "bias")),
    ):
        assert line in str(caught.value)
    info = load(tmp_path, {"model": template}, strict=False)
    assert (info.missing, set(info.unexpected)) == (("model.head.weight",), {"model.old.weight", "model.old.bias"})
    assert raw(template["head"].weight) == before


def test_fc24_plain_values_load_as_a_whole(tmp_path: Path) -> None:
    saved = {"log": [{"a": 1}, {"b": 2}], "epoch": 7}
    save(tmp_path, saved)
    state: dict[str, Any] = {"log": [], "epoch": 0}
    log = state["log"]
    load(tmp_path, state)
    assert state == saved
    assert state["log"] is log


def test_fc24_names_are_not_paths(tmp_path: Path) -> None:
    names = ["a/b", "../x", "a b", "a\nb", "层", 300 * "k", "W", "w"]
    fills: dict[Any, Any] = {name: torch.full((3,), float(number)) for number, name in enumerate(names)}
    save(tmp_path / "root", {**fills, "a.b": torch.full((1,), 1.0), "a": {"b": torch.full((1,), 2.0)}, "plain": {"a.b": 1, "a": {"b": 2}}})
    state: dict[Any, Any] = {name: torch.zeros(3) for name in reversed(names)}
    state |= {"plain": {"a.b": 0, "a": {"b": 0}}, "a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)}
    load(tmp_path / "root", state)
    for name in names:
        assert raw(state[name]) == raw(fills[name]), name
    assert (state["a.b"].item(), state["a"]["b"].item()) == (1, 2)
    assert state["plain"] == {"a.b": 1, "a": {"b": 2}}
    assert os.listdir(tmp_path) == ["root"]
    for _, folders, files in os.walk(tmp_path):
        assert all(len(os.fsencode(name)) <= 255 for name in (*folders, *files))
