"""The parts of a Checkpointer that have threads, and their end."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lamina import _core
from lamina.events import Dispatcher, logger
from lamina.ranks import Ranks
from lamina.save_handle import SaveHandle
from lamina.store_coordinator import StoreCoordinator

_EXIT_CODE: Final = 75  # EX_TEMPFAIL of sysexits.h


class Runtime:
    """The core's engine, the thread that serves it the store, and the thread of the hooks.

    Attributes:
        engine: the core's.
        unseen: saves whose end nobody has seen yet.
    """

    def __init__(self, options: Mapping[str, Any], ranks: Ranks, hooks: Iterable[object], exit_grace_s: float) -> None:
        self._pid = os.getpid()
        self._exit_grace_s = exit_grace_s
        self.unseen: list[SaveHandle] = []
        self._dispatcher = Dispatcher(hooks, ranks.rank)
        self._coordinator = StoreCoordinator(ranks.group.get_group_store()) if ranks.count > 1 else None
        try:
            self.engine = _core.Engine(options, self._coordinator.queue if self._coordinator else None, self._dispatcher.put)
        except BaseException:
            self._join()
            raise
        atexit.register(self.at_exit)

    def is_forked(self) -> bool:
        """Whether this is a child of the process that made it; nothing works there."""
        return os.getpid() != self._pid

    def close(self, grace_s: float | None) -> None:
        """Waits for this rank's saves, for `grace_s` at most, and ends the threads. Raises a failure that nobody has seen."""
        atexit.unregister(self.at_exit)
        failures = [error for handle in self.unseen if not handle.seen and (error := handle.settle(grace_s)) is not None]
        try:
            self.engine.close(grace_s)
        finally:
            self._join()
        if failures:
            failures[0].causes = failures[0].causes or tuple(str(error) for error in failures[1:])
            raise failures[0]

    def collected(self) -> None:
        """The end when the Checkpointer was forgotten: as `close`, but what went wrong is logged."""
        if not self.is_forked():
            try:
                self.close(self._exit_grace_s)
            except Exception as error:
                logger.error("a Checkpointer was forgotten without close(): %s", error)

    def at_exit(self) -> None:
        """The end when the program ends: as `close`, but a failure makes the exit code 75."""
        if self.is_forked():
            return
        raised = hasattr(sys, "last_value")
        try:
            self.close(self._exit_grace_s if raised else None)
        except Exception as error:
            print(f"lamina: at exit: {error}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            if not raised:
                os._exit(_EXIT_CODE)

    def _join(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
        self._dispatcher.close()
