"""lamina.tensors: the boxes that are handed to the core show the tensor's elements, and what bytes do not describe is refused."""

from collections.abc import Iterator, Sequence
from typing import Any

import fake_core
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from lamina import tensors
from lamina.errors import UnsupportedError

ALL_DTYPES = [getattr(torch, name) for name in sorted(tensors.DTYPES) if hasattr(torch, name)]


@pytest.fixture
def ranks() -> Iterator[None]:
    """Rank 0 of 8; nothing is ever sent."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def whole(tensor: torch.Tensor, local: tensors.Local) -> np.ndarray:
    """A global array of the boxes' bytes, 0xEE where there is none."""
    dtype = tensors.dtype_name(tensor.dtype)
    found = np.full((*tensor.shape, tensor.element_size()), 0xEE, np.uint8)
    for offset, extent, pointer, strides in local.boxes:
        found[tuple(slice(at, at + count) for at, count in zip(offset, extent))] = fake_core.memory(dtype, extent, pointer, strides)
    return found


def raw(tensor: torch.Tensor) -> np.ndarray:
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().reshape(*tensor.shape, tensor.element_size())


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype_is_taken_as_it_is(dtype: torch.dtype) -> None:  # FC-07
    size = torch.empty(0, dtype=dtype).element_size()
    data = (131 * torch.arange(21 * size) + 5) % (2 if dtype == torch.bool else 256)
    tensor = data.to(torch.uint8).view(dtype).reshape(7, 3)
    tensors.check(tensor, "t")
    assert tensors.dtype_named(tensors.dtype_name(dtype)) == dtype
    assert (whole(tensor, tensors.describe(tensor)) == raw(tensor)).all()


def test_all_dtypes_of_pytorch_are_known_or_refused() -> None:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    other = {tensors.dtype_name(dtype) for dtype in every} - tensors.DTYPES
    assert all(name.startswith(("bits", "qint", "quint", "int", "uint")) for name in other), other


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(4.0).reshape(1, 4).expand(5, 4),
        torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(100.0).reshape(10, 10)[3],
        torch.arange(10.0)[3:9:2],
        torch.tensor(257.0),
        torch.zeros(0),
        torch.zeros(0, 3),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.nn.Parameter(torch.arange(3.0)),
        torch.nn.Buffer(torch.arange(3.0)),
    ],
)
def test_logical_values_count(tensor: torch.Tensor) -> None:  # FC-06
    tensors.check(tensor, "t")
    local = tensors.describe(tensor)
    assert (whole(tensor, local) == raw(tensor.detach())).all()


def test_pointers_are_into_the_tensors_own_memory() -> None:
    tensor = torch.zeros(4)
    (box,) = tensors.describe(tensor).boxes
    fake_core.memory("float32", box[1], box[2], box[3])[0] = np.frombuffer(np.float32(7).tobytes(), np.uint8)
    assert tensor[0] == 7


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.eye(3).to_sparse(), "layout"),
        (torch.eye(3).to_sparse_csr(), "layout"),
        (torch.zeros(3, device="meta"), "meta"),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.strided), "nested"),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), "NestedTensor"),
        (torch.quantize_per_channel(torch.eye(3), torch.ones(3), torch.zeros(3), 0, torch.qint8), "quantized"),
        (torch.nn.LazyLinear(3).weight, "forward"),
        (torch.zeros(3).as_subclass(Subclass), "Subclass"),
        (torch.zeros(8, dtype=torch.uint8).view(torch.bits8), "dtype"),
    ],
)
def test_other_kinds_are_refused_by_name(tensor: torch.Tensor, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"^model\.w: .*{reason}"):
        tensors.check(tensor, "model.w")


def test_tensors_of_transforms_are_refused() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(UnsupportedError, match="transform"):
            tensors.check(x, "x")
        return x

    torch.func.vmap(inside)(torch.zeros(2))
    with torch._subclasses.FakeTensorMode(), pytest.raises(UnsupportedError, match="FakeTensor"):
        tensors.check(torch.zeros(2), "x")


def local_part(full: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], coordinate: Sequence[int]) -> torch.Tensor:
    """What torch itself gives the place at `coordinate`: one split after another."""
    for axis, placement in enumerate(placements):
        if isinstance(placement, (Shard, _StridedShard)):
            pieces, _ = placement._split_tensor(full, mesh.size(axis), with_padding=False, contiguous=True)
            full = pieces[coordinate[axis]]
    return full.contiguous()


PLACEMENTS: list[Any] = [
    [Replicate(), Replicate()],
    [Shard(0), Replicate()],
    [Replicate(), Shard(1)],
    [Shard(0), Shard(0)],
    [Shard(0), Shard(1)],
    [_StridedShard(0, split_factor=4), Shard(0)],
    [_StridedShard(0, split_factor=2), Replicate()],
    [_StridedShard(0, split_factor=4), Shard(1)],
]


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("shape", [(16, 8), (7, 5), (3, 4), (1, 1), (0, 4)])
@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_boxes_of_a_dtensor_show_what_torch_put_there(
    placements: list[Placement], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = DeviceMesh("cpu", torch.arange(8).reshape(2, 4))
    full = torch.arange(shape[0] * shape[1], dtype=torch.int32).reshape(shape)
    seen = np.zeros(shape, bool)
    for rank in range(8):
        coordinate = divmod(rank, 4)
        monkeypatch.setattr(mesh, "get_coordinate", lambda coordinate=coordinate: list(coordinate))
        part = local_part(full, mesh, placements, coordinate)
        tensor = DTensor.from_local(part, mesh, placements, run_check=False, shape=full.shape, stride=full.stride())
        tensors.check(tensor, "t")
        local = tensors.describe(tensor)
        assert local.tensor.data_ptr() == part.data_ptr()
        assert sum(int(np.prod(extent)) for _, extent, _, _ in local.boxes) == part.numel()
        found = whole(tensor, local)
        here = np.zeros(shape, bool)
        for offset, extent, _, _ in local.boxes:
            here[tuple(slice(at, at + count) for at, count in zip(offset, extent))] = True
        assert (found[here] == raw(full)[here]).all()
        seen |= here
    assert seen.all()


@pytest.mark.usefixtures("ranks")
def test_a_rank_outside_the_mesh_holds_nothing() -> None:
    mesh = DeviceMesh("cpu", torch.tensor([4, 5]))
    tensor = DTensor.from_local(torch.zeros(0), mesh, [Shard(0)], run_check=False, shape=torch.Size([6]), stride=(1,))
    tensors.check(tensor, "t")
    assert tensors.describe(tensor).boxes == []


@pytest.mark.usefixtures("ranks")
def test_unfinished_and_unknown_placements_are_refused() -> None:
    mesh = DeviceMesh("cpu", torch.arange(8))
    with pytest.raises(UnsupportedError, match=r"Partial.*redistribute"):
        tensors.check(DTensor.from_local(torch.zeros(3), mesh, [Partial()], run_check=False), "t")

    class OwnPlacement(Shard):
        pass

    tensor = DTensor.from_local(torch.zeros(3), mesh, [Replicate()], run_check=False)
    tensor._spec.placements = (OwnPlacement(0),)
    with pytest.raises(UnsupportedError, match="OwnPlacement"):
        tensors.check(tensor, "t")


@pytest.mark.usefixtures("ranks")
def test_a_new_tensor_lies_like_its_model() -> None:
    mesh = DeviceMesh("cpu", torch.arange(8))
    parameter = torch.nn.Parameter(DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False))
    made = tensors.make_like(parameter, torch.float64)
    assert isinstance(made, DTensor)
    assert (made.placements, made.dtype, made.requires_grad) == (parameter.placements, torch.float64, False)
    assert made._local_tensor.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_identity_tells_views_apart() -> None:
    base = torch.arange(10.0)
    assert tensors.identity(base) == tensors.identity(base[:])
    assert tensors.identity(base[0:6]) != tensors.identity(base[3:9])
    assert tensors.identity(base) != tensors.identity(base.view(2, 5))
    assert tensors.identity(base) != tensors.identity(base.view(torch.int32))
    assert tensors.identity(torch.zeros(0)) is None


def test_writing_is_told_to_autograd() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    tensors.was_written(weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_can_be_filled() -> None:
    assert tensors.is_own(torch.zeros(3, 4).T)
    assert tensors.is_own(torch.zeros(0).expand(5, 0))
    assert not tensors.is_own(torch.zeros(1).expand(5))
    assert tensors.is_lazy(torch.zeros(2, dtype=torch.complex64).conj())
    assert not tensors.is_lazy(torch.zeros(2))
