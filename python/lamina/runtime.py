"""The parts of a Checkpointer that have threads, and their end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from lamina import _core
from lamina.errors import Error, UnavailableError
from lamina.events import Dispatcher, logger
from lamina.ranks import Ranks
from lamina.save_handle import SaveHandle
from lamina.store_coordinator import StoreCoordinator, store_of
from lamina.verdicts import Verdicts, asked_among

_LAST_EVENTS_S: Final = 1.0  # for hooks, when the time that an end may take is over


class Runtime:
    """The core's engine, the thread that serves it the store, and the thread of the hooks.

    Attributes:
        engine: the core's.
        unseen: saves whose end nobody has seen yet.
    """

    def __init__(self, options: dict[str, Any], ranks: Ranks, hooks: Iterable[object], exit_grace_s: float, hook_limit_s: float) -> None:
        self._pid = os.getpid()
        self._exit_grace_s = exit_grace_s
        self.unseen: list[SaveHandle] = []
        # Its server, where this process has it, must outlive destroy_process_group().
        self._store = store_of(ranks.group) if ranks.count > 1 else None
        self._coordinator = StoreCoordinator(self._store) if ranks.count > 1 else None
        hooks = list(hooks)
        asked = asked_among(hooks)
        with contextlib.ExitStack() as made:  # what has to end when a further part cannot be made
            if self._coordinator is not None:
                made.callback(self._coordinator.close)
            names = [type(hook).__qualname__ for hook in asked]
            self.engine = _core.Engine(options, self._coordinator.queue if self._coordinator else None, names)
            made.callback(self.engine.close, 0)
            self._hook_limit_s = hook_limit_s
            self._dispatcher = Dispatcher(self.engine.next_event, hooks, ranks.rank, self._hook_limit_s)
            self._verdicts = Verdicts(self.engine, asked)
            made.pop_all()
        os.register_at_fork(after_in_child=functools.partial(_never_free, weakref.ref(self.engine)))
        atexit.register(self.at_exit)

    def is_forked(self) -> bool:
        """Whether this is a child of the process that made it; nothing works there."""
        return os.getpid() != self._pid

    def close(self, grace_s: float | None) -> None:
        """Waits for this rank's saves, for `grace_s` in all, and ends the threads. Raises a failure that nobody has seen."""
        atexit.unregister(self.at_exit)
        left_s = _countdown(grace_s)
        failure: Error | None = None
        try:
            failure = self._unseen_failure(left_s)
            try:
                self.engine.close(left_s())
            except UnavailableError as error:  # storage hangs, and the saves have their outcomes: nothing that the job has to answer for
                logger.error("%s", error)
        except Error as error:
            failure = failure or error
        except BaseException:  # a signal's handler raised: the saves are given up, and all still ends
            with contextlib.suppress(Error):
                self.engine.close(0)
            raise
        finally:
            events_s = left_s()
            self._dispatcher.join(None if events_s is None else min(self._hook_limit_s, max(events_s, _LAST_EVENTS_S)))
            self._verdicts.join()
            if self._coordinator is not None:
                self._coordinator.close()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # it refers to this frame, so that both would outlive their use, and the engine with them

    def _unseen_failure(self, left_s: Callable[[], float | None]) -> Error | None:
        """The first failure that nobody has seen, with the messages of the others."""
        failures = [error for handle in self.unseen if not handle.seen and (error := handle.settle(left_s())) is not None]
        if not failures:
            return None
        failures[0].causes = failures[0].causes or tuple(str(error) for error in failures[1:])
        return failures[0]

    def collected(self) -> None:
        """The end when the Checkpointer was forgotten: as `close`, but what went wrong is logged."""
        if not self.is_forked():
            try:
                self.close(self._exit_grace_s)
            except Exception as error:
                logger.error("a Checkpointer was forgotten without close(): %s", error)

    def at_exit(self) -> None:
        """The end when the program ends: as `close`, but a failure makes the exit code 75, as the last act of the process."""
        if self.is_forked():
            return
        raised = hasattr(sys, "last_value")
        try:
            self.close(self._exit_grace_s if raised else None)
        except BaseException as error:  # a second Ctrl-C too
            if not raised:
                _core.exit_as_failed()
            with contextlib.suppress(Exception):  # it may be closed, or a pipe that nobody reads
                print(f"lamina: at exit: {error}", file=sys.stderr)


def _countdown(grace_s: float | None) -> Callable[[], float | None]:
    """Tells what is left of `grace_s` seconds from now on; None when there is no end to them."""
    end_s = time.monotonic() + (grace_s or 0)
    return lambda: None if grace_s is None else max(0.0, end_s - time.monotonic())


def _never_free(engine: weakref.ref[_core.Engine]) -> None:
    """In a forked child: the engine's threads are not there, and freeing it would wait for them."""
    if (here := engine()) is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(here))
