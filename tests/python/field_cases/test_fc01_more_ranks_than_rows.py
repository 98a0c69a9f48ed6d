"""FC-01: an empty shard is an ordinary shard."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fills import blank, ceil_part, check_same, iota, load, raw, save, sharded
from on_ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh

import lamina

WHOLE = {
    "w": iota([6], torch.float32, 0),
    "m": iota([6, 5], torch.bfloat16, 1),
    "b": iota([1, 17], torch.float32, 0),
    "z": torch.zeros(0, 4),
}
SCALAR = torch.tensor(257.0)


def write(root: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    save(root, {**{name: sharded(full, mesh) for name, full in WHOLE.items()}, "s": SCALAR.clone()})


def read(root: Path) -> dict[str, bytes]:
    """The bytes of each part, after a restore into parts that held others."""
    rank, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    state: dict[str, torch.Tensor] = {name: blank(full) for name, full in WHOLE.items()}
    if count > 1:
        mesh = init_device_mesh("cpu", (count,))
        state = {name: sharded(full, mesh) for name, full in state.items()}
    state["s"] = torch.tensor(0.0)
    load(root, state)
    parts = {name: value.to_local() if hasattr(value, "to_local") else value for name, value in state.items()}
    for name, full in WHOLE.items():
        check_same(f"{name} of rank {rank}", parts[name], ceil_part(full, rank, count))
    check_same("s", parts["s"], SCALAR)
    assert [entry.name for entry in lamina.open(root).entries()] == sorted(state)
    return {name: raw(part) for name, part in parts.items()}


@pytest.mark.parametrize(("saving", "loading"), [(4, (1, 2, 3, 4, 7, 8)), (8, (1,))])
def test_fc01_more_ranks_than_rows(tmp_path: Path, saving: int, loading: tuple[int, ...]) -> None:
    on_ranks(saving, write, tmp_path)
    for count in loading:
        parts = on_ranks(count, read, tmp_path)
        for name, full in WHOLE.items():
            assert b"".join(part[name] for part in parts) == raw(full), f"{name} at {count}"
