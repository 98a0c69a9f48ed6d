"""Tensors of all dtypes and odd shapes, from each of eight meshes and placements to each other one: the bits of gather-then-slice."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from lamina import _core
from lamina.tensors import DTYPES, TensorArg

TENSORS = 200
EDGES = ((), (0,), (1,), (2, 0, 3), (1, 1, 1), (0, 0))
SIZES = (1, 1, 2, 3, 5, 7, 11, 13)
BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}

Placement: TypeAlias = tuple[str, int, int] | None
Shape: TypeAlias = tuple[int, ...]
WHOLE: Placement = None


def rows(dim: int) -> Placement:
    return ("shard", dim, 1)


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, and how tensors of enough dimensions lie on it; a dimension that a tensor lacks stands for its last one."""

    mesh: Shape
    placements: tuple[Placement, ...]

    def of(self, shape: Shape) -> tuple[Placement, ...]:
        if not shape:
            return (WHOLE,) * len(self.mesh)
        return tuple(each and (each[0], min(each[1], len(shape) - 1), each[2]) for each in self.placements)

    def coordinates(self) -> list[Shape]:
        return list(np.ndindex(*self.mesh))


LAYOUTS = {
    "one rank": Layout((1,), (WHOLE,)),
    "rows": Layout((4,), (rows(0),)),
    "columns": Layout((3,), (rows(1),)),
    "two dimensions": Layout((2, 2), (rows(0), rows(1))),
    "rows, replicated": Layout((2, 2), (WHOLE, rows(0))),
    "data inside tensor parallelism": Layout((2, 2), (("strided_shard", 0, 2), rows(0))),
    "more ranks than rows": Layout((6,), (rows(0),)),
    "strided beside columns": Layout((2, 3), (("strided_shard", 0, 3), rows(1))),
}


@dataclasses.dataclass(frozen=True)
class Whole:
    """A tensor as all ranks together hold it; elements are opaque bytes."""

    name: str
    dtype: str
    values: np.ndarray


def bytes_of(dtype: str) -> int:
    if dtype == "bool" or dtype.startswith(("float8", "float4")):
        return 1
    return BYTES[dtype.lstrip("abcdefghijklmnopqrstuvwxyz")]


def make_tensors() -> list[Whole]:
    chance, dtypes = np.random.default_rng(3), sorted(DTYPES)
    made = []
    for number in range(TENSORS):
        shape = EDGES[number] if number < len(EDGES) else tuple(chance.choice(SIZES, chance.integers(1, 6)).tolist())
        dtype = dtypes[number % len(dtypes)]
        size = bytes_of(dtype)
        raw = chance.bytes(int(np.prod(shape)) * size)
        made.append(Whole(f"t{number}", dtype, np.frombuffer(raw, f"V{size}").reshape(shape)))
    return made


class Store:
    """What the ranks of one job agree through: a map, with one thread a rank that serves it as the job's store would be."""

    def __init__(self, ranks: int) -> None:
        self.queues = [_core.StoreQueue() if ranks > 1 else None for _ in range(ranks)]
        self._map: dict[str, bytes] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=(queue,)) for queue in self.queues if queue]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for queue in self.queues:
            if queue:
                queue.close()
        for thread in self._threads:
            thread.join()

    def _serve(self, queue: _core.StoreQueue) -> None:
        while not self._stop.is_set():
            if (request := queue.next(1.0)) is None:
                continue
            number, operation, key, value = request
            if operation == "set":
                self._map[key] = value
            elif operation == "delete":
                self._map.pop(key, None)
            found = self._map.get(key) if operation in ("get", "check") else b""
            queue.reply(number, "absent" if found is None else "ok", found)


def on_all_ranks(layout: Layout, root: Path, mode: str, work: Callable[[_core.Engine, Shape], Any]) -> list[Any]:
    """work(engine, coordinate) on a thread a rank; what each returns."""
    places = layout.coordinates()
    store = Store(len(places))

    def run(rank: int) -> Any:
        options = {
            "root": str(root),
            "mode": mode,
            "rank": rank,
            "rank_count": len(places),
            "coordination_prefix": "job",
            "memory_bytes": 1 << 24,
        }
        engine = _core.Engine(options, store.queues[rank])
        try:
            return work(engine, places[rank])
        finally:
            engine.close(None)

    try:
        with ThreadPoolExecutor(len(places)) as threads:
            return list(threads.map(run, range(len(places))))
    finally:
        store.close()


@dataclasses.dataclass
class Part:
    """One box of a tensor: where it lies, and a rank's memory for it."""

    whole: Whole
    at: tuple[slice, ...]
    memory: np.ndarray


def parts_of(tensors: list[Whole], layout: Layout, place: Shape) -> Iterator[tuple[TensorArg, list[Part]]]:
    """What the core gets for each tensor, and memory of various strides with another content than the tensor's."""
    for number, whole in enumerate(tensors):
        shape, size = whole.values.shape, whole.values.itemsize
        parts, boxes = [], []
        for offset, extent in _core.boxes_of(shape, layout.mesh, place, layout.of(shape)):
            backwards = np.full(extent[::-1], b"\xa5" * size, whole.values.dtype).T
            memory = backwards if number % 3 == 0 else np.ascontiguousarray(backwards).reshape(extent)
            if number % 3 == 1 and extent:
                memory = np.repeat(memory, 2, axis=-1)[..., ::2]  # with gaps
            parts.append(Part(whole, tuple(slice(at, at + count) for at, count in zip(offset, extent)), memory))
            boxes.append((offset, extent, memory.__array_interface__["data"][0], tuple(stride // size for stride in memory.strides)))
        yield (whole.name, whole.dtype, shape, boxes, "", False), parts


def save(tensors: list[Whole], layout: Layout, root: Path) -> None:
    def work(engine: _core.Engine, place: Shape) -> str:
        described = list(parts_of(tensors, layout, place))
        for part in (part for _, parts in described for part in parts):
            part.memory[...] = part.whole.values[part.at]
        ticket = engine.save(7, [arg for arg, _ in described], {"tree": b"t"}, [("m", layout.mesh[0])])
        return str(ticket.wait(None)["outcome"])

    assert set(on_all_ranks(layout, root, "train", work)) == {"committed"}


def restore(tensors: list[Whole], layout: Layout, root: Path) -> int:
    """How many boxes were filled with the right bits."""

    def work(engine: _core.Engine, place: Shape) -> int:
        session = engine.begin_restore(None)
        assert (session.found, session.step) == (True, 7)
        described = list(parts_of(tensors, layout, place))
        assert session.fill([arg for arg, _ in described])
        filled = [part for _, parts in described for part in parts]
        for part in filled:
            assert part.memory.tobytes() == part.whole.values[part.at].tobytes(), (part.whole.name, part.whole.dtype, part.at)
        return len(filled)

    return sum(on_all_ranks(layout, root, "read", work))


@pytest.fixture(scope="module")
def tensors() -> list[Whole]:
    return make_tensors()


@pytest.fixture(scope="module")
def roots(tensors: list[Whole], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tensors, saved once from each layout."""
    made = {name: tmp_path_factory.mktemp("reshard") / "root" for name in LAYOUTS}
    for name, root in made.items():
        save(tensors, LAYOUTS[name], root)
    return made


@pytest.mark.parametrize("target", LAYOUTS)
def test_bits_are_those_of_gather_then_slice_from_every_layout_to(target: str, tensors: list[Whole], roots: dict[str, Path]) -> None:
    assert {whole.dtype for whole in tensors} == DTYPES
    for root in roots.values():
        assert restore(tensors, LAYOUTS[target], root) >= len(tensors) * len(LAYOUTS[target].coordinates())
