"""Lamina: checkpoints of large-model training, made while it goes on, and restored on any topology.

    with lamina.Checkpointer("/ckpt/run1") as ckpt:
        info = ckpt.restore(state)
        for step in range(info.next_step, steps):
            ...
            ckpt.save(step, state)

`lamina.open` reads a root, with PyTorch or without it; what needs PyTorch is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lamina.errors import (
    CancelledError,
    CorruptionError,
    DeadlineError,
    Error,
    FencedError,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SaveFailedError,
    StateError,
    UnavailableError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from lamina.checkpointer import Checkpointer
    from lamina.checks import preflight
    from lamina.difference import ChangedEntry, Difference
    from lamina.events import Event
    from lamina.findings import Finding, Preflight
    from lamina.per_rank import PerRank
    from lamina.restore_info import RestoreInfo
    from lamina.rng import Rng
    from lamina.save_handle import SaveHandle, SaveReport
    from lamina.store import EntryInfo, RawArray, Store, open
    from lamina.values import register_type

__version__ = "0.1.0"

__all__ = [
    "CancelledError",
    "ChangedEntry",
    "Checkpointer",
    "CorruptionError",
    "DeadlineError",
    "Difference",
    "EntryInfo",
    "Error",
    "Event",
    "FencedError",
    "Finding",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NotFoundError",
    "PerRank",
    "PermissionDeniedError",
    "Preflight",
    "RawArray",
    "ResourceExhaustedError",
    "RestoreInfo",
    "Rng",
    "SaveFailedError",
    "SaveHandle",
    "SaveReport",
    "StateError",
    "Store",
    "UnavailableError",
    "UnsupportedError",
    "open",
    "preflight",
    "register_type",
]

_HOMES = {
    "ChangedEntry": "difference",
    "Checkpointer": "checkpointer",
    "Difference": "difference",
    "EntryInfo": "store",
    "Event": "events",
    "Finding": "findings",
    "PerRank": "per_rank",
    "Preflight": "findings",
    "RawArray": "store",
    "RestoreInfo": "restore_info",
    "Rng": "rng",
    "SaveHandle": "save_handle",
    "SaveReport": "save_handle",
    "Store": "store",
    "open": "store",
    "preflight": "checks",
    "register_type": "values",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lamina' has no attribute {name!r}")
    try:
        home = importlib.import_module(f"lamina.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"lamina.{name} needs PyTorch, which is not installed: pip install 'lamina[torch]'", name="torch"
        ) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
