"""What the runtime tells: events for hooks and for the log, on one thread."""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lamina.errors import InvalidArgumentError
from lamina.mismatch import nearest

KINDS: Final = (
    "SaveBegin",
    "SnapshotDone",
    "WriteDone",
    "Committed",
    "SaveFailed",
    "SaveSkipped",
    "RestoreBegin",
    "RestoreDone",
    "RestorePassedOver",
    "ReplicaMismatch",
    "IoSlow",
    "Fallback",
    "Fenced",
)
METHODS: Final[dict[str, str]] = {kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower() for kind in KINDS}
VERDICTS: Final = ("may_commit", "may_restore")
_WARNINGS: Final = frozenset(("SaveFailed", "SaveSkipped", "RestorePassedOver", "ReplicaMismatch", "IoSlow", "Fallback", "Fenced"))
_POLL_S: Final = 1.0  # an event, and the end, end the wait at once
_INFO_S: Final = 60.0

logger = logging.getLogger("lamina")


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: one of `KINDS`.
        monotonic_ns: by the machine's monotonic clock.
        wall_ns: since 1970.
        rank: where.
        step: of the save or restore.
        save_number: counts this checkpointer's saves from 0; restores count on their own.
        bytes: moved or stored.
        duration_ns: how long it took.
        cause: empty when nothing went wrong.
    """

    kind: str
    monotonic_ns: int = 0
    wall_ns: int = 0
    rank: int = 0
    step: int = 0
    save_number: int = 0
    bytes: int = 0
    duration_ns: int = 0
    cause: str = ""


_NAMES: Final = (*METHODS.values(), *VERDICTS)
_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Event))


def check_hooks(hooks: Iterable[object]) -> None:
    """Refuses a hook with a public method that no event would call.

    Raises:
        InvalidArgumentError: names the method and the nearest event.
    """
    for hook in hooks:
        for name in dir(hook):
            if name.startswith("_") or name in _NAMES or not callable(getattr(hook, name)):
                continue
            like = nearest(name, _NAMES)
            hint = f"did you mean {like}?" if like else f"there are {', '.join(_NAMES)}"
            raise InvalidArgumentError(f"hook {type(hook).__qualname__} has a method {name}, which matches no event: {hint}")


class Dispatcher:
    """Logs events and calls the hooks, in order, on a thread of its own.

    A hook that raises is reported in the log and called no more.

    Args:
        next_event: waits some seconds for an event; None when none came, StopIteration when there will be no more.
        hooks: objects whose methods are named for events.
        rank: of this process.
    """

    def __init__(self, next_event: Callable[[float], Mapping[str, Any] | None], hooks: Iterable[object], rank: int) -> None:
        self._next_event = next_event
        self._hooks = list(hooks)
        self._rank = rank
        self._said_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="lamina-events", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits until all events have been delivered; the source must have ended."""
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                fields = self._next_event(_POLL_S)
            except StopIteration:
                return
            if fields is None:
                continue
            event = Event(**{name: value for name, value in fields.items() if name in _FIELDS})
            self._log(event)
            for hook in list(self._hooks):
                self._call(hook, event)

    def _call(self, hook: object, event: Event) -> None:
        method = getattr(hook, METHODS.get(event.kind, ""), None)
        if method is None:
            return
        try:
            method(event)
        except Exception:
            self._hooks.remove(hook)
            logger.exception("hook %s raised at %s and is called no more", type(hook).__qualname__, event.kind)

    def _log(self, event: Event) -> None:
        if event.kind in _WARNINGS:
            step = f"step {event.step}, " if event.step >= 0 else ""
            logger.warning("%s: %srank %d: %s", METHODS[event.kind].replace("_", " "), step, event.rank, event.cause)
        elif event.kind == "Committed" and self._rank == 0 and time.monotonic() - self._said_s >= _INFO_S:
            self._said_s = time.monotonic()
            logger.info("step %d committed: %.1f MB in %.2f s", event.step, event.bytes / 1e6, event.duration_ns / 1e9)
