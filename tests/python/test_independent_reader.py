"""The independent reader and writer against docs/format.md's own numbers, and against Lamina."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import every_root
import numpy as np
import pytest
import torch
from independent_reader import layout, values
from independent_reader.reader import Root
from independent_reader.writer import STEP, Lies, write_root

import lamina

TENSORS = {
    "big": ("float32", (300, 1000), np.arange(300000, dtype="<f4").tobytes()),
    "empty": ("float64", (0, 1 << 40), b""),
    "scalar": ("bfloat16", (), b"\x80\x3f"),
    "w": ("float32", (2, 2), np.arange(4, dtype="<f4").tobytes()),
}


def counting(size: int) -> bytes:
    return bytes(at % 251 for at in range(size))


@pytest.mark.parametrize(
    ("size", "seed", "expected"),
    [
        (0, 0, 0x99AA06D3014798D86001C324468D497F),
        (1, 0x0123456789ABCDEF, 0x2CA4ACAE02C196578A6967251EAE7FB8),
        (16384, 0, 0xF2A8121CBB55D6F71877000B6BBC30A1),
        (16385, 0, 0xF5878D6C418D27BDD959A08C876ED2AA),
        (1048576, 0x0123456789ABCDEF, 0x67A9F28001700D280E03AD8C0702CD7B),
    ],
)
def test_fingerprints_are_those_of_the_document(size: int, seed: int, expected: int) -> None:
    assert layout.fingerprint(counting(size), seed) == expected


def test_what_the_independent_writer_writes_both_readers_read(tmp_path: Path) -> None:
    write_root(tmp_path / "root", TENSORS, {"metadata": b"null"})
    every_root.compare(tmp_path / "root")
    ((_, found),) = Root(tmp_path / "root").check()
    assert {name.decode(): (tensor.dtype, tensor.shape, tensor.data) for name, tensor in found.tensors.items()} == TENSORS
    assert lamina.open(tmp_path / "root").load(STEP)["w"].tolist() == [[0, 1], [2, 3]]
    assert lamina.open(tmp_path / "root").verify()["ok"]


@pytest.mark.damages_roots
@pytest.mark.parametrize("name", ["LAMINA", "catalog", "packs", "header", "index", "footer", "commit"])
def test_a_newer_version_is_unsupported_in_both_readers(name: str, tmp_path: Path) -> None:
    write_root(tmp_path / "root", TENSORS, lies=Lies(frames={name: {"version": 999}}))
    with pytest.raises(layout.UnsupportedError, match="version 999; 0 is the newest known"):
        Root(tmp_path / "root").check()
    assert "999" in what_lamina_says(tmp_path / "root")


def many_ranks(catalog: dict[str, Any]) -> None:
    catalog["facts"]["rank_count"] = 1 << 31


def many_boxes(catalog: dict[str, Any]) -> None:
    """As many columns as tell 2^20 + 2 corners apart, all with one table."""
    boxes = (1 << 19) + 1
    catalog["tensors"] = [
        {
            "facts": catalog["tensors"][0]["facts"],
            "name": b"cut",
            "shape": [boxes],
            "places": np.zeros(boxes, layout.PLACE),
            "coordinates": np.stack([np.arange(boxes), np.ones(boxes, int)], axis=1).ravel(),
        }
    ]


def huge_step(record: dict[str, Any]) -> None:
    record["steps"]["state_bytes"] = 1 << 63


@pytest.mark.damages_roots
@pytest.mark.parametrize(
    ("name", "lie", "told"),
    [("catalog", many_ranks, "2147483648"), ("catalog", many_boxes, "boxes"), ("commit", huge_step, "bytes")],
)
def test_a_number_above_its_limit_is_damage_in_both_readers(
    name: str, lie: Callable[[dict[str, Any]], None], told: str, tmp_path: Path
) -> None:
    write_root(tmp_path / "root", TENSORS, lies=Lies(parts={name: lie}))
    with pytest.raises(layout.DamagedError, match=told):
        Root(tmp_path / "root").check()
    assert told in what_lamina_says(tmp_path / "root")


def what_lamina_says(path: Path) -> str:
    """The first problem."""
    try:
        return str(lamina.open(path).verify()["problems"][0]["message"])
    except (lamina.UnsupportedError, lamina.CorruptionError) as error:
        return str(error)


@pytest.mark.damages_roots
def test_each_flipped_bit_is_found_or_without_meaning(tmp_path: Path) -> None:
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        ckpt.save(1, {"w": torch.arange(6.0), "n": 3}).wait()
    ((_, expected),) = Root(tmp_path / "root").check()
    random = np.random.default_rng(1)
    found = []
    for path in sorted(path for path in (tmp_path / "root").rglob("*") if path.is_file() and path.parent.name not in ("writers", "probe")):
        whole = path.read_bytes()
        for bit in random.integers(0, 8 * len(whole), 40):
            hurt = bytearray(whole)
            hurt[bit // 8] ^= 1 << bit % 8
            path.write_bytes(hurt)
            try:
                ((_, contents),) = Root(tmp_path / "root").check()
            except layout.ReadError as error:
                found.append(str(error))
            else:
                assert contents == expected, (path, bit)
        path.write_bytes(whole)
    assert len(found) > 20
    assert all(str(tmp_path) in text for text in found)


IN_TREE = '{"$dict":[["a",%s]]}'


@pytest.mark.parametrize(
    ("blob", "text"),
    [
        ("metadata", "1e999"),
        ("metadata", "[1]"),
        ("metadata", '{"$list":"abc"}'),
        ("metadata", '{"$list":[],"$list":[]}'),
        ("metadata", '{"$dict":[[{"$list":[]},1]]}'),
        ("metadata", '{"$dict":[[{"$float":"7ff8000000000000"},1]]}'),
        ("metadata", '{"$dict":[[1,2],[true,2]]}'),
        ("metadata", '{"$float":"3ff0000000000000"}'),
        ("metadata", '{"$inline":{"dtype":"float3","shape":[1],"data":"AAAAAA=="}}'),
        ("metadata", '{"$inline":{"dtype":"float32","shape":[2],"data":"AAAAAA=="}}'),
        ("metadata", '{"$ndarray":{"dtype":"|O","shape":[1],"data":"AAAAAAAAAAA="}}'),
        ("metadata", '{"$ndarray":{"dtype":"<f4","shape":[-1],"data":""}}'),
        ("metadata", '{"$namedtuple":{"type":"a.b","fields":["x"],"values":[1,2]}}'),
        ("metadata", '{"$tensor":"w"}'),
        ("metadata", '{"$list":[' * 3000 + "]}" * 3000),
        ("tree", "null"),
        ("tree", '{"$tuple":["dict",[]]}'),
        ("tree", IN_TREE % '{"$inline":{"dtype":"float32","shape":[1],"data":"AAAAAA=="}}'),
        ("tree", IN_TREE % '{"$module":5}'),
        ("tree", IN_TREE % '{"$rng":[]}'),
        ("place", '{"rng":[],"per_rank":{},"modules":{},"optimizers":{}}'),
        ("place", '{"rng":{},"per_rank":{},"modules":{},"optimizers":{"a":{}}}'),
        ("place", '{"rng":{},"per_rank":{},"modules":{"a":5},"optimizers":{}}'),
        ("place", '{"rng":{},"per_rank":{},"modules":{}}'),
    ],
)
def test_plain_values_that_the_document_rules_out_are_damage(blob: str, text: str) -> None:
    with pytest.raises(layout.DamagedError):
        values.decode(blob, text.encode())


def test_the_parts_of_a_place_have_no_order() -> None:
    found = values.decode("place", b'{"optimizers":{},"modules":{},"rng":{},"per_rank":{"a":{"$tuple":[1,2.5]}}}')
    assert found["per_rank"] == {"a": (1, 2.5)}
