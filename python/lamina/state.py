"""What a rank hands over for a save: the walk over the state that names its tensors and writes its plain values down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from lamina import inline, modules, optimizer, tensors, values
from lamina.errors import InvalidArgumentError
from lamina.names import Component, Path, is_component, to_text
from lamina.per_rank import PerRank
from lamina.rng import Rng
from lamina.values import Json


@dataclasses.dataclass(frozen=True)
class Entry:
    """One named tensor of the state.

    Attributes:
        tensor: the tensor.
        may_differ: whether ranks that hold the same of it may hold other bytes; the lowest rank's are saved. Else that is an error.
    """

    tensor: torch.Tensor
    may_differ: bool = False


def is_object(value: object) -> bool:
    """Whether the value saves itself by `state_dict` and `load_state_dict`."""
    return (
        callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)) and not isinstance(value, type)
    )


class Capture:
    """The state, walked once. Tensors are referred to; all else is copied.

    Attributes:
        entries: the tensors by name.
        tree: the node of the plain values, the same on all ranks.
        place: the node of what is this rank's own: generators, PerRank values, and of modules and optimizers what is not in tensors,
            since a rank may hold only some of the layers.
    """

    def __init__(self, state: Mapping[Any, Any]) -> None:
        if not isinstance(state, MutableMapping):
            raise InvalidArgumentError(f"a state is a mutable mapping, such as a dict, not a {type(state).__name__}")
        self.entries: dict[str, Entry] = {}
        self.place: dict[str, dict[str, Json]] = {"rng": {}, "per_rank": {}, "modules": {}, "optimizers": {}}
        self._optimizers: list[tuple[Path, torch.optim.Optimizer]] = []
        nodes = [[values.encode(key), self.encode(value, (_top(key),))] for key, value in state.items()]
        self.tree: Json = {"$dict": sorted(nodes, key=lambda item: values.dumps(item[0]))}
        # Last, because parameters are named by where else in the state they stand.
        names = self.names()
        for path, each in self._optimizers:
            self.place["optimizers"][to_text(path)] = optimizer.encode(each, path, names, self.add)

    def names(self) -> dict[int, str]:
        """The name of each tensor by its id; the first one where it has several."""
        names: dict[int, str] = {}
        for name, entry in sorted(self.entries.items()):
            names.setdefault(id(entry.tensor), name)
        return names

    def encode(self, value: object, path: Path) -> Json:
        """The node of a part of the state; its tensors become entries."""
        return values.encode(value, path, self._leaf, depth=len(path))

    def add(self, path: Path, tensor: torch.Tensor, may_differ: bool = False) -> Json:
        """Makes the tensor an entry and returns the node that stands in its place."""
        name = to_text(path)
        tensors.check(tensor, name)
        if name in self.entries:
            raise InvalidArgumentError(f"two tensors of the state have the name {name}")
        self.entries[name] = Entry(tensor, may_differ)
        return {"$tensor": name}

    def _leaf(self, value: Any, path: Path) -> Json | None:
        if isinstance(value, torch.Tensor):
            return self.add(path, value)
        if isinstance(value, torch.nn.Module):
            return self._module(value, path)
        if isinstance(value, torch.optim.Optimizer):
            real = optimizer.unwrap(value, path)
            self._optimizers.append((path, real))
            return {"$optimizer": {"type": type(real).__qualname__}}
        if isinstance(value, Rng):
            self.place["rng"][to_text(path)] = value.capture()
            return {"$rng": {}}
        if isinstance(value, PerRank):
            self.place["per_rank"][to_text(path)] = value.capture(path)
            return {"$per_rank": {}}
        if is_object(value):
            return {"$object": {"type": type(value).__qualname__, "state": self.encode(value.state_dict(), path)}}
        return None

    def _module(self, module: torch.nn.Module, path: Path) -> Json:
        extra = []
        for item in modules.items_of(module):
            if isinstance(item.value, torch.Tensor) and not item.is_extra:
                self.add((*path, *item.path), item.value, item.may_differ)
            else:
                extra.append([to_text(item.path), inline.encode(item.value, (*path, *item.path))])
        self.place["modules"][to_text(path)] = extra
        return {"$module": {}}


def _top(key: Any) -> Component:
    if not is_component(key):
        raise InvalidArgumentError(
            f"the state has a key {key!r} of type {type(key).__name__}; keys are str, int, float, bool, None or tuples of these"
        )
    return key  # type: ignore[no-any-return]


def tensor_args(entries: Mapping[str, Entry]) -> tuple[list[tensors.TensorArg], list[torch.Tensor]]:
    """The entries as the core takes them, sorted by name, and the tensors that must live until it has copied them.

    Entries that show the same elements of the same memory are stored once, under the first of their names.
    """
    args: list[tensors.TensorArg] = []
    alive: list[torch.Tensor] = []
    first: dict[tuple[object, ...], str] = {}
    for name, entry in sorted(entries.items()):
        # A rank without elements of a tied tensor must say the same as the others; there the object tells.
        identity = tensors.identity(entry.tensor) or ("empty", id(entry.tensor))
        alias_of = first.setdefault(identity, name)
        local = tensors.describe(entry.tensor)
        alive.append(local.tensor)
        dtype, shape = tensors.dtype_name(entry.tensor.dtype), tuple(entry.tensor.shape)
        args.append((name, dtype, shape, local.boxes, "" if alias_of == name else alias_of, entry.may_differ))
    return args, alive


def topology_of(entries: Mapping[str, Entry], rank_count: int) -> list[tuple[str, int]]:
    """The mesh with most axes that DTensors of the state lie on; without one, all ranks as one axis."""
    meshes = [entry.tensor.device_mesh for entry in entries.values() if tensors.is_dtensor(entry.tensor)]  # type: ignore[attr-defined]
    if not meshes:
        return [("ranks", rank_count)]
    mesh = max(meshes, key=lambda each: (each.ndim, each.size()))
    names = mesh.mesh_dim_names or tuple(f"axis{ordinal}" for ordinal in range(mesh.ndim))
    return list(zip(names, mesh.shape))
