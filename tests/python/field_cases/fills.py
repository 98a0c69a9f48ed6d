"""What field cases put into tensors, how they cut them, and what they take for equal."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import lamina


def iota(shape: Sequence[int], dtype: torch.dtype, first: int) -> torch.Tensor:
    """Element i, in row-major order, is i + first."""
    return torch.arange(first, first + math.prod(shape)).reshape(*shape).to(dtype)


def bits(shape: Sequence[int], dtype: torch.dtype, first: int) -> torch.Tensor:
    """Raw byte j is (131 j + first) mod 256; of a bool, j mod 2."""
    places = torch.arange(math.prod(shape) * dtype.itemsize)
    values = places % 2 if dtype == torch.bool else (131 * places + first) % 256
    return values.to(torch.uint8).view(dtype).reshape(*shape)


def raw(tensor: torch.Tensor) -> bytes:
    """The logical elements in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def blank(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and dtype where no byte is right."""
    wrong = torch.frombuffer(bytearray(255 - byte for byte in raw(tensor)) or bytearray(1), dtype=torch.uint8)
    if tensor.dtype == torch.bool:
        wrong = wrong % 2
    return wrong[: tensor.numel() * tensor.itemsize].view(tensor.dtype).reshape(tensor.shape).clone()


def check_same(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Asserts the same dtype, shape and raw bytes."""
    assert (found.dtype, tuple(found.shape)) == (wanted.dtype, tuple(wanted.shape)), name
    assert raw(found) == raw(wanted), f"{name}: {found} instead of {wanted}"


def ceil_part(full: torch.Tensor, rank: int, count: int, dim: int = 0) -> torch.Tensor:
    """What a rank holds by the ceil rule."""
    size = full.shape[dim]
    most = math.ceil(size / count)
    begin, end = min(rank * most, size), min((rank + 1) * most, size)
    return full.narrow(dim, begin, end - begin).clone()


def sharded(full: torch.Tensor, mesh: DeviceMesh, dim: int = 0) -> DTensor:
    """A tensor cut by the ceil rule over the ranks of a mesh with one axis."""
    return from_local(ceil_part(full, mesh.get_local_rank(), mesh.size(), dim), full, mesh, [Shard(dim)])


def from_local(local: torch.Tensor, full: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> DTensor:
    """A DTensor shaped as `full` whose part here is `local`."""
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def save(root: Path, state: dict[str, Any], step: int = 0) -> lamina.SaveReport:
    """Saves one step as a job of its own."""
    with lamina.Checkpointer(root) as ckpt:
        return ckpt.save(step, state).wait()


def load(root: Path, state: dict[str, Any], **how: Any) -> lamina.RestoreInfo:
    """Restores as a job of its own."""
    with lamina.Checkpointer(root) as ckpt:
        return ckpt.restore(state, **how)
