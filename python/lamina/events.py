"""What the runtime tells: events for the log and for hooks, each on a thread of its own."""

from __future__ import annotations

import collections
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lamina import threads
from lamina.errors import Error, InvalidArgumentError
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
KEPT: Final = frozenset(("Committed", "SaveFailed", "SaveSkipped", "RestoreDone", "Fenced"))  # however full a queue is
VERDICTS: Final = ("may_commit", "may_restore")
_WARNINGS: Final = frozenset(("SaveFailed", "SaveSkipped", "RestorePassedOver", "ReplicaMismatch", "IoSlow", "Fallback", "Fenced"))
_POLL_S: Final = 1.0  # an event, and the end, end the wait at once
_INFO_S: Final = 60.0
_HELD_MAX: Final = 4096  # events before one hook

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
    """Logs events on a thread of its own, and passes them to the hooks, each of which has a thread too: none holds up the log or another.

    A hook that raises, or takes longer than `limit_s` over one event, is reported in the log and called no more.

    Args:
        next_event: waits some seconds for an event; None when none came, StopIteration when there will be no more.
        hooks: objects whose methods are named for events.
        rank: of this process.
        limit_s: seconds that a hook has for one event.
    """

    def __init__(
        self, next_event: Callable[[float], Mapping[str, Any] | None], hooks: Iterable[object], rank: int, limit_s: float = 30.0
    ) -> None:
        self._next_event = next_event
        self._hooks: list[_Called] = []
        self._poll_s = min(_POLL_S, limit_s / 4)
        self._limit_s = limit_s
        self._rank = rank
        self._said_s = float("-inf")
        try:
            for hook in hooks:
                if any(hasattr(hook, name) for name in METHODS.values()):
                    self._hooks.append(_Called(hook, limit_s))
            self._thread = threads.start("lamina-events", self._run)
        except Error:
            for called in self._hooks:
                called.put(None)
            raise

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until all events have been delivered; the source must have ended. What takes longer than `timeout_s` (default: what a hook
        has for one event) is left behind, and told in the log."""
        end_s = time.monotonic() + (self._limit_s if timeout_s is None else timeout_s)
        self._thread.join(max(0.0, end_s - time.monotonic()))
        for hook in self._hooks:
            hook.join(max(0.0, end_s - time.monotonic()))

    def _run(self) -> None:
        while True:
            try:
                fields = self._next_event(self._poll_s)
            except StopIteration:
                break
            if fields is not None:
                event = Event(**{name: value for name, value in fields.items() if name in _FIELDS})
                self._log(event)
                for hook in self._hooks:
                    hook.put(event)
            for hook in self._hooks:
                hook.look()
        for hook in self._hooks:
            hook.put(None)

    def _log(self, event: Event) -> None:
        if event.kind in _WARNINGS:
            step = f"step {event.step}, " if event.step >= 0 else ""
            logger.warning("%s: %srank %d: %s", METHODS[event.kind].replace("_", " "), step, event.rank, event.cause)
        elif event.kind == "Committed" and self._rank == 0 and time.monotonic() - self._said_s >= _INFO_S:
            self._said_s = time.monotonic()
            logger.info("step %d committed: %.1f MB in %.2f s", event.step, event.bytes / 1e6, event.duration_ns / 1e9)


class _Called:
    """A hook on a thread of its own, with a bounded queue before it."""

    def __init__(self, hook: object, limit_s: float) -> None:
        self._hook, self._limit_s = hook, limit_s
        self._queue: collections.deque[Event | None] = collections.deque()
        self._changed = threading.Condition()
        self._at: tuple[str, float] | None = None  # the event that the hook is at, and since when
        self._is_over = False  # it is called no more
        self._dropped = 0
        self._thread = threads.start("lamina-hook", self._run)

    def put(self, event: Event | None) -> None:
        """Queues an event; None ends the thread behind those before it."""
        with self._changed:
            if event is not None and event.kind not in KEPT and len(self._queue) >= _HELD_MAX:
                self._dropped += 1
            elif not self._is_over or event is None:
                self._queue.append(event)
            self._changed.notify()

    def look(self) -> None:
        """Ends what has taken too long."""
        with self._changed:
            if self._is_over or self._at is None or time.monotonic() - self._at[1] < self._limit_s:
                return
            kind = self._at[0]
            self._give_up()
        logger.error("hook %s has not returned from %s within %g s and is called no more", self._name(), kind, self._limit_s)

    def join(self, timeout_s: float) -> None:
        """Waits for the thread; one that does not end is left behind."""
        self._thread.join(timeout_s)
        with self._changed:
            late = self._thread.is_alive() and not self._is_over
            left = sum(event is not None for event in self._queue)
            self._give_up()
        if late:
            logger.error("hook %s has not returned in time and is left behind, with %d more events for it", self._name(), left)
        if self._dropped:
            logger.warning("hook %s was too slow for %d events, which were dropped", self._name(), self._dropped)

    def _name(self) -> str:
        return type(self._hook).__qualname__

    def _give_up(self) -> None:
        self._is_over = True
        self._queue.clear()
        self._queue.append(None)
        self._changed.notify()

    def _next(self) -> Event | None:
        with self._changed:
            self._at = None
            self._changed.wait_for(lambda: bool(self._queue))
            event = self._queue.popleft()
            if event is not None:
                self._at = (event.kind, time.monotonic())
            return event

    def _run(self) -> None:
        while (event := self._next()) is not None:
            method = getattr(self._hook, METHODS.get(event.kind, ""), None)
            if method is None:
                continue
            try:
                method(event)
            except BaseException:  # sys.exit() too: a hook ends neither this thread nor the program
                with self._changed:
                    self._give_up()
                logger.exception("hook %s raised at %s and is called no more", self._name(), event.kind)
                return
