"""Roots that earlier versions wrote: the same bits as ever, by Lamina and by the independent reader."""

import hashlib
import json
from pathlib import Path
from typing import Any

import every_root
import pytest
from independent_reader import values
from independent_reader.reader import Contents, Root

import lamina

GOLDEN = Path(__file__).parents[1] / "golden"
ROOTS = {f"{path.parent.name}-{path.name}": path for path in sorted(GOLDEN.glob("v*/*")) if path.is_dir()}


def expected(path: Path) -> dict[str, Any]:
    """Of the line's steps, newest first: tensors by name."""
    return dict(json.loads((path.parent / "expected.json").read_text("utf-8"))[path.name])


def told(contents: Contents) -> dict[str, Any]:
    return {
        name.decode(): [tensor.dtype, list(tensor.shape), hashlib.sha256(tensor.data).hexdigest()]
        for name, tensor in contents.tensors.items()
        if not name.startswith((b"model.", b"optim."))
    }


@pytest.mark.parametrize("path", ROOTS.values(), ids=list(ROOTS))
def test_both_readers_find_the_bits_that_were_written(path: Path) -> None:
    every_root.compare(path)
    root = Root(path)
    line = root.line()
    found = {str(step["attempt"]["step"]): told(root.read(step)) for step in line}
    assert list(found) == list(expected(path))
    assert found == expected(path)
    report = lamina.open(path).verify()
    assert (report["ok"], report["steps"]) == (True, len(root.steps()))


def test_plain_values_of_every_kind_are_read() -> None:
    root = Root(GOLDEN / "v0" / "one_rank")
    blobs = root.read(root.line()[0]).blobs
    kind, items = values.decode("tree", blobs[b"tree", 0])
    found = dict(dict(items)["values"][1])
    assert kind == "dict"
    assert (found["long"], found["longer"], found["float"], found["text"]) == (-(2**70), 1 << 9000, 0.1, 'a"b\\c\n层')
    assert found["counter"] == ("counter", [("a", 2), ("b", 1), ("c", 1)])
    assert found["array"] == ("ndarray", ("<i2", (2, 3), bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0])))
    assert dict(items)["tied"] == ("tensor", "tied")
    settings = values.decode("place", blobs[b"place", 0])["optimizers"]["optim"]["groups"][0]
    assert dict(settings["options"])["lr"] == 0.25
    assert settings["params"] == ["model.weight", "model.bias"]


def test_the_line_root_holds_what_it_is_for() -> None:
    root = Root(GOLDEN / "v0" / "line")
    kinds = [int(root.record(number)["facts"]["kind"]) for number in root.record_numbers()]
    assert {1, 2, 3, 4} <= set(kinds)
    assert len(root.steps()) > len(root.line())
    assert sorted(path.name for path in (root.path / "steps" / "000000000002").iterdir()) == ["1-1", "5-0", "8-0"]
