"""lamina.wrappers and lamina.modules: names of a wrapped module are those of the bare one (FC-24)."""

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
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

import lamina
from lamina import modules, wrappers
from lamina.errors import UnsupportedError
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


@pytest.mark.usefixtures("one_rank")
def test_flat_parameters_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
    with pytest.raises(UnsupportedError, match=r"^1 is a FullyShardedDataParallel.*fully_shard"):
        modules.items_of(model)


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


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.count = 3

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


def test_items_are_told_apart() -> None:
    model = nn.Sequential(Counting())
    model[0].register_state_dict_post_hook(lambda module, state, prefix, local: state.update({prefix + "made": torch.ones(1)}))
    found = {to_text(item.path): (item.is_own, item.is_extra, item.owner is model[0]) for item in modules.items_of(model)}
    assert found == {"0.weight": (True, False, True), "0._extra_state": (False, True, True), "0.made": (False, False, True)}
