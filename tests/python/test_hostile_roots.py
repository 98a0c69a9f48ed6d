"""Roots that lie where both readers must see it: `verify` and the independent reader refuse them alike, and for the same reason."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from independent_reader import flat, layout
from independent_reader.reader import Root
from independent_reader.writer import STEP, Lies, record, vector, write_root

import lamina

TENSORS = {"w": ("float32", (2, 2), np.arange(4, dtype="<f4").tobytes())}
PACK, LATER = "steps/000000000100/1-0/00000.pack", 1 << 40


def mesh(name: bytes) -> Callable[[Any], None]:
    return lambda part: part.update(topology=[{"extent": record(layout.MESH_EXTENT, value=2), "name": name}])


def no_elements(part: Any) -> None:
    part["tensors"][0].update(shape=[0, LATER, LATER], places=part["tensors"][0]["places"][:0], coordinates=[])


def twice(*path: Any) -> Callable[[Any], None]:
    """An array holds its members twice."""

    def change(part: Any) -> None:
        part[path[0]] = np.concatenate([part[path[0]]] * 2)

    return change


def set_to(name: str, value: Any, of: str = "") -> Callable[[Any], None]:
    """The field of a record, or of all records of an array."""

    def change(part: Any) -> None:
        (part[of] if of else part)[name] = value

    return change


def attempt_twice(part: Any) -> None:
    """One attempt stands in the table as it was dropped, and as it is live."""
    first = part["steps"].copy()
    first["commit"], first["state"] = 1, 4
    part["steps"] = np.concatenate([first, part["steps"]])


def a_table_beyond(part: Any) -> None:
    """That nothing names."""
    other = part["tables"][:1].copy()
    other["offset"], other["chunk_count"] = LATER, 0
    part["tables"] = np.concatenate([part["tables"], other])


def a_table_of_nothing(part: Any) -> None:
    """Without chunks, so that no byte of the pack tells."""
    other = part["tables"][:1].copy()
    other["offset"], other["chunk_count"] = 4096, 0
    part["tables"] = np.concatenate([part["tables"], other])


def another_blob(part: Any) -> None:
    """With the table of the first."""
    part["blobs"].append({"facts": part["blobs"][0]["facts"], "name": b"y"})


LIES: dict[str, tuple[Lies, str]] = {
    "pack_twice": (Lies({"index": twice("packs")}), PACK),
    "writer_twice": (Lies({"catalog": twice("writers")}), "catalog"),
    "table_of_two_blobs": (Lies({"catalog": another_blob}), "catalog"),
    "table_of_nothing_beyond_the_pack": (Lies({"index": a_table_beyond}), PACK),
    "table_of_nothing": (Lies({"index": a_table_of_nothing}), PACK),
    "mesh_without_a_name": (Lies({"catalog": mesh(b"")}), "catalog"),
    "no_elements_of_too_many": (Lies({"catalog": no_elements, "packs": set_to("live_bytes", 0, "packs")}), "catalog"),
    "length_in_packs": (Lies({"packs": set_to("pack_bytes", LATER, "packs")}), "packs"),
    "nonce_in_packs": (Lies({"packs": set_to("nonce", layout.digest(1), "packs")}), PACK),
    "live_bytes_in_packs": (Lies({"packs": set_to("live_bytes", 1, "packs")}), "packs"),
    "checksum_of_a_chunk": (Lies({"chunks": set_to("stored_checksum", 1)}), PACK),
    "count_of_what_is_not_finite": (Lies({"chunks": set_to("nonfinite_count", 3)}), PACK),
    "attempt_twice": (Lies({"commit": attempt_twice}), "log/000000000002"),
    "commit_about_nothing": (Lies({"commit": lambda part: part["facts"]["subject"].fill(0) or None}), "log/000000000002"),
    "open_about_an_attempt": (Lies({"open": lambda part: part["facts"]["subject"].__setitem__("incarnation", 1)}), "log/000000000001"),
    "incarnation_0_in_the_table": (
        Lies({"commit": lambda part: part["steps"]["attempt"].__setitem__("incarnation", 0)}),
        "log/000000000002",
    ),
}


@pytest.mark.damages_roots
@pytest.mark.parametrize("name", LIES)
def test_both_readers_refuse_a_lie(name: str, tmp_path: Path) -> None:
    lies, file = LIES[name]
    write_root(tmp_path / "root", TENSORS, {"x": b"12345678"}, lies)
    with pytest.raises(layout.DamagedError, match=str(tmp_path)):
        Root(tmp_path / "root").check()
    problems = lamina.open(tmp_path / "root").verify()["problems"]
    assert any(file in problem["file"] for problem in problems), problems


def short_of_a_sector(record: bytes) -> bytes:
    return record[: len(record) // 2 - 8] * 2


FILES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "padding": (PACK, lambda pack: pack[:4130] + b"x" + pack[4131:]),
    "record_of_one_copy": ("log/000000000002", lambda record: record[: len(record) // 2]),
    "record_of_odd_length": ("log/000000000002", lambda record: record + b"\0"),
    "record_of_short_copies": ("log/000000000002", short_of_a_sector),
    "record_with_a_bad_copy": ("log/000000000002", lambda record: record[:4200] + b"x" + record[4201:]),
    "record_with_other_zeros": ("log/000000000002", lambda record: record[:-1] + b"x"),
}


@pytest.mark.damages_roots
@pytest.mark.parametrize("name", FILES)
def test_who_verifies_says_what_a_restore_passes_over(name: str, tmp_path: Path) -> None:
    file, change = FILES[name]
    write_root(tmp_path / "root", TENSORS, {"x": b"12345678"})
    path = tmp_path / "root" / file
    path.write_bytes(change(path.read_bytes()))
    assert lamina.open(tmp_path / "root").load()["w"].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(layout.DamagedError, match=file):
        Root(tmp_path / "root").check()
    assert file in {problem["file"] for problem in lamina.open(tmp_path / "root").verify()["problems"]}


def test_what_is_no_file_is_no_record(tmp_path: Path) -> None:
    write_root(tmp_path / "root", TENSORS)
    log = tmp_path / "root/log"
    (log / "000000000003").mkdir()
    (log / "000000000004").symlink_to(log / "000000000002")
    os.mkfifo(log / "000000000005")
    (log / f"{1 << 64}").write_bytes(b"mine")
    assert lamina.open(tmp_path / "root").verify()["ok"]
    assert len(Root(tmp_path / "root").check()) == 1


@pytest.mark.damages_roots
@pytest.mark.parametrize("number", [1, 2])
def test_a_gap_in_the_log_is_told(number: int, tmp_path: Path) -> None:
    """With the newest record gone nobody can see it; with an older one, both readers."""
    write_root(tmp_path / "root", TENSORS)
    (tmp_path / "root/log" / f"{number:012d}").unlink()
    found = lamina.open(tmp_path / "root").verify()
    if number == 2:
        assert found["ok"]
        return
    assert found["problems"][0]["file"] == "log/000000000001"
    with pytest.raises(layout.DamagedError, match="missing"):
        Root(tmp_path / "root").check()


def test_files_of_number_0_are_not_ours(tmp_path: Path) -> None:
    write_root(tmp_path / "root", TENSORS)
    others = [tmp_path / "root" / name for name in ("log/000000000000", "writers/0", "steps/000000000100/0-0/catalog")]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"mine")
    assert lamina.open(tmp_path / "root").verify()["ok"]
    assert len(Root(tmp_path / "root").check()) == 1
    with lamina.Checkpointer(tmp_path / "root", keep=1, takeover=True) as ckpt:
        ckpt.restore({"w": np.zeros((2, 2), "<f4")}, strict=False)
    assert all(other.read_bytes() == b"mine" for other in others)


@pytest.mark.damages_roots
def test_a_reader_of_the_chosen_line_goes_by_the_newest_of_several_damaged_records(tmp_path: Path) -> None:
    write_root(tmp_path / "root", TENSORS)
    log = tmp_path / "root/log"
    commit = flat.decode(Root(tmp_path / "root").path.joinpath("log/000000000002").read_bytes()[64:], layout.LOG_RECORD)
    for number in (3, 4):
        (log / f"{number:012d}").write_bytes(b"damaged")
    facts = commit["facts"].copy()
    facts["number"] = facts["incarnation"] = 5
    facts["kind"], facts["damaged"] = 1, 4
    facts["subject"] = np.zeros((), layout.ATTEMPT)
    trainer = {"process": record(layout.PROCESS, pid=1)}
    parts = {"facts": facts, "trainer": trainer, "opens": [1, 5], "steps": vector(layout.STEP)}
    parts["steps"] = np.array(commit["steps"])
    copy = Lies().framed("record", layout.MAGIC_RECORD, flat.encode(parts, layout.LOG_RECORD))
    copy += bytes(-len(copy) % 4096)
    (log / "000000000005").write_bytes(copy * 2)
    assert [int(step["attempt"]["step"]) for step, _ in Root(tmp_path / "root").check()] == [STEP]
    assert lamina.open(tmp_path / "root").latest() == STEP


@pytest.mark.damages_roots
def test_neither_reader_follows_a_link_below_the_root(tmp_path: Path) -> None:
    write_root(tmp_path / "root", TENSORS)
    (tmp_path / "root/steps").rename(tmp_path / "away")
    (tmp_path / "root/steps").symlink_to(tmp_path / "away")
    with pytest.raises(layout.DamagedError, match="is a link"):
        Root(tmp_path / "root").check()
    with pytest.raises(lamina.CorruptionError, match="link"):
        lamina.open(tmp_path / "root").load()


def test_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    def name(part: Any) -> None:
        part["tensors"][0]["name"] = b"\xffw"
        mesh(b"\xfe")(part)

    write_root(tmp_path / "root", TENSORS, lies=Lies({"catalog": name}))
    assert lamina.open(tmp_path / "root").load()["\udcffw"].tolist() == [[0, 1], [2, 3]]
    assert lamina.open(tmp_path / "root").verify()["ok"]
    with lamina.Checkpointer(tmp_path / "root", takeover=True) as ckpt:
        info = ckpt.restore({"n": 1}, strict=False)
    assert info.source_topology == {"\udcfe": 2}
    shown = subprocess.run(
        [sys.executable, "-m", "lamina.cli", "show", str(tmp_path / "root")],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert rb"\udcffw" in shown.stdout
    ((_, found),) = Root(tmp_path / "root").check()
    assert list(found.tensors) == [b"\xffw"]


def test_aliases_share_the_memory_of_a_load(tmp_path: Path) -> None:
    def aliases(part: Any) -> None:
        first = part["tensors"][0]
        part["tensors"] += [
            {"facts": first["facts"], "name": b"x%03d" % at, "shape": first["shape"], "alias_of": b"w"} for at in range(500)
        ]

    write_root(tmp_path / "root", TENSORS, lies=Lies({"catalog": aliases}))
    found = lamina.open(tmp_path / "root").load()
    assert len(found) == 501
    assert len({tensor.data_ptr() for tensor in found.values()}) == 1
