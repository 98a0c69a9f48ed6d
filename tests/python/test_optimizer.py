"""lamina.optimizer: what existed is restored, what did not exist stays absent, and nothing but the state is touched."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_core
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

import lamina
from lamina.errors import InvalidArgumentError, MismatchError, UnsupportedError

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


@pytest.fixture
def ckpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lamina.Checkpointer]:
    fake_core.install(monkeypatch)
    with lamina.Checkpointer(tmp_path / "root") as checkpointer:
        yield checkpointer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    x = torch.arange(32.0).reshape(4, 8) / 100
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(1e-2), foreach=False),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
        lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2),
        lambda parameters: torch.optim.LBFGS(parameters, lr=1e-2),
    ],
    ids=["adamw", "amsgrad", "fused", "tensor lr", "momentum", "sgd", "adafactor", "lbfgs"],
)
def test_a_fresh_optimizer_goes_on_as_the_unbroken_one(ckpt: lamina.Checkpointer, make: MakeOptimizer) -> None:  # FC-09
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def loss() -> Any:
            optimizer.zero_grad()
            value = model(torch.arange(32.0).reshape(4, 8) / 100).square().mean()
            value.backward()
            return value

        optimizer.step(loss)

    model = two_layers()
    optimizer = make(model.parameters())
    for _ in range(5):
        step(model, optimizer)
    ckpt.save(5, {"model": model, "optim": optimizer})
    again = two_layers()
    fresh = make(again.parameters())
    ckpt.restore({"model": again, "optim": fresh})
    for one, other in zip(model.parameters(), again.parameters()):
        assert optimizer.state[one].keys() == fresh.state[other].keys()
        for slot, value in optimizer.state[one].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, fresh.state[other][slot])
                assert (value.dtype, value.stride()) == (fresh.state[other][slot].dtype, fresh.state[other][slot].stride())
    for _ in range(5):
        step(model, optimizer)
        step(again, fresh)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), again.parameters()))


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in "ABC":
            self.register_parameter(name, nn.Parameter(torch.randn(4, 4)))

    def step(self, optimizer: torch.optim.Optimizer, *trained: str) -> None:
        optimizer.zero_grad()
        sum(self.get_parameter(name).square().sum() for name in trained).backward()  # type: ignore[union-attr]
        optimizer.step()


def test_frozen_thawed_and_never_used(ckpt: lamina.Checkpointer) -> None:  # FC-10
    model = Three()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        model.step(optimizer, "A", "C")
    model.A.requires_grad_(False)
    for _ in range(3):
        model.step(optimizer, "C")
    ckpt.save(6, {"model": model, "optim": optimizer})
    again = Three()
    fresh = torch.optim.AdamW(again.parameters(), lr=1e-2)
    again.step(fresh, "B")  # a state that the checkpoint does not have
    ckpt.restore({"model": again, "optim": fresh})
    assert (fresh.state[again.A]["step"], fresh.state[again.C]["step"]) == (3, 6)
    assert again.B not in fresh.state
    model.A.requires_grad_(True)
    model.step(optimizer, "A", "C")
    again.step(fresh, "A", "C")
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), again.parameters()))


def test_only_trainable_parameters_handed_over(ckpt: lamina.Checkpointer) -> None:  # FC-10
    model = Three()
    ckpt.save(1, {"model": nn.ParameterDict({"C": model.C})})
    info = ckpt.restore({"model": model}, strict=False)
    assert set(info.missing) == {"model.A", "model.B"}
    with pytest.raises(MismatchError) as caught:
        ckpt.restore({"model": model})
    assert "missing in the checkpoint: model.A" in str(caught.value)
    assert "missing in the checkpoint: model.B" in str(caught.value)


def test_settings_go_per_parameter(ckpt: lamina.Checkpointer) -> None:
    model = Three()
    optimizer = torch.optim.AdamW(
        [{"params": [model.C], "lr": 3.0, "name": "late"}, {"params": [model.A, model.B], "weight_decay": 0.5}], lr=1.0
    )
    ckpt.save(1, {"model": model, "optim": optimizer})
    again = Three()
    fresh = torch.optim.AdamW(again.parameters(), lr=9.0, fused=True)
    group = fresh.param_groups[0]
    ckpt.restore({"model": again, "optim": fresh})
    found = {id(parameter): group for group in fresh.param_groups for parameter in group["params"]}
    assert [(found[id(each)]["lr"], found[id(each)]["weight_decay"]) for each in (again.A, again.B, again.C)] == [
        (1, 0.5),
        (1, 0.5),
        (3, 0.01),
    ]
    assert [[id(each) for each in group["params"]] for group in fresh.param_groups] == [[id(again.C)], [id(again.A), id(again.B)]]
    assert fresh.param_groups[0] is group
    assert group["name"] == "late"
    assert all(each["fused"] for each in fresh.param_groups)  # how a step is computed stays the caller's choice
    fresh.zero_grad()
    again.step(fresh, "A", "B", "C")


def test_several_optimizers(ckpt: lamina.Checkpointer) -> None:
    model = Three()
    optimizers = {"one": torch.optim.AdamW([model.A, model.B]), "two": torch.optim.SGD([model.C], momentum=0.9)}
    for optimizer in optimizers.values():
        model.step(optimizer, "A", "B", "C")
    ckpt.save(1, {"model": model, "optim": optimizers})
    again = Three()
    fresh = {"one": torch.optim.AdamW([again.A, again.B]), "two": torch.optim.SGD([again.C], momentum=0.9)}
    ckpt.restore({"model": again, "optim": fresh})
    assert torch.equal(fresh["one"].state[again.A]["exp_avg"], optimizers["one"].state[model.A]["exp_avg"])
    assert torch.equal(fresh["two"].state[again.C]["momentum_buffer"], optimizers["two"].state[model.C]["momentum_buffer"])


def test_another_class_is_named(ckpt: lamina.Checkpointer) -> None:
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    ckpt.save(1, {"model": model, "optim": optimizer})
    again = two_layers()
    other = torch.optim.SGD(again.parameters(), lr=0.5, momentum=0.9)
    with pytest.raises(MismatchError) as caught:
        ckpt.restore({"model": again, "optim": other})
    assert str(caught.value).splitlines()[1:] == [
        "  optim: the template holds SGD; the checkpoint holds the state of AdamW, which has exp_avg, exp_avg_sq, step of 4 parameters, "
        "such as model.0.weight. Make the template's optimizer AdamW; or let restore(strict=False) leave this one as it is and fill the "
        "rest."
    ]
    train(again, other, 1)
    with pytest.raises(MismatchError, match="the template holds SGD, which keeps momentum_buffer of a parameter; the checkpoint"):
        ckpt.restore({"model": again, "optim": other})
    other = torch.optim.SGD(again.parameters(), lr=0.5, momentum=0.9)
    info = ckpt.restore({"model": again, "optim": other}, strict=False)
    assert info.missing == ("optim",)
    assert "optim.state.model.0.weight.exp_avg" in info.unexpected
    assert (other.state, other.param_groups[0]["lr"]) == ({}, 0.5)
    assert torch.equal(again[0].weight, model[0].weight)


def test_another_name_of_a_parameter_is_named_with_its_slots(ckpt: lamina.Checkpointer) -> None:
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 4, bias=False)})
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    ckpt.save(1, {"model": model, "optim": optimizer})
    again = nn.ModuleDict({"body": nn.Linear(4, 4), "heads": nn.Linear(4, 4, bias=False)})
    template = {"model": again, "optim": torch.optim.AdamW(again.parameters())}
    with pytest.raises(MismatchError) as caught:
        ckpt.restore(template)
    assert str(caught.value).splitlines()[1:] == [
        "  missing in the checkpoint: model.heads.weight (nearest: model.head.weight)",
        "  missing in the checkpoint: optim.state.model.heads.weight (nearest: optim.state.model.head.weight)",
        "  unexpected in the checkpoint: model.head.weight (nearest: model.heads.weight)",
        "  unexpected in the checkpoint: optim.state.model.head.weight: exp_avg, exp_avg_sq, step "
        "(nearest: optim.state.model.heads.weight)",
        '  To restore only what both have, use restore(strict=False); for other names, restore(rename={"model.head": "model.heads"}).',
    ]
    info = ckpt.restore(template, rename={"model.head": "model.heads"})  # what the message says works
    assert (info.missing, info.unexpected) == ((), ())
    assert torch.equal(template["optim"].state[again["heads"].weight]["exp_avg"], optimizer.state[model["head"].weight]["exp_avg"])


def test_another_grouping_is_named(ckpt: lamina.Checkpointer) -> None:
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    train(model, optimizer, 1)
    ckpt.save(1, {"model": model, "optim": optimizer})
    again = two_layers()
    groups: list[Any] = [{"params": again[0].parameters(), "lr": 7.0}, {"params": again[1].parameters(), "lr": 8.0}]
    fresh = torch.optim.AdamW(groups)
    with pytest.raises(MismatchError) as caught:
        ckpt.restore({"model": again, "optim": fresh})
    assert str(caught.value).splitlines()[1:] == [
        "  optim: the template has model.0.weight in group 0 (lr 7.0) and model.1.weight in group 1 (lr 8.0), the checkpoint has both in "
        "one (lr 0.25). Make the groups as they were saved; or let restore(strict=False) keep the template's groups and give each "
        "parameter the settings it was saved with."
    ]
    assert [group["lr"] for group in fresh.param_groups] == [7, 8]
    assert not fresh.state
    info = ckpt.restore({"model": again, "optim": fresh}, strict=False)
    assert (info.missing, info.unexpected) == ((), ())
    assert [(group["lr"], len(group["params"])) for group in fresh.param_groups] == [(0.25, 2), (0.25, 2)]
    assert torch.equal(fresh.state[again[1].weight]["exp_avg"], optimizer.state[model[1].weight]["exp_avg"])


def test_a_slot_of_another_shape_is_named(ckpt: lamina.Checkpointer) -> None:
    model = two_layers()
    optimizer = torch.optim.AdamW(model.named_parameters())
    train(model, optimizer, 1)
    ckpt.save(1, {"optim": optimizer})
    optimizer.state[model[1].weight]["exp_avg"] = torch.zeros(3)
    with pytest.raises(MismatchError, match=r"optim\.state\.1\.weight\.exp_avg: \[8, 8\] in the checkpoint, \[3\] in the template"):
        ckpt.restore({"optim": optimizer})


def test_a_new_head(ckpt: lamina.Checkpointer) -> None:
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    train(model, optimizer, 1)
    ckpt.save(1, {"model": model, "optim": optimizer})
    larger = nn.Sequential(*two_layers(), nn.Linear(8, 2))
    fresh = torch.optim.AdamW(larger.parameters(), lr=0.5)
    info = ckpt.restore({"model": larger, "optim": fresh}, strict=False)
    assert set(info.missing) == {f"{where}.2.{name}" for where in ("model", "optim.state.model") for name in ("weight", "bias")}
    assert info.unexpected == ()
    assert [group["lr"] for group in fresh.param_groups] == [0.25]
    assert [id(each) for each in fresh.param_groups[0]["params"]] == [id(each) for each in larger.parameters()]


def test_a_new_head_and_a_scheduler(ckpt: lamina.Checkpointer) -> None:
    def state(model: nn.Module, *groups: dict[str, Any]) -> dict[str, Any]:
        optimizer = torch.optim.SGD(groups, lr=1.0)
        return {"model": model, "optim": optimizer, "sched": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)}

    model = two_layers()
    saved = state(model, {"params": model[0].parameters(), "lr": 4.0}, {"params": model[1].parameters()})
    saved["optim"].step()
    saved["sched"].step()
    ckpt.save(1, saved)
    larger = nn.Sequential(nn.Linear(8, 2), *two_layers())
    new = {"params": larger[0].parameters(), "lr": 7.0}
    both = {"params": [larger[0].weight, *larger[2].parameters()], "lr": 9.0}
    for groups, rates in (
        ([{"params": larger[1].parameters()}, both], [2.0, 0.5]),
        ([{"params": larger[1].parameters()}, {"params": larger[2].parameters()}], [2.0, 0.5]),
        ([{"params": larger[1].parameters()}, {"params": larger[2].parameters()}, new], [2.0, 0.5, 7.0]),
    ):
        template = state(larger, *groups)
        ckpt.restore(template, strict=False, rename={"model.0": "model.1", "model.1": "model.2"})
        assert [group["lr"] for group in template["optim"].param_groups] == rates
        if len(rates) == 2:
            template["sched"].step()
            assert [group["lr"] for group in template["optim"].param_groups] == [1.0, 0.25]


def test_moments_keep_their_dtype_and_nothing_else_moves(ckpt: lamina.Checkpointer) -> None:
    model = two_layers().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():  # moments in another dtype than their parameter
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.rand(parameter.shape),
            "exp_avg_sq": torch.rand(parameter.shape),
        }
    ckpt.save(1, {"model": model, "optim": optimizer})
    again = two_layers().bfloat16()
    fresh = torch.optim.AdamW(again.parameters())
    fired: list[str] = []
    fresh.register_step_post_hook(lambda *_: fired.append("step"))
    fresh.register_load_state_dict_post_hook(lambda *_: fired.append("load"))
    grads = [parameter.grad for parameter in again.parameters()]
    ckpt.restore({"model": again, "optim": fresh})
    slot = fresh.state[again[0].weight]["exp_avg"]
    assert slot.dtype == torch.float32
    assert torch.equal(slot, optimizer.state[model[0].weight]["exp_avg"])
    assert fired == []
    assert [parameter.grad for parameter in again.parameters()] == grads


def test_slots_that_are_there_are_filled_in_place(ckpt: lamina.Checkpointer) -> None:
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    ckpt.save(1, {"model": model, "optim": optimizer})
    before = copy.deepcopy(optimizer.state[model[0].weight])
    there = optimizer.state[model[0].weight]["exp_avg"]
    train(model, optimizer, 2)
    ckpt.restore({"model": model, "optim": optimizer})
    assert optimizer.state[model[0].weight]["exp_avg"] is there
    assert torch.equal(there, before["exp_avg"])


def test_a_parameter_without_name_is_refused(ckpt: lamina.Checkpointer) -> None:
    model = two_layers()
    with pytest.raises(InvalidArgumentError, match=r"optim: parameter 0 of group 0, of shape \(8, 8\), has no name.*named_parameters"):
        ckpt.save(1, {"optim": torch.optim.AdamW(model.parameters())})
    optimizer = torch.optim.AdamW(model.named_parameters())
    train(model, optimizer, 1)
    ckpt.save(1, {"optim": optimizer})
    fresh = torch.optim.AdamW(two_layers().named_parameters())
    ckpt.restore({"optim": fresh})
    assert [state["step"].item() for state in fresh.state.values()] == [1, 1, 1, 1]


def test_an_optimizer_inside_another(ckpt: lamina.Checkpointer) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    ckpt.save(1, {"model": model, "optim": Wrapper(optimizer)})
    fresh = torch.optim.AdamW(model.parameters())
    ckpt.restore({"model": model, "optim": fresh})
    assert len(fresh.state) == 4


def test_post_local_sgd_is_the_optimizer_inside(ckpt: lamina.Checkpointer) -> None:
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    ckpt.save(1, {"model": model, "optim": PostLocalSGDOptimizer(optimizer, averager=None)})
    again = two_layers()
    fresh = torch.optim.AdamW(again.parameters())
    ckpt.restore({"model": again, "optim": PostLocalSGDOptimizer(fresh, averager=None)})
    assert [state["step"].item() for state in fresh.state.values()] == [2, 2, 2, 2]


def test_an_optimizer_that_hides_the_moments_is_refused(ckpt: lamina.Checkpointer, tmp_path: Path) -> None:
    class Sharpness(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})
            self.base_optimizer = torch.optim.AdamW(self.param_groups)

    model = two_layers()
    with pytest.raises(UnsupportedError, match=r"optim is a .*Sharpness.*hand over the optimizer in its attribute base_optimizer"):
        ckpt.save(1, {"model": model, "optim": Sharpness(model.parameters())})
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
        with pytest.raises(UnsupportedError, match=r"optim is a ZeroRedundancyOptimizer.*use a plain optimizer.*fully_shard"):
            ckpt.save(1, {"model": model, "optim": optimizer})
        ckpt.save(1, {"model": model, "optim": torch.optim.AdamW(model.parameters())})
        with pytest.raises(UnsupportedError, match="optim is a ZeroRedundancyOptimizer"):
            ckpt.restore({"model": model, "optim": optimizer})
    finally:
        dist.destroy_process_group()


def test_sharded_parameters_get_slots_like_themselves(ckpt: lamina.Checkpointer, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
        plain = two_layers()
        optimizer = torch.optim.AdamW(plain.parameters())
        train(plain, optimizer, 2)
        ckpt.save(1, {"model": plain, "optim": optimizer})
        sharded = fully_shard(two_layers(), mesh=mesh)
        fresh = torch.optim.AdamW(sharded.parameters())
        with torch.no_grad():
            sharded(torch.zeros(1, 8))  # leaves the parameters whole
        ckpt.restore({"model": sharded, "optim": fresh})
        state = fresh.state[sharded[0].weight]
        assert isinstance(state["exp_avg"], DTensor)
        assert not isinstance(state["step"], DTensor)
        assert torch.equal(state["exp_avg"].full_tensor(), optimizer.state[plain[0].weight]["exp_avg"])
        train(plain, optimizer, 1)
        train(sharded, fresh, 1)
        assert torch.equal(sharded[0].weight.full_tensor(), plain[0].weight)
        assert ckpt.save(2, {"model": sharded, "optim": fresh}).wait().outcome == "committed"
        assert ckpt.restore({"model": plain, "optim": optimizer}).source_topology == {"dp": 1}
        factored = torch.optim.Adafactor(plain.parameters())
        train(plain, factored, 1)
        ckpt.save(3, {"model": plain, "optim": factored})
        with pytest.raises(MismatchError, match="let the optimizer make one step"):
            ckpt.restore({"model": sharded, "optim": torch.optim.Adafactor(sharded.parameters())})
    finally:
        dist.destroy_process_group()
