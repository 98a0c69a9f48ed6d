"""lamina.names: a path and its text are one to one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import InvalidArgumentError
from lamina.names import from_text, is_component, module_path, to_text

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters())
components = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
paths = st.lists(components, max_size=5).map(tuple)


def typed(path: Any) -> Any:
    return tuple((type(each), typed(each) if isinstance(each, tuple) else repr(each)) for each in path)


@given(paths)
def test_text_gives_the_path_back(path: tuple[Any, ...]) -> None:
    assert all(map(is_component, path))
    assert typed(from_text(to_text(path))) == typed(path)


@given(paths, paths)
def test_two_paths_have_two_texts(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (to_text(one) == to_text(other)) == (typed(one) == typed(other))


def test_text_has_no_control_characters_or_surrogates() -> None:
    text = to_text(("a\nb\x00\ud800",))
    assert text == '"a\\nb\\u{0}\\u{d800}"'
    assert text.encode("utf-8")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("model", "layers", "0", "a.b", "weight"), 'model.layers.0."a.b".weight'),
        (("log", 3), "log[3]"),
        ((3, "x"), "[3].x"),
        (("d", "3"), "d.3"),
        (("d", ""), 'd.""'),
        (("d", "a/b"), 'd."a/b"'),
        (("d", "层"), 'd."层"'),
        (("d", True, None, 1.0, ("a", 1)), 'd[true][null][1.0][("a",1)]'),
    ],
)
def test_text(path: tuple[Any, ...], text: str) -> None:
    assert to_text(path) == text
    assert typed(from_text(text)) == typed(path)


def test_names_with_separators_stay_apart() -> None:  # FC-24
    keys = ["a/b", "../x", "a b", "a\nb", "层", 300 * "k", "W", "w", "a.b"]
    texts = {to_text((key,)) for key in keys} | {to_text(("a", "b"))}
    assert len(texts) == len(keys) + 1


@pytest.mark.parametrize(
    "text",
    [
        "a..b",
        ".a",
        "a.",
        "a[",
        "a[1",
        "a[1]b",
        '"a',
        'a."b"',
        "a b",
        "a[01]",
        "a[(1,]",
        "a[x]",
        '"\\u{110000}"',
        "[" + 9999 * "(",
        "[" + 9999 * "1" + "]",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        from_text(text)


@given(st.text(st.characters(), max_size=12))
def test_any_text_is_a_path_or_refused(text: str) -> None:
    try:
        path = from_text(text)
    except InvalidArgumentError:
        return
    assert to_text(path) == text


def test_components() -> None:
    assert not is_component(float("nan"))
    assert not is_component([1])
    assert not is_component((1, b"x"))
    assert not is_component(1 << 100_000)
    assert module_path("layers.0.weight") == ("layers", "0", "weight")
