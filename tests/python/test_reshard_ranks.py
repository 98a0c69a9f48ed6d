"""DTensors of all dtypes and odd shapes through real ranks: saved by four, restored by one, three and six, on several placements each."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import lamina
from lamina import tensors
from state_digest import rows_held

DTYPES = [tensors.dtype_named(name) for name in sorted(tensors.DTYPES) if hasattr(torch, name)]
SHAPES = [(), (0,), (1,), (12,), (13,), (24, 3), (5, 7), (2, 0, 3), (7, 3, 2), (12, 1, 5), (3, 2, 2, 11)]
CASES = [(f"{dtype}-{shape}", dtype, shape) for dtype in DTYPES for shape in SHAPES]
NESTED = "nested"  # fully_shard over tensor parallelism, where the sizes divide
Rules = Sequence[Placement | str]
SAVED: tuple[tuple[int, ...], Rules] = ((2, 2), (NESTED, Shard(0)))
LAYOUTS: dict[int, list[tuple[tuple[int, ...], Rules]]] = {
    1: [((1,), (Replicate(),)), ((1, 1), (Shard(0), Shard(1)))],
    3: [((3,), (Replicate(),)), ((3,), (Shard(0),)), ((3,), (Shard(1),)), ((3, 1), (NESTED, Shard(0)))],
    6: [((6,), (Shard(0),)), ((2, 3), (Replicate(), Shard(1))), ((3, 2), (NESTED, Shard(0))), ((2, 3), (NESTED, Shard(0)))],
}


def placed(rules: Rules, shape: tuple[int, ...], mesh: DeviceMesh) -> tuple[Placement, ...]:
    """A rule's placements for a tensor of that shape; a dimension that it lacks stands for its last one."""
    if not shape:
        return tuple(Replicate() for _ in rules)
    divides = shape[0] % mesh.size() == 0
    known = [(_StridedShard(0, split_factor=mesh.size(1)) if divides else Shard(0)) if rule == NESTED else rule for rule in rules]
    return tuple(Shard(len(shape) - 1) if isinstance(each, Shard) and each.dim >= len(shape) else each for each in known)


def elements(seed: int, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Opaque elements of random bytes."""
    return np.frombuffer(np.random.default_rng(seed).bytes(math.prod(shape) * size), f"V{size}").reshape(shape)


def laid_out(mesh: DeviceMesh, rules: Rules, seed: int | None) -> dict[str, DTensor]:
    """All tensors as DTensors; their elements from `seed`, or other ones."""
    made = {}
    for number, (name, dtype, shape) in enumerate(CASES):
        whole = elements((seed or 0) + number, shape, torch.empty(0, dtype=dtype).element_size())
        placements = placed(rules, shape, mesh)
        local = whole[np.ix_(*(rows_held(size, dim, mesh, placements) for dim, size in enumerate(shape)))] if shape else whole
        data = np.frombuffer(local.tobytes() if seed else b"\xee" * local.nbytes, np.uint8).copy()
        part = torch.empty(local.shape, dtype=dtype)
        part.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(data))
        strides = torch.empty(shape).stride()
        made[name] = DTensor.from_local(part, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)
    return made


def raw(tensor: DTensor) -> bytes:
    return tensor.to_local().reshape(-1).view(torch.uint8).numpy().tobytes()


def group_of_one() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())


def save(root: Path) -> None:
    mesh = init_device_mesh("cpu", SAVED[0])
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(3, {"w": laid_out(mesh, SAVED[1], seed=1)}).wait()


def restore(root: Path) -> list[str]:
    """The names of tensors that hold other bits than gather-then-slice gives this rank."""
    group_of_one()
    differing = []
    with lamina.Checkpointer(root, mode="read") as ckpt:
        for shape, rules in LAYOUTS[dist.get_world_size()]:
            mesh = init_device_mesh("cpu", shape)
            found, expected = laid_out(mesh, rules, seed=None), laid_out(mesh, rules, seed=1)
            assert ckpt.restore({"w": found}).step == 3
            differing += [f"{name} on {shape} {rules}" for name in found if raw(found[name]) != raw(expected[name])]
    return differing


def test_real_ranks_hold_the_bits_on_every_number_of_ranks(tmp_path: Path) -> None:
    on_ranks(4, save, tmp_path / "root")
    for ranks in LAYOUTS:
        assert on_ranks(ranks, restore, tmp_path / "root") == [[]] * ranks
