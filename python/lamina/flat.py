"""Runs of elements: what a rank holds of a tensor that was flattened, put behind others, and cut without regard to its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class FlatPart(torch.Tensor):
    """One run of a tensor's elements in row-major order. It has the whole tensor's shape and dtype; elements are in `local` only.

    Attributes:
        local: the elements of this rank, with one dimension.
        start: how many of the tensor's elements stand before them.
    """

    local: torch.Tensor
    start: int

    @staticmethod
    def __new__(cls, local: torch.Tensor, shape: Sequence[int], start: int) -> FlatPart:
        made: FlatPart = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=local.dtype, device=local.device)
        made.local, made.start = local, start
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FlatPart(shape={tuple(self.shape)}, start={self.start}, local={self.local})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return NotImplemented  # nothing can be computed with it

    def parts(self, local: torch.Tensor) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], torch.Tensor]]:
        """The boxes of the run, offset and extent, and the views of `local`, as large as `self.local`, that hold them."""
        at = 0
        for offset, extent in boxes_of_run(tuple(self.shape), self.start, self.start + local.numel()):
            size = math.prod(extent)
            yield offset, extent, local[at : at + size].view(extent)
            at += size


def boxes_of_run(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offset and extent of the boxes, at most two a dimension, that the elements from `start` to `stop` make up, in their order."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # the rows that are whole
    if first > last:
        yield from _in_row(last, shape, start, stop)
        return
    if start < first * row:
        yield from _in_row(first - 1, shape, start, first * row)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if last * row < stop:
        yield from _in_row(last, shape, last * row, stop)


def _in_row(ordinal: int, shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    before = ordinal * math.prod(shape[1:])
    for offset, extent in boxes_of_run(shape[1:], start - before, stop - before):
        yield (ordinal, *offset), (1, *extent)
