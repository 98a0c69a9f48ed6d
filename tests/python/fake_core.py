"""The core as these tests need it: in memory, one process, obvious. Where the extension is not built, it stands in at import too."""

import ctypes
import itertools
import queue
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

ELEMENT_BYTES = {"bool": 1, "uint8": 1, "int8": 1, "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16}
Steps = dict[int, dict[str, Any]]
roots: dict[str, Steps] = {}


def element_bytes(dtype: str) -> int:
    if dtype in ELEMENT_BYTES:
        return ELEMENT_BYTES[dtype]
    return 1 if dtype.startswith(("float8", "float4")) else 2 if "16" in dtype else 4


def boxes_of(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[tuple[str, int, int]],
    local_shape: Any = None,
) -> list[Any]:
    """Splits lists of indices as torch splits tensors, then reads the runs off."""
    rows = [list(range(size)) for size in shape]
    for (kind, dim, factor), count, at in zip(placements, mesh, coordinate):
        if kind == "replicate":
            continue
        pieces = _chunks(rows[dim], factor) if kind == "strided_shard" else [rows[dim]]
        rows[dim] = list(itertools.chain.from_iterable(_chunks(piece, count)[at] for piece in pieces))
    runs = [_runs(each) for each in rows]
    if not all(runs):
        return [((0,) * len(shape), tuple(map(len, rows)))]
    return [tuple(zip(*grid)) if grid else ((), ()) for grid in itertools.product(*runs)]


def _chunks(rows: list[int], count: int) -> list[list[int]]:
    length = -(-len(rows) // count)
    return [rows[at * length : (at + 1) * length] for at in range(count)]


def _runs(rows: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs


def memory(dtype: str, extent: Sequence[int], pointer: int, strides: Sequence[int]) -> np.ndarray:
    """The bytes of a box where they lie: one more dimension than the box."""
    size = element_bytes(dtype)
    if 0 in extent:
        return np.zeros((*extent, size), np.uint8)
    span = 1 + sum((count - 1) * stride for count, stride in zip(extent, strides))
    flat = np.frombuffer((ctypes.c_ubyte * (span * size)).from_address(pointer), np.uint8)
    return np.lib.stride_tricks.as_strided(flat, (*extent, size), (*(stride * size for stride in strides), 1))


def _slices(offset: Sequence[int], extent: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + count) for begin, count in zip(offset, extent))


class StoreQueue:
    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[tuple[int, str, str, bytes] | None] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[tuple[int, str, bytes | None]] = queue.SimpleQueue()

    def next(self, timeout_s: float) -> tuple[int, str, str, bytes] | None:
        try:
            return self.requests.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def reply(self, number: int, status: str, value: bytes | None) -> None:
        self.replies.put((number, status, value))

    def close(self) -> None:
        self.requests.put(None)


class SaveTicket:
    def __init__(self, fields: dict[str, Any], error: Exception | None) -> None:
        self.fields, self.error = fields, error

    def wait(self, timeout_s: float | None) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return self.fields

    def done(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return self.error


class Engine:
    """Fails the saves of the steps in `faults` with the error given there."""

    faults: dict[int, Exception] = {}  # noqa: RUF012  # set by tests

    def __init__(self, options: Mapping[str, Any], coordinator: StoreQueue | None, asked: Sequence[str] = ()) -> None:
        self.options = options
        self.steps = roots.setdefault(str(options["root"]), {})
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.closed_with: list[float | None] = []

    def save(
        self,
        step: int,
        tensors: Sequence[Any],
        blobs: Mapping[str, bytes],
        topology: Sequence[tuple[str, int]],
        refused: tuple[str, str] | None = None,
    ) -> SaveTicket:
        assert refused is None
        if step in self.faults:
            return SaveTicket({}, self.faults[step])
        rank = self.options["rank"]
        if rank == 0:  # comes first here, and makes the step anew
            self.steps[step] = {"tensors": {}, "blobs": [], "topology": topology, "ranks": 0}
        record = self.steps[step]
        record["ranks"] += 1
        record["blobs"] += [(name, rank, bytes(text)) for name, text in blobs.items() if name == "place" or rank == 0]
        for name, dtype, shape, boxes, alias_of, _ in tensors:
            stored = np.zeros((*shape, element_bytes(dtype)), np.uint8)
            kept = record["tensors"].setdefault(name, (dtype, tuple(shape), alias_of, stored))[3]
            for offset, extent, pointer, strides in boxes:
                kept[_slices(offset, extent)] = memory(dtype, extent, pointer, strides)
        written = sum(stored.nbytes for _, _, alias_of, stored in record["tensors"].values() if not alias_of)
        return SaveTicket({"step": step, "outcome": "committed", "written_bytes": written, "total": {"written_bytes": written}}, None)

    def begin_restore(self, step: int | None) -> "RestoreSession":
        return RestoreSession(self.steps, max(self.steps, default=None) if step is None else step)

    def close(self, grace_s: float | None) -> None:
        self.closed_with.append(grace_s)
        self.events.put(None)

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if event is None:
            raise StopIteration
        return event

    def next_question(self, hook: int, timeout_s: float) -> None:
        raise StopIteration

    def answer(self, hook: int, refusal: str | None) -> None: ...


class RestoreSession:
    """Finds the steps in `damaged` only when it fills."""

    damaged: set[int] = set()  # noqa: RUF012  # set by tests

    def __init__(self, steps: Steps, step: int | None) -> None:
        self.steps, self.found = steps, step is not None
        self.step = -1 if step is None else step

    @property
    def record(self) -> dict[str, Any]:
        return self.steps[self.step]

    @property
    def rank_count(self) -> int:
        return int(self.record["ranks"])

    @property
    def topology(self) -> list[tuple[str, int]]:
        return list(self.record["topology"])

    @property
    def line(self) -> list[int]:
        return sorted((step for step in self.steps if step <= self.step), reverse=True)

    def passed_over(self) -> list[tuple[int, str]]:
        return [(step, "damaged") for step in sorted(self.steps, reverse=True) if step > self.step and step in self.damaged]

    def tensors(self) -> list[Any]:
        return [(name, dtype, shape, alias_of) for name, (dtype, shape, alias_of, _) in sorted(self.record["tensors"].items())]

    def blobs(self) -> list[tuple[str, int, bytes]]:
        return list(self.record["blobs"])

    def holds(self, name: str) -> bool:
        return name in self.record["tensors"]

    def fill(self, targets: Sequence[Any]) -> bool:
        if self.step in self.damaged:
            self.step = self.line[1]
            return False
        for name, dtype, _, boxes, _, _ in targets:
            stored = self.record["tensors"][name][3]
            for offset, extent, pointer, strides in boxes:
                memory(dtype, extent, pointer, strides)[...] = stored[_slices(offset, extent)]
        return True

    def end(self) -> None: ...

    def fail(self, error_class_name: str, message: str) -> None:
        import lamina

        raise getattr(lamina, error_class_name)(message)


class Store:
    def __init__(self, root: str) -> None:
        self._steps = roots.setdefault(root, {})

    def id(self) -> str:
        return "fake"

    def steps(self, all: bool) -> list[dict[str, Any]]:
        facts = {"committed_ns": 10**18, "state_bytes": 2_500_000, "stored_bytes": 999, "on_line": True, "pinned": False}
        return [{"step": step, **facts, "is_head": step == max(self._steps)} for step in sorted(self._steps, reverse=True)]

    def unprotected(self) -> str:
        return ""

    def passed_over(self) -> str:
        return ""

    def catalog(self, step: int | None) -> dict[str, Any]:
        if not self._steps:
            import lamina

            raise lamina.NotFoundError("the root holds no step yet")
        step = max(self._steps) if step is None else step
        return {"step": step, "tensors": RestoreSession(self._steps, step).tensors()}

    def read_tensor(self, step: int, name: str) -> bytearray:
        return bytearray(self._steps[step]["tensors"][name][3].tobytes())

    def read_blobs(self, step: int) -> list[tuple[str, int, bytes]]:
        return list(self._steps[step]["blobs"])

    def close_step(self) -> None: ...

    def verify(self, steps: Sequence[int] | None, full: bool) -> dict[str, Any]:
        damaged = RestoreSession.damaged & set(steps or ())
        bad = [{"file": "00000.pack", "entry": "w", "chunk": 3, "message": "checksum wrong"}] if damaged else []
        return {"ok": not bad, "problems": bad}


def exit_as_failed() -> None:
    from lamina import _core

    _core.exit_as_failed()


_fake = types.ModuleType("lamina._core")
_fake.__dict__.update({each.__name__: each for each in (boxes_of, StoreQueue, SaveTicket, Engine, RestoreSession, Store, exit_as_failed)})
try:
    import lamina._core
except ImportError:
    import lamina

    sys.modules["lamina._core"] = _fake
    lamina._core = _fake


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives this test an empty fake core in place of the real one."""
    import lamina.runtime
    import lamina.store
    import lamina.store_coordinator

    for module in (lamina.runtime, lamina.store, lamina.store_coordinator):
        monkeypatch.setattr(module, "_core", _fake)
    monkeypatch.setattr(Engine, "faults", {})
    monkeypatch.setattr(RestoreSession, "damaged", set())
    roots.clear()
