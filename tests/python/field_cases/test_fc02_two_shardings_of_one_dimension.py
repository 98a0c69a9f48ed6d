"""FC-02: the tensor-parallel split comes first and the data-parallel one inside it, whatever the order of the mesh axes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fills import blank, ceil_part, check_same, from_local, iota, load, save, sharded
from on_ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

WHOLE = {name: iota([8, 3], torch.float32, first) for name, first in (("w", 0), ("exp_avg", 1000), ("exp_avg_sq", 2000))}
TENSOR_PARALLEL = 2


def part_of(full: torch.Tensor, data_parallel: int) -> torch.Tensor:
    """The rows of this rank on mesh (dp, tp)."""
    rank = dist.get_rank()
    return full.chunk(TENSOR_PARALLEL)[rank % TENSOR_PARALLEL].chunk(data_parallel)[rank // TENSOR_PARALLEL].clone()


def nested(data_parallel: int, fill: Any) -> dict[str, Any]:
    """Tensors laid out as FSDP2 within tensor parallelism lays them out, and a module whose weight they laid out themselves."""
    mesh = init_device_mesh("cpu", (data_parallel, TENSOR_PARALLEL), mesh_dim_names=("dp", "tp"))
    placements = [_StridedShard(0, split_factor=TENSOR_PARALLEL), Shard(0)]
    state: dict[str, Any] = {name: from_local(part_of(fill(full), data_parallel), full, mesh, placements) for name, full in WHOLE.items()}
    model = nn.Linear(3, 8, bias=False)
    parallelize_module(model, mesh["tp"], ColwiseParallel())
    fully_shard(model, mesh=mesh["dp"])
    with torch.no_grad():
        model.weight.to_local().copy_(part_of(fill(WHOLE["w"]), data_parallel))
    return {**state, "model": model}


def write(root: Path, data_parallel: int) -> list[float]:
    state = nested(data_parallel, torch.clone)
    save(root, state)
    return [row[0] / 3 for row in state["w"].to_local().tolist()]


def read_nested(root: Path, data_parallel: int) -> None:
    state = nested(data_parallel, blank)
    load(root, state)
    for name, full in WHOLE.items():
        check_same(name, state[name].to_local(), part_of(full, data_parallel))
    check_same("model", state["model"].weight.to_local(), part_of(WHOLE["w"], data_parallel))


def read_by_ceil_rule(root: Path, dim: int) -> None:
    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,))
    state = {name: sharded(blank(full), mesh, dim) for name, full in WHOLE.items()}
    model = nn.Linear(3, 8, bias=False)
    fully_shard(model, mesh=mesh)
    load(root, {**state, "model": model})
    for name, full in WHOLE.items():
        check_same(name, state[name].to_local(), ceil_part(full, rank, count, dim))
    check_same("model", model.weight.to_local(), ceil_part(WHOLE["w"], rank, count))


def read_whole(root: Path) -> None:
    state: dict[str, Any] = {name: blank(full) for name, full in WHOLE.items()}
    model = nn.Linear(3, 8, bias=False)
    load(root, {**state, "model": model})
    for row in range(8):
        assert state["w"][row].tolist() == [3 * row, 3 * row + 1, 3 * row + 2]
    for name, full in WHOLE.items():
        check_same(name, state[name], full)
    check_same("model", model.weight, WHOLE["w"])


@pytest.mark.parametrize(("saving", "loading"), [(2, 4), (4, 2)])
def test_fc02_two_shardings_of_one_dimension(tmp_path: Path, saving: int, loading: int) -> None:
    rows = on_ranks(saving * TENSOR_PARALLEL, write, tmp_path, saving)
    if saving == 2:
        assert rows == [[0, 1], [4, 5], [2, 3], [6, 7]]
    on_ranks(1, read_whole, tmp_path)
    on_ranks(loading * TENSOR_PARALLEL, read_nested, tmp_path, loading)
    if saving == 2:
        on_ranks(4, read_by_ceil_rule, tmp_path, 0)
        on_ranks(3, read_by_ceil_rule, tmp_path, 1)
