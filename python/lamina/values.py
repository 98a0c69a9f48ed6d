"""Plain values as JSON text and back. Nothing is pickled: what has no rule here is refused by its path.

null, true, false, strings, ints and finite floats stand for themselves; all else is an object with one key that says what it is, such as
{"$dict": [[key, value], ...]}. Values that are more than plain (tensors, modules, ...) are left to a callback on both ways.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import json
import math
import struct
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from lamina.errors import CorruptionError, InvalidArgumentError, UnsupportedError
from lamina.names import Path, is_component, to_text

Json: TypeAlias = Any
Leaf: TypeAlias = Callable[[object, Path], "Json | None"]  # the node of a value that is more than plain; None: not mine

_DEPTH_MAX: Final = 100
_INT_BITS_MAX: Final = 8192  # longer ones are written in hexadecimal, since Python limits the digits of a decimal
_NUMPY_KINDS: Final = "biufcSUmM"
# What stands where a value is more than plain.
MORE: Final = frozenset(("$tensor", "$module", "$optimizer", "$object", "$rng", "$per_rank"))


@dataclasses.dataclass(frozen=True)
class _Registered:
    cls: type
    to_state: Callable[[Any], object]
    from_state: Callable[[Any], object]


_registered: dict[str, _Registered] = {}


def register_type(cls: type, to_state: Callable[[Any], object], from_state: Callable[[Any], object]) -> None:
    """Teaches Lamina a type of plain value.

    Args:
        cls: the type; its subclasses are not included.
        to_state: makes plain values of an instance.
        from_state: makes an instance of what `to_state` returned.
    """
    _registered[_type_name(cls)] = _Registered(cls, to_state, from_state)


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def dumps(node: Json) -> bytes:
    """The node as ASCII text."""
    return json.dumps(node, allow_nan=False, separators=(",", ":")).encode("ascii")


def loads(text: bytes) -> Json:
    """The node that `text` stands for.

    Raises:
        CorruptionError: `text` is not ASCII JSON, or has a number that is none.
    """
    try:
        return json.loads(text.decode("ascii"), parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"plain values in the checkpoint are not JSON: {error}") from error


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        _no_number(text)
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:100]} is no number")


def encode(value: object, path: Path = (), leaf: Leaf = lambda value, path: None, depth: int = 0) -> Json:
    """The node of a value; copies everything.

    Args:
        value: what to encode.
        path: where it stands, for messages and names.
        leaf: asked first for each value that is not a bool, None, str, int, float, dict, list or tuple.
        depth: how many containers it stands in.

    Raises:
        UnsupportedError: a type without a rule; names its path.
        InvalidArgumentError: too deeply nested, or a key that no path can hold.
    """
    if depth > _DEPTH_MAX:
        raise InvalidArgumentError(f"{to_text(path[:3])}…: nested more than {_DEPTH_MAX} levels deep, or part of itself")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind in _SIMPLE:
        return _SIMPLE[kind](value)

    def inner(part: object, *component: Any) -> Json:
        return encode(part, (*path, *component), leaf, depth + 1)

    if kind is dict:
        return {"$dict": _encode_items(value, path, leaf, depth)}
    if isinstance(value, (list, tuple)) and kind in (list, tuple):
        return {f"${kind.__name__}": [inner(part, at) for at, part in enumerate(value)]}
    node = leaf(value, path)
    if node is not None:
        return node
    if kind in _PAIRS:
        return {_PAIRS[kind]: _encode_items(value, path, leaf, depth)}
    if isinstance(value, (set, frozenset)) and kind in (set, frozenset):
        return {f"${kind.__name__}": sorted((inner(part) for part in value), key=dumps)}
    if isinstance(value, enum.Enum):
        return {"$enum": {"type": _type_name(kind), "value": inner(value.value)}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = list(value._fields)
        return {"$namedtuple": {"type": _type_name(kind), "fields": fields, "values": [inner(*pair) for pair in zip(value, fields)]}}
    if (known := _registered.get(_type_name(kind))) is not None and known.cls is kind:
        return {"$registered": {"type": _type_name(kind), "state": inner(known.to_state(value))}}
    node = _encode_numpy(value, path) or _encode_torch(value)
    if node is None:
        raise UnsupportedError(
            f"{to_text(path) or 'the state'} is of type {_type_name(kind)}, which has no rule: hand over plain values, an object with "
            "state_dict and load_state_dict, or teach the type with lamina.register_type"
        )
    return node


def _encode_str(value: str) -> Json:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return {"$str": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")}
    return value


def _encode_float(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


_SIMPLE: Final[dict[type, Callable[[Any], Json]]] = {
    str: _encode_str,
    float: _encode_float,
    int: lambda value: value if value.bit_length() <= _INT_BITS_MAX else {"$int": hex(value)},
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
}
_PAIRS: Final[dict[type, str]] = {collections.OrderedDict: "$ordered", collections.Counter: "$counter"}


def _encode_items(value: Any, path: Path, leaf: Leaf, depth: int) -> Json:
    for key in value:
        if not is_component(key):
            raise InvalidArgumentError(
                f"{to_text(path) or 'the state'} has a key {key!r} of type {type(key).__name__}; keys are str, int, float, bool, None "
                "or tuples of these, and no NaN"
            )
    items = [[encode(key), encode(part, (*path, key), leaf, depth + 1)] for key, part in value.items()]
    # Ranks may insert the parts of a state in different order. The order of plain dicts is the caller's.
    mixed = type(value) is dict and any(isinstance(node, dict) and not MORE.isdisjoint(node) for _, node in items)
    return sorted(items, key=lambda item: dumps(item[0])) if mixed else items


def _encode_numpy(value: object, path: Path) -> Json | None:
    if type(value) is not np.ndarray and not isinstance(value, np.generic):
        return None
    if value.dtype.kind not in _NUMPY_KINDS:
        raise UnsupportedError(f"{to_text(path)} is a NumPy value of dtype {value.dtype}, which holds more than plain numbers or text")
    data = base64.b64encode(value.tobytes()).decode("ascii")
    if isinstance(value, np.generic):
        return {"$scalar": {"dtype": value.dtype.str, "data": data}}
    return {"$ndarray": {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}}


def _encode_torch(value: object) -> Json | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.Size):
        return {"$size": list(value)}
    if isinstance(value, (torch.dtype, torch.device)):
        return {f"${type(value).__name__}": str(value).removeprefix("torch.")}
    return None


def tag_of(node: Json) -> str | None:
    """The tag of a node, such as "$dict"; None for one that stands for itself.

    Raises:
        CorruptionError: a JSON array, or an object that is no tagged node.
    """
    if isinstance(node, dict):
        if len(node) == 1:
            tag = next(iter(node))
            if tag.startswith("$"):
                return str(tag)
        raise CorruptionError("plain values in the checkpoint: an object that is no tagged value")
    if isinstance(node, list):
        raise CorruptionError("plain values in the checkpoint: an array without a tag")
    return None


def decode(node: Json, inner: Callable[[Json], object] | None = None) -> Any:
    """The value of a node, made anew.

    Args:
        node: as `encode` made it.
        inner: decodes the parts of a container; default: this function.

    Raises:
        CorruptionError: a node that `encode` does not make.
        UnsupportedError: a type that this process does not have.
    """
    tag = tag_of(node)
    if tag is None:
        return node
    rule = _DECODERS.get(tag)
    if rule is None:
        raise CorruptionError(f"plain values in the checkpoint: {tag} has no meaning here")
    try:
        return rule(node[tag], inner or decode)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, struct.error) as error:
        if isinstance(error, (CorruptionError, UnsupportedError, InvalidArgumentError)):
            raise
        raise CorruptionError(f"plain values in the checkpoint: {tag} is malformed: {error}") from error


def items_of(body: Json) -> list[tuple[Any, Json]]:
    """The decoded keys of a mapping's body with the nodes of their values."""
    if not isinstance(body, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in body):
        raise CorruptionError("plain values in the checkpoint: a mapping that is no list of pairs")
    items = [(decode(key), part) for key, part in body]
    if not all(is_component(key) for key, _ in items):
        raise CorruptionError("plain values in the checkpoint: a mapping with a key of another kind")
    if len({key for key, _ in items}) != len(items):
        raise CorruptionError("plain values in the checkpoint: a mapping with one key twice")
    return items


def _class_named(name: str, base: type) -> Any:
    # Looked up among what is imported, and not imported: reading a checkpoint runs no code that it names.
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            found = vars(found).get(part) if hasattr(found, "__dict__") else None
        if isinstance(found, type) and issubclass(found, base):
            return found
    raise UnsupportedError(
        f"the checkpoint holds a value of type {name}, which this process has not imported (or not as a {base.__name__})"
    )


def _decode_enum(body: Json, inner: Callable[[Json], object]) -> object:
    return _class_named(body["type"], enum.Enum)(inner(body["value"]))


def _decode_namedtuple(body: Json, inner: Callable[[Json], object]) -> object:
    cls = _class_named(body["type"], tuple)
    if list(cls._fields) != body["fields"]:
        raise UnsupportedError(f"{body['type']} has the fields {list(cls._fields)} here and {body['fields']} in the checkpoint")
    return tuple.__new__(cls, [inner(part) for part in body["values"]])


def _decode_registered(body: Json, inner: Callable[[Json], object]) -> object:
    known = _registered.get(body["type"])
    if known is None:
        raise UnsupportedError(f"the checkpoint holds a value of type {body['type']}: teach it with lamina.register_type first")
    return known.from_state(inner(body["state"]))


def _decode_array(body: Json, shape: list[int]) -> Any:
    dtype = np.dtype(body["dtype"])
    data = base64.b64decode(body["data"], validate=True)
    if dtype.kind not in _NUMPY_KINDS or any(type(extent) is not int or extent < 0 for extent in shape):
        raise CorruptionError(f"plain values in the checkpoint: a NumPy value of dtype {dtype} and shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise CorruptionError(f"plain values in the checkpoint: a NumPy value of shape {shape} with {len(data)} bytes")
    return np.ndarray(tuple(shape), dtype, data).copy()


def _decode_torch(kind: str, body: Json) -> object:
    import torch

    if kind == "$size":
        return torch.Size(body)
    if kind == "$device":
        try:
            return torch.device(body)
        except RuntimeError as error:
            raise UnsupportedError(f"this PyTorch has no device {body!r}") from error
    value = vars(torch).get(body)
    if not isinstance(value, torch.dtype):
        raise UnsupportedError(f"this PyTorch has no dtype {body}")
    return value


_DECODERS: Final[dict[str, Callable[[Any, Callable[[Json], Any]], object]]] = {
    "$str": lambda body, inner: base64.b64decode(body, validate=True).decode("utf-8", "surrogatepass"),
    "$float": lambda body, inner: struct.unpack(">d", bytes.fromhex(body))[0],
    "$int": lambda body, inner: int(body, 16),
    "$bytes": lambda body, inner: base64.b64decode(body, validate=True),
    "$dict": lambda body, inner: {key: inner(part) for key, part in items_of(body)},
    "$ordered": lambda body, inner: collections.OrderedDict((key, inner(part)) for key, part in items_of(body)),
    "$counter": lambda body, inner: collections.Counter({key: inner(part) for key, part in items_of(body)}),
    "$list": lambda body, inner: [inner(part) for part in body],
    "$tuple": lambda body, inner: tuple(inner(part) for part in body),
    "$set": lambda body, inner: {inner(part) for part in body},
    "$frozenset": lambda body, inner: frozenset(inner(part) for part in body),
    "$enum": _decode_enum,
    "$namedtuple": _decode_namedtuple,
    "$registered": _decode_registered,
    "$ndarray": lambda body, inner: _decode_array(body, body["shape"]),
    "$scalar": lambda body, inner: _decode_array(body, [])[()],
    "$size": lambda body, inner: _decode_torch("$size", body),
    "$dtype": lambda body, inner: _decode_torch("$dtype", body),
    "$device": lambda body, inner: _decode_torch("$device", body),
}


def assign(template: Any, value: Any) -> Any:
    """What its holder should hold after a restore: `template` itself, changed in place where it can be, else `value`."""
    kind = type(template)
    if template is value or kind is not type(value):  # clearing what it is to be updated from would lose it
        return value
    if kind in (dict, collections.OrderedDict):
        value = {key: assign(template[key], part) if key in template else part for key, part in value.items()}
    if kind in (dict, set, *_PAIRS):
        template.clear()
        template.update(value)
        return template
    if kind is list:
        template[:] = value
        return template
    if kind is np.ndarray and (template.dtype, template.shape) == (value.dtype, value.shape) and template.flags.writeable:
        np.copyto(template, value)
        return template
    return value
