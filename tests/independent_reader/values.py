"""Plain values: the JSON of the blobs `tree`, `place` and `metadata`, read strictly."""

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from . import layout
from .layout import DamagedError

DEPTH_MAX = 100
ELEMENT_BYTES = dict(layout.DTYPES.values())


def check(holds: object, what: str) -> None:
    if not holds:
        raise DamagedError(what)


def _no_constant(text: str) -> Any:
    raise DamagedError(f"{text} is no JSON")


def _finite(text: str) -> float:
    check(math.isfinite(float(text)), f"{text} is beyond the floats")
    return float(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    check(len(dict(pairs)) == len(pairs), "a name stands twice in an object")
    return dict(pairs)


def decode(blob: str, text: bytes) -> Any:
    """What a blob says: Python's own types where there is one, and (mark, content) for the rest. `blob`: its name."""
    try:
        parsed = json.loads(text.decode("ascii"), parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_object)
        _check_depth(parsed, 0)
        if blob == "place":
            return _place(parsed)
        value = _value(parsed, _TREE if blob == "tree" else _SMALL)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"the blob {blob}: {error}") from error
    check(blob != "tree" or _is(value, "dict"), "the tree is no $dict")
    return value


def _check_depth(part: Any, depth: int) -> None:
    """`depth`: how many nodes it stands in, without $object."""
    if type(part) is list:
        for each in part:
            _check_depth(each, depth)
    elif type(part) is dict:
        (mark,) = part if len(part) == 1 else ("",)
        is_node = mark.startswith("$")
        check(not is_node or depth <= DEPTH_MAX, "a node stands in more than 100 others")
        for each in part.values():
            _check_depth(each, depth + (is_node and mark != "$object"))


def _is(value: Any, mark: str) -> bool:
    return isinstance(value, _Marked) and value[0] == mark


class _Marked(tuple[Any, ...]):
    """A mark and its content; no $tuple."""

    __slots__ = ()


def _of(content: Any, kind: type, what: str) -> Any:
    check(type(content) is kind, f"{what}, not {str(content)[:100]}")
    return content


def _list(content: Any) -> list[Any]:
    return list(_of(content, list, "an array is needed"))


def _text(content: Any) -> str:
    return str(_of(content, str, "a string is needed"))


def _fields(content: Any, *names: str) -> list[Any]:
    """The fields of an object that has exactly these."""
    check(type(content) is dict and content.keys() == set(names), f"an object of {names} is needed, not {str(content)[:100]}")
    return [content[name] for name in names]


def _pairs(content: Any) -> list[list[Any]]:
    pairs = _list(content)
    check(all(type(pair) is list and len(pair) == 2 for pair in pairs), f"pairs are needed, not {str(content)[:100]}")
    return pairs


def _place(parsed: Any) -> dict[str, Any]:
    parts = _fields(parsed, "rng", "per_rank", "modules", "optimizers")
    rng, per_rank, modules, optimizers = (_of(part, dict, "an object is needed") for part in parts)
    return {
        "rng": {name: _value(node, _SMALL) for name, node in rng.items()},
        "per_rank": {name: _value(node, _SMALL) for name, node in per_rank.items()},
        "modules": {name: _named(extra) for name, extra in modules.items()},
        "optimizers": {name: _optimizer(body) for name, body in optimizers.items()},
    }


def _named(content: Any) -> list[tuple[str, Any]]:
    return [(_text(name), _value(node, _SMALL)) for name, node in _pairs(content)]


def _optimizer(body: Any) -> dict[str, Any]:
    groups, slots, rest = _fields(body, "groups", "slots", "rest")
    parts = [_fields(group, "options", "params") for group in _list(groups)]
    return {
        "groups": [{"options": _named(options), "params": list(map(_text, _list(params)))} for options, params in parts],
        "slots": [(_text(name), _items(items, _SLOTS)) for name, items in _pairs(slots)],
        "rest": _items(rest, _SLOTS),
    }


Marks = dict[str, Callable[[Any, Any], Any]]


def _value(node: Any, marks: Marks) -> Any:
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    check(type(node) is dict and len(node) == 1, f"not a node: {str(node)[:100]}")
    ((mark, content),) = node.items()
    check(mark in marks, f"an unknown mark: {mark}")
    try:
        found = marks[mark](content, marks)
    except (TypeError, ValueError, struct.error) as error:
        raise DamagedError(f"{mark} of {str(content)[:100]}: {error!r}") from error
    return found if mark in _PLAIN else _Marked((mark[1:], found))


def _values(content: Any, marks: Marks) -> list[Any]:
    return [_value(node, marks) for node in _list(content)]


def _items(content: Any, marks: Marks) -> list[tuple[Any, Any]]:
    items = [(_value(key, marks), _value(value, marks)) for key, value in _pairs(content)]
    for key, _ in items:
        _check_key(key)
    check(len({key for key, _ in items}) == len(items), "a key stands twice")
    return items


def _check_key(key: Any) -> None:
    if type(key) is tuple:
        for part in key:
            _check_key(part)
    check(key is None or (isinstance(key, (bool, int, float, str, tuple)) and not isinstance(key, _Marked)), f"a key {str(key)[:100]}")
    check(not isinstance(key, float) or not math.isnan(key), "a key that is NaN")


def _float(content: Any, _: Marks) -> float:
    check(re.fullmatch("[0-9a-f]{16}", _text(content)), f"16 digits are needed, not {content}")
    value = float(struct.unpack(">d", bytes.fromhex(content))[0])
    check(not math.isfinite(value), f"{value} is a number of JSON")
    return value


def _int(content: Any, _: Marks) -> int:
    check(re.fullmatch("-?0x[0-9a-f]+", _text(content)), "hexadecimal digits are needed")
    value = int(content, 16)
    check(value.bit_length() > 8192, "an integer that is a number of JSON")
    return value


def _bytes(content: Any) -> bytes:
    raw = base64.b64decode(_text(content), validate=True)
    check(base64.b64encode(raw).decode() == content, "base64 in another form than its one")
    return raw


def _shape(content: Any) -> tuple[int, ...]:
    check(all(type(extent) is int and extent >= 0 for extent in _list(content)), f"a shape {str(content)[:100]}")
    return tuple(content)


def _array(content: Any, itemsize: Callable[[str], int]) -> tuple[str, tuple[int, ...], bytes]:
    dtype, shape, data = _fields(content, "dtype", "shape", "data")
    raw = _bytes(data)
    check(len(raw) == math.prod(_shape(shape)) * itemsize(dtype), f"{len(raw)} bytes of {dtype} {shape}")
    return dtype, tuple(shape), raw


def _numpy_bytes(dtype: Any) -> int:
    check(re.fullmatch(r"[<>|][biufcSUmM][0-9]+(\[[0-9a-zA-Zμ]+\])?", _text(dtype)), f"a dtype {dtype}")
    size = np.dtype(dtype).itemsize
    check(size <= {"f": 8, "c": 16}.get(dtype[1], size), f"a dtype {dtype}, which differs between machines")
    return size


def _scalar(content: Any, _: Marks) -> tuple[str, bytes]:
    dtype, data = _fields(content, "dtype", "data")
    check(len(_bytes(data)) == _numpy_bytes(dtype), f"{data} of {dtype}")
    return dtype, _bytes(data)


def _inline_bytes(dtype: Any) -> int:
    check(_text(dtype) in ELEMENT_BYTES, f"a dtype {dtype}")
    return ELEMENT_BYTES[dtype]


def _namedtuple(content: Any, marks: Marks) -> tuple[Any, ...]:
    of, fields, nodes = _fields(content, "type", "fields", "values")
    found = tuple(map(_text, _list(fields)))
    check(len(found) == len(_list(nodes)), f"{len(nodes)} values of {len(found)} fields")
    return _text(of), found, tuple(_values(nodes, marks))


def _typed(name: str) -> Callable[[Any, Marks], tuple[Any, ...]]:
    def read(content: Any, marks: Marks) -> tuple[Any, ...]:
        of, node = _fields(content, "type", name)
        return _text(of), _value(node, marks)

    return read


def _nothing(content: Any, _: Marks) -> None:
    _fields(content)


def _tuple(content: Any, marks: Marks) -> tuple[Any, ...]:
    return tuple(_values(content, marks))


# What is Python's own.
_PLAIN: Marks = {
    "$float": _float,
    "$int": _int,
    "$str": lambda c, _: _bytes(c).decode("utf-8", "surrogatepass"),
    "$list": _values,
    "$tuple": _tuple,
    "$bytes": lambda c, _: _bytes(c),
}
_BOTH: Marks = {
    **_PLAIN,
    "$dict": _items,
    "$ordered": _items,
    "$counter": _items,
    "$set": _values,
    "$frozenset": _values,
    "$ndarray": lambda c, _: _array(c, _numpy_bytes),
    "$scalar": _scalar,
    "$size": lambda c, _: _shape(c),
    "$dtype": lambda c, _: _text(c),
    "$device": lambda c, _: _text(c),
    "$namedtuple": _namedtuple,
    "$enum": _typed("value"),
    "$registered": _typed("state"),
}
_SMALL: Marks = {**_BOTH, "$inline": lambda c, _: _array(c, _inline_bytes)}
_SLOTS: Marks = {**_SMALL, "$tensor": lambda c, _: _text(c)}
_TREE: Marks = {
    **_BOTH,
    "$tensor": lambda c, _: _text(c),
    "$object": _typed("state"),
    "$module": _nothing,
    "$optimizer": lambda c, _: _text(*_fields(c, "type")),
    "$rng": _nothing,
    "$per_rank": _nothing,
}
