"""Modules in FullyShardedDataParallel (FSDP1): their parameters as runs in the memory of the flat parameters' own shards.

FSDP1's `state_dict` hooks gather every parameter from all ranks. They are left out here: nothing is gathered, copied or sent. What stands
below reads FSDP1's own records, since nothing public tells where a parameter is; that class is frozen.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from lamina.errors import StateError, UnsupportedError
from lamina.flat import FlatPart
from lamina.wrappers import FSDP1, is_a

_HOOKS = ("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
_HOME_OF_HOOKS = "torch.distributed.fsdp._state_dict_utils"

Parts = dict[torch.nn.Module, dict[str, FlatPart]]


def is_flattened(value: Any) -> bool:
    """Whether it is a flat parameter, or a parameter whose memory is in one."""
    return getattr(value, "_fsdp_flattened", False) is True


def parts_of(module: torch.nn.Module) -> Parts:
    """This rank's parts of all flattened parameters below `module`, by the module and the name that each parameter was registered with.

    Raises:
        StateError: called inside of a forward or backward pass, or of summon_full_params().
        UnsupportedError: a parameter that the flat one does not hold as its elements in row-major order.
    """
    found: Parts = {}
    for handle in (unit._handle for unit in _units(module)):
        if handle._training_state.name != "IDLE":
            raise StateError("a FullyShardedDataParallel is at work: save and restore outside of forward, backward and summon_full_params")
        _take_replaced(handle)
        _add_parts(found, handle.flat_param)
    return found


def _units(module: torch.nn.Module) -> list[Any]:
    """Those that have parameters themselves."""
    units: list[Any] = [each for each in module.modules() if is_a(each, *FSDP1)]
    return [unit for unit in units if unit._handle is not None]


def _take_replaced(handle: Any) -> None:
    """Copies parameters that the caller replaced, as FSDP1 does before it uses them, and puts their memory back into the shard."""
    if handle._use_orig_params and handle._writeback_orig_params():
        handle._use_sharded_views()


def _add_parts(found: Parts, flat: Any) -> None:
    # Before its first use, the flat parameter itself is the shard.
    shard = getattr(flat, "_local_shard", flat).detach()
    for info, name, shape, place, is_row_major, extension in zip(
        flat._param_infos, flat._fqns, flat._shapes, flat._shard_param_infos, flat._contiguities, flat._param_extensions
    ):
        if extension is not None or not is_row_major:
            raise UnsupportedError(
                f"{name}: FullyShardedDataParallel flattened it as a DTensor or with its elements in another than row-major order: "
                "shard with torch.distributed.fsdp.fully_shard"
            )
        at, size = (place.offset_in_shard, place.numel_in_shard) if place.in_shard else (0, 0)
        part = FlatPart(shard[at : at + size], shape, place.intra_param_start_idx or 0)
        found.setdefault(info.module, {})[info.param_name] = part
    for tied in flat._shared_param_infos:
        found.setdefault(tied.module, {})[tied.param_name] = found[tied.prim_module][tied.prim_param_name]


@contextlib.contextmanager
def without_hooks(module: torch.nn.Module) -> Iterator[None]:
    """Has `state_dict` and `load_state_dict` of `module` take FSDP1 for wrappers that do nothing; other hooks stay."""
    taken: list[tuple[dict[int, Any], dict[int, Any]]] = []
    try:
        for unit in (each for each in module.modules() if is_a(each, *FSDP1)):
            for hooks in (getattr(unit, name) for name in _HOOKS):
                taken.append((hooks, dict(hooks)))
                for key in [key for key, hook in hooks.items() if getattr(hook, "__module__", None) == _HOME_OF_HOOKS]:
                    del hooks[key]
        yield
    finally:
        for hooks, before in taken:
            hooks.clear()
            hooks.update(before)


def was_written(module: torch.nn.Module) -> None:
    """After the shards have changed: has FSDP1 gather again what it kept from a forward pass, as SHARD_GRAD_OP does."""
    for unit in _units(module):
        handle = unit._handle
        if hasattr(handle.flat_param, "_local_shard") and handle.uses_sharded_strategy and not handle.needs_unshard():
            sys.modules["torch.distributed.fsdp._runtime_utils"]._reshard(unit, handle, True)
