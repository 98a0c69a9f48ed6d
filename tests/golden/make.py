"""Writes golden roots with the Lamina of this tree, and beside them what must be found in them: python tests/golden/make.py tests/golden/v0

What must be found is told from the fills, by hashlib, before anything is written: it goes through no reader. The log tells the name of the
machine: `unshare --uts sh -c 'hostname localhost; ...'` gives it one that says nothing.
"""

import collections
import hashlib
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
from on_ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import lamina

DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
)
ELEMENT_BYTES = {name: getattr(torch, name).itemsize for name in DTYPES.split()}
Entry = tuple[str, tuple[int, ...], int]  # dtype, shape, first byte

EVERY_DTYPE: dict[str, Entry] = {name: (name, (3, 5), 7) for name in DTYPES.split()}
SHAPES: dict[str, Entry] = {
    "scalar": ("float32", (), 1),
    "no_rows": ("float32", (0, 4), 0),
    "chunks": ("uint8", (2, 131073), 3),
    "five": ("int16", (2, 1, 3, 1, 2), 4),
}
SHARDED: dict[str, Entry] = {
    "rows": ("float32", (10, 3), 1),
    "blocks": ("bfloat16", (5, 7), 2),
    "columns": ("int32", (4, 6), 3),
    "copies": ("float64", (3,), 4),
    "plain": ("uint8", (9,), 5),
}
PLACEMENTS = {"rows": [Shard(0), Shard(0)], "blocks": [Shard(0), Shard(1)], "columns": [Replicate(), Shard(1)], "copies": [Replicate()] * 2}


def data(entry: Entry) -> bytes:
    """Byte j is (131 j + first) mod 256; of a bool, j mod 2."""
    dtype, shape, first = entry
    places = range(math.prod(shape) * ELEMENT_BYTES[dtype])
    return bytes(j % 2 if dtype == "bool" else (131 * j + first) % 256 for j in places)


def tensor(entry: Entry) -> torch.Tensor:
    raw = torch.frombuffer(bytearray(data(entry)) or bytearray(1), dtype=torch.uint8)
    return raw[: len(data(entry))].view(getattr(torch, entry[0])).reshape(entry[1]).clone()


def values() -> dict[str, Any]:
    """Plain values of all kinds."""
    return {
        "none": None,
        "yes": True,
        "int": 7,
        "long": -(2**70),
        "longer": 1 << 9000,
        "float": 0.1,
        "minus zero": -0.0,
        "inf": -math.inf,
        "text": 'a"b\\c\n层',
        "bytes": b"\x00\xff",
        "list": [1, [2.5, "x"], {}],
        "tuple": (1, (2,)),
        "set": {3, 1, 2},
        "frozen": frozenset("ab"),
        "keys": {1: "int", "1": "str", 1.5: "float", False: "bool", None: "none", (1, "a"): "tuple"},
        "ordered": collections.OrderedDict(b=1, a=2),
        "counter": collections.Counter("abca"),
        "array": np.arange(6, dtype="<i2").reshape(2, 3),
        "number": np.float32(1.5),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
    }


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A linear layer and an Adam whose moments are fills."""
    model = torch.nn.Linear(3, 2)
    optim = torch.optim.Adam(model.parameters(), lr=0.25)
    with torch.no_grad():
        for at, parameter in enumerate(model.parameters()):
            entry: Entry = ("float32", tuple(parameter.shape), 10 * at)
            parameter.copy_(tensor(entry))
            optim.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": tensor(entry) * 0, "exp_avg_sq": torch.ones_like(parameter)}
    return model, optim


def one_rank_state() -> dict[str, Any]:
    entries = {name: tensor(entry) for name, entry in {**EVERY_DTYPE, **SHAPES}.items()}
    model, optim = model_and_optimizer()
    odd = {"a.b": tensor(("uint8", (1,), 1)), "../../x": tensor(("uint8", (2,), 2)), "层\n": [tensor(("uint8", (3,), 3))]}
    return {**entries, "tied": entries["float32"], "values": values(), "names": odd, "model": model, "optim": optim}


def one_rank(root: Path) -> None:
    """One rank: every dtype, shapes, an alias, names, plain values, a module and its optimizer."""
    with lamina.Checkpointer(root, run_id="golden") as ckpt:
        ckpt.save(5, one_rank_state(), metadata={"note": "golden", "loss": math.nan}).wait()


def four_ranks_state() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    cut = {name: distribute_tensor(tensor(entry), mesh, PLACEMENTS[name]) for name, entry in SHARDED.items() if name in PLACEMENTS}
    rank = dist.get_rank()
    return {**cut, "plain": tensor(SHARDED["plain"]), "data": lamina.PerRank({"position": 220 + rank}), "rng": lamina.Rng(seed=1)}


def save_four_ranks(root: Path) -> None:
    with lamina.Checkpointer(root, run_id="golden") as ckpt:
        ckpt.save(8, four_ranks_state()).wait()


def four_ranks(root: Path) -> None:
    """Four ranks, a mesh of 2 × 2: rows, blocks, columns held twice, copies, values of each rank."""
    on_ranks(4, save_four_ranks, root)


LINE = {step: ("float32", (4, 4), step) for step in (1, 2, 3, 4, 12)}


def line(root: Path) -> None:
    """Steps 1 to 3, back to 1, step 2 anew and then once more in its own place, a save that is aborted, step 4."""

    def run(*steps: int, first: int | None = None) -> None:
        with lamina.Checkpointer(root, run_id="golden") as ckpt:
            ckpt.restore({"w": tensor(LINE[1])}, step=first)
            for step in steps:
                ckpt.save(step % 10, {"w": tensor(LINE[step])}).wait()

    run(1, 2, 3)
    run(2, first=1)
    run(12)
    fail_a_save(root)
    run(4)


def fail_a_save(root: Path) -> None:
    faults = lamina._core.testing.FaultEnv()
    with lamina.Checkpointer(root, run_id="golden", options={"env": faults}) as ckpt:
        ckpt.restore({"w": tensor(LINE[1])})
        faults.fail("sync", 5, "00000.pack")
        handle = ckpt.save(3, {"w": tensor(LINE[3])})
        assert isinstance(handle.exception(), lamina.UnavailableError)


def expected() -> dict[str, Any]:
    """By root: the line, newest first, and of each step the tensors as [dtype, shape, SHA-256 of the bytes]."""
    single = {**EVERY_DTYPE, **SHAPES, "tied": EVERY_DTYPE["float32"]}
    odd = {'names."a.b"': 1, 'names."../../x"': 2, 'names."层\\n"[0]': 3}
    single |= {name: ("uint8", (size,), size) for name, size in odd.items()}
    steps: dict[str, dict[int, dict[str, Entry]]] = {
        "one_rank": {5: single},
        "four_ranks": {8: SHARDED},
        "line": {4: {"w": LINE[4]}, 2: {"w": LINE[12]}, 1: {"w": LINE[1]}},
    }
    return {root: {str(step): {name: told(entry) for name, entry in of.items()} for step, of in by.items()} for root, by in steps.items()}


def told(entry: Entry) -> list[Any]:
    return [entry[0], list(entry[1]), hashlib.sha256(data(entry)).hexdigest()]


def main(folder: Path) -> None:
    folder.mkdir()
    text = json.dumps(expected(), indent=1, ensure_ascii=False)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
    for write in (one_rank, four_ranks, line):
        root = folder / write.__name__
        write(root)
        for name in ("writers", "readers", "probe"):
            shutil.rmtree(root / name, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
