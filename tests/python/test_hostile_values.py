"""Plain values as a stranger could have written them: decoded, or refused by a class of ours."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamina
from lamina import inline, place, values
from lamina.errors import CorruptionError, InvalidArgumentError, MismatchError, UnsupportedError
from lamina.matching import Match
from lamina.state import Capture
from lamina.targets import Saved

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


NOTHING: dict[str, Any] = {"rng": {}, "per_rank": {}, "modules": {}, "optimizers": {}}
MARKS = [
    *({tag: body} for tag in ("$module", "$rng", "$per_rank", "$optimizer", "$object") for body in (None, 5, [], "x", {"more": 1})),
    {"$optimizer": {}},
    {"$optimizer": {"type": 5}},
    {"$object": {"type": 5, "state": 1}},
    {"$object": {"type": "x"}},
    *({"$tensor": body} for body in (None, 5, [], {}, ["w"])),
]


@pytest.mark.parametrize("node", MARKS, ids=str)
def test_a_mark_with_another_body_is_damage_whatever_the_template_holds(node: Any) -> None:
    model = torch.nn.Linear(1, 1)
    more = (torch.zeros(1), model, torch.optim.SGD(model.parameters()), lamina.Rng(), lamina.PerRank(1), Holder())
    for template in (0, [1], (1,), {}, *more):
        with pytest.raises(CorruptionError):
            Match({"x": template, "model": model}, [], {"$dict": [["x", node]]}, {0: NOTHING}, 0, 1)
    with pytest.raises(CorruptionError):
        Match({"x": {}}, [], {"$dict": [["x", {"$dict": [["in", {"$list": [node]}]]}]]}, {0: NOTHING}, 0, 1)


@pytest.mark.parametrize("node", [{"$list": 5}, {"$list": {"a": 1}}, {"$tuple": "ab"}, {"$tuple": None}], ids=str)
@pytest.mark.parametrize("template", [0, [1], (1,), {}, ["a", "b"]], ids=str)
def test_a_list_that_is_none_is_damage_whatever_the_template_holds(node: Any, template: Any) -> None:
    with pytest.raises(CorruptionError):
        Match({"x": template}, [], {"$dict": [["x", node]]}, {0: NOTHING}, 0, 1)


@pytest.mark.parametrize("node", [{"$tensor": []}, {"$tensor": 5}, {"$module": 5}], ids=str)
def test_a_slot_with_another_body_is_damage(node: Any) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    state = {"model": model, "sgd": torch.optim.SGD(model.parameters())}
    captured = Capture(state)
    captured.place["optimizers"]["sgd"]["slots"] = [["model.weight", [["slot", node]]]]
    entries = [Saved("model.weight", "float32", (1, 1), "")]
    with pytest.raises(CorruptionError):
        Match(state, entries, captured.tree, {0: captured.place}, 0, 1)


def test_an_option_of_an_optimizer_that_is_malformed_is_told_before_anything_is_filled() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    state = {"model": model, "sgd": torch.optim.SGD(model.parameters())}
    captured = Capture(state)
    captured.place["optimizers"]["sgd"]["groups"][0]["options"][0][1] = {"$float": "0"}
    with pytest.raises(CorruptionError):
        Match(state, [Saved("model.weight", "float32", (1, 1), "")], captured.tree, {0: captured.place}, 0, 1)


@pytest.mark.parametrize(("lr", "saved"), [(torch.tensor(1.0), "fast"), (torch.tensor(1.0), torch.ones(3)), (1.0, torch.ones(3))], ids=str)
def test_an_option_that_the_template_cannot_take_is_told_before_anything_is_filled(lr: Any, saved: Any) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    state = {"model": model, "sgd": torch.optim.SGD(model.parameters(), lr=lr)}
    captured = Capture(state)
    options = captured.place["optimizers"]["sgd"]["groups"][0]["options"]
    next(option for option in options if option[0] == "lr")[1] = inline.encode(saved)
    with pytest.raises(MismatchError, match=r"^sgd: the template cannot take the setting 'lr'"):
        Match(state, [Saved("model.weight", "float32", (1, 1), "")], captured.tree, {0: captured.place}, 0, 1)


class Holder:
    def state_dict(self) -> Any:
        return {"a": [1]}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("nothing is put back")


def test_nesting_is_refused_at_the_depth_where_a_save_stops() -> None:
    value: Any = []
    for _ in range(values.DEPTH_MAX - 1):
        value = [value]
    tree = Capture({"x": value}).tree
    state = {"x": 1}
    Match(state, [], tree, {0: NOTHING}, 0, 1).finish()
    assert state == {"x": value}
    with pytest.raises(InvalidArgumentError, match="more than 100 levels"):
        Capture({"x": [value]})
    with pytest.raises(CorruptionError, match="more than 100 levels"):
        Match(state, [], {"$dict": [["x", {"$list": [tree["$dict"][0][1]]}]]}, {0: NOTHING}, 0, 1)


MARK_NAMES = st.sampled_from(["m", "m.weight", "o", "o.state.m.weight.s", "r", "p", "(", "a.b", 5])
BODIES = st.sampled_from([{}, {"type": "SGD"}, {"type": "SGD", "state": 1}, {"type": "x", "state": {"$dict": [["a", 1]]}}, None])
MARKED = st.recursive(
    leaves
    | nodes
    | st.builds(lambda name: {"$tensor": name}, MARK_NAMES)
    | st.builds(lambda tag, body: {tag: body}, st.sampled_from([*values.MORE]), BODIES),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: {"$list": parts})
        | st.lists(st.tuples(st.sampled_from(["m", "o", "a"]), inner).map(list), max_size=2).map(lambda pairs: {"$dict": pairs})
    ),
    max_leaves=6,
)
PAIRS = st.lists(st.tuples(MARK_NAMES, MARKED).map(list), max_size=2)
GROUP = st.fixed_dictionaries({"options": PAIRS, "params": st.lists(MARK_NAMES, max_size=2)}) | leaves
OPTIMIZER = st.fixed_dictionaries(
    {"groups": st.lists(GROUP, max_size=2), "slots": st.lists(st.tuples(MARK_NAMES, PAIRS).map(list), max_size=2), "rest": PAIRS}
)
PLACE = st.fixed_dictionaries(
    {
        "rng": st.dictionaries(st.just("r"), MARKED, max_size=1),
        "per_rank": st.dictionaries(st.just("p"), MARKED, max_size=1),
        "modules": st.dictionaries(st.just("m"), PAIRS | leaves, max_size=1),
        "optimizers": st.dictionaries(st.just("o"), OPTIMIZER | leaves, max_size=1),
    }
)


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({"m": MARKED, "o": MARKED, "r": MARKED, "p": MARKED, "h": MARKED, "x": MARKED}), PLACE)
def test_any_tree_and_place_are_matched_or_refused(tops: dict[str, Any], parts: Any) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = {"m": model, "o": optimizer, "r": lamina.Rng(), "p": lamina.PerRank(1), "h": Holder(), "x": [1, {"a": torch.zeros(1)}]}
    marks = {"m": {"$module": {}}, "o": {"$optimizer": {"type": "SGD"}}, "r": {"$rng": {}}, "p": {"$per_rank": {}}}
    entries = [Saved(name, "float32", (1, 1), "") for name in ("m.weight", "o.state.m.weight.s", "o.state.(")]
    for tree in (tops, {**tops, **marks}):  # such marks are rare among all values
        with contextlib.suppress(CorruptionError, UnsupportedError, MismatchError):
            Match(state, entries, {"$dict": [list(item) for item in tree.items()]}, {0: place.checked(parts)}, 0, 1)


def test_many_unknown_keys_beside_many_entries_are_told_fast() -> None:
    """Each key against each entry, 10^9 comparisons, would take minutes."""
    count = 30_000
    entries = [Saved(f"e{at}.w", "float32", (1,), "") for at in range(count)]
    keys = [f"k{at}" for at in range(count)] + ["e7"]
    match = Match({}, entries, {"$dict": [[key, 1] for key in keys]}, {0: NOTHING}, 0, 1)
    assert match.problems.unexpected == keys[:-1] + [each.name for each in entries]
    match.problems.explained = [f"k{at}" for at in range(count)]
    message = match.problems.message(1, strict=True)
    assert "unexpected in the checkpoint: e7.w" in message
    assert "k7" not in message


def test_a_device_that_there_is_not_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="no device 'abacus'"):
        values.decode({"$device": "abacus"})
