"""What a module hands over: its `state_dict()`, and the parts of what FSDP1 flattened, with the names that it has without wrappers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from lamina import fsdp1
from lamina.errors import UnsupportedError
from lamina.names import Path
from lamina.wrappers import NamedModule, walk

_EXTRA_STATE = "_extra_state"


@dataclasses.dataclass(frozen=True)
class Item:
    """One item of a module's `state_dict()`.

    Attributes:
        path: its name without wrappers.
        key: its key in the `state_dict()` of the outermost module.
        value: a tensor; or anything, when it is extra state.
        owner: the module that it belongs to.
        is_own: a parameter or buffer of `owner`, so that writing to its memory restores it; else a hook made it.
        is_extra: what `owner.get_extra_state()` returned.
        may_differ: a buffer: of a module kept by several ranks, as batch norm's running mean, each may have its own. Parameters may not.
    """

    path: Path
    key: str
    value: Any
    owner: torch.nn.Module
    is_own: bool
    is_extra: bool
    may_differ: bool


def items_of(module: torch.nn.Module) -> list[Item]:
    """The items of `module.state_dict()`, which also brings the parameters of fully_shard modules back to their shards.

    Raises:
        StateError: a FullyShardedDataParallel is in the midst of a pass.
        UnsupportedError: one that holds a parameter in a way that is not supported.
    """
    walked = list(walk(module))
    named = {each.raw: each for each in walked}
    parts = _flat_items(walked, fsdp1.parts_of(module))
    with fsdp1.without_hooks(module):
        items = [_item(key, value, named) for key, value in module.state_dict(keep_vars=True).items() if not fsdp1.is_flattened(value)]
    replaced = {part.path for part in parts}
    return [item for item in items if item.path not in replaced] + parts


def put_back(module: torch.nn.Module, by_hook: Mapping[str, Any]) -> None:
    """Gives what hooks made, by its key, to the module's own `load_state_dict`."""
    with fsdp1.without_hooks(module):
        module.load_state_dict(by_hook, strict=False)


def _flat_items(walked: list[NamedModule], parts: fsdp1.Parts) -> list[Item]:
    if lost := parts.keys() - {at.module for at in walked}:
        names = sorted(name for module in lost for name in parts[module])
        raise UnsupportedError(f"a FullyShardedDataParallel holds parameters {names} of modules that were replaced since it was made")
    return [
        Item((*at.clean, name), at.raw + name, part, at.module, is_own=True, is_extra=False, may_differ=False)
        for at in walked
        for name, part in parts.get(at.module, {}).items()
    ]


def _item(key: str, value: Any, named: dict[str, NamedModule]) -> Item:
    at = _owner(key, named)
    local = key[len(at.raw) :]
    is_own = value is not None and (value is at.module._parameters.get(local) or value is at.module._buffers.get(local))
    is_extra = local == _EXTRA_STATE and not is_own
    return Item((*at.clean, *local.split(".")), key, value, at.module, is_own, is_extra, local in at.module._buffers)


def _owner(key: str, named: dict[str, NamedModule]) -> NamedModule:
    """The module with the longest raw name that `key` starts with."""
    at = key.rfind(".")
    while at >= 0:
        if (found := named.get(key[: at + 1])) is not None:
            return found
        at = key.rfind(".", 0, at)
    # What the outermost wrapper adds itself belongs to the module inside; it has the shortest name.
    return named.get("") or min(named.values(), key=lambda each: len(each.raw))
