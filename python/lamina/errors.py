"""The exceptions of Lamina: one class a situation, all derived from `Error` and from the built-in class that fits."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any


class Error(Exception):
    """What every exception of Lamina derives from.

    Attributes:
        rank: the rank where it went wrong; None when no single rank did.
        errno: the number the operating system gave, as in the module errno; None when it gave none.
        phase: what was being done, such as "write" or "vote"; None when unknown.
        causes: when several ranks failed, the message of each.
    """

    rank: int | None
    errno: int | None
    phase: str | None
    causes: tuple[str, ...]

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        errno: int | None = None,
        phase: str | None = None,
        causes: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.errno = errno
        self.phase = phase
        self.causes = tuple(causes)

    def __str__(self) -> str:
        # OSError would put its errno in front, which the message says already.
        return str(self.args[0]) if self.args else ""

    def facts(self) -> dict[str, Any]:
        """What the constructor takes beside the message."""
        return {"rank": self.rank, "errno": self.errno, "phase": self.phase, "causes": self.causes}

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError keeps errno where copying would lose it.
        return functools.partial(type(self), **self.facts()), (str(self),)


class InvalidArgumentError(Error, ValueError):
    """An argument is wrong, or a topology cannot hold a tensor."""


class NotFoundError(Error, LookupError):
    """No such step, tensor or directory."""


class MismatchError(InvalidArgumentError):
    """A strict restore found missing or unexpected entries, or other shapes or dtypes; all of them are named."""


class FencedError(Error):
    """A newer incarnation took the root over; this one can write no more."""


class PermissionDeniedError(Error, PermissionError):
    """No permission, or the file system is read-only."""


class CorruptionError(Error):
    """A checksum or a structure is wrong."""


class UnsupportedError(Error, NotImplementedError):
    """A newer format, a missing feature, or a kind of tensor that is not taken."""


class StateError(Error):
    """A call at the wrong moment: after close(), in a forked child, or out of order."""


class ResourceExhaustedError(Error, OSError):
    """The disk is full, a quota is reached, or the memory budget is spent."""


class UnavailableError(Error, OSError):
    """An I/O error, or a peer or the store is gone; a retry may help."""


class DeadlineError(Error, TimeoutError):
    """Something took longer than it may."""


class CancelledError(Error):
    """The work was cancelled."""


class InternalError(Error):
    """An invariant of Lamina is broken: a bug, worth a report."""


class SaveFailedError(Error):
    """A save failed. What is raised is of the class of its first cause and of this one."""


def class_and_message(error: Exception) -> tuple[str, str]:
    """How an exception is told to other ranks: the name of a class of this module, and its text."""
    if isinstance(error, Error):
        return type(error).__name__, str(error)
    return "Error", f"{type(error).__name__}: {error}"


@functools.cache
def _failed_class(cause: type[Error]) -> type[Error]:
    if cause is Error:  # the trainer's own exception
        return SaveFailedError

    def reduce(self: Error) -> tuple[Any, ...]:
        return save_failed, (cause(str(self), **self.facts()),)

    return type(cause.__name__, (cause, SaveFailedError), {"__doc__": cause.__doc__, "__module__": __name__, "__reduce__": reduce})


def save_failed(cause: BaseException) -> Error:
    """What a save raises that failed by `cause`: an exception of its class and of `SaveFailedError`, chained to it.

    >>> error = save_failed(ResourceExhaustedError("disk full", rank=3))
    >>> isinstance(error, SaveFailedError), isinstance(error, ResourceExhaustedError), error.rank
    (True, True, 3)
    """
    if isinstance(cause, SaveFailedError):
        return cause
    known = cause if isinstance(cause, Error) else InternalError(f"{type(cause).__name__}: {cause}")
    cls = _failed_class(type(known))  # type: ignore[arg-type]  # a class is hashable
    failed = cls(str(known), **known.facts())
    failed.__cause__ = cause
    return failed
