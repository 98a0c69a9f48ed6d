"""lamina.values: plain values come back as they were, by text alone; all else is refused by its path."""

import base64
import collections
import contextlib
import copy
import enum
import importlib.util
import inspect
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina import inline, values
from lamina.errors import CorruptionError, InvalidArgumentError, StateError, UnsupportedError


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: list[int]


class Opaque:
    pass


class Known:
    def __init__(self, inside: int) -> None:
        self.inside = inside


def there_and_back(value: Any) -> Any:
    return values.decode(values.loads(values.dumps(values.encode(value))))


def bits(value: Any) -> Any:
    """What tells values apart that == does not: types, signs of zero, bits of NaN."""
    if isinstance(value, float):
        return type(value), struct.pack(">d", value)
    if isinstance(value, (list, tuple)):
        return type(value), [bits(part) for part in value]
    if isinstance(value, dict):
        return type(value), [(bits(key), bits(part)) for key, part in value.items()]
    return type(value), value


keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.tuples(st.text(), st.integers())
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_plain_values_come_back(value: Any) -> None:
    assert bits(there_and_back(value)) == bits(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(1 << 100_000, id="large"),
        pytest.param(-(1 << 100_000), id="large and negative"),
        math.inf,
        "\ud83d\ude00",  # two surrogates are not one character
        {1, "a", (2, None)},
        frozenset({b"x"}),
        collections.Counter("abca"),
        collections.OrderedDict([("b", 1), ("a", [2])]),
        Color.RED,
        Color.BLUE,
        Point(1, [2, 3]),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cuda", 1),
        {"a.b": 1, "a": {"b": 2}, 1: 2, "1": 3, None: 4, (1, 2): 5},
    ],
)
def test_other_values_come_back(value: Any) -> None:
    again = there_and_back(value)
    assert type(again) is type(value)
    assert again == value


def test_nan_keeps_its_payload() -> None:
    nan = struct.unpack(">d", bytes.fromhex("7ff8000000abcdef"))[0]
    assert struct.pack(">d", there_and_back(nan)).hex() == "7ff8000000abcdef"


@pytest.mark.parametrize("dtype", ["?", "i1", "<u8", ">i4", "f2", "f8", "c16", "S3", "U2", "M8[ns]", "m8[s]"])
def test_numpy_values_come_back(dtype: str) -> None:
    array = np.zeros((2, 0, 3), dtype), np.frombuffer(bytes(range(6 * np.dtype(dtype).itemsize)), "u1")
    whole = np.ones((2, 3), "i8").astype(dtype) if dtype != "?" else array[1][:6].reshape(2, 3) > 2
    for value in (array[0], whole, whole.T, np.asarray(whole[0, 0])):
        again = there_and_back(value)
        assert (again.dtype, again.shape, again.tobytes()) == (value.dtype, value.shape, value.tobytes())
        assert again.flags.writeable
    scalar = there_and_back(whole[0, 0])
    assert type(scalar) is type(whole[0, 0])
    assert scalar == whole[0, 0]


@pytest.mark.parametrize(
    "value", [Opaque(), Opaque, lambda: 1, bytearray(b"x"), 1j, np.array([object()]), np.zeros(1, "i4,f4"), np.ma.array([1])]
)
def test_other_types_are_refused_by_path(value: Any) -> None:
    with pytest.raises(UnsupportedError, match=r'cfg\."a\.b"\[1\]'):
        values.encode({"a.b": [0, value]}, ("cfg",))


@pytest.mark.parametrize("key", [math.nan, b"x", Opaque(), (1, b"x")])
def test_other_keys_are_refused(key: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cfg has a key"):
        values.encode({key: 1}, ("cfg",))


def test_endless_nesting_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidArgumentError, match="part of itself"):
        values.encode(value, ("cfg",))


def test_registered_type_comes_back() -> None:
    with pytest.raises(UnsupportedError, match="register_type"):
        values.encode(Known(3))
    values.register_type(Known, lambda known: {"inside": known.inside}, lambda state: Known(state["inside"]))
    again = there_and_back([Known(3)])
    assert again[0].inside == 3


def test_sets_have_one_text() -> None:
    upwards, downwards = [0, 8, 16], [16, 8, 0]  # one bucket, so that the order of insertion shows
    some, same = set(upwards), set(downwards)
    assert list(some) != list(same)
    assert values.dumps(values.encode(some)) == values.dumps(values.encode(same))


def test_order_of_a_plain_dict_is_kept() -> None:
    assert list(there_and_back({"b": 1, "a": 2})) == ["b", "a"]


@pytest.mark.parametrize(
    "node",
    [
        [],
        {},
        {"a": 1},
        {"$dict": 1, "$list": 2},
        {"$what": 1},
        {"$dict": [["a"]]},
        {"$dict": {"a": 1}},
        {"$dict": [[{"$list": []}, 1]]},
        {"$float": "7ff"},
        {"$float": 1},
        {"$int": "zz"},
        {"$bytes": "*"},
        {"$list": 3},
        {"$set": [{"$list": []}]},
        {"$ndarray": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}},
        {"$ndarray": {"dtype": "<f4", "shape": [1 << 40, 1 << 40], "data": ""}},
        {"$ndarray": {"dtype": "<f4", "shape": [-1], "data": ""}},
        {"$ndarray": {"dtype": "<f4", "shape": [True], "data": "AAAAAA=="}},
        {"$ndarray": {"dtype": "no such", "shape": [], "data": ""}},
        {"$scalar": {"dtype": "<f4"}},
        {"$namedtuple": {"type": 3, "fields": [], "values": []}},
        {"$namedtuple": {"type": "test_values.Point", "fields": ["x", "y"], "values": [1]}},
        {"$namedtuple": {"type": "test_values.Point", "fields": "xy", "values": [1, 2]}},
        {"$enum": {"type": "test_values.Color", "value": 1, "more": 1}},
        {"$enum": {"type": "test_values.Color", "value": 3}},
        *({tag: body} for tag in ("$list", "$tuple", "$set", "$frozenset", "$size") for body in ("abc", {"a": 1}, None)),
        {"$set": [2, 1]},
        {"$set": [1, 1]},
        {"$set": [1, 1.0]},
        {"$frozenset": [1, True]},
        {"$float": struct.pack(">d", 1.5).hex()},
        {"$float": "7FF8000000000000"},
        {"$float": " 7ff8000000000000"},
        {"$int": " 1_000 "},
        {"$int": "0x1f"},
        {"$int": hex(1 << 9000).upper()},
        {"$int": "0x0" + hex(1 << 9000)[2:]},
        1 << 8192,
        {"$str": base64.b64encode(b"plain").decode()},
        {"$str": "/w=="},
        {"$bytes": "aGl="},
        {"$bytes": "aGk"},
        {"$bytes": "aG k="},
        {"$bytes": ["aGk="]},
        {"$dict": [[1, 2], [True, 3]]},
        {"$size": [1.0]},
        {"$size": [True]},
        {"$size": [1 << 63]},
        {"$device": 5},
        {"$dtype": 5},
        *(
            {"$ndarray": {"dtype": dtype, "shape": [1], "data": "AAAAAA=="}}
            for dtype in (None, "a", "S", "=f4", "f4", "<i1", "|f4", "(,)f4", "(2,f4", "f4,f4", "<f4 ", "<M8[xx]", ["<f4"], 4)
        ),
        {"$ndarray": {"dtype": "<f4", "shape": {}, "data": "AAAAAA=="}},
        {"$ndarray": {"dtype": "<f4", "shape": [1], "data": "AAAAAA==", "more": 1}},
        {"$scalar": {"dtype": "<U1", "data": "/////w=="}},
        {"$ndarray": {"dtype": "<U1", "shape": [1], "data": "/////w=="}},
        {"$ndarray": {"dtype": ">U1", "shape": [1], "data": "QQAAAA=="}},
    ],
    ids=lambda node: str(node)[:60],
)
def test_damaged_nodes_are_corruption(node: Any) -> None:
    with pytest.raises(CorruptionError):
        values.decode(node)


@pytest.mark.parametrize("text", ['{"$int":"1","$int":"2"}', '{"$enum":{"type":"a","type":"b","value":1}}'])
def test_an_object_with_one_key_twice_is_corruption(text: str) -> None:
    with pytest.raises(CorruptionError, match="one key twice"):
        values.loads(text.encode())


@pytest.mark.parametrize("tag", ["$dict", "$ordered", "$counter", "$set", "$frozenset"])
def test_keys_of_one_hash_are_refused_before_they_are_compared(tag: str) -> None:
    same = [(at + 1) * sys.hash_info.modulus for at in range(20_000)]
    assert {hash(each) for each in same} == {0}
    sets = tag in ("$set", "$frozenset")

    def node(keys: list[int]) -> Any:
        return {tag: sorted(keys, key=str) if sets else [[key, 1] for key in keys]}

    with pytest.raises(CorruptionError, match="one hash"):
        values.decode(node(same))  # comparing each with all takes seconds
    assert len(values.decode(node(same[:1000]))) == 1000
    assert len(values.decode(node(list(range(20_000))))) == 20_000


def nested(depth: int) -> Any:
    """An empty list in so many others."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("codec", [values, inline], ids=["values", "inline"])
def test_nesting_ends_at_one_depth_in_both_directions(codec: Any) -> None:
    node = codec.encode(nested(values.DEPTH_MAX))
    assert codec.decode(node) == nested(values.DEPTH_MAX)
    with pytest.raises(CorruptionError, match="more than 100 levels"):
        codec.decode({"$list": [node]})
    with pytest.raises(InvalidArgumentError, match="more than 100 levels"):
        codec.encode(nested(values.DEPTH_MAX + 1))


@pytest.mark.parametrize("codec", [values, inline], ids=["values", "inline"])
def test_a_caller_that_is_nearly_out_of_stack_is_not_told_of_damage(codec: Any) -> None:
    node = codec.encode(nested(values.DEPTH_MAX))

    def call(count: int) -> Any:
        return call(count - 1) if count else codec.decode(node)

    with pytest.raises(StateError, match="call stack"):
        call(sys.getrecursionlimit() - len(inspect.stack(0)) - 200)


@pytest.mark.parametrize("dtype", ["g", "G"])
def test_numpy_values_that_differ_between_machines_are_refused(dtype: str) -> None:
    if np.dtype("g").itemsize == 8:
        pytest.skip("a long double is a double here")
    for value in (np.ones(2, dtype), np.ones(2, dtype)[0]):
        with pytest.raises(UnsupportedError, match=r"cfg\.x is a NumPy value of dtype .* differ between machines"):
            values.encode({"x": value}, ("cfg",))


def test_a_module_that_waits_to_be_loaded_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_home.py").write_text("raise SystemExit('loaded')\n")
    spec = importlib.util.spec_from_file_location("lazy_home", tmp_path / "lazy_home.py")
    assert spec is not None
    assert spec.loader is not None
    loader = spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_home", module)
    monkeypatch.setattr(sys.modules[__name__], "lazy", module, raising=False)
    loader.exec_module(module)
    for name in ("lazy_home.Color", "lazy_home", "test_values.lazy", "test_values.lazy.Color"):
        with pytest.raises(UnsupportedError):
            values.decode({"$enum": {"type": name, "value": 1}})


@pytest.mark.parametrize("text", [b"", b"{", b"\x80\x04K\x01.", b"[" * 100_000, b'{"$int":' + b"1" * 10_000 + b"}"])
def test_other_bytes_are_corruption(text: bytes) -> None:  # FC-23: a pickle is such bytes
    with pytest.raises(CorruptionError):
        values.loads(text)


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "collections.OrderedDict", "no.such.Type", "x", "test_values.Opaque"])
def test_a_type_named_in_a_file_is_no_code_to_run(name: str) -> None:
    for node in (
        {"$enum": {"type": name, "value": 1}},
        {"$namedtuple": {"type": name, "fields": [], "values": []}},
        {"$registered": {"type": name, "state": 1}},
    ):
        with pytest.raises(UnsupportedError):
            values.decode(node)


words = st.sampled_from([*values._DECODERS, "type", "dtype", "shape", "data", "value", "fields", "values", "state"])
any_json = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(any_json)
def test_any_json_is_decoded_or_refused(node: Any) -> None:
    with contextlib.suppress(CorruptionError, UnsupportedError, InvalidArgumentError):
        values.decode(json.loads(json.dumps(node)))


def test_assign_keeps_identity() -> None:
    inner, log, array = {"x": 1, "gone": 2}, ["a"], np.zeros(3)
    template = {"inner": inner, "log": log, "array": array, "number": 1}
    saved = {"number": 2, "inner": {"x": 3, "new": [4]}, "log": ["b", "c"], "array": np.arange(3.0)}
    assert values.assign(template, saved) is template
    assert template == {"number": 2, "inner": {"x": 3, "new": [4]}, "log": ["b", "c"], "array": array}
    assert template["inner"] is inner
    assert template["log"] is log
    assert template["array"] is array
    assert array.tolist() == [0, 1, 2]
    assert values.assign(3, [1]) == [1]


@pytest.mark.parametrize("value", [{1}, collections.Counter("aab"), collections.OrderedDict(a=1), {"a": {2}}, [3], np.arange(3)], ids=repr)
def test_assigning_a_value_to_itself_changes_nothing(value: Any) -> None:
    before = copy.deepcopy(value)
    assert values.assign(value, value) is value
    assert str(value) == str(before)
    assert values.assign({"inside": value}, {"inside": value})["inside"] is value
    assert str(value) == str(before)


def test_bytes_are_base64() -> None:
    assert values.encode(b"\x00x") == {"$bytes": base64.b64encode(b"\x00x").decode()}
