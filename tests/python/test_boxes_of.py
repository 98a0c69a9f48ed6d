"""lamina._core.boxes_of against what torch itself puts where: its placements' own splitting, and fully_shard on every rank of a mesh."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from lamina import _core, tensors
from lamina.errors import InvalidArgumentError

CASES = 600


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    """Each element is its number in the tensor."""
    return torch.arange(int(np.prod(shape))).reshape(shape)


def split_by_torch(whole: torch.Tensor, mesh: list[int], coordinate: list[int], placements: list[Placement]) -> torch.Tensor:
    for size, at, placement in zip(mesh, coordinate, placements):
        if isinstance(placement, (Shard, _StridedShard)):
            whole = placement._split_tensor(whole, size, with_padding=False)[0][at]
    return whole


def check_boxes(boxes: list[tensors.Box], whole: torch.Tensor, local: torch.Tensor) -> None:
    """The boxes stand for the elements of `local`, each at its place there."""
    assert sum(int(np.prod(extent)) for _, extent in boxes) == local.numel()
    for (offset, extent), part in zip(boxes, tensors._parts(local, boxes)):
        assert torch.equal(whole[tuple(slice(at, at + count) for at, count in zip(offset, extent))], part)


def random_placement(chance: random.Random, dimensions: int, nested: int) -> Placement:
    dim = chance.randrange(dimensions)
    return chance.choice([Replicate(), Shard(dim), _StridedShard(dim, split_factor=chance.choice([nested, chance.randint(2, 5)]))])


def test_boxes_are_where_torch_splits_random_tensors() -> None:
    chance = random.Random(4)
    seen = {"many boxes": 0, "strided beside replicas": 0, "nothing held": 0, "read by the shape": 0}
    for _ in range(CASES):
        shape = tuple(chance.randint(0, 13) for _ in range(chance.randint(1, 4)))
        mesh = [chance.randint(1, 5) for _ in range(chance.randint(1, 3))]
        coordinate = [chance.randrange(size) for size in mesh]
        placements = [random_placement(chance, len(shape), mesh[-1]) for _ in mesh]
        whole = numbered(shape)
        local = split_by_torch(whole, mesh, coordinate, placements)
        args = (shape, mesh, coordinate, [tensors._placement(placement) for placement in placements])
        boxes = _core.boxes_of(*args)
        check_boxes(boxes, whole, local)
        try:  # the same when the shape is told, unless there are two readings of it
            assert _core.boxes_of(*args, local.shape) == boxes
            seen["read by the shape"] += 1
        except InvalidArgumentError as error:
            assert any(isinstance(placement, _StridedShard) for placement in placements), error  # noqa: PT017
        kinds = {type(placement) for placement in placements}
        seen["many boxes"] += len(boxes) > 1
        seen["strided beside replicas"] += {Replicate, _StridedShard} <= kinds
        seen["nothing held"] += local.numel() == 0
    assert all(count >= 20 for count in seen.values()), seen
    assert seen["read by the shape"] > 0.95 * CASES, seen


@pytest.fixture
def on_rank() -> Iterator[Any]:
    """on_rank(rank, world) makes this process that rank; nothing is ever sent."""

    def become(rank: int, world: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())

    yield become
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("shape", [(12, 4), (7, 5), (13, 3), (5, 8), (1, 9)], ids=str)
@pytest.mark.parametrize("split", [0, 1, None], ids=lambda split: f"tensor parallelism {split}")
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 3), (2, 2, 2), (2, 3, 2)], ids=str)  # replicas if three, data, tensor parallelism
def test_boxes_are_where_fully_shard_puts_parameters(
    sizes: tuple[int, ...], split: int | None, shape: tuple[int, int], on_rank: Any
) -> None:
    names = ("replicas", "data", "tensor")[-len(sizes) :]
    whole = numbered(shape).float()
    held = []
    for rank in range(int(np.prod(sizes))):
        on_rank(rank, int(np.prod(sizes)))
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        module = nn.Module()
        placement = Replicate() if split is None else Shard(split)
        part = distribute_tensor(whole, mesh["tensor"], [placement], src_data_rank=None)
        module.register_parameter("weight", nn.Parameter(part))
        fully_shard(module, mesh=mesh[names[:-1]])
        parameter = module.weight
        assert tuple(parameter.shape) == shape
        local = tensors.local_of(parameter)
        # PyTorch keeps a parameter's mesh, and with it the rank, for the next mesh that is equal: so the place is this mesh's.
        assert parameter.device_mesh.mesh_dim_names == names
        described = [tensors._placement(each) for each in parameter.placements]
        boxes = _core.boxes_of(shape, sizes, mesh.get_coordinate(), described, local.shape)
        check_boxes(boxes, whole, local)
        held += local.flatten().tolist()
    copies = len(held) // whole.numel()
    assert sorted(held) == sorted(whole.flatten().tolist() * copies)  # fully_shard itself held all of it
