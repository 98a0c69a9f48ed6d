"""What differs between two steps: entries that only one has, other shapes and dtypes, elements whose bits are not the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lamina.store import OpenStep, Store


@dataclasses.dataclass(frozen=True)
class ChangedEntry:
    """An entry that both steps have, and that is not the same.

    Attributes:
        name: its path as text.
        what: "dtype", "shape", "values" or "alias".
        before: the dtype, the shape or what it is an alias of; for values how many elements there are.
        after: likewise; for values how many of them differ.
    """

    name: str
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        if self.what == "values":
            return f"{self.after} of {self.before} elements differ"
        return f"{self.what} {self.before or 'none'} became {self.after or 'none'}"


@dataclasses.dataclass(frozen=True)
class Difference:
    """What `Store.diff` found.

    Attributes:
        removed: names that only the first step has.
        added: names that only the second one has.
        changed: in the order of names.
        values: which plain values differ: "tree" (those of the state), "metadata", "place" (those that belong to ranks).
        same: how many entries are the same to the bit.
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[ChangedEntry, ...]
    values: tuple[str, ...]
    same: int

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.removed or self.added or self.changed or self.values)


def compare(
    first: Store, before: int | None, second: Store, after: int | None, each: Callable[[list[str]], Iterable[str]] = iter
) -> Difference:
    """Compares a step of one root with one of another or the same, an entry at a time; reads both wholly.

    Args:
        first: where the earlier one is.
        before: its number. Default None: the newest.
        second: where the later one is; another object, even of the same root.
        after: its number. Default None: the newest.
        each: goes through the names that both have; may tell of its progress.

    Raises:
        NotFoundError: no such step.
        CorruptionError: bytes are damaged.
    """
    with first.reading(before) as old, second.reading(after) as new:
        both = [name for name in old.entries if name in new.entries]
        changed = [found for name in each(both) if (found := _changed(name, old, new)) is not None]
        return Difference(
            removed=tuple(name for name in old.entries if name not in new.entries),
            added=tuple(name for name in new.entries if name not in old.entries),
            changed=tuple(changed),
            values=_unlike(old.blobs(), new.blobs()),
            same=len(both) - len(changed),
        )


def _changed(name: str, before: OpenStep, after: OpenStep) -> ChangedEntry | None:
    old, new = before.entries[name], after.entries[name]
    for what in ("dtype", "shape", "alias_of"):
        if getattr(old, what) != getattr(new, what):
            return ChangedEntry(name, what.removesuffix("_of"), str(getattr(old, what)), str(getattr(new, what)))
    count = math.prod(old.shape)
    if old.alias_of or not count:  # the entry that it stands for is compared
        return None
    rows = [np.frombuffer(step.read(name), np.uint8).reshape(count, -1) for step in (before, after)]
    differ = int(np.count_nonzero((rows[0] != rows[1]).any(axis=1)))
    return ChangedEntry(name, "values", str(count), str(differ)) if differ else None


def _unlike(before: Iterable[tuple[str, int, bytes]], after: Iterable[tuple[str, int, bytes]]) -> tuple[str, ...]:
    """Names of blobs that are not the same on all ranks."""
    old, new = ({(name, rank): text for name, rank, text in blobs} for blobs in (before, after))
    return tuple(sorted({key[0] for key in old.keys() | new.keys() if old.get(key) != new.get(key)}))
