"""Plain values: the JSON of the blobs `tree`, `place` and `metadata`, read strictly."""

import base64
import json
import struct
from typing import Any

from .layout import DamagedError


def _no_constant(text: str) -> Any:
    raise DamagedError(f"{text} is no JSON")


def decode(blob: str, text: bytes) -> Any:
    """What a blob says: Python's own types where there is one, and (mark, content) for the rest. `blob`: its name."""
    try:
        parsed = json.loads(text.decode("ascii"), parse_constant=_no_constant)
        if blob == "place":
            return _place(parsed)
    except (ValueError, TypeError) as error:
        raise DamagedError(f"the blob {blob}: {error}") from error
    value = _value(parsed)
    if blob == "tree" and not (isinstance(value, tuple) and value[0] == "dict"):
        raise DamagedError("the tree is no $dict")
    return value


def _place(parsed: Any) -> dict[str, Any]:
    if not isinstance(parsed, dict) or list(parsed) != ["rng", "per_rank", "modules", "optimizers"]:
        raise DamagedError("the blob place does not have its four parts")
    found: dict[str, Any] = {part: {name: _value(node) for name, node in parsed[part].items()} for part in ("rng", "per_rank")}
    found["modules"] = {name: [(str(key), _value(node)) for key, node in extra] for name, extra in parsed["modules"].items()}
    found["optimizers"] = {name: _optimizer(**body) for name, body in parsed["optimizers"].items()}
    return found


def _optimizer(groups: list[dict[str, Any]], slots: list[Any], rest: list[Any]) -> dict[str, Any]:
    return {
        "groups": [{"options": [(str(k), _value(n)) for k, n in g["options"]], "params": [str(p) for p in g["params"]]} for g in groups],
        "slots": [(str(name), _items(items)) for name, items in slots],
        "rest": _items(rest),
    }


def _value(node: Any) -> Any:
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if not isinstance(node, dict) or len(node) != 1:
        raise DamagedError(f"not a node: {str(node)[:100]}")
    ((mark, content),) = node.items()
    if mark not in _MARKS:
        raise DamagedError(f"an unknown mark: {mark}")
    try:
        return _MARKS[mark](content)
    except (TypeError, KeyError, ValueError, struct.error) as error:
        raise DamagedError(f"{mark} of {str(content)[:100]}: {error!r}") from error


def _items(content: Any) -> list[tuple[Any, Any]]:
    return [(_value(key), _value(value)) for key, value in content]


def _hashable(items: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    if len({repr(key) for key, _ in items}) != len(items):
        raise DamagedError("a key stands twice")
    return items


def _float(content: str) -> float:
    if len(content) != 16:
        raise ValueError("16 digits are needed")
    return float(struct.unpack(">d", bytes.fromhex(content))[0])


def _bytes(content: str) -> bytes:
    return base64.b64decode(content, validate=True)


_MARKS = {
    "$float": _float,
    "$int": lambda c: int(c, 16),
    "$str": lambda c: _bytes(c).decode("utf-8", "surrogatepass"),
    "$dict": lambda c: ("dict", _hashable(_items(c))),
    "$ordered": lambda c: ("ordered", _hashable(_items(c))),
    "$counter": lambda c: ("counter", _hashable(_items(c))),
    "$list": lambda c: [_value(node) for node in c],
    "$tuple": lambda c: tuple(_value(node) for node in c),
    "$set": lambda c: ("set", [_value(node) for node in c]),
    "$frozenset": lambda c: ("frozenset", [_value(node) for node in c]),
    "$bytes": _bytes,
    "$inline": lambda c: ("inline", c["dtype"], tuple(c["shape"]), _bytes(c["data"])),
    "$ndarray": lambda c: ("ndarray", c["dtype"], tuple(c["shape"]), _bytes(c["data"])),
    "$scalar": lambda c: ("scalar", c["dtype"], _bytes(c["data"])),
    "$size": lambda c: ("size", tuple(c)),
    "$dtype": lambda c: ("dtype", str(c)),
    "$device": lambda c: ("device", str(c)),
    "$namedtuple": lambda c: ("namedtuple", c["type"], tuple(c["fields"]), tuple(_value(node) for node in c["values"])),
    "$enum": lambda c: ("enum", c["type"], _value(c["value"])),
    "$tensor": lambda c: ("tensor", str(c)),
    "$registered": lambda c: ("registered", c["type"], _value(c["state"])),
    "$object": lambda c: ("object", c["type"], _value(c["state"])),
    "$module": lambda c: ("module", *c.keys()),
    "$optimizer": lambda c: ("optimizer", c["type"]),
    "$rng": lambda c: ("rng", *c.keys()),
    "$per_rank": lambda c: ("per_rank", *c.keys()),
}
