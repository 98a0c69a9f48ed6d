"""What one rank saved as its own, as a checkpoint has it: checked whole, before any of it is used."""

from __future__ import annotations

from typing import Final, TypeAlias

from lamina.errors import CorruptionError, InvalidArgumentError
from lamina.names import from_text
from lamina.optimizer import NOT_OPTIONS
from lamina.values import Json

Place: TypeAlias = dict[str, dict[str, Json]]

_KINDS: Final = frozenset(("rng", "per_rank", "modules", "optimizers"))


def checked(parsed: Json) -> Place:
    """`parsed` itself. Its nodes are not decoded, since those of other ranks may be of types that this one does not have.

    Raises:
        CorruptionError: it has another form than a save gives it.
    """
    _require(isinstance(parsed, dict) and parsed.keys() == _KINDS, "the values of one rank are not those of four kinds")
    for kind in _KINDS:
        _require(isinstance(parsed[kind], dict), f"what one rank has of {kind} has no names")
        for name, body in parsed[kind].items():
            _check_path(name)
            if kind == "modules":
                _check_module(name, body)
            elif kind == "optimizers":
                _check_optimizer(name, body)
    return parsed  # type: ignore[no-any-return]


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CorruptionError(otherwise)


def _check_path(name: str) -> None:
    try:
        from_text(name)
    except InvalidArgumentError as error:
        raise CorruptionError(str(error)) from error


def _check_module(name: str, body: Json) -> None:
    _require(_are_named(body), f"the module {name[:80]!r} is malformed")
    for inside, _ in body:
        _check_path(inside)


def _check_optimizer(name: str, body: Json) -> None:
    sound = (
        isinstance(body, dict)
        and body.keys() == {"groups", "slots", "rest"}
        and isinstance(body["groups"], list)
        and all(map(_is_group, body["groups"]))
        and _are_named(body["slots"])
        and all(_are_pairs(slots) for _, slots in body["slots"])
        and _are_pairs(body["rest"])
    )
    _require(sound, f"the optimizer {name[:80]!r} is malformed")


def _is_group(group: Json) -> bool:
    return (
        isinstance(group, dict)
        and group.keys() == {"options", "params"}
        and _are_named(group["options"])
        and not any(key in NOT_OPTIONS for key, _ in group["options"])
        and isinstance(group["params"], list)
        and all(isinstance(name, str) for name in group["params"])
    )


def _are_pairs(body: Json) -> bool:
    return isinstance(body, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in body)


def _are_named(body: Json) -> bool:
    """Pairs of a name and what is about it, none twice."""
    return _are_pairs(body) and all(isinstance(name, str) for name, _ in body) and len({name for name, _ in body}) == len(body)
