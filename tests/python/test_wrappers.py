"""lamina.wrappers and lamina.modules: names of a wrapped module are those of the bare one (FC-24)."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor

import lamina
from lamina import modules, wrappers
from lamina.errors import MismatchError, StateError, UnsupportedError
from lamina.names import to_text


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.attn(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self._orig_mod_like = nn.Linear(2, 2)  # text that only looks like a wrapper's
        self.scratch: torch.Tensor
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self._orig_mod_like(x)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def names(module: nn.Module) -> list[str]:
    return [to_text(item.path) for item in modules.items_of(module)]


def wrapped_deeply(model: Model) -> nn.Module:
    model.layers[0] = checkpoint_wrapper(torch.compile(model.layers[0]))
    model.layers[1] = torch.compile(checkpoint_wrapper(model.layers[1]))
    return nn.parallel.DistributedDataParallel(torch.compile(model))


@pytest.mark.usefixtures("one_rank")
def test_wrappers_do_not_show() -> None:
    bare = Model()
    expected = list(bare.state_dict())
    wrapped = wrapped_deeply(Model())
    assert any("_orig_mod." in key for key in wrapped.state_dict())
    assert names(wrapped) == names(bare) == expected
    assert wrappers.unwrap(torch.compile(bare)) is bare


def test_only_buffers_may_differ() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), Counting())
    model.register_state_dict_post_hook(lambda module, state, prefix, local: state.update({prefix + "made": torch.ones(1)}))
    differ = {to_text(item.path) for item in modules.items_of(model) if item.may_differ}
    assert differ == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}


def save_own_batch_norms(root: Path) -> list[list[float]]:
    """The running means of this rank, before the saves and after the restores."""
    x = torch.arange(8.0).reshape(4, 2) * (dist.get_rank() + 1)
    inner = nn.parallel.DistributedDataParallel(Block(), broadcast_buffers=False).module
    inner(x).sum().backward()
    sharded = Block()
    fully_shard(sharded)
    sharded(x).sum().backward()
    means = []
    for at, block in enumerate((inner, sharded)):
        means.append(block.norm.running_mean.tolist())
        with lamina.Checkpointer(root / str(at)) as ckpt:
            assert ckpt.save(0, {"model": block}).wait().outcome == "committed"
            ckpt.restore({"model": block})
        means.append(block.norm.running_mean.tolist())
    return means


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers")
def test_the_lowest_ranks_buffers_are_kept_whatever_the_wrapper(tmp_path: Path) -> None:
    first, second = on_ranks(2, save_own_batch_norms, tmp_path)
    for before, after in (0, 1), (2, 3):
        assert first[before] != second[before]
        assert first[after] == second[after] == first[before]


def in_fsdp1(module: nn.Module, **how: Any) -> nn.Module:
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"), **how)


def check_fsdp1_between_passes(root: Path, strategy: ShardingStrategy) -> None:
    """What a pass leaves behind neither gets into a checkpoint nor survives a restore."""
    x = torch.ones(4, 2)
    bare, again = (nn.Sequential(Block(), Counting()) for _ in range(2))
    bare[1].count = 5
    nn.init.constant_(bare[1].weight, 3)
    for use_orig_params, grad in itertools.product((False, True), repeat=2):
        how = {"sharding_strategy": strategy, "use_orig_params": use_orig_params}
        inside = nn.Sequential(in_fsdp1(Block(), **how), Counting())
        model = in_fsdp1(inside, **how)
        with torch.set_grad_enabled(grad), lamina.Checkpointer(root / f"{use_orig_params}{grad}") as ckpt:
            ckpt.save(0, {"model": bare}).wait()
            model.eval()(x)  # some shards stay gathered after it
            ckpt.restore({"model": model})
            assert model(x).tolist() == bare.eval()(x).tolist()
            ckpt.save(1, {"model": model}).wait()
            ckpt.restore({"model": again})
            assert again.eval()(x).tolist() == bare(x).tolist()
            assert inside[1].count == again[1].count == 5


@pytest.mark.parametrize("strategy", [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP])
def test_fsdp1_is_saved_and_restored_between_passes(strategy: ShardingStrategy, tmp_path: Path) -> None:
    on_ranks(2, check_fsdp1_between_passes, tmp_path, strategy)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:.*FSDP", "ignore:.*NO_SHARD")
def test_fsdp1_takes_parameters_that_were_replaced(tmp_path: Path) -> None:
    model = in_fsdp1(nn.Linear(2, 2), use_orig_params=True)
    wrappers.unwrap(model).weight = nn.Parameter(torch.full((2, 2), 3.0))
    with lamina.Checkpointer(tmp_path) as ckpt:
        ckpt.save(0, {"model": model}).wait()
        ckpt.restore({"model": (bare := nn.Linear(2, 2))})
        assert bare.weight.tolist() == [[3, 3], [3, 3]]
        wrappers.unwrap(model).weight = nn.Parameter(torch.zeros(2, 2))
        ckpt.restore({"model": model})
        assert model(torch.ones(1, 2)).tolist() == bare(torch.ones(1, 2)).tolist()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:.*FSDP", "ignore:.*NO_SHARD")
def test_fsdp1_is_refused_where_its_memory_does_not_tell(tmp_path: Path) -> None:
    model = nn.Sequential(in_fsdp1(nn.Linear(2, 2)))
    with FullyShardedDataParallel.summon_full_params(model), pytest.raises(StateError, match="outside of forward"):
        modules.items_of(model)
    with pytest.raises(UnsupportedError, match=r"^weight: .*row-major order.*fully_shard"):
        modules.items_of(in_fsdp1(nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last)))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:.*FSDP", "ignore:.*NO_SHARD")
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_optimizers_of_fsdp1_are_refused_by_name(use_orig_params: bool, tmp_path: Path) -> None:
    model = in_fsdp1(nn.Linear(2, 2), use_orig_params=use_orig_params)
    state = {"model": model, "adam": torch.optim.AdamW(model.parameters())}
    with lamina.Checkpointer(tmp_path) as ckpt, pytest.raises(UnsupportedError, match=r"^adam is .*fully_shard, or save the module alone"):
        ckpt.save(0, state)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:.*FSDP", "ignore:.*NO_SHARD")
def test_fsdp1_modules_are_restored_strictly(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path) as ckpt:
        ckpt.save(0, {"model": nn.Linear(2, 2).half()}).wait()
        model = in_fsdp1(nn.Linear(2, 2))
        with pytest.raises(MismatchError, match=r"model\.weight: float16 in the checkpoint, float32 in the template"):
            ckpt.restore({"model": model})
        ckpt.restore({"model": model}, cast=True)
        ckpt.restore({"model": (half := nn.Linear(2, 2).half())})
        with FullyShardedDataParallel.summon_full_params(model):
            assert torch.equal(model.weight, half.weight.float())


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:.*FSDP", "ignore:.*NO_SHARD")
def test_hooks_around_fsdp1_still_work(tmp_path: Path) -> None:
    model = nn.Sequential(in_fsdp1(Hooked(1.0)))
    with lamina.Checkpointer(tmp_path) as ckpt:
        ckpt.save(0, {"model": model}).wait()
        assert [entry.name for entry in lamina.open(tmp_path).entries()] == ["model.0.made", "model.0.weight"]
        ckpt.restore({"model": (other := nn.Sequential(in_fsdp1(Hooked(2.0))))})
        assert wrappers.unwrap(other[0]).made == 1


@pytest.mark.usefixtures("one_rank")
def test_sharded_modules_come_back_to_their_shards_after_a_forward() -> None:
    model = Model()
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    fully_shard(model.layers[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model.eval()(torch.zeros(1, 2))
    assert not all(isinstance(parameter, DTensor) for parameter in model.parameters())
    own = [item.value for item in modules.items_of(model) if isinstance(item.value, nn.Parameter)]
    assert all(isinstance(parameter, DTensor) for parameter in own)
    assert [id(parameter) for parameter in own] == [id(parameter) for parameter in optimizer.param_groups[0]["params"]]


class Hooked(nn.Module):
    """Keeps a number that its hooks save and load."""

    def __init__(self, made: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.made = made
        self.register_state_dict_post_hook(
            lambda module, state, prefix, local: state.update({f"{prefix}made": torch.tensor(module.made, dtype=torch.float64)})
        )

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.made = state.pop(f"{prefix}made").item()
        super()._load_from_state_dict(state, prefix, *rest)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.count = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


def test_items_are_told_apart() -> None:
    model = nn.Sequential(Counting())
    model[0].register_state_dict_post_hook(lambda module, state, prefix, local: state.update({prefix + "made": torch.ones(1)}))
    found = {to_text(item.path): (item.is_own, item.is_extra, item.owner is model[0]) for item in modules.items_of(model)}
    assert found == {"0.weight": (True, False, True), "0._extra_state": (False, True, True), "0.made": (False, False, True)}
