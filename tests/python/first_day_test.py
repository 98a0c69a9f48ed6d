"""What users do on their first day: each does what they expect, or says what to do."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

import lamina
from lamina import checkpointer

LOSSES = torch.arange(8.0).reshape(4, 2) / 10


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(LOSSES).square().mean().backward()
        optimizer.step()


def classifier(classes: int) -> nn.ModuleDict:
    return nn.ModuleDict({"body": nn.Linear(2, 4), "head": nn.Linear(4, classes)})


def numbers(values: Any) -> list[list[float]]:
    whole = (value.full_tensor() if hasattr(value, "full_tensor") else value for value in values)
    return [value.detach().flatten().tolist() for value in whole]


def moved(root: Path, saved: dict[str, Any], template: dict[str, Any], **how: Any) -> lamina.RestoreInfo:
    """Saves one state and restores it into another."""
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(0, saved).wait()
        return ckpt.restore(template, **how)


# --- on two ranks ---


def save_after_an_evaluation(root: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    for each in (*model, model):
        fully_shard(each)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trained(model, optimizer)
    expected = numbers(model.parameters())
    with lamina.Checkpointer(root) as ckpt:
        with torch.no_grad():
            model.eval()(LOSSES)
        ckpt.save(0, {"model": model, "optim": optimizer}).wait()
        assert numbers(model.parameters()) == expected
        model.train()
        trained(model, optimizer, 2)
        with torch.no_grad():
            model.eval()(LOSSES)
        ckpt.restore({"model": model, "optim": optimizer})
        assert numbers(model.parameters()) == expected
        assert [optimizer.state[parameter]["step"].item() for parameter in model.parameters()] == [1] * 4
        with torch.no_grad():
            evaluated = model(LOSSES).sum().item()
        shapes = {entry.name: entry.shape for entry in lamina.open(root).entries()}
    assert shapes["model.0.weight"] == shapes["optim.state.model.0.weight.exp_avg"] == (3, 2)
    plain = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    for parameter, value in zip(plain.parameters(), expected):
        parameter.data.copy_(torch.tensor(value).reshape(parameter.shape))
    assert plain(LOSSES).sum().item() == pytest.approx(evaluated)


def test_a_save_right_after_an_evaluation_under_fully_shard(tmp_path: Path) -> None:
    on_ranks(2, save_after_an_evaluation, tmp_path)


class Mismatches:
    def __init__(self) -> None:
        self.causes: list[str] = []

    def replica_mismatch(self, event: Any) -> None:
        self.causes.append(event.cause)


def save_batch_norm(root: Path) -> tuple[list[float], list[float], list[str]]:
    """The running mean of this rank at the first save and after the restore, and what was told of replicas."""
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), broadcast_buffers=False)
    model(LOSSES * (rank + 1)).sum().backward()
    mean = model.module[1].running_mean
    before = mean.tolist()
    told = Mismatches()
    with lamina.Checkpointer(root, hooks=[told]) as ckpt:
        for step in (0, 1):
            assert ckpt.save(step, {"model": model}).wait().outcome == "committed"
        ckpt.restore({"model": model})
        # The restore has made them equal.
        assert ckpt.save(2, {"model": model}).wait().outcome == "committed"
    return before, mean.tolist(), told.causes


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers")
def test_buffers_of_ddp_replicas_may_differ_and_the_lowest_ranks_are_kept(tmp_path: Path) -> None:
    (first, first_now, told), (second, second_now, told_there) = on_ranks(2, save_batch_norm, tmp_path)
    assert first != second
    assert first_now == second_now == first
    (cause,) = told  # at the first of two saves alike, by rank 0
    assert told_there == []
    assert "running_mean' on ranks 0 and 1" in cause
    assert "weight" not in cause
    assert "num_batches_tracked" not in cause


def call_on_the_first_rank_only(root: Path, call: str) -> str:
    state = {"w": torch.ones(3)}
    with lamina.Checkpointer(root, options={"begin_timeout_s": 2}) as ckpt:
        if call == "a later save":
            ckpt.save(0, state).wait()
        said = ""
        if dist.get_rank() == 0:
            with pytest.raises(lamina.DeadlineError) as caught:
                ckpt.restore(state) if call == "restore" else ckpt.save(1, state).wait()
            said = str(caught.value)
        dist.barrier()
        if call == "a later save":
            assert ckpt.save(2, state).wait().outcome == "committed"
    return said


@pytest.mark.parametrize("call", ["restore", "the first save", "a later save"])
def test_a_call_on_rank_0_alone_names_the_ranks_that_did_not_come(tmp_path: Path, call: str) -> None:
    said, *_ = on_ranks(3, call_on_the_first_rank_only, tmp_path, call)
    assert call.split()[-1] in said
    assert "ranks 1 and 2 did not come in time" in said
    assert "all ranks of the process group call save() and restore()" in said


def save_what_differs(root: Path, name: str) -> str:
    rank = dist.get_rank()
    state = {"loss": float(rank)} if name == "loss" else {"w": torch.full((3,), float(rank))}
    with lamina.Checkpointer(root) as ckpt:
        with pytest.raises(lamina.InvalidArgumentError) as caught:
            ckpt.save(0, {"same": 1, **state}).wait()
        ckpt.save(1, {name: lamina.PerRank(state[name])}).wait()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"), [("loss", "plain values of the state differ between ranks 0 and 1"), ("w", "'w' [0:3] differs between ranks 0 and 1")]
)
def test_what_differs_between_ranks_is_an_error_that_says_what_to_do(tmp_path: Path, name: str, told: str) -> None:
    for text in on_ranks(2, save_what_differs, tmp_path, name):
        assert told in text
        assert "lamina.PerRank" in text


def save_what_has_drifted(root: Path) -> str:
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optim": optimizer}
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(0, state).wait()
        with torch.no_grad():
            model.bias += dist.get_rank()
        trained(model, optimizer)  # which gives it slots, so that the state is another than before
        with pytest.raises(lamina.InvalidArgumentError) as caught:
            ckpt.save(1, state).wait()
        assert ckpt.restore(state).step == 0
    return str(caught.value)


def test_replicas_that_drift_apart_are_found_though_the_state_has_grown(tmp_path: Path) -> None:
    for text in on_ranks(2, save_what_has_drifted, tmp_path):
        assert "'model.bias' [0:2] differs between ranks 0 and 1" in text


# --- in one process ---


def test_a_fresh_fused_optimizer_takes_over_the_state_of_one_that_was_not(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trained(model, optimizer, 3)
    fresh_model = nn.Linear(2, 2)
    fresh = torch.optim.AdamW(fresh_model.parameters(), lr=0.5, fused=True)
    moved(tmp_path, {"model": model, "optim": optimizer}, {"model": fresh_model, "optim": fresh})
    assert (fresh.param_groups[0]["lr"], fresh.param_groups[0]["fused"]) == (0.1, True)
    assert fresh.state[fresh_model.weight]["step"].item() == 3
    for slot, value in optimizer.state[model.weight].items():
        assert fresh.state[fresh_model.weight][slot].tolist() == value.tolist()
    trained(fresh_model, fresh)
    assert fresh.state[fresh_model.weight]["step"].item() == 4


def test_a_new_head_keeps_its_values_with_strict_false(tmp_path: Path) -> None:
    old, new = classifier(10), classifier(3)
    saved, template = ({"model": each, "optim": torch.optim.AdamW(each.parameters())} for each in (old, new))
    before = numbers(new["head"].parameters())
    with pytest.raises(lamina.MismatchError) as caught:
        moved(tmp_path, saved, template)
    assert "other shape: model.head.weight: [10, 4] in the checkpoint, [3, 4] in the template" in str(caught.value)
    assert "restore(strict=False, rename=" in str(caught.value)
    with lamina.Checkpointer(tmp_path) as ckpt:
        info = ckpt.restore(template, strict=False, rename={"model.head": "model.old head"})
    assert {"model.head.weight", "model.head.bias"} <= set(info.missing)
    assert {"model.old head.weight", "model.old head.bias"} <= set(info.unexpected)
    assert numbers(new["head"].parameters()) == before
    assert numbers(new["body"].parameters()) == numbers(old["body"].parameters())


def test_another_optimizer_class_is_named_and_can_be_left_fresh(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained(model, optimizer)
    fresh_model = nn.Linear(2, 2)
    template = {"model": fresh_model, "optim": torch.optim.AdamW(fresh_model.parameters(), lr=0.5)}
    with pytest.raises(
        lamina.MismatchError,
        match="optim: the template holds AdamW; the checkpoint holds the state of SGD, which has momentum_buffer of 2 par",
    ):
        moved(tmp_path, {"model": model, "optim": optimizer}, template)
    with lamina.Checkpointer(tmp_path) as ckpt:
        info = ckpt.restore(template, strict=False)
    assert info.missing == ("optim",)
    assert "optim.state.model.weight.momentum_buffer" in info.unexpected
    assert not template["optim"].state
    assert template["optim"].param_groups[0]["lr"] == 0.5
    assert numbers(fresh_model.parameters()) == numbers(model.parameters())


def test_a_state_dict_where_the_object_is_expected_gets_advice(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    habit = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    fresh = nn.Linear(2, 2)
    with pytest.raises(lamina.MismatchError, match=r"handed over itself, not as its state_dict\(\)"):
        moved(tmp_path, habit, {"model": fresh.state_dict(), "optim": torch.optim.AdamW(fresh.parameters()).state_dict()})
    with lamina.Checkpointer(tmp_path) as ckpt:
        with pytest.raises(lamina.MismatchError, match=r"a mapping, the template a Linear: hand over the object itself"):
            ckpt.restore({"model": fresh, "optim": optimizer.state_dict()})
        before = numbers([fresh.weight])
        ckpt.restore({"model": model.state_dict(), "optim": optimizer.state_dict()})
        assert numbers([fresh.weight]) == before


@pytest.mark.parametrize("call", ["save", "restore"])
def test_a_typo_in_the_root_names_what_is_there(tmp_path: Path, call: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    with lamina.Checkpointer(tmp_path / "checkpoint" / "run1") as ckpt, pytest.raises(lamina.NotFoundError) as caught:
        ckpt.save(0, {"epoch": 1}).wait() if call == "save" else ckpt.restore({"epoch": 1})
    assert f"'{tmp_path / 'checkpoint'}'" in str(caught.value)
    assert f"'{tmp_path}' does" in str(caught.value)
    assert not (tmp_path / "checkpoint").exists()


def test_a_first_save_on_a_used_root_says_the_ways_on_and_fences_nobody(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path) as former:
        former.save(0, {"epoch": 0}).wait()
        records = sorted(path.name for path in (tmp_path / "log").iterdir())
        checkpointer._trainers.clear()  # as if the other one were in another process
        with lamina.Checkpointer(tmp_path) as ckpt, pytest.raises(lamina.StateError) as caught:
            ckpt.save(0, {"epoch": 0}).wait()
        for part in ("holds steps already, newest 0", "call restore(state) first", "restore(state, step=...)", "another root"):
            assert part in str(caught.value)
        assert sorted(path.name for path in (tmp_path / "log").iterdir()) == records
        assert former.save(1, {"epoch": 1}).wait().outcome == "committed"


def test_many_ranks_without_a_process_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(lamina.StateError, match=r"WORLD_SIZE is 4.*init_process_group first"):
        lamina.Checkpointer(tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_step_that_does_not_rise_says_how_to_go_back(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        ckpt.save(5, {"epoch": 0}).wait()
        for step in (5, 4):
            with pytest.raises(lamina.InvalidArgumentError, match=rf"step {step} does not follow step 5; to go back, restore\(step="):
                ckpt.save(step, {"epoch": 0}).wait()


def everything(fill: float) -> dict[str, Any]:
    """A model with a frozen base and adapters, as LoRA has them, and all that stands around it in a training script."""
    model = nn.ModuleDict({"base": nn.Linear(2, 2), "lora_a": nn.Linear(2, 1, bias=False), "lora_b": nn.Linear(1, 2, bias=False)})
    for parameter in model.parameters():
        nn.init.constant_(parameter, fill)
    model["base"].requires_grad_(False)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=0.1)
    return {
        "model": model,
        "optim": optimizer,
        "plateau": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3),
        "sched": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1),
        "epoch": 0,
        "trainer": {"global_step": 0, "best": None, "log_history": [], "args": {"dtype": torch.bfloat16, "betas": (0.9, 0.95)}},
    }


def train_everything(state: dict[str, Any], steps: int) -> None:
    model, optimizer, scaler = state["model"], state["optim"], state["scaler"]
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model["base"](LOSSES) + model["lora_b"](model["lora_a"](LOSSES))).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        state["sched"].step()
        state["plateau"].step(loss.item())
        state["epoch"] += 1
        state["trainer"]["log_history"].append({"loss": loss.item(), "step": state["epoch"]})
        state["trainer"].update(global_step=state["epoch"], best=loss.item())


def test_all_of_a_training_script_goes_on_where_it_was(tmp_path: Path) -> None:
    state, fresh = everything(0.5), everything(0.1)
    train_everything(state, 3)
    trainer = fresh["trainer"]
    with lamina.Checkpointer(tmp_path) as ckpt:
        ckpt.save(3, state, metadata={"run": "first"}).wait()
        info = ckpt.restore(fresh)
    assert (info.step, info.next_step, info.metadata) == (3, 4, {"run": "first"})
    assert fresh["trainer"] is trainer
    for each in (state, fresh):
        train_everything(each, 2)
    assert fresh["epoch"] == 5
    assert fresh["trainer"] == state["trainer"]
    assert numbers(fresh["model"].parameters()) == numbers(state["model"].parameters())
    assert fresh["sched"].state_dict() == state["sched"].state_dict()
    assert fresh["plateau"].state_dict() == state["plateau"].state_dict()
    assert fresh["scaler"].state_dict() == state["scaler"].state_dict()
    assert fresh["scaler"].get_scale() > 2.0**10
    assert fresh["optim"].param_groups[0]["lr"] == state["optim"].param_groups[0]["lr"] != 0.1
    assert len(fresh["optim"].state) == 2


def test_what_is_no_state_is_refused_by_path_before_anything_is_written(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        with pytest.raises(lamina.UnsupportedError, match=r"trainer\.args is of type argparse\.Namespace.*register_type"):
            ckpt.save(0, {"trainer": {"args": argparse.Namespace(lr=0.1)}})
        with pytest.raises(lamina.InvalidArgumentError, match="a state is a mutable mapping, such as a dict, not a Linear"):
            ckpt.save(0, nn.Linear(2, 2))  # type: ignore[arg-type]
        with pytest.raises(lamina.InvalidArgumentError, match=r"optim: parameter 0 of group 0.*has no name: put the module"):
            ckpt.save(0, {"optim": torch.optim.AdamW(nn.Linear(2, 2).parameters())})
    assert not (tmp_path / "root").exists()


class Curriculum:
    def __init__(self, stage: int) -> None:
        self.stage = stage


def test_a_type_of_ones_own_comes_back_once_it_is_taught(tmp_path: Path) -> None:
    def state(stage: int) -> dict[str, Any]:
        return {"plan": [{"now": Curriculum(stage)}], "own": lamina.PerRank(Curriculum(10 * stage)), "w": torch.ones(2)}

    with lamina.Checkpointer(tmp_path) as ckpt:
        with pytest.raises(lamina.UnsupportedError, match=r"plan\[0\]\.now is of type .*Curriculum.*register_type"):
            ckpt.save(1, state(3))
        lamina.register_type(Curriculum, lambda value: {"stage": value.stage}, lambda kept: Curriculum(kept["stage"]))
        ckpt.save(1, state(3)).wait()
        found = state(0)
        ckpt.restore(found)
    assert (found["plan"][0]["now"].stage, found["own"].value.stage) == (3, 30)


def test_an_expected_store_that_is_not_there_is_no_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lamina.Checkpointer(tmp_path / "first") as ckpt:
        ckpt.save(1, {"epoch": 1}).wait()
    monkeypatch.setenv("LAMINA_EXPECT_STORE", lamina.open(tmp_path / "first").id)
    with lamina.Checkpointer(tmp_path / "first") as ckpt:
        assert ckpt.restore({"epoch": 0}).step == 1
    for mode in ("train", "read"):
        refused = pytest.raises(lamina.NotFoundError, match=r"LAMINA_EXPECT_STORE.*mounted")
        with lamina.Checkpointer(tmp_path / "empty", mode=mode) as ckpt, refused:
            ckpt.restore({"epoch": 0})
    assert not (tmp_path / "empty").exists()
    monkeypatch.setenv("LAMINA_EXPECT_STORE", "0" * 32)
    with lamina.Checkpointer(tmp_path / "first") as ckpt, pytest.raises(lamina.StateError, match="another file system"):
        ckpt.restore({"epoch": 0})
