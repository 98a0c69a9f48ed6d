"""One restore on one rank: match on every rank, agree, fill, put back, agree again, and only then is it done."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, MutableMapping
from typing import Any, Final, NoReturn

from lamina import _core, errors, inline, place, values
from lamina.implied import implied
from lamina.matching import Match, Rename
from lamina.mismatch import Problems, combine
from lamina.ranks import Ranks
from lamina.restore_info import RestoreInfo
from lamina.targets import Saved

_FILLED: Final = " (the targets are filled: do not train on them; restore again, this step or another)"


def restore(
    session: _core.RestoreSession, ranks: Ranks, state: MutableMapping[Any, Any], strict: bool, cast: bool, rename: Rename
) -> RestoreInfo:
    """Fills `state` from the step that the session stands at, or an older one where that is damaged. Collective.

    Raises:
        MismatchError: the checkpoint does not fit; the same on all ranks.
        Error: what went wrong on any rank, on all of them, naming the rank.
    """
    while True:
        match, metadata, problems = _matched(session, ranks, state, strict, cast, rename)
        if session.fill(match.targets.args):
            break
    failure: Exception | None = None
    try:
        match.finish()
    except Exception as error:
        failure = error
    try:
        _raise_first(ranks, [message["error"] for message in _exchange(ranks, failure)], failure, session, _FILLED)
    finally:
        del failure  # it refers to this frame, so that both would outlive their use, and the state with them
    session.end()
    return RestoreInfo(
        step=session.step,
        next_step=session.step + 1,
        missing=tuple(problems.missing),
        unexpected=(*problems.unexpected, *match.dropped),
        source_topology=dict(session.topology),
        metadata=metadata,
        line=tuple(session.line),
        passed_over=tuple(session.passed_over()),
    )


def _matched(
    session: _core.RestoreSession, ranks: Ranks, state: MutableMapping[Any, Any], strict: bool, cast: bool, rename: Rename
) -> tuple[Match, Any, Problems]:
    """The match of this rank, the step's metadata, and the problems of all ranks; raises on all of them when it cannot go on."""
    match, metadata, failure = None, None, None
    try:
        match, metadata = _match(session, ranks, state, cast, rename)
    except Exception as error:
        failure = error
    messages = _exchange(ranks, failure, match.problems if match else None)
    try:
        _raise_first(ranks, [message["error"] for message in messages], failure, session)
    finally:
        del failure  # as above
    problems = combine([Problems(**message["problems"]) for message in messages])
    if problems.is_fatal(strict):
        _fail(session, "MismatchError", problems.message(session.step, strict), None)
    assert match is not None
    return match, metadata, problems


def _match(session: _core.RestoreSession, ranks: Ranks, state: MutableMapping[Any, Any], cast: bool, rename: Rename) -> tuple[Match, Any]:
    with _named(f"step {session.step}"):
        return _match_texts(session, ranks, state, cast, rename)


def _match_texts(
    session: _core.RestoreSession, ranks: Ranks, state: MutableMapping[Any, Any], cast: bool, rename: Rename
) -> tuple[Match, Any]:
    blobs = session.blobs()
    has_tree = any(name == "tree" for name, _, _ in blobs)
    if has_tree:
        _check_ranks([(name, rank) for name, rank, _ in blobs], session.rank_count)
    entries = [Saved(name, dtype, tuple(shape), alias_of) for name, dtype, shape, alias_of in session.tensors()]
    if not has_tree:  # blobs of any name are the trainer's own bytes
        tree, own = implied([entry.name for entry in entries], state)
        return Match(state, entries, tree, {0: own}, ranks.rank, ranks.count, cast, rename, session.holds), None
    tree, metadata, places = None, None, {}
    for name, rank, text in blobs:
        with _named(f"blob {name!r} of rank {rank}"):
            if name == "tree":
                tree = values.loads(text)
            elif name == "metadata":
                metadata = inline.decode(values.loads(text))
            elif name == "place":
                places[rank] = place.checked(values.loads(text))
    return Match(state, entries, tree, places, ranks.rank, ranks.count, cast, rename, session.holds), metadata


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Puts in front of what is told of damage where it is."""
    try:
        yield
    except errors.CorruptionError as error:
        raise errors.CorruptionError(f"{where}: {error}", **error.facts()) from error


def _check_ranks(found: list[tuple[str, int]], rank_count: int) -> None:
    """What belongs to all is rank 0's; what belongs to a place is there for each."""
    places = sorted(rank for name, rank in found if name == "place")
    if len(places) != rank_count or places != list(range(rank_count)):
        raise errors.CorruptionError(f"the values of {len(places)} ranks are there, of {rank_count}")
    for name, rank in found:
        if name in ("tree", "metadata") and rank != 0:
            raise errors.CorruptionError(f"rank {rank} has a blob {name!r} of its own")


def _exchange(ranks: Ranks, failure: Exception | None, problems: Problems | None = None) -> list[Any]:
    """What each rank says: the class name and message of its failure, and its problems."""
    error = None if failure is None else errors.class_and_message(failure)
    message = {"error": error, "problems": dataclasses.asdict(problems or Problems())}
    return [json.loads(each) for each in ranks.gather(json.dumps(message).encode())]


def _raise_first(ranks: Ranks, failures: list[Any], own: Exception | None, session: _core.RestoreSession, more: str = "") -> None:
    """Raises the failure of the lowest rank that has one, on all ranks; names all of them, and says `more`."""
    failed = [(rank, error) for rank, error in enumerate(failures) if error is not None]
    if not failed:
        return
    causes = [f"rank {rank}: {message}" if ranks.count > 1 else message for rank, (_, message) in failed]
    try:
        _fail(session, failed[0][1][0], "\n".join(causes) + more, own)
    except errors.Error as error:
        error.rank = failed[0][0]
        error.causes = tuple(causes)
        raise


def _fail(session: _core.RestoreSession, class_name: str, message: str, cause: Exception | None) -> NoReturn:
    """Raises the class of that name, and ends the session on this rank."""
    with contextlib.suppress(errors.Error):  # it raises what is raised here
        session.fail(class_name, message)
    raise getattr(errors, class_name)(message) from cause
