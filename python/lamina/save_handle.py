"""What `Checkpointer.save` returns, and what it comes to."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Generator, Mapping
from typing import Any

from lamina import _core
from lamina.errors import Error, StateError, save_failed


@dataclasses.dataclass(frozen=True)
class SaveReport:
    """One rank's part in a save.

    Attributes:
        step: the step that was saved.
        outcome: "committed" or "skipped".
        reason: why it was skipped; empty when it was not.
        state_bytes: what this rank holds of the state.
        written_bytes: what it wrote.
        chunks_new: stored by this save.
        chunks_shared: found in an older save.
        chunks_dependent: stored as a difference to something.
        hold_s: seconds for which `save()` held the caller.
        durable_s: seconds from the call of `save()` until the step existed.
        stage_s: seconds of each stage by its name.
        total: the same for the whole job; None where it is not known.
    """

    step: int
    outcome: str
    reason: str = ""
    state_bytes: int = 0
    written_bytes: int = 0
    chunks_new: int = 0
    chunks_shared: int = 0
    chunks_dependent: int = 0
    hold_s: float = 0.0
    durable_s: float = 0.0
    stage_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    total: SaveReport | None = None

    @staticmethod
    def from_core(fields: Mapping[str, Any]) -> SaveReport:
        """The report that the core's fields tell."""
        known = {field.name: fields[field.name] for field in dataclasses.fields(SaveReport) if field.name in fields}
        if isinstance(total := known.get("total"), Mapping):
            known["total"] = SaveReport.from_core({"step": known["step"], "outcome": known["outcome"], **total})
        return SaveReport(**known)


class SaveHandle:
    """A save under way. Made by `Checkpointer.save`; can be awaited.

    Attributes:
        step: the step that is saved.
        hold_s: seconds for which `save()` held the caller.
    """

    def __init__(self, ticket: _core.SaveTicket, step: int, number: int, hold_s: float) -> None:
        self.step = step
        self.number = number
        self.hold_s = hold_s
        self.seen = False  # whether the caller knows how it ended
        self._ticket = ticket
        self._pid = os.getpid()

    def wait(self, timeout_s: float | None = None) -> SaveReport:
        """Waits until the save has ended.

        Args:
            timeout_s: how long to wait. Default None: until the save's own deadline.

        Raises:
            SaveFailedError: it failed; also of the class of its first cause, such as ResourceExhaustedError.
            DeadlineError: it was still going on after `timeout_s`; the save is not affected.
        """
        self._check_process()
        try:
            fields = self._ticket.wait(timeout_s)
        except Error as error:
            if not self._ticket.done():
                raise
            self.seen = True
            # Without the frames of this call, which would keep all that its callers hold alive.
            raise save_failed(error) from error.with_traceback(None)
        self.seen = True
        return dataclasses.replace(SaveReport.from_core(fields), hold_s=self.hold_s)

    def done(self) -> bool:
        """Whether the save has ended, well or not."""
        self._check_process()
        return self._ticket.done()

    def exception(self) -> Error | None:
        """What `wait` raises; None when the save went well. Waits for the end."""
        self._check_process()
        try:
            self.wait()
        except Error as error:
            return error.with_traceback(None)
        return None

    def settle(self, timeout_s: float | None = None) -> Error | None:
        """What `exception` returns, or that the time ran out, without counting as seen by the caller."""
        seen = self.seen
        try:
            self.wait(timeout_s)
        except Error as error:
            self.seen = seen
            return error.with_traceback(None)
        return None

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StateError("the save belongs to the parent of this forked process")

    def __await__(self) -> Generator[Any, None, SaveReport]:
        return asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()
