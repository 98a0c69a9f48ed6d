"""The plain values that a step without any is read with: a trainer in C++ hands over named tensors, and the names are their paths.

Where the template has a module or an optimizer, the names below it are its own; the settings of optimizers stay as they are. A name that is
no path or one of more than 100 components, or that the template's mapping has as a key itself, stands at the top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from lamina import optimizer, values
from lamina.errors import InvalidArgumentError
from lamina.names import Path, from_text, to_text
from lamina.values import Json


def implied(names: Iterable[str], state: Mapping[Any, Any]) -> tuple[Json, Json]:
    """The tree of the values, and what rank 0 would have saved as its own.

    Args:
        names: of the entries of the checkpoint.
        state: the template.
    """
    tensors: dict[Any, Any] = {}
    for name in sorted(names):
        path = _path_of(name, state)
        if not _insert(tensors, path, name):
            tensors[name] = name
    place: dict[str, dict[str, Json]] = {"rng": {}, "per_rank": {}, "modules": {}, "optimizers": {}}
    return {"$dict": [[values.encode(key), _node(part, state.get(key), (key,), place)] for key, part in tensors.items()]}, place


def _path_of(name: str, state: Mapping[Any, Any]) -> Path:
    if name in state:
        return (name,)
    try:
        path = from_text(name)
    except InvalidArgumentError:
        return (name,)
    return path if len(path) <= values.DEPTH_MAX else (name,)


def _insert(tensors: dict[Any, Any], path: Path, name: str) -> bool:
    """False: a tensor stands where the path needs a mapping, or the other way round."""
    at: Any = tensors
    for component in path[:-1]:
        at = at.setdefault(component, {})
        if not isinstance(at, dict):
            return False
    return at.setdefault(path[-1], name) is name


def _node(part: Any, template: Any, path: Path, place: dict[str, dict[str, Json]]) -> Json:
    if isinstance(part, str):
        return {"$tensor": part}
    if isinstance(template, torch.nn.Module):
        return {"$module": {}}
    if isinstance(template, torch.optim.Optimizer):
        slots = part.get("state", {})
        place["optimizers"][to_text(path)] = {"groups": [{"options": [], "params": _parameters(slots, ())}], "slots": [], "rest": []}
        return {"$optimizer": {"type": type(optimizer.unwrap(template, path)).__qualname__}}
    if isinstance(template, (list, tuple)) and set(part) == set(range(len(template))):
        nodes = [_node(part[at], template[at], (*path, at), place) for at in range(len(template))]
        return {"$list" if isinstance(template, list) else "$tuple": nodes}
    there = template if isinstance(template, Mapping) else {}
    return {"$dict": [[values.encode(key), _node(below, there.get(key), (*path, key), place)] for key, below in part.items()]}


def _parameters(slots: Any, path: Path) -> list[str]:
    """The names of the parameters: what has slots, which are tensors."""
    if not isinstance(slots, dict):
        return []
    own = [to_text(path)] if path and any(isinstance(below, str) for below in slots.values()) else []
    return own + [name for key, below in slots.items() for name in _parameters(below, (*path, key))]
