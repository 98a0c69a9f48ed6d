"""Plain values as JSON text and back. Nothing is pickled: what has no rule here is refused by its path.

null, true, false, strings, ints and finite floats stand for themselves; all else is an object with one key that says what it is, such as
{"$dict": [[key, value], ...]}. Values that are more than plain (tensors, modules, ...) are left to a callback on both ways.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import itertools
import json
import math
import re
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from lamina.errors import CorruptionError, InvalidArgumentError, StateError, UnsupportedError
from lamina.names import Path, is_component, to_text

Json: TypeAlias = Any
Leaf: TypeAlias = Callable[[object, Path], "Json | None"]  # the node of a value that is more than plain; None: not mine

DEPTH_MAX: Final = 100  # containers that a value stands in
_INT_BITS_MAX: Final = 8192  # longer ones are written in hexadecimal, since Python limits the digits of a decimal
_SAME_HASH_MAX: Final = 1000  # keys of one mapping; looking one up compares it with those
_NUMPY_KINDS: Final = "biufcSUmM"
_NUMPY_SIZES: Final = {"f": (2, 4, 8), "c": (8, 16)}  # larger ones have another layout on each kind of machine
_NUMPY_DTYPE: Final = re.compile(r"[<>|][biufcSUmM][0-9]{1,10}(\[[0-9]{0,10}[a-zA-Z]{1,2}\])?")  # all that NumPy is asked to parse
_NOT_FINITE: Final = re.compile("[0-9a-f]{16}")
_HEXADECIMAL: Final = re.compile("-?0x[0-9a-f]+")
# What stands where a value is more than plain, with the keys of its body; a tensor's is its name.
MORE: Final[dict[str, tuple[str, ...]]] = {
    "$tensor": (),
    "$module": (),
    "$optimizer": ("type",),
    "$object": ("type", "state"),
    "$rng": (),
    "$per_rank": (),
}


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
        CorruptionError: `text` is not ASCII JSON, or has a number that is none, or one key twice in an object.
    """
    try:
        return json.loads(text.decode("ascii"), parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"plain values in the checkpoint are not JSON: {error}") from error


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has one key twice")
    return found


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
    if depth > DEPTH_MAX:
        raise InvalidArgumentError(f"{to_text(path[:3])}…: nested more than {DEPTH_MAX} levels deep, or part of itself")
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
    mixed = type(value) is dict and any(isinstance(node, dict) and not MORE.keys().isdisjoint(node) for _, node in items)
    return sorted(items, key=lambda item: dumps(item[0])) if mixed else items


def _encode_numpy(value: object, path: Path) -> Json | None:
    if type(value) is not np.ndarray and not isinstance(value, np.generic):
        return None
    if value.dtype.kind not in _NUMPY_KINDS:
        raise UnsupportedError(f"{to_text(path)} is a NumPy value of dtype {value.dtype}, which holds more than plain numbers or text")
    if value.dtype.itemsize not in _NUMPY_SIZES.get(value.dtype.kind, (value.dtype.itemsize,)):
        raise UnsupportedError(f"{to_text(path)} is a NumPy value of dtype {value.dtype}, whose bytes differ between machines")
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


def decode(node: Json, inner: Callable[[Json], object] | None = None, depth: int = 0) -> Any:
    """The value of a node, made anew.

    Args:
        node: as `encode` made it.
        inner: decodes the parts of a container; default: this function.
        depth: how many containers it stands in.

    Raises:
        CorruptionError: a node that `encode` does not make.
        UnsupportedError: a type that this process does not have.
        StateError: the caller's stack is nearly full.
    """
    check_depth(depth)
    tag = tag_of(node)
    if tag is None:
        if type(node) is int and node.bit_length() > _INT_BITS_MAX:
            raise CorruptionError(f"plain values in the checkpoint: an integer of {node.bit_length()} bits in decimal digits")
        return node
    rule = _DECODERS.get(tag)
    if rule is None:
        raise CorruptionError(f"plain values in the checkpoint: {tag:.80} has no meaning here")
    try:
        return rule(node[tag], inner or (lambda part: decode(part, None, depth + 1)))
    except RecursionError as error:  # depth is bounded, so that it is the caller's stack which is nearly full
        raise StateError("the call stack has no room to decode plain values: call from fewer functions in one another") from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, struct.error) as error:
        if isinstance(error, (CorruptionError, UnsupportedError, InvalidArgumentError)):
            raise
        raise CorruptionError(f"plain values in the checkpoint: {tag} is malformed: {error}") from error


def check_depth(depth: int) -> None:
    """Refuses what stands in more containers than `encode` puts it.

    Raises:
        CorruptionError: it does.
    """
    if depth > DEPTH_MAX:
        raise CorruptionError(f"plain values in the checkpoint: nested more than {DEPTH_MAX} levels deep")


def mark_of(node: Json) -> str | None:
    """The tag of a node that stands where a value is more than plain; None for a plain one.

    Raises:
        CorruptionError: the mark has another body than its kind has.
    """
    tag = tag_of(node)
    if tag is None or tag not in MORE:
        return None
    body = node[tag]
    if tag == "$tensor":
        sound = isinstance(body, str)
    else:
        sound = isinstance(body, dict) and body.keys() == set(MORE[tag]) and isinstance(body.get("type", ""), str)
    if not sound:
        raise CorruptionError(f"plain values in the checkpoint: {tag} is malformed")
    return tag


def parts_of(body: Json) -> list[Json]:
    """The nodes in a list's body.

    Raises:
        CorruptionError: it is no array.
    """
    if not isinstance(body, list):
        raise CorruptionError("plain values in the checkpoint: a list that is no array")
    return body


def items_of(body: Json) -> list[tuple[Any, Json]]:
    """The decoded keys of a mapping's body with the nodes of their values.

    Raises:
        CorruptionError: it is no list of pairs, or has other keys than a mapping can have.
    """
    if not isinstance(body, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in body):
        raise CorruptionError("plain values in the checkpoint: a mapping that is no list of pairs")
    items = [(decode(key), part) for key, part in body]
    if not all(is_component(key) for key, _ in items):
        raise CorruptionError("plain values in the checkpoint: a mapping with a key of another kind")
    _distinct([key for key, _ in items], "a mapping with one key twice")
    return items


def _distinct(values: list[Any], otherwise: str) -> set[Any]:
    """The set of `values`. Python's hash of an int is no secret, so that many of one hash are refused before they are compared."""
    if len(values) > _SAME_HASH_MAX and max(collections.Counter(map(hash, values)).values()) > _SAME_HASH_MAX:
        raise CorruptionError(f"plain values in the checkpoint: more than {_SAME_HASH_MAX} keys or members of one hash")
    found = set(values)
    if len(found) != len(values):
        raise CorruptionError(f"plain values in the checkpoint: {otherwise}")
    return found


def bytes_of(text: Json) -> bytes:
    """The bytes whose base64 is `text`, in its one form.

    Raises:
        ValueError: it is no base64, or another text for the same bytes.
        TypeError: it is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"base64 as {type(text).__name__}")
    data = base64.b64decode(text, validate=True)
    last = len(data) - len(data) % 3
    if len(text) != (len(data) + 2) // 3 * 4 or (last < len(data) and base64.b64encode(data[last:]).decode("ascii") != text[-4:]):
        raise ValueError("base64 in another form")
    return data


def fields_of(body: Json, *names: str) -> list[Json]:
    """The values of an object's keys, which are `names` and no others.

    Raises:
        ValueError: it has others.
    """
    if not isinstance(body, dict) or body.keys() != set(names):
        raise ValueError(f"expected an object of {', '.join(names)}")
    return [body[name] for name in names]


def extents_of(body: Json) -> list[int]:
    """The extents of a shape.

    Raises:
        ValueError: it is no array of integers from 0 on.
    """
    if not isinstance(body, list) or any(type(extent) is not int or extent < 0 for extent in body):
        raise ValueError("a shape that is none")
    return body


def _class_named(name: str, base: type) -> Any:
    # Looked up among what is imported, and not imported: reading a checkpoint runs no code that it names.
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            found = _attributes(found).get(part)
        if issubclass(type(found), type) and issubclass(found, base):
            return found
    raise UnsupportedError(
        f"the checkpoint holds a value of type {name}, which this process has not imported (or not as a {base.__name__})"
    )


def _attributes(found: object) -> Mapping[str, Any]:
    # Asked of `object`, since a module that is imported late (importlib.util.LazyLoader) runs when it is asked itself.
    try:
        return object.__getattribute__(found, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


def _decode_str(body: Json) -> str:
    text = bytes_of(body).decode("utf-8", "surrogatepass")
    if _encode_str(text) != {"$str": body}:
        raise ValueError("a string without a lone surrogate")
    return text


def _decode_float(body: Json) -> float:
    if not _NOT_FINITE.fullmatch(body) or math.isfinite(value := struct.unpack(">d", bytes.fromhex(body))[0]):
        raise ValueError("no bits of an infinity or a NaN")
    return float(value)


def _decode_int(body: Json) -> int:
    if not _HEXADECIMAL.fullmatch(body) or (value := int(body, 16)).bit_length() <= _INT_BITS_MAX or hex(value) != body:
        raise ValueError(f"no integer of more than {_INT_BITS_MAX} bits")
    return value


def _decode_set(body: Json, inner: Callable[[Json], object]) -> set[Any]:
    texts = [dumps(part) for part in parts_of(body)]
    if any(text > following for text, following in itertools.pairwise(texts)):
        raise ValueError("its members are not sorted")
    return _distinct([inner(part) for part in body], "a set with one member twice")


def _decode_enum(body: Json, inner: Callable[[Json], object]) -> object:
    name, value = fields_of(body, "type", "value")
    return _class_named(name, enum.Enum)(inner(value))


def _decode_namedtuple(body: Json, inner: Callable[[Json], object]) -> object:
    name, fields, parts = fields_of(body, "type", "fields", "values")
    if not isinstance(fields, list) or len(fields) != len(parts_of(parts)):
        raise ValueError("other fields than values")
    cls = _class_named(name, tuple)
    if list(cls._fields) != fields:
        raise UnsupportedError(f"{name} has the fields {list(cls._fields)} here and {fields} in the checkpoint")
    return tuple.__new__(cls, [inner(part) for part in parts])


def _decode_registered(body: Json, inner: Callable[[Json], object]) -> object:
    name, state = fields_of(body, "type", "state")
    known = _registered.get(name)
    if known is None:
        raise UnsupportedError(f"the checkpoint holds a value of type {name}: teach it with lamina.register_type first")
    return known.from_state(inner(state))


def _decode_array(text: Json, shape: Json, data_text: Json) -> Any:
    if not _NUMPY_DTYPE.fullmatch(text) or (dtype := np.dtype(text)).str != text:
        raise ValueError(f"a NumPy value of dtype {text!r:.80}")
    data = bytes_of(data_text)
    if math.prod(extents_of(shape)) * dtype.itemsize != len(data):
        raise ValueError(f"a NumPy value of shape {shape!r:.80} with {len(data)} bytes")
    array = np.ndarray(tuple(shape), dtype, data).copy()
    if dtype.kind == "U" and array.size and np.frombuffer(data, f"{text[0]}u4").max(initial=0) > sys.maxunicode:
        raise ValueError("a NumPy value with characters that are none")
    return array


def _decode_scalar(text: Json, data_text: Json) -> Any:
    return _decode_array(text, [], data_text)[()]


def _decode_torch(kind: str, body: Json) -> object:
    import torch

    if kind == "$size":
        if any(type(extent) is not int or not -(1 << 63) <= extent < 1 << 63 for extent in parts_of(body)):
            raise ValueError("an extent that is none")
        return torch.Size(body)
    if not isinstance(body, str):
        raise ValueError("no text")
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
    "$str": lambda body, inner: _decode_str(body),
    "$float": lambda body, inner: _decode_float(body),
    "$int": lambda body, inner: _decode_int(body),
    "$bytes": lambda body, inner: bytes_of(body),
    "$dict": lambda body, inner: {key: inner(part) for key, part in items_of(body)},
    "$ordered": lambda body, inner: collections.OrderedDict((key, inner(part)) for key, part in items_of(body)),
    "$counter": lambda body, inner: collections.Counter({key: inner(part) for key, part in items_of(body)}),
    "$list": lambda body, inner: [inner(part) for part in parts_of(body)],
    "$tuple": lambda body, inner: tuple([inner(part) for part in parts_of(body)]),
    "$set": _decode_set,
    "$frozenset": lambda body, inner: frozenset(_decode_set(body, inner)),
    "$enum": _decode_enum,
    "$namedtuple": _decode_namedtuple,
    "$registered": _decode_registered,
    "$ndarray": lambda body, inner: _decode_array(*fields_of(body, "dtype", "shape", "data")),
    "$scalar": lambda body, inner: _decode_scalar(*fields_of(body, "dtype", "data")),
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
