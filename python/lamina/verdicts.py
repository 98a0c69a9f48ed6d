"""Hooks that are asked whether a step may be committed or restored, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lamina import _core, threads
from lamina.events import VERDICTS, logger

_POLL_S: Final = 1.0  # a question, and the end, end the wait at once
_JOIN_S: Final = 1.0  # a hook that is still at an answer is left behind


def asked_among(hooks: Iterable[object]) -> list[object]:
    """Those with a method that answers."""
    return [hook for hook in hooks if any(callable(getattr(hook, name, None)) for name in VERDICTS)]


class Verdicts:
    """The threads, from construction to `join()`.

    A hook that raises does not refuse by that: it is reported in the log, and asked no more.

    Args:
        engine: puts the questions; it knows the hooks by their place in `hooks`, waits for `verdict_timeout_s`, and then asks no more.
        hooks: as `asked_among` returned them.
    """

    def __init__(self, engine: _core.Engine, hooks: Iterable[object]) -> None:
        self._threads = [threads.start("lamina-verdict", _serve, engine, ordinal, hook) for ordinal, hook in enumerate(hooks)]

    def join(self) -> None:
        """Waits for the threads; the engine must be closed. One whose hook does not return is left behind."""
        for thread in self._threads:
            thread.join(_JOIN_S)


def _serve(engine: _core.Engine, ordinal: int, hook: object) -> None:
    is_asked = True
    while True:
        try:
            question = engine.next_question(ordinal, _POLL_S)
        except StopIteration:
            return
        if question is None:
            continue
        refusal = None
        if is_asked:
            try:
                refusal = _refusal(hook, *question)
            except BaseException:  # sys.exit() too
                is_asked = False
                logger.exception("hook %s raised at %s of step %d and is asked no more", type(hook).__qualname__, *question)
        engine.answer(ordinal, refusal)


def _refusal(hook: object, name: str, step: int) -> str | None:
    """Why not; None for a yes: None and True. A no is False, or a text that says why."""
    method = getattr(hook, name, None)
    answer = True if method is None else method(step)
    if answer is None or answer is True:
        return None
    if answer is False:
        return "refused"
    if isinstance(answer, str):
        return answer
    raise TypeError(f"{name} returned {answer!r}; expected None or True for a yes, False or a text for a no")
