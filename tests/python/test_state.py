"""A state saved and restored by one rank, over a fake core: lamina.state, lamina.matching and lamina.match_parts."""

import collections
import contextlib
import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import fake_core
import numpy as np
import pytest
import torch
from torch import nn

import lamina
from lamina.errors import CorruptionError, InvalidArgumentError, MismatchError, UnsupportedError
from lamina.state import Capture, tensor_args

Restore = Callable[..., lamina.RestoreInfo]


@pytest.fixture
def ckpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lamina.Checkpointer]:
    fake_core.install(monkeypatch)
    with lamina.Checkpointer(tmp_path / "root") as checkpointer:
        yield checkpointer


def there_and_back(ckpt: lamina.Checkpointer, saved: dict[str, Any], template: dict[str, Any], **how: Any) -> lamina.RestoreInfo:
    ckpt.save(1, saved).wait()
    return ckpt.restore(template, **how)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def test_info_says_what_was_restored(ckpt: lamina.Checkpointer) -> None:
    assert not ckpt.restore({})
    assert ckpt.restore({}).next_step == 0
    ckpt.save(3, {"epoch": 7}, metadata={"why": "test", "shape": torch.Size([2])})
    ckpt.save(5, {"epoch": 8})
    info = ckpt.restore({"epoch": 0}, step=3)
    assert info
    assert (info.step, info.next_step, info.line, info.source_topology) == (3, 4, (3,), {"ranks": 1})
    assert info.metadata == {"why": "test", "shape": torch.Size([2])}
    assert ckpt.restore({"epoch": 0}).line == (5, 3)
    with pytest.raises(lamina.NotFoundError, match="mounted"):
        lamina.Checkpointer("/nowhere/else").restore({}, required=True)


def test_tensors_are_filled_in_place(ckpt: lamina.Checkpointer) -> None:
    tensor = torch.zeros(2, 3)
    view = tensor.T
    there_and_back(ckpt, {"t": torch.arange(6.0).reshape(2, 3)}, {"t": tensor})
    assert view.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_memory_behind_tensors(ckpt: lamina.Checkpointer) -> None:  # FC-06
    base = torch.arange(10.0)
    saved = {
        "t": torch.arange(12.0).reshape(3, 4).T,
        "expanded": torch.arange(4.0).reshape(1, 4).expand(5, 4),
        "last": torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "views": [base[0:6], base[3:9]],
        "empty": {"a": torch.zeros(0, dtype=torch.int64), "b": torch.zeros(0, 3), "c": torch.zeros(2, 0)},
        "conj": torch.tensor([1 + 2j]).conj(),
    }
    template = {
        "t": torch.zeros(4, 3),
        "expanded": torch.zeros(5, 4),
        "last": torch.zeros(2, 3, 4, 5),
        "views": [torch.zeros(6), torch.zeros(6)],
        "empty": {"a": torch.ones(0, dtype=torch.int64), "b": torch.zeros(0, 3), "c": torch.zeros(2, 0)},
        "conj": torch.zeros(1, dtype=torch.complex64).conj(),
    }
    there_and_back(ckpt, saved, template)
    for name in ("t", "expanded", "last", "conj"):
        assert torch.equal(template[name], saved[name])
    assert [view.tolist() for view in template["views"]] == [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]]
    with pytest.raises(MismatchError, match="expanded: several elements"):
        ckpt.restore({**template, "expanded": torch.zeros(1, 4).expand(5, 4)})


def test_tied_weights_are_stored_once(ckpt: lamina.Checkpointer) -> None:  # FC-06
    emb = torch.arange(1024.0).reshape(64, 16)
    report = ckpt.save(1, {"head": emb.detach(), "emb": emb}).wait()
    assert report.written_bytes == 4096
    one = torch.zeros(64, 16)
    ckpt.restore({"head": one, "emb": one})
    assert torch.equal(one, emb)
    ckpt.restore({"head": torch.zeros(64, 16), "emb": torch.zeros(64, 16)})
    ckpt.save(2, {"head": torch.ones(4), "emb": 2 * torch.ones(4)})
    two = torch.zeros(4)
    with pytest.raises(MismatchError, match="head: shares memory with the target of emb"):
        ckpt.restore({"head": two, "emb": two})


def test_only_the_slice_is_stored(ckpt: lamina.Checkpointer) -> None:  # FC-06
    big = torch.arange(100_000.0).reshape(1000, 100)
    assert ckpt.save(1, {"row": big[0]}).wait().written_bytes == 400


def test_names_are_data(ckpt: lamina.Checkpointer) -> None:  # FC-24
    keys = ["a/b", "../x", "a b", "a\nb", "层", 300 * "k", "W", "w", "a.b"]
    saved: dict[Any, Any] = {key: torch.full((2,), float(at)) for at, key in enumerate(keys)}
    saved["a"] = {"b": torch.full((2,), 99.0)}
    saved.update({1: torch.ones(1), "1": torch.zeros(1), (1, None): torch.ones(1) * 3})
    template = copy.deepcopy(saved)
    for tensor in [*(value for value in template.values() if isinstance(value, torch.Tensor)), template["a"]["b"]]:
        tensor.fill_(-1)
    there_and_back(ckpt, saved, template)
    assert all(torch.equal(template[key], saved[key]) for key in saved if key != "a")
    assert template["a"]["b"].tolist() == [99, 99]


def test_plain_values_are_restored_whole(ckpt: lamina.Checkpointer) -> None:  # FC-24
    log: list[Any] = []
    config = {"gone": 1, "kept": {"x": 0}}
    template = {"log": log, "epoch": 0, "config": config}
    inner = config["kept"]
    there_and_back(ckpt, {"log": [{"a": 1}, {"b": 2}], "epoch": 7, "config": {"kept": {"x": 1, "y": 2}, "new": None}}, template)
    assert template == {"log": [{"a": 1}, {"b": 2}], "epoch": 7, "config": {"kept": {"x": 1, "y": 2}, "new": None}}
    assert template["log"] is log
    assert template["config"] is config
    assert config["kept"] is inner


def test_arrays_inside_lists_and_tuples(ckpt: lamina.Checkpointer) -> None:
    state: dict[str, Any] = {"list": [np.zeros(3), 0], "tuple": (np.zeros((2, 2)), np.float64(0)), "inner": {"deep": [[np.zeros(1)]]}}
    there_and_back(ckpt, {"list": [np.arange(3.0), 1], "tuple": (np.ones((2, 2)), np.float64(2)), "inner": {"deep": [[np.ones(1)]]}}, state)
    assert (state["list"][0].tolist(), state["list"][1]) == ([0, 1, 2], 1)
    assert (state["tuple"][0].tolist(), state["tuple"][1]) == ([[1, 1], [1, 1]], 2)
    assert state["inner"]["deep"][0][0].tolist() == [1]


def test_missing_and_unexpected_are_all_named(ckpt: lamina.Checkpointer) -> None:  # FC-24
    saved = {"model": {"body": torch.ones(2), "old.bias": torch.ones(1)}, "epoch": 3, "lr": 0.1}
    head = torch.tensor([5.0, 6.0])
    template = {"model": {"body": torch.zeros(2), "head.weight": head}, "epoch": 0, "note": "mine"}
    with pytest.raises(MismatchError) as caught:
        there_and_back(ckpt, saved, template)
    for text in (
        'missing in the checkpoint: model."head.weight"',
        'unexpected in the checkpoint: model."old.bias"',
        "note",
        "lr",
        "strict=False",
    ):
        assert text in str(caught.value)
    assert template["model"]["body"].tolist() == [0, 0]
    assert template["epoch"] == 0
    info = ckpt.restore(template, strict=False)
    assert set(info.missing) == {'model."head.weight"', "note"}
    assert set(info.unexpected) == {'model."old.bias"', "lr"}
    assert (template["model"]["body"].tolist(), template["epoch"], template["note"]) == ([1, 1], 3, "mine")
    assert head.tolist() == [5, 6]
    assert "old.bias" not in template["model"]


def test_what_the_checkpoint_lacks_stays_as_it_is(ckpt: lamina.Checkpointer) -> None:
    template: dict[str, Any] = {"epoch": 0, "seen": {1, 2}, "counts": collections.Counter("aab"), "both": {"old": {3}, "w": torch.ones(1)}}
    seen, counts = template["seen"], template["counts"]
    info = there_and_back(ckpt, {"epoch": 1}, template, strict=False)
    assert set(info.missing) == {"seen", "counts", "both.w"}
    assert (template["epoch"], seen, counts, template["both"]) == (1, {1, 2}, {"a": 2, "b": 1}, {"old": {3}, "w": torch.ones(1)})
    assert template["seen"] is seen
    assert template["counts"] is counts


def test_another_dtype_is_an_error_unless_cast(ckpt: lamina.Checkpointer) -> None:  # FC-08
    w = 1 + torch.arange(12).reshape(4, 3) * 2.0**-20
    template = {"w": torch.full((4, 3), 9.0, dtype=torch.bfloat16), "v": torch.full((5,), 9.0)}
    with pytest.raises(MismatchError, match="w: float32 in the checkpoint, bfloat16 in the template"):
        there_and_back(ckpt, {"w": w, "v": torch.arange(5.0)}, template)
    assert template["w"].unique().tolist() == template["v"].unique().tolist() == [9.0]
    ckpt.restore(template, cast=True)
    assert template["w"].unique().tolist() == [1.0]
    assert template["v"].tolist() == [0, 1, 2, 3, 4]
    up = {"w": torch.zeros(3)}
    there_and_back(ckpt, {"w": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)}, up, cast=True)
    assert up["w"].tolist() == [1, 2, 3]
    with pytest.raises(MismatchError, match="complex64"):
        there_and_back(ckpt, {"w": torch.zeros(3, dtype=torch.complex64)}, up, cast=True)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("shape", [(3, 4), (12,)])
def test_another_shape_is_an_error(ckpt: lamina.Checkpointer, shape: tuple[int, ...], strict: bool) -> None:  # FC-08
    template = {"w": torch.full(shape, 9.0), "v": torch.full((5,), 9.0)}
    with pytest.raises(MismatchError, match=r"w: \[4, 3\] in the checkpoint"):
        there_and_back(ckpt, {"w": torch.zeros(4, 3), "v": torch.zeros(5)}, template, cast=True, strict=strict)
    assert template["v"].unique().tolist() == [9]


def test_every_bit_comes_back(ckpt: lamina.Checkpointer) -> None:  # FC-07
    patterns = torch.tensor([0x7FC00001, 0x7FC12345 - (1 << 31), -(1 << 31), 1], dtype=torch.int32).view(torch.float32)
    small = torch.tensor([0x7FC1, -(1 << 15)], dtype=torch.int16).view(torch.bfloat16)
    template = {"a": torch.zeros(4), "b": torch.zeros(2, dtype=torch.bfloat16)}
    there_and_back(ckpt, {"a": patterns, "b": small}, template)
    assert bits(template["a"]) == bits(patterns)
    assert bits(template["b"]) == bits(small)


def test_saved_is_the_state_at_the_call(ckpt: lamina.Checkpointer) -> None:  # FC-13
    state = {"w": torch.ones(8), "step": torch.tensor(1.0), "log": ["a"]}
    handle = ckpt.save(1, state)
    state["w"] += 1
    state["step"] += 1
    state["log"].append("b")
    handle.wait()
    ckpt.restore(state)
    assert (state["w"].tolist(), state["step"].item(), state["log"]) == ([1] * 8, 1, ["a"])


def test_modules_are_restored_in_place(ckpt: lamina.Checkpointer) -> None:
    saved, model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    saved(torch.randn(5, 2))
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    grad = torch.ones(3, 2)
    model[0].weight.grad = grad
    there_and_back(ckpt, {"model": saved}, {"model": model})
    assert all(torch.equal(*pair) for pair in zip(saved.state_dict().values(), model.state_dict().values()))
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers
    assert model[0].weight.grad is grad


def test_wrapped_modules_fit_bare_ones(ckpt: lamina.Checkpointer) -> None:  # FC-24
    saved, bare = nn.Sequential(torch.compile(nn.Linear(2, 2))), nn.Sequential(nn.Linear(2, 2))
    there_and_back(ckpt, {"model": torch.compile(saved)}, {"model": bare})
    ckpt.save(2, {"model": bare})
    again = torch.compile(nn.Sequential(nn.Linear(2, 2)))
    ckpt.restore({"model": again})
    assert torch.equal(again.get_parameter("_orig_mod.0.weight"), saved[0].weight)


def test_mapping_of_wrapped_keys_gets_a_hint(ckpt: lamina.Checkpointer) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(MismatchError, match="without wrapper prefixes"):
        there_and_back(ckpt, {"model": torch.compile(model).state_dict()}, {"model": model.state_dict()})
    rename = {'model."_orig_mod.weight"': "model.weight", 'model."_orig_mod.bias"': "model.bias"}
    ckpt.restore({"model": model.state_dict()}, rename=rename)


def test_rename_moves_names(ckpt: lamina.Checkpointer) -> None:
    saved = nn.ModuleDict({"old": nn.Linear(2, 2)})
    optimizer = torch.optim.AdamW(saved.parameters())
    saved["old"](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    ckpt.save(1, {"model": saved, "optim": optimizer})
    for rename in ({"model.old": "model.new"}, lambda name: name.replace("old", "new")):
        model = nn.ModuleDict({"new": nn.Linear(2, 2)})
        fresh = torch.optim.AdamW(model.parameters())
        ckpt.restore({"model": model, "optim": fresh}, rename=rename)
        assert torch.equal(model["new"].weight, saved["old"].weight)
        assert torch.equal(fresh.state[model["new"].weight]["exp_avg"], optimizer.state[saved["old"].weight]["exp_avg"])


class Counting(nn.Linear):
    def __init__(self, count: Any) -> None:
        super().__init__(2, 2)
        self.count = count

    def get_extra_state(self) -> Any:
        return self.count

    def set_extra_state(self, state: Any) -> None:
        self.count = state


@pytest.mark.parametrize("count", [3, {"a": [1, 2]}, torch.tensor([1, 2], dtype=torch.uint8)], ids=str)
def test_extra_state(ckpt: lamina.Checkpointer, count: Any) -> None:
    model = nn.Sequential(Counting(None))
    there_and_back(ckpt, {"model": nn.Sequential(Counting(count))}, {"model": model})
    assert torch.equal(model[0].count, count) if isinstance(count, torch.Tensor) else model[0].count == count
    with pytest.raises(MismatchError, match=r"unexpected in the checkpoint: model\.0\._extra_state"):
        ckpt.restore({"model": nn.Sequential(nn.Linear(2, 2))})
    with pytest.raises(MismatchError, match=r"missing in the checkpoint: model\.0\._extra_state"):
        there_and_back(ckpt, {"model": nn.Sequential(nn.Linear(2, 2))}, {"model": model})


class Metric(nn.Module):
    """Hands out copies in its state_dict, as metric libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(2)

    def _save_to_state_dict(self, destination: MutableMapping[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "total"] = self.total.clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        self.total = state_dict[prefix + "total"]


def test_what_a_hook_made_goes_back_through_the_module(ckpt: lamina.Checkpointer) -> None:
    saved, model = nn.Sequential(Metric()), nn.Sequential(Metric())
    saved[0].total += 3
    there_and_back(ckpt, {"model": saved}, {"model": model})
    assert model[0].total.tolist() == [3, 3]


def test_objects_load_their_own_state(ckpt: lamina.Checkpointer) -> None:
    class Average:
        def __init__(self, value: float) -> None:
            self.shadow, self.count = {"w": torch.full((2,), value)}, int(value)

        def state_dict(self) -> dict[str, Any]:
            return {"shadow": self.shadow, "count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.shadow, self.count = state["shadow"], state["count"]

    average = Average(0)
    before = average.shadow["w"]
    there_and_back(ckpt, {"ema": Average(3)}, {"ema": average})
    assert (average.shadow["w"].tolist(), average.count) == ([3, 3], 3)
    assert before.tolist() == [0, 0]  # only load_state_dict decides what becomes of the old one


def test_scheduler_and_scaler(ckpt: lamina.Checkpointer) -> None:
    def make() -> dict[str, Any]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)],
            milestones=[2],
        )
        return {"model": model, "optim": optimizer, "sched": schedule, "scaler": torch.amp.GradScaler("cpu", init_scale=4.0)}

    saved, fresh = make(), make()
    for _ in range(4):
        saved["optim"].step()
        saved["sched"].step()
    there_and_back(ckpt, saved, fresh)
    assert fresh["sched"].get_last_lr() == saved["sched"].get_last_lr()
    assert fresh["optim"].param_groups[0]["lr"] == saved["optim"].param_groups[0]["lr"]
    assert fresh["scaler"].get_scale() == saved["scaler"].get_scale()


def test_tensors_in_containers(ckpt: lamina.Checkpointer) -> None:
    kept, other = torch.zeros(2), torch.zeros(2)
    template = {
        "same": [kept],
        "longer": [other],
        "fresh": None,
        "pair": (torch.zeros(1), 1),
        "ordered": collections.OrderedDict(a=torch.zeros(1)),
    }
    saved = {
        "same": [torch.ones(2)],
        "longer": [torch.ones(2), torch.ones(3)],
        "fresh": torch.ones(4, dtype=torch.float64),
        "pair": (torch.ones(1), 2),
        "ordered": collections.OrderedDict(a=torch.ones(1)),
    }
    there_and_back(ckpt, saved, template)
    assert template["same"][0] is kept
    assert kept.tolist() == [1, 1]
    assert [tensor.tolist() for tensor in template["longer"]] == [[1, 1], [1, 1, 1]]
    assert template["fresh"].dtype == torch.float64
    assert (template["pair"][0].item(), template["pair"][1]) == (1, 2)
    assert template["ordered"]["a"].item() == 1


@pytest.mark.parametrize(
    ("saved", "template"),
    [
        (nn.Linear(2, 2), {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}),
        ({"weight": torch.zeros(2, 2)}, nn.Linear(2, 2)),
        (torch.zeros(2), nn.Linear(2, 2)),
        (3, torch.zeros(2)),
        (lamina.Rng(1), 3),
        (lamina.PerRank(1), lamina.Rng(1)),
    ],
)
def test_another_kind_is_an_error(ckpt: lamina.Checkpointer, saved: Any, template: Any) -> None:
    with pytest.raises(MismatchError, match="x: the checkpoint holds"):
        there_and_back(ckpt, {"x": saved}, {"x": template})


def test_damaged_step_gives_way_to_an_older_one(ckpt: lamina.Checkpointer) -> None:
    ckpt.save(1, {"w": torch.ones(2), "epoch": 1})
    ckpt.save(2, {"w": torch.zeros(2), "epoch": 2})
    fake_core.RestoreSession.damaged = {2}
    state = {"w": torch.full((2,), 5.0), "epoch": 0}
    assert ckpt.restore(state).step == 1
    assert (state["w"].tolist(), state["epoch"]) == ([1, 1], 1)


def test_a_template_is_untouched_by_a_loader_that_cannot_match(ckpt: lamina.Checkpointer) -> None:
    class Position:
        def state_dict(self) -> dict[str, int]:
            return {"pos": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise KeyError("pos")

    ckpt.save(1, {"data": Position()})
    with pytest.raises(lamina.Error, match="KeyError: 'pos'") as caught:  # FC-26
        ckpt.restore({"data": Position()})
    assert caught.value.rank == 0
    assert isinstance(caught.value.__cause__, KeyError)


def test_states_that_are_refused(ckpt: lamina.Checkpointer) -> None:
    for state, error, text in (
        ([1], InvalidArgumentError, "mutable mapping"),
        ({"x": [threading.Lock()]}, UnsupportedError, r"x\[0\] is of type"),
        ({"x": {"y": torch.zeros(2, device="meta")}}, UnsupportedError, r"^x\.y: it is on meta"),
        ({b"x": 1}, InvalidArgumentError, "key b'x'"),
    ):
        with pytest.raises(error, match=text):
            ckpt.save(1, state)  # type: ignore[arg-type]
    assert not ckpt.restore({})


class Broken(nn.Module):
    def get_extra_state(self) -> int:
        return 1

    def set_extra_state(self, state: int) -> None:
        raise RuntimeError("broken")


@pytest.mark.parametrize(("part", "error"), [(nn.Linear(1, 1), CorruptionError), (Broken(), lamina.Error)])
def test_a_failed_restore_keeps_the_state_no_longer_than_its_error(
    ckpt: lamina.Checkpointer, part: nn.Module, error: type[Exception]
) -> None:
    ckpt.save(1, {"part": part, "w": torch.ones(1)})
    if error is CorruptionError:
        (steps,) = fake_core.roots.values()
        del steps[1]["tensors"]["w"]
    state = {"part": copy.deepcopy(part), "w": torch.zeros(1)}
    module = weakref.ref(state["part"])
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(error):
            ckpt.restore(state)
            pytest.fail("nothing was raised")
        del state
        assert module() is None
    finally:
        gc.enable()


def test_a_tree_that_names_no_entry_is_corruption(ckpt: lamina.Checkpointer) -> None:
    ckpt.save(1, {"w": torch.ones(2)})
    (steps,) = fake_core.roots.values()
    del steps[1]["tensors"]["w"]
    with pytest.raises(CorruptionError, match="does not hold"):
        ckpt.restore({"w": torch.ones(2)})


def test_order_of_keys_does_not_matter() -> None:  # FC-15
    keys = [f"k{at}" for at in range(10)]
    trees = []
    for rank in range(4):
        state = {key: torch.zeros(2) for key in keys[rank:] + keys[:rank]}
        capture = Capture({"part": dict(state), **state})
        trees.append((capture.tree, [arg[0] for arg in tensor_args(capture.entries)[0]]))
    assert all(tree == trees[0] for tree in trees)
