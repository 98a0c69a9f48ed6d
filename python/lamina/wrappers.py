"""Modules inside wrappers: which names their tensors have without them. Wrappers are known by type, never by text."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

import torch

FSDP1 = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")

# Where each wrapper's class lives, the attribute that holds the module inside, and what the wrapper adds to state_dict keys
# (activation checkpointing takes its own prefix away again in a hook; FSDP1 does too, but its hooks are left out, see lamina.fsdp1).
_WRAPPERS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module", "module."),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod", "_orig_mod."),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "ActivationWrapper", "_checkpoint_wrapped_module", ""),
    (*FSDP1, "_fsdp_wrapped_module", "_fsdp_wrapped_module."),
)


@dataclasses.dataclass(frozen=True)
class NamedModule:
    """A module that is no wrapper, with its names.

    Attributes:
        module: the module itself.
        raw: what its keys in the outermost module's state_dict() start with, such as "module.layers.0.".
        clean: its path without wrappers, such as ("layers", "0").
    """

    module: torch.nn.Module
    raw: str
    clean: tuple[str, ...]


def is_a(module: torch.nn.Module, where: str, name: str) -> bool:
    """Whether `module` is an instance of the class `name` of the module `where`."""
    # A class whose home was never imported has no instances; importing it here could take seconds.
    home = sys.modules.get(where)
    return home is not None and isinstance(module, getattr(home, name))


def _inside(module: torch.nn.Module) -> tuple[torch.nn.Module, str] | None:
    for where, name, attribute, prefix in _WRAPPERS:
        if is_a(module, where, name):
            return getattr(module, attribute), prefix
    return None


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside all wrappers around `module`."""
    while inside := _inside(module):
        module = inside[0]
    return module


def walk(module: torch.nn.Module, raw: str = "", clean: tuple[str, ...] = ()) -> Iterator[NamedModule]:
    """All modules below `module` and itself, wrappers left out, parents first; a module with two names comes twice."""
    if inside := _inside(module):
        yield from walk(inside[0], raw + inside[1], clean)
        return
    yield NamedModule(module, raw, clean)
    for name, child in module._modules.items():
        if child is not None:
            yield from walk(child, f"{raw}{name}.", (*clean, name))
