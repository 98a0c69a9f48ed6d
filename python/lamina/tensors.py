"""Tensors as the core takes them: boxes of a global tensor, each with a pointer into this rank's memory.

Kinds of tensor that raw bytes do not describe are refused here, by path and reason, before anything is read.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch

from lamina import _core
from lamina.errors import InternalError, UnsupportedError
from lamina.flat import FlatPart

Box: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # offset, extent
BoxArg: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]  # offset, extent, data pointer, strides in elements
TensorArg: TypeAlias = tuple[str, str, tuple[int, ...], list[BoxArg], str, bool]

DTYPES: Final = frozenset(
    [
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    ]
)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype of that name.

    Raises:
        UnsupportedError: this PyTorch does not have it.
    """
    dtype = getattr(torch, name, None) if name in DTYPES else None
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"this PyTorch ({torch.__version__}) has no dtype {name}")
    return dtype


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a `DTensor`; imports nothing."""
    home = sys.modules.get("torch.distributed.tensor")
    return home is not None and isinstance(tensor, home.DTensor)


def _wait(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor behind a collective's result that may still be under way."""
    home = sys.modules.get("torch.distributed._functional_collectives")
    return tensor.wait() if home is not None and isinstance(tensor, home.AsyncCollectiveTensor) else tensor


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor with this rank's part, sharing memory, without autograd."""
    if isinstance(tensor, FlatPart):
        return tensor.local.detach()
    return _wait(tensor._local_tensor if is_dtensor(tensor) else tensor).detach()  # type: ignore[attr-defined]


def check(tensor: torch.Tensor, name: str) -> None:
    """Refuses what can't be stored as raw bytes.

    Raises:
        UnsupportedError: says which tensor, why, and what to do.
    """
    reason = _refusal(tensor)
    if reason is None and is_dtensor(tensor):
        reason = _refusal(_wait(tensor._local_tensor)) or _placement_refusal(tensor)  # type: ignore[attr-defined]
    if reason is not None:
        raise UnsupportedError(f"{name}: {reason}")


def _refusal(tensor: torch.Tensor) -> str | None:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter, FlatPart) and not is_dtensor(tensor) and _wait(tensor) is tensor:
        if isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
            return "its shape is not known before the first forward pass: run one, or give the lazy module its sizes"
        return f"tensors of class {kind.__module__}.{kind.__qualname__} are not supported: hand over the plain tensors they are made of"
    if tensor.is_nested:
        return "nested tensors are not supported: hand over values and offsets"
    if tensor.layout is not torch.strided:
        return f"tensors with layout {tensor.layout} are not supported: hand over their parts (indices and values) or a dense tensor"
    if tensor.is_quantized:
        return "quantized tensors are not supported: hand over codes (int_repr()), scales and zero points"
    if torch._is_functional_tensor(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "it exists only inside a functional transform"
    if tensor.device.type != "cpu":
        return f"it is on {tensor.device}; this version stores tensors in CPU memory"
    if dtype_name(tensor.dtype) not in DTYPES:
        return f"dtype {tensor.dtype} is not supported: view it as uint8"
    return None


def _placement_refusal(tensor: Any) -> str | None:
    for placement in tensor.placements:
        if placement.is_partial():
            return f"its placement {placement!r} holds sums that are not finished: redistribute it to Replicate or Shard first"
        if _placement(placement) is None:
            return f"its placement {placement!r} of class {type(placement).__qualname__} is not known"
    return None


def _placement(placement: Any) -> tuple[str, int, int] | None:
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

    if type(placement) is Replicate:
        return ("replicate", 0, 1)
    if type(placement) is _StridedShard:
        return ("strided_shard", placement.dim, int(placement.split_factor))
    if type(placement) is Shard:
        return ("shard", placement.dim, 1)
    return None


@dataclasses.dataclass(frozen=True)
class Local:
    """This rank's part of a tensor.

    Attributes:
        tensor: the memory; must live while the pointers in `boxes` are used.
        boxes: where it stands in the global tensor; empty when this rank is outside the mesh.
    """

    tensor: torch.Tensor
    boxes: list[BoxArg]


def describe(tensor: torch.Tensor, memory: torch.Tensor | None = None) -> Local:
    """The boxes of a tensor that `check` let through.

    Args:
        tensor: a plain tensor, a DTensor or a FlatPart.
        memory: another tensor of the local shape to point at. Default: the tensor's own local memory, or a copy where that is
            conjugated or negated lazily.
    """
    local = (local_of(tensor) if memory is None else memory).resolve_conj().resolve_neg()
    if isinstance(tensor, FlatPart):
        return Local(local, [(offset, extent, part.data_ptr(), part.stride()) for offset, extent, part in tensor.parts(local)])
    boxes = _boxes_of(tensor, local)
    return Local(local, [(*box, part.data_ptr(), tuple(part.stride())) for box, part in zip(boxes, _parts(local, boxes))])


def _boxes_of(tensor: Any, local: torch.Tensor) -> list[Box]:
    if not is_dtensor(tensor):
        return [((0,) * local.dim(), tuple(local.shape))]
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    placements = [_placement(placement) for placement in tensor.placements]
    boxes = _core.boxes_of(tuple(tensor.shape), tuple(mesh.shape), tuple(coordinate), placements, tuple(local.shape))
    return [(tuple(offset), tuple(extent)) for offset, extent in boxes]


def _parts(local: torch.Tensor, boxes: Sequence[Box]) -> list[torch.Tensor]:
    """The slice of `local` that holds each box. The boxes form a grid whose intervals follow one another in the local tensor."""
    if len(boxes) == 1 and boxes[0][1] == tuple(local.shape):
        return [local]
    starts: list[dict[tuple[int, int], int]] = []
    for dim, size in enumerate(local.shape):
        start, at = {}, 0
        for interval in dict.fromkeys((offset[dim], extent[dim]) for offset, extent in boxes):
            start[interval] = at
            at += interval[1]
        if at != size and boxes:
            raise InternalError(f"the boxes {boxes} do not make up a local tensor of shape {tuple(local.shape)}")
        starts.append(start)
    return [_part(local, starts, box) for box in boxes]


def _part(local: torch.Tensor, starts: Sequence[dict[tuple[int, int], int]], box: Box) -> torch.Tensor:
    for dim, (start, offset, extent) in enumerate(zip(starts, *box)):
        local = local.narrow(dim, start[offset, extent], extent)
    return local


def identity(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Equal for two tensors that show the same elements of the same memory; None for a tensor without elements here."""
    local = local_of(tensor)
    if local.numel() == 0:
        return None
    place = (tensor.device_mesh, tuple(tensor.placements)) if is_dtensor(tensor) else None  # type: ignore[attr-defined]
    flags = (local.is_conj(), local.is_neg())
    return (local.data_ptr(), local.dtype, tuple(local.shape), tuple(local.stride()), tuple(tensor.shape), place, flags)


def is_own(tensor: torch.Tensor) -> bool:
    """Whether each element has a place of its own in memory, as far as strides of 0 tell."""
    local = local_of(tensor)
    return local.numel() == 0 or all(stride != 0 or extent == 1 for stride, extent in zip(local.stride(), local.shape))


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether the elements are the conjugates or negatives of what is in memory."""
    local = local_of(tensor)
    return local.is_conj() or local.is_neg()


def was_written(tensor: torch.Tensor) -> None:
    """Tells autograd that the tensor's memory changed."""
    for each in {id(each): each for each in (tensor, local_of(tensor))}.values():
        torch.autograd.graph.increment_version(each)


def make_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros with the shape, placement and memory format of `tensor`, without gradient."""
    return torch.zeros_like(tensor.detach(), dtype=dtype, requires_grad=False)
