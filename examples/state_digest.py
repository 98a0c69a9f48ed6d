"""A digest of a whole training state that is the same on every topology.

It shares no code with Lamina: which elements a rank holds is worked out here from the placements alone. The digest is a sum over all
elements, modulo 2^64, of a hash of (name, number in the global tensor, bits), so the order and the place of elements do not matter.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

BLOCK = 1 << 15  # elements hashed at a time, so that the arithmetic stays in the processor's cache


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


def _hash_of_text(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def element_sum(name: str, bits: np.ndarray, numbers: np.ndarray) -> int:
    """The sum over elements of hash(name, number, bits), modulo 2^64; both arrays are flat, `bits` of an unsigned type."""
    salt, total = np.uint64(_hash_of_text(name)), np.uint64(0)
    with np.errstate(over="ignore"):
        for at in range(0, len(bits), BLOCK):
            place = _mix(numbers[at : at + BLOCK].astype(np.uint64) ^ salt)
            total += _mix(place ^ bits[at : at + BLOCK]).sum(dtype=np.uint64)
    return int(total)


def rows_held(size: int, dim: int, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> np.ndarray:
    """The global numbers, along one dimension of `size`, of the slices in this rank's local tensor, in its order."""
    rows = torch.arange(size)
    sharding = [(axis, placement) for axis, placement in enumerate(placements) if placement.is_shard(dim) or _is_strided(placement, dim)]
    # FSDP2 over tensor parallelism: the strided placement stands to the left, yet it was cut last, out of what the others had left.
    for axis, _ in sorted(sharding, key=lambda item: _is_strided(item[1], dim)):
        parts = torch.chunk(rows, mesh.size(axis))
        at = mesh.get_local_rank(axis)
        rows = parts[at] if at < len(parts) else rows[:0]
    return rows.numpy()


def _is_strided(placement: Placement, dim: int) -> bool:
    return type(placement).__name__ == "_StridedShard" and placement.dim == dim


def _numbers(tensor: DTensor) -> np.ndarray:
    """The global row-major number of each element of the local tensor."""
    numbers = np.zeros(1, dtype=np.int64)
    for dim, size in enumerate(tensor.shape):
        rows = rows_held(size, dim, tensor.device_mesh, tensor.placements)
        numbers = (numbers[:, None] * size + rows[None, :]).reshape(-1)
    return numbers


def _bits(tensor: Tensor) -> np.ndarray:
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.detach().contiguous().reshape(-1).view(signed).numpy()
    return flat.view(f"u{tensor.element_size()}")


def _replica(tensor: Tensor, mesh: DeviceMesh) -> tuple[int, int]:
    """(which replica this rank holds, how many there are) of a tensor, over the whole mesh."""
    sharded = set()
    if isinstance(tensor, DTensor):
        names = tensor.device_mesh.mesh_dim_names
        sharded = {name for name, placement in zip(names, tensor.placements, strict=True) if not placement.is_replicate()}
    ordinal, count = 0, 1
    for axis, name in enumerate(mesh.mesh_dim_names):
        if name not in sharded:
            ordinal = ordinal * mesh.size(axis) + mesh.get_local_rank(axis)
            count *= mesh.size(axis)
    return ordinal, count


def named_tensors(model: nn.Module, optim: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, and what the optimizer keeps for each parameter."""
    for name, tensor in model.state_dict().items():
        yield f"model.{name}", tensor
    for name, parameter in model.named_parameters():
        for slot, value in sorted(optim.state.get(parameter, {}).items()):
            yield f"optim.{slot}.{name}", value


def state_digest(model: nn.Module, optim: torch.optim.Optimizer, plain: Any, mesh: DeviceMesh) -> str:
    """The digest of the state that the ranks of `mesh` hold together. Collective; raises ValueError when replicas differ.

    Slot s of the sums counts replica s (modulo their number) of every entry, so each slot holds every element once, and all agree.
    """
    world = dist.get_world_size()
    sums = np.zeros(world, dtype=np.uint64)

    def count(value: int, ordinal: int, replicas: int) -> None:
        with np.errstate(over="ignore"):
            sums[ordinal::replicas] += np.uint64(value)

    for name, tensor in named_tensors(model, optim):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        numbers = _numbers(tensor) if isinstance(tensor, DTensor) else np.arange(tensor.numel())
        count(element_sum(f"{name} {tensor.dtype} {tuple(tensor.shape)}", _bits(local), numbers), *_replica(tensor, mesh))
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optim.param_groups]
    count(_hash_of_text(json.dumps([settings, plain], sort_keys=True)), *_replica(torch.empty(0), mesh))

    gathered = [torch.empty(world, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(gathered, torch.from_numpy(sums.view(np.int64)))
    slots = {int(slot) for slot in torch.stack(gathered).numpy().view(np.uint64).sum(axis=0, dtype=np.uint64)}
    if len(slots) != 1:
        raise ValueError(f"replicas of this state differ: {sorted(slots)}")
    return f"{slots.pop():016x}"
