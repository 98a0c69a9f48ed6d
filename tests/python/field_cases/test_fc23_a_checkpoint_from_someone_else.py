"""FC-23: files of others. Every lie is refused loudly, runs no code, opens nothing outside the root and takes little memory."""

import hashlib
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_golden as golden
from fills import blank, raw
from independent_reader.writer import Lies, write_root

import lamina

TENSORS = {"w": ("float32", (2, 2), struct.pack("<4f", 0, 1, 2, 3))}
TREE = '{"$dict":[["n",7],["w",{"$tensor":"w"}]]}'
PLACE = '{"rng":{},"per_rank":{},"modules":{},"optimizers":{}}'
HUGE, PAST = 1 << 33, 1 << 40
MEMORY_MAX = 64 << 20
FILES = {"LAMINA": "LAMINA", "pack": "steps/000000000100/1-0/00000.pack", "record": "log/000000000002"} | {
    name: f"steps/000000000100/1-0/{name}" for name in ("catalog", "packs")
}


class Owned:
    """What a pickle can do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def assign(*path: Any, value: Any) -> Callable[[Any], None]:
    """Sets `part[path[0]][path[1]]... = value`."""

    def change(part: Any) -> None:
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value

    return change


def repeat(*path: Any) -> Callable[[Any], None]:
    """Makes a list hold its first member twice."""

    def change(part: Any) -> None:
        for step in path:
            part = part[step]
        part.insert(0, part[0])

    return change


def later_codec(records: Any) -> None:
    """The first chunk; what else its record says may have another meaning."""
    for name, value in {"codec": 3, "offset": 0, "stored_bytes": 0, "rule": 0}.items():
        records[name][0] = value


def later_tier(packs: Any) -> Any:
    """Another pack, in a tier that this version does not know."""
    other = packs[:1].copy()
    other["tier"] = other["writer"] = 1
    return other


def lie(**parts: Callable[[Any], Any]) -> Lies:
    return Lies(parts=parts)


LIES: dict[str, Lies] = {
    "huge_shape": lie(catalog=assign("tensors", 0, "shape", value=[HUGE, HUGE])),
    "huge_shape_and_box": lie(catalog=lambda part: part["tensors"][0].update(shape=[HUGE, HUGE], coordinates=[0, 0, HUGE, HUGE])),
    "a_box_of_many": lie(catalog=lambda part: part["tensors"][0].update(shape=[1 << 30, 1 << 29], coordinates=[0, 0, 1 << 30, 1 << 29])),
    "negative_shape": lie(catalog=assign("tensors", 0, "shape", value=[-2, -2])),
    "negative_offset": lie(catalog=assign("tensors", 0, "coordinates", value=[-1, 0, 2, 2])),
    "key_twice": lie(catalog=repeat("tensors")),
    "unknown_dtype": lie(catalog=assign("tensors", 0, "facts", "dtype", value=99)),
    "alias_of_nothing": lie(catalog=lambda part: part["tensors"][0].update(alias_of=b"/etc/hostname", places=[], coordinates=[])),
    "alias_of_itself": lie(catalog=lambda part: part["tensors"][0].update(alias_of=b"w", places=[], coordinates=[])),
    "unknown_writer": lie(catalog=assign("tensors", 0, "places", 0, "writer", value=9)),
    "unknown_table": lie(catalog=assign("tensors", 0, "places", 0, "table", value=9)),
    "writer_of_another_step": lie(catalog=assign("writers", 0, "attempt", "step", value=-1)),
    "long_pack": lie(catalog=assign("writers", 0, "pack_bytes", value=PAST)),
    "no_ranks": lie(catalog=assign("facts", "rank_count", value=0)),
    "large_blob": lie(catalog=assign("blobs", 1, "facts", "bytes", value=1 << 40)),
    "blob_twice": lie(catalog=repeat("blobs")),
    "table_past_the_end": lie(index=assign("tables", 0, "offset", value=PAST)),
    "table_in_the_header": lie(index=assign("tables", 0, "offset", value=0)),
    "long_table": lie(index=assign("tables", 0, "chunk_count", value=1 << 24)),
    "longer_table": lie(index=assign("tables", 0, "chunk_count", value=1 << 58)),
    "unknown_pack": lie(index=assign("tables", 0, "pack", value=7)),
    "no_packs": lie(index=assign("packs", value=[])),
    "chunk_past_the_end": lie(chunks=assign(0, "offset", value=PAST)),
    "chunk_at_the_end_of_numbers": lie(chunks=assign(0, "offset", value=2**64 - 8)),
    "empty_chunk": lie(chunks=assign(0, "raw_bytes", value=0)),
    "large_chunk": lie(chunks=assign(0, "raw_bytes", value=0xFFFFFFFF)),
    "stored_longer": lie(chunks=assign(0, "stored_bytes", value=0xFFFFFFF0)),
    "unknown_codec": lie(chunks=assign(0, "codec", value=77)),
    "later_codec": lie(chunks=later_codec),
    "later_tier": lie(index=lambda part: part.update(packs=np.concatenate([part["packs"], later_tier(part["packs"])]))),
    "blob_of_more_than_a_gib": lie(catalog=assign("blobs", 0, "facts", "bytes", value=(1 << 30) + 1)),
    "later_chunk": lie(chunks=assign(0, "element_begin", value=1)),
    "index_past_the_end": lie(footer=assign("index_offset", value=PAST)),
    "long_index": lie(footer=assign("index_bytes", value=2**63)),
    "another_store": lie(header=assign("store_id", "low", value=5)),
    "step_below_0": lie(commit=assign("steps", 0, "attempt", "step", value=-5)),
    "head_of_nothing": lie(commit=assign("facts", "head", value=1)),
    "parent_of_itself": lie(commit=assign("steps", 0, "parent", value=2)),
    "another_number": lie(commit=assign("facts", "number", value=3)),
    "floor_above": lie(commit=assign("facts", "floor", value=3)),
    "long_payload": Lies(frames={"catalog": {"payload_bytes": 1 << 62}}),
    **{f"version_{name}": Lies(frames={name: {"version": 999}}) for name in ("LAMINA", "header", "index", "footer", "catalog", "commit")},
}


def often(times: int, *path: Any) -> Callable[[Any], None]:
    """Makes an array hold its first member so often."""

    def change(part: Any) -> None:
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = np.repeat(part[path[-1]][:1], times)

    return change


def records_of_one_chunk(times: int) -> Callable[[Any], Any]:
    """A table of more than one KiB names its chunk so often."""

    def change(records: Any) -> Any:
        if int(records["raw_bytes"][0]) <= 1024:
            return records
        many = np.repeat(records, times)
        many["element_begin"] = np.arange(times) * int(records["raw_bytes"][0])
        return many

    return change


def many_boxes(times: int, size: int, writers: bool = False) -> Callable[[Any], None]:
    """The tensor `big` has so many boxes with the same bytes, each perhaps of another writer."""

    def change(catalog: Any) -> None:
        places = np.repeat(catalog["tensors"][0]["places"], times)
        places["writer"] += np.arange(times, dtype=np.uint32) * writers
        coordinates = [number for at in range(times) for number in (at * size, size)]
        catalog["tensors"][0].update(shape=[times * size], places=places, coordinates=coordinates)

    return change


def many_blobs(times: int, table: int | None) -> Callable[[Any], None]:
    """So many more blobs like the first, with its table, or with tables from `table` on."""

    def change(catalog: Any) -> None:
        for at in range(times):
            facts = catalog["blobs"][0]["facts"].copy()
            if table is not None:
                facts["place"]["table"] = table + at
            catalog["blobs"].insert(at + 1, {"facts": facts, "name": b"a%06d" % at})

    return change


def both(*changes: Callable[[Any], Any]) -> Callable[[Any], None]:
    def change(part: Any) -> None:
        for each in changes:
            each(part)

    return change


def whole(size: int) -> Callable[[Any], None]:
    return lambda catalog: catalog["tensors"][0].update(shape=[size], coordinates=[0, size])


BIG = {"big": ("uint8", (1 << 18,), bytes(range(256)) * 1024), **TENSORS}
LONG_NAME = {"n" * 65536: ("uint8", (1 << 11,), bytes(range(256)) * 8), **TENSORS}
MIB = {"a": bytes(range(256)) * 4096}
# Small roots that would have much memory taken: tensors, blobs beside the usual ones, lies.
BOMBS: dict[str, tuple[Any, dict[str, bytes], Lies]] = {
    "one_pack_over_and_over": (
        BIG,
        {},
        lie(index=often(1500, "packs"), chunks=records_of_one_chunk(1000), catalog=whole(1000 << 18)),
    ),
    "one_chunk_over_and_over": (BIG, {}, lie(chunks=records_of_one_chunk(1000), catalog=whole(1000 << 18))),
    "a_shape_without_bytes": (BIG, {"tree": b'{"$dict":[["n",{"$tensor":"big"}],["w",{"$tensor":"w"}]]}'}, lie(catalog=whole(1 << 34))),
    "one_writer_over_and_over": (BIG, {}, lie(catalog=both(often(1000, "writers"), many_boxes(1000, 1 << 18, writers=True)))),
    "one_table_over_and_over": (BIG, {}, lie(catalog=many_boxes(1000, 1 << 18))),
    "one_table_for_all_blobs": (TENSORS, MIB, lie(catalog=many_blobs(150, None))),
    "tables_alike_for_all_blobs": (
        TENSORS,
        MIB,
        lie(
            catalog=many_blobs(150, 4),
            index=lambda part: part.update(tables=np.concatenate([part["tables"], np.repeat(part["tables"][1:2], 150)])),
        ),
    ),
    "many_problems_of_a_long_name": (
        LONG_NAME,
        {},
        lie(chunks=lambda records: cut_to_pieces(records) if int(records["raw_bytes"][0]) > 1024 else records),
    ),
}


def cut_to_pieces(records: Any) -> Any:
    """Two thousand chunks of a byte, all of them damaged."""
    pieces = np.repeat(records, 1 << 11)
    pieces["element_begin"] = np.arange(1 << 11)
    pieces["raw_bytes"] = pieces["stored_bytes"] = 1
    pieces["offset"] += np.arange(1 << 11, dtype=np.uint64)
    return pieces


# Blobs that lie; only a restore reads them.
TEXTS: dict[str, dict[str, str]] = {
    "tree_is_a_list": {"tree": "[]"},
    "tree_is_null": {"tree": "null"},
    "tree_is_no_json": {"tree": "\x80\x04K\x01."},
    "tree_of_no_number": {"tree": '{"$dict":[["n",NaN],["w",{"$tensor":"w"}]]}'},
    "tree_of_a_number_too_large": {"tree": '{"$dict":[["n",1e999],["w",{"$tensor":"w"}]]}'},
    "tree_of_other_text": {"tree": '{"$dict":[["n",7],["w",{"$tensor":"w"}],["\xc3\xa9",1]]}'},
    "tree_is_deep": {"tree": '{"$list":[' * 100000},
    "tree_has_a_bare_key": {"tree": '{"n":7}'},
    "key_of_the_tree_twice": {"tree": '{"$dict":[["n",7],["n",8],["w",{"$tensor":"w"}]]}'},
    "tensor_of_another_name": {"tree": '{"$dict":[["n",7],["w",{"$tensor":"/etc/hostname"}]]}'},
    "tensor_that_is_no_name": {"tree": '{"$dict":[["n",7],["w",{"$tensor":[1]}]]}'},
    "tensor_named_twice": {"tree": '{"$dict":[["n",{"$list":[{"$tensor":"w"},{"$tensor":"w"}]}]]}'},
    "huge_array": {
        "tree": '{"$dict":[["n",{"$ndarray":{"dtype":"<f4","shape":[8589934592,8589934592],"data":""}}],["w",{"$tensor":"w"}]]}'
    },
    "array_of_objects": {"tree": '{"$dict":[["n",{"$ndarray":{"dtype":"O","shape":[1],"data":"AAAAAAAAAAA="}}],["w",{"$tensor":"w"}]]}'},
    "array_of_code": {"tree": '{"$dict":[["n",{"$scalar":{"dtype":"(","data":""}}],["w",{"$tensor":"w"}]]}'},
    "enum_of_code": {"tree": '{"$dict":[["n",{"$enum":{"type":"os.system","value":"touch owned.txt"}}],["w",{"$tensor":"w"}]]}'},
    "tuple_of_code": {"tree": '{"$dict":[["n",{"$namedtuple":{"type":"os.system","fields":[],"values":[]}}],["w",{"$tensor":"w"}]]}'},
    "registered_code": {"tree": '{"$dict":[["n",{"$registered":{"type":"os.system","state":1}}],["w",{"$tensor":"w"}]]}'},
    "unknown_mark": {"tree": '{"$dict":[["n",{"$import":"os"}],["w",{"$tensor":"w"}]]}'},
    "long_number": {"tree": '{"$dict":[["n",' + "9" * 6000 + '],["w",{"$tensor":"w"}]]}'},
    "array_of_two_fields": {"tree": '{"$dict":[["n",{"$scalar":{"dtype":"(,)f4","data":""}}],["w",{"$tensor":"w"}]]}'},
    "text_beyond_unicode": {"tree": '{"$dict":[["n",{"$scalar":{"dtype":"<U1","data":"/////w=="}}],["w",{"$tensor":"w"}]]}'},
    "object_of_a_number": {"tree": '{"$dict":[["n",{"$object":5}],["w",{"$tensor":"w"}]]}'},
    "json_key_twice": {"tree": '{"$dict":[["n",7],["w",{"$tensor":"w"}]],"$dict":[]}'},
    "place_of_a_module_that_is_a_number": {"place": '{"rng":{},"per_rank":{},"modules":{"a":5},"optimizers":{}}'},
    "place_of_an_optimizer_without_parts": {"place": '{"rng":{},"per_rank":{},"modules":{},"optimizers":{"a":{}}}'},
    "place_of_no_name": {"place": '{"rng":{"(":1},"per_rank":{},"modules":{},"optimizers":{}}'},
    "place_with_more": {"place": '{"rng":{},"per_rank":{},"modules":{},"optimizers":{},"more":{}}'},
    "place_is_a_list": {"place": "[]"},
    "place_lacks_parts": {"place": "{}"},
    "place_of_lists": {"place": '{"rng":[],"per_rank":[],"modules":[],"optimizers":[]}'},
}
CUTS: dict[str, Callable[[int], int]] = {
    "0": lambda n: 0,
    "1": lambda n: 1,
    "17": lambda n: 17,
    "half": lambda n: n // 2,
    "last": lambda n: n - 1,
}


def write_all(folder: Path) -> None:
    """A root for each lie, and a good one."""
    blobs = {"tree": TREE.encode(), "place": PLACE.encode()}
    write_root(folder / "good", TENSORS, blobs)
    write_root(folder / "odd_names", {**TENSORS, "../../x": TENSORS["w"], "/etc/hostname": TENSORS["w"]}, blobs)
    for name, lies in LIES.items():
        write_root(folder / f"lie_{name}", TENSORS, blobs, lies)
    for name, texts in TEXTS.items():
        write_root(folder / f"text_{name}", TENSORS, blobs | {blob: text.encode("latin-1") for blob, text in texts.items()})
    for name, (tensors, more, lies) in BOMBS.items():
        write_root(folder / f"bomb_{name}", tensors, blobs | more, lies)
    evil = pickle.dumps(Owned(folder / "owned.txt"))
    for name, path in FILES.items():
        write_root(folder / f"pickle_{name}", TENSORS, blobs)
        (folder / f"pickle_{name}" / path).write_bytes(evil)
    for name, length in CUTS.items():
        write_root(folder / f"cut_{name}", TENSORS, blobs)
        path = folder / f"cut_{name}" / FILES["catalog"]
        os.truncate(path, length(path.stat().st_size))


Told = dict[str, dict[str, Any]]
CALLS = "open,openat,openat2,creat,mkdir,mkdirat,link,linkat,symlink,symlinkat,rename,renameat,renameat2,unlink,unlinkat,access,faccessat2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of roots, with strace's notes of what was asked of the file system where there is strace."""
    folder = tmp_path_factory.mktemp("hostile")
    write_all(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def told(folder: Path) -> Told:
    """By root, what reading it by each way has told."""
    program = [sys.executable, str(Path(__file__).with_name("hostile_reads.py")), str(folder)]
    if shutil.which("strace"):
        program = ["strace", "-f", "-qq", "-s", "4096", "-o", str(folder / "calls"), "-e", f"trace={CALLS}", *program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return {each["root"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_fc23_roots_that_tell_the_truth_are_read(told: Told) -> None:
    good, odd = told["good"], told["odd_names"]
    assert good["load"]["told"] == "['w'] [[0.0, 1.0], [2.0, 3.0]]"
    assert good["restore"]["told"] == "step 100: 7 [[0.0, 1.0], [2.0, 3.0]]"
    assert odd["load"]["told"] == "['../../x', '/etc/hostname', 'w'] [[0.0, 1.0], [2.0, 3.0]]"
    assert good["verify"]["told"] == odd["verify"]["told"] == "fine"


def test_fc23_every_lie_is_refused_loudly(folder: Path, told: Told) -> None:
    lies = {name: each for name, each in told.items() if name not in ("good", "odd_names")}
    assert len(lies) == len(LIES) + len(BOMBS) + len(TEXTS) + len(FILES) + len(CUTS)
    for name, each in lies.items():
        # A restore does without `packs`; a load and verify do without the meaning of blobs, and a load without blobs at all.
        if name.startswith(("text_place", "text_tree_of_no", "text_tree_is_no")):
            blob = "place" if "place" in name else "tree"
            assert each["restore"]["error"] == "CorruptionError", (name, each["restore"])
            assert f"step 100: blob '{blob}' of rank 0: " in each["restore"]["told"], (name, each["restore"])
        if name != "pickle_packs":
            assert each["restore"]["error"] in ("CorruptionError", "UnsupportedError", "MismatchError"), (name, each["restore"])
        if name not in ("pickle_packs", "bomb_tables_alike_for_all_blobs") and not name.startswith("text_"):
            assert each["load"]["error"] in ("CorruptionError", "UnsupportedError"), (name, each["load"])
            assert re.search(r"LAMINA|log/0|steps/0", each["load"]["told"]), (name, each["load"])
        if not name.startswith("text_"):
            assert each["verify"]["told"] != "fine", name
    for name in ("lie_later_codec", "lie_later_tier"):  # of a later version, so that no older step is taken for it
        assert told[name]["restore"]["error"] == told[name]["load"]["error"] == "UnsupportedError", told[name]
    assert not (folder / "owned.txt").exists()


def test_fc23_a_newer_version_is_named_with_the_newest_known(told: Told) -> None:
    for name, each in told.items():
        if name.startswith("lie_version"):
            assert each["load"]["error"] == "UnsupportedError", each["load"]
            assert "version 999, the newest known version is 0" in each["load"]["told"], each["load"]


def test_fc23_memory_rises_by_64_mib_at_most(told: Told) -> None:
    for name, each in told.items():
        assert max(each[way]["rise"] for way in ("load", "verify", "restore")) <= MEMORY_MAX, (name, each)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_fc23_nothing_outside_the_root_is_opened(folder: Path, told: Told) -> None:
    calls = (folder / "calls").read_text().splitlines()
    begin = next(at for at, call in enumerate(calls) if f'"{folder}/begin"' in call)
    paths = {path for call in calls[begin + 1 :] for path in re.findall(r'"([^"]*)"', call)}
    assert sum(path.startswith(str(folder)) for path in paths) > 100
    # What Python and the system read for themselves, whatever a checkpoint says.
    own = ("/proc/", "/sys/devices/system/", "/dev/null", "/dev/urandom", sys.prefix, sys.base_prefix, *filter(None, sys.path))
    stray = {path for path in paths - {str(folder)} if not path.startswith((f"{folder}/", *own)) or ".." in path}
    assert not stray


@pytest.mark.parametrize("path", golden.ROOTS.values(), ids=list(golden.ROOTS))
def test_fc23_roots_of_each_version_load_equal(path: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(path, root)
    found = lamina.open(root).load()
    (step, *_), (tensors, *_) = zip(*golden.expected(path).items(), strict=True)
    state = {name: blank(found[name]) for name in tensors if found[name].numel() and "[" not in name and "." not in name}
    assert len(state) >= 1
    with lamina.Checkpointer(root, run_id="golden") as ckpt:
        info = ckpt.restore(state, strict=False)
    assert str(info.step) == step
    for name, tensor in state.items():
        assert hashlib.sha256(raw(tensor)).hexdigest() == tensors[name][2], name
