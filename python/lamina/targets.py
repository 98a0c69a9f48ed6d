"""The tensors that a restore fills: which saved entry goes into which memory, and what does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from lamina import tensors
from lamina.mismatch import Problems


@dataclasses.dataclass(frozen=True)
class Saved:
    """One entry of the checkpoint, by the name it has there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    alias_of: str


class Targets:
    """Memory to fill, gathered before anything is touched.

    Args:
        saved: the entries of the checkpoint.
        cast: whether a value may be rounded to the template's dtype.
        problems: takes what does not fit.

    Attributes:
        saved: the entries by the name they have in the checkpoint.
        args: what to fill, as the core takes it.
        used: names in the checkpoint of entries that have a place.
    """

    def __init__(self, saved: Iterable[Saved], cast: bool, problems: Problems) -> None:
        self.saved = {entry.name: entry for entry in saved}
        self.args: list[tensors.TensorArg] = []
        self.used: set[str] = set()
        self._cast = cast
        self._problems = problems
        self._filled: list[torch.Tensor] = []
        self._alive: list[torch.Tensor] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._at: dict[tuple[object, ...], Saved] = {}

    def add(self, tensor: torch.Tensor, saved: Saved, name: str) -> None:
        """Makes the memory of `tensor` the target of `saved`, or notes why it does not fit."""
        tensors.check(tensor, name)
        self.used.add(saved.name)
        if not self._fits(tensor, saved, name):
            return
        memory = None
        if tensors.dtype_name(tensor.dtype) != saved.dtype or tensors.is_lazy(tensor):
            local = tensors.local_of(tensor)
            memory = torch.zeros(local.shape, dtype=tensors.dtype_named(saved.dtype))
            self._copies.append((local, memory))
        described = tensors.describe(tensor, memory)
        self._alive.append(described.tensor)
        self._filled.append(tensor)
        self.args.append((saved.name, saved.dtype, saved.shape, described.boxes, "", False))

    def finish(self) -> None:
        """After the core has filled them: rounds what is to be rounded, and tells autograd."""
        with torch.no_grad():
            for local, memory in self._copies:
                local.copy_(memory)
        for tensor in self._filled:
            tensors.was_written(tensor)

    def _fits(self, tensor: torch.Tensor, saved: Saved, name: str) -> bool:
        dtype = tensors.dtype_name(tensor.dtype)
        if tuple(tensor.shape) != saved.shape:
            self._problems.shape.append(f"{name}: {list(saved.shape)} in the checkpoint, {list(tensor.shape)} in the template")
            return False
        if dtype != saved.dtype and not (self._cast and torch.can_cast(tensors.dtype_named(saved.dtype), tensor.dtype)):
            self._problems.dtype.append(f"{name}: {saved.dtype} in the checkpoint, {dtype} in the template")
            return False
        if not tensors.is_own(tensor):
            self._problems.other.append(f"{name}: several elements of the template's tensor share one place in memory")
            return False
        identity = tensors.identity(tensor)
        other = saved if identity is None else self._at.setdefault(identity, saved)
        if (other.alias_of or other.name) != (saved.alias_of or saved.name):
            self._problems.other.append(f"{name}: shares memory with the target of {other.name}, but the checkpoint holds two tensors")
            return False
        return True
