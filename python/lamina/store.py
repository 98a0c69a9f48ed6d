"""`lamina.open`: the steps of a root, read by one process, without torch.distributed and even without PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from lamina import _core
from lamina.difference import Difference, compare
from lamina.errors import NotFoundError
from lamina.mismatch import nearest
from lamina.options import root_path

logger = logging.getLogger("lamina")

# What holds the bits of dtypes that NumPy lacks.
_BITS: Final = {"bfloat16": "uint16", "complex32": "uint32", "float4_e2m1fn_x2": "uint8"} | {
    f"float8_{kind}": "uint8" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
}


class RawArray(np.ndarray[Any, np.dtype[Any]]):
    """Elements of a dtype that NumPy does not have, as unsigned integers that hold their bits: of 2 bytes for bfloat16, 4 for complex32, 1
    for the others. Arithmetic on them means nothing before they are viewed as what they are, such as `found.view(ml_dtypes.bfloat16)`.

    Attributes:
        dtype_name: what they are, as in `EntryInfo.dtype`.
    """

    dtype_name: str = ""

    def __array_finalize__(self, source: Any) -> None:
        self.dtype_name = getattr(source, "dtype_name", "")


@dataclasses.dataclass(frozen=True)
class EntryInfo:
    """One named tensor of a step.

    Attributes:
        name: its path as text.
        dtype: without "torch.".
        shape: of the global tensor.
        alias_of: the entry that it shares memory with; empty when it stands for itself.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    alias_of: str = ""


@dataclasses.dataclass(frozen=True)
class OpenStep:
    """A step that is being read. Made by `Store.reading`.

    Attributes:
        step: its number.
        entries: by name, in the order of names.
        read: the bytes of the elements of an entry, row-major.
        blobs: name, rank and text of each blob of plain values.
    """

    step: int
    entries: dict[str, EntryInfo]
    read: Callable[[str], bytearray]
    blobs: Callable[[], list[tuple[str, int, bytes]]]


class Store:
    """A root, for reading. Made by `lamina.open`.

    Raises:
        NotFoundError: there is no root at that path.
        InvalidArgumentError: the path is empty.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)
        self._core = _core.Store(root_path(root))
        self._warned = ""

    @property
    def id(self) -> str:
        """The random name that the store got when it was made, as LAMINA_EXPECT_STORE takes it."""
        return self._core.id()

    def steps(self, all: bool = False) -> list[dict[str, Any]]:
        """The steps of the line, newest first; with `all`, abandoned ones too. Each is a dict with "step" and what the log tells of it.

        When the log's newest record is damaged the line is that of the record before, and a warning says so.
        """
        self._warn()
        return self._core.steps(all)

    def latest(self) -> int | None:
        """The newest step; None when there is none."""
        steps = self.steps()
        return int(steps[0]["step"]) if steps else None

    def entries(self, step: int | None = None) -> list[EntryInfo]:
        """The named tensors of a step (default: the newest), in the order of their names."""
        with self.reading(step) as opened:
            return list(opened.entries.values())

    def load(self, step: int | None = None, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Whole tensors by name, in memory of their own; entries that are aliases of one another share it.

        Args:
            step: which one. Default: the newest.
            names: which entries. Default: all.

        Returns:
            PyTorch tensors; NumPy arrays when PyTorch is not installed, of class `RawArray` where NumPy does not have the dtype.

        Raises:
            NotFoundError: no such step or entry; gives the nearest name. Or the step was dropped while it was read, which happens only to
                readers that may not write to the root and take longer than `gc_grace_s`.
        """
        make = _torch_tensor if importlib.util.find_spec("torch") else _numpy_array
        with self.reading(step) as opened:
            wanted = list(opened.entries) if names is None else list(names)
            for name in wanted:
                if name not in opened.entries:
                    like = nearest(name, opened.entries)
                    raise NotFoundError(f"step {opened.step} has no entry {name!r}" + (f"; did you mean {like!r}?" if like else ""))
            found: dict[str, Any] = {}
            for name in wanted:
                memory = opened.entries[name].alias_of or name
                if memory not in found:
                    found[memory] = make(opened.read(memory), opened.entries[memory])
            return {name: found[opened.entries[name].alias_of or name] for name in wanted}

    def verify(self, step: int | Sequence[int] | None = None, full: bool = True) -> dict[str, Any]:
        """Checks a step (default: the whole root, abandoned steps included).

        Args:
            step: which one, or several in one go.
            full: whether to read all bytes, or only what describes them.

        Returns:
            A dict with "ok"; "problems", a list of dicts with "file", "entry", "chunk" and "message"; and how many "steps", "chunks" and
            "bytes" were checked.
        """
        return self._core.verify([step] if isinstance(step, int) else step, full)

    def stat(self, step: int | None = None) -> dict[str, Any]:
        """What a step (default: the newest) holds: counts of entries and bytes by dtype; what is shared counts once."""
        with self.reading(step) as opened:
            entries = [entry for entry in opened.entries.values() if not entry.alias_of]
        sizes: dict[str, int] = {}
        for entry in entries:
            sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry_bytes(entry)
        return {"step": opened.step, "entry_count": len(entries), "bytes": sum(sizes.values()), "bytes_by_dtype": sizes}

    def diff(self, a: int, b: int) -> Difference:
        """What differs between step `a` and step `b`, to the bit; reads both wholly, an entry at a time.

        Raises:
            NotFoundError: no such step.
        """
        return compare(self, a, Store(self.root), b)

    @contextlib.contextmanager
    def reading(self, step: int | None = None) -> Iterator[OpenStep]:
        """A step (default: the newest) as long as it is read: only so long is it registered as being read, so that a Store that is merely
        kept holds nothing up."""
        self._warn()
        try:
            found = self._core.catalog(step)
            at = found["step"]
            entries = [EntryInfo(name, dtype, tuple(shape), alias_of) for name, dtype, shape, alias_of in found["tensors"]]
            by_name = {entry.name: entry for entry in sorted(entries, key=lambda each: each.name)}
            yield OpenStep(at, by_name, functools.partial(self._core.read_tensor, at), functools.partial(self._core.read_blobs, at))
            if cause := self._core.unprotected():
                logger.warning("%s: gc_grace_s alone kept step %d from deletion while it was read: %s", self.root, at, cause)
        finally:
            self._core.close_step()

    def _warn(self) -> None:
        """Says, once, that the newest record of the log is damaged."""
        if (warning := self._core.passed_over()) and warning != self._warned:
            self._warned = warning
            logger.warning("%s: %s", self.root, warning)


def open(root: str | os.PathLike[str]) -> Store:
    """Opens a root for reading.

    Args:
        root: what `Checkpointer` was given.
    """
    return Store(root)


_ELEMENT_BYTES: Final = {"bool": 1, "bfloat16": 2, "complex32": 4, "complex64": 8, "complex128": 16, "float4_e2m1fn_x2": 1}


def entry_bytes(entry: EntryInfo) -> int:
    """The bytes of an entry's elements."""
    digits = "".join(filter(str.isdigit, entry.dtype.split("_")[0]))
    element = _ELEMENT_BYTES.get(entry.dtype) or int(digits) // 8
    count = 1
    for extent in entry.shape:
        count *= extent
    return count * element


def _torch_tensor(data: bytearray, entry: EntryInfo) -> Any:
    import torch

    from lamina.tensors import dtype_named

    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype_named(entry.dtype)).reshape(entry.shape)


def _numpy_array(data: bytearray, entry: EntryInfo) -> Any:
    found = np.frombuffer(data, dtype=_BITS.get(entry.dtype, entry.dtype)).reshape(entry.shape)
    if entry.dtype not in _BITS:
        return found
    raw = found.view(RawArray)
    raw.dtype_name = entry.dtype
    return raw
