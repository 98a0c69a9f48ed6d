"""Names of entries: paths of typed components, and their text. Names are data: no two paths share a text.

A component that is a str stands bare when it is made of letters, digits, "_" and "-", else in quotes with escapes; str components are
joined by dots. Any other component (int, float, bool, None, or a tuple of components) stands in brackets: `log[3]."a.b".weight`.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from lamina.errors import InvalidArgumentError

Component: TypeAlias = "str | int | float | bool | None | tuple[Any, ...]"
Path: TypeAlias = tuple[Component, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TO_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-f]{1,6})\}|(.))", re.DOTALL)
_FLOAT = re.compile(r"-?(?:inf|\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_INT_BITS_MAX = 8192  # well below the number of digits that Python converts to text by default
_SHOWN_MAX = 200  # characters of a name in a message
_DEPTH_MAX = 100  # tuples that a part of a component stands in
_INT = re.compile(r"-?\d+")


def is_component(value: object, depth: int = 0) -> bool:
    """Whether `value`, which stands in `depth` tuples, can be a component, and so the key of a mapping in a state.

    A NaN is not: it equals no other key.
    """
    if type(value) is tuple:
        return depth <= _DEPTH_MAX and all(is_component(part, depth + 1) for part in value)
    if type(value) is float:
        return not math.isnan(value)
    if type(value) is int:
        return value.bit_length() <= _INT_BITS_MAX
    return value is None or type(value) in (str, bool)


def to_text(path: Sequence[Component]) -> str:
    """The text of a path.

    >>> to_text(("model", "layers", "0", "a.b", 3, True, ("x", 1.5)))
    'model.layers.0."a.b"[3][true][("x",1.5)]'
    """
    parts: list[str] = []
    for component in path:
        if isinstance(component, str):
            parts += (".", component if _BARE.fullmatch(component) else _quote(component))
        else:
            parts += ("", f"[{_literal(component)}]")
    return "".join(parts[1:])


def module_path(key: str) -> Path:
    """The components of a state_dict key of a module, which joins names by dots."""
    return tuple(key.split("."))


def from_text(text: str) -> Path:
    """The path whose text is `text`.

    Raises:
        InvalidArgumentError: `text` is not the text of a path.
    """
    try:
        path = _parse(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{_shown(text)} is not the name of an entry: {error}") from error
    if to_text(path) != text:
        raise InvalidArgumentError(f"{_shown(text)} is not the name of an entry; did you mean {_shown(to_text(path))}?")
    return path


def components(name: str) -> Path:
    """The path whose text is `name`; for a name that someone gave in another form, that name alone."""
    try:
        return from_text(name)
    except InvalidArgumentError:
        return (name,)


def is_below(name: str, above: str) -> bool:
    """Whether `name` is the text `above`, or that of a path that goes on from there."""
    return name == above or (name.startswith(above) and name[len(above)] in ".[")


def below(names: Sequence[str], above: str) -> list[str]:
    """Those of the sorted `names` that are the text of a path that goes on from `above`."""
    found: list[str] = []
    for mark in ".[":
        begin = bisect.bisect_left(names, above + mark)
        found += names[begin : bisect.bisect_left(names, above + chr(ord(mark) + 1), begin)]
    return found


def _parse(text: str) -> Path:
    path: list[Component] = []
    at = 0
    while at < len(text):
        if text[at] == "[":
            component, at = _parse_literal(text, at + 1)
            at = _expect(text, at, "]")
        else:
            at = _expect(text, at, ".") if path else at
            component, at = _parse_str(text, at)
        path.append(component)
    return tuple(path)


def _quote(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(lambda hit: _SHORT.get(hit[0]) or f"\\u{{{ord(hit[0]):x}}}", text) + '"'


def _literal(component: Component) -> str:
    if isinstance(component, str):
        return _quote(component)
    if isinstance(component, tuple):
        return "(" + ",".join(_literal(part) for part in component) + ")"
    if component is None or isinstance(component, bool):
        return {None: "null", True: "true", False: "false"}[component]
    return repr(component)


def _unquote(body: str) -> str:
    return _ESCAPE.sub(lambda hit: chr(int(hit[1], 16)) if hit[1] else "\n" if hit[2] == "n" else hit[2], body)


def _parse_str(text: str, at: int) -> tuple[str, int]:
    if quoted := _QUOTED.match(text, at):
        return _unquote(quoted[1]), quoted.end()
    if bare := _BARE.match(text, at):
        return bare[0], bare.end()
    raise _malformed(text, at)


def _parse_literal(text: str, at: int, depth: int = 0) -> tuple[Component, int]:
    if text.startswith('"', at):
        return _parse_str(text, at)
    if text.startswith("(", at):
        return _parse_tuple(text, at + 1, depth)
    for word, value in (("null", None), ("true", True), ("false", False)):
        if text.startswith(word, at):
            return value, at + len(word)
    number = _FLOAT.match(text, at)
    if number is None:
        raise _malformed(text, at)
    return (int(number[0]) if _INT.fullmatch(number[0]) else float(number[0])), number.end()


def _parse_tuple(text: str, at: int, depth: int) -> tuple[tuple[Component, ...], int]:
    if depth >= _DEPTH_MAX:
        raise ValueError(f"more than {_DEPTH_MAX} tuples in one another")
    parts: list[Component] = []
    while not text.startswith(")", at):
        at = _expect(text, at, ",") if parts else at
        part, at = _parse_literal(text, at, depth + 1)
        parts.append(part)
    return tuple(parts), at + 1


def _expect(text: str, at: int, mark: str) -> int:
    if not text.startswith(mark, at):
        raise _malformed(text, at)
    return at + 1


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…")


def _malformed(text: str, at: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"{_shown(text)} is not the name of an entry: unexpected {text[at : at + 1]!r} at character {at}")
