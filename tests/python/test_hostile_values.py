"""Plain values as a stranger could have written them: decoded, or refused by a class of ours."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina import inline, values
from lamina.errors import CorruptionError, InvalidArgumentError, UnsupportedError

# What readers may trip over, among anything else.
texts = [
    "f4",
    "<f4",
    "O",
    "M8[s]",
    "S5",
    "(2,)f4",
    "(2,f4",
    "f4,f8",
    "<U1",
    "/////w==",
    "cpu",
    "cuda:99",
    "meta",
    "AAAA",
    "AAAAAAAA",
    "7ff8000000000000",
    "float32",
]
numbers = [-1, 0, 1 << 62, 1 << 63, 1 << 70]
leaves = st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.sampled_from([*texts, *numbers, "os.system"])


def bodies(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What may stand under a tag: the shapes that decoders look for, filled with anything."""
    shapes = st.lists(leaves, max_size=3) | leaves
    return st.one_of(
        leaves,
        st.lists(inner, max_size=3),
        st.lists(st.tuples(inner, inner).map(list), max_size=3),
        st.fixed_dictionaries({"dtype": leaves | inner, "data": leaves}, optional={"shape": shapes}),
        st.fixed_dictionaries({"type": leaves, "fields": shapes, "values": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"type": leaves}, optional={"value": inner, "state": inner}),
    )


tags = st.sampled_from([*values._DECODERS, "$inline", "$what"])
nodes = st.recursive(leaves, lambda inner: st.builds(lambda tag, body: {tag: body}, tags, bodies(inner)), max_leaves=12)


@pytest.mark.parametrize("decode", [values.decode, inline.decode])
@settings(max_examples=200, deadline=None)
@given(nodes)
def test_any_node_of_a_known_tag_is_decoded_or_refused(decode: Callable[[Any], Any], node: Any) -> None:
    with contextlib.suppress(CorruptionError, UnsupportedError, InvalidArgumentError):
        decode(json.loads(json.dumps(node)))


@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_bytes_are_a_node_or_refused(text: bytes) -> None:
    with contextlib.suppress(CorruptionError, UnsupportedError, InvalidArgumentError):
        values.decode(values.loads(text))


@pytest.mark.parametrize("decode", [values.decode, inline.decode])
def test_nesting_ends_in_a_value_or_a_refusal(decode: Callable[[Any], Any]) -> None:
    for depth in (99, 300, 480, 100_000):
        with contextlib.suppress(CorruptionError) if depth > 99 else contextlib.nullcontext():
            decode(values.loads(b'{"$list":[' * depth + b"1" + b"]}" * depth))


@pytest.mark.parametrize(
    "body",
    [
        {"dtype": "float32", "shape": [-1], "data": "AAAAAA=="},
        {"dtype": "float32", "shape": [True], "data": "AAAAAA=="},
        {"dtype": "float32", "shape": [2], "data": "AAAAAA=="},
        {"dtype": "float32", "shape": "", "data": "AAAAAA=="},
        {"dtype": "float32", "shape": [1], "data": "AAAAAB=="},
        {"dtype": "float32", "shape": [1], "data": "AAAAAA==", "more": 1},
        {"dtype": ["float32"], "shape": [1], "data": "AAAAAA=="},
        [],
        None,
    ],
)
def test_a_tensor_in_the_text_has_one_form(body: Any) -> None:
    with pytest.raises(CorruptionError):
        inline.decode({"$inline": body})


def test_a_device_that_there_is_not_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="no device 'abacus'"):
        values.decode({"$device": "abacus"})
