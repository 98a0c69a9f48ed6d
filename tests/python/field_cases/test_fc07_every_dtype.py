"""FC-07: all dtypes go through as raw bytes; what cannot is refused by name when the state is handed in."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fills import bits, blank, ceil_part, check_same, load, save, sharded
from on_ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh

import lamina

NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
    "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex32 complex64 complex128"
)
DTYPES = [getattr(torch, name) for name in NAMES.split() if hasattr(torch, name)]
PATTERNS = {
    "float32 patterns": torch.tensor([0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001], dtype=torch.uint32).view(torch.float32),
    "bfloat16 patterns": torch.tensor([0x7FC1, 0x8000], dtype=torch.uint16).view(torch.bfloat16),
}
WHOLE = {**{str(dtype): bits([7, 3], dtype, 5) for dtype in DTYPES}, **PATTERNS}


def write(root: Path) -> None:
    if not dist.is_initialized():
        save(root, {name: full.clone() for name, full in WHOLE.items()})
        return
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {name: sharded(full, mesh) for name, full in WHOLE.items()}
    assert len(state["torch.bool"].to_local()) == (3, 3, 1)[dist.get_rank()]
    save(root, state)


def read(root: Path) -> None:
    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,))
    state = {name: sharded(blank(full), mesh) for name, full in WHOLE.items()}
    load(root, state)
    for name, full in WHOLE.items():
        check_same(name, state[name].to_local(), ceil_part(full, rank, count))


@pytest.mark.parametrize("saving", [1, 3])
def test_fc07_every_dtype(tmp_path: Path, saving: int) -> None:
    assert len(DTYPES) >= 15
    on_ranks(saving, write, tmp_path)
    on_ranks(2, read, tmp_path)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_fc07_a_quantised_tensor_is_refused_by_name(tmp_path: Path) -> None:
    scales, zero_points = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
    codes = torch.quantize_per_channel(torch.ones(3, 2), scales, zero_points, 0, torch.qint8)
    with lamina.Checkpointer(tmp_path) as ckpt:
        with pytest.raises(lamina.UnsupportedError, match=r"model\.codes: quantized.*scales and zero points"):
            ckpt.save(0, {"model": {"codes": codes}})
        parts = {"codes": codes.int_repr(), "scales": codes.q_per_channel_scales(), "zeros": codes.q_per_channel_zero_points()}
        ckpt.save(0, {"model": {**parts, "axis": codes.q_per_channel_axis()}}).wait()
        state = {"model": {**{name: blank(part) for name, part in parts.items()}, "axis": -1}}
        ckpt.restore(state)
    for name, part in parts.items():
        check_same(name, state["model"][name], part)
    assert state["model"]["axis"] == 0
