"""Reads a root: `Root(path)`, its line, and whole steps as raw bytes, with every check that docs/format.md asks for."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import flat, layout
from .layout import DamagedError, MissingError, Table, UnsupportedError, number

Facts = dict[str, Any]


@dataclass(frozen=True)
class Tensor:
    """A whole tensor: its elements in row-major order, as raw bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    alias_of: bytes = b""


@dataclass(frozen=True)
class Contents:
    """What a step holds: tensors by name, blobs by name and rank, the mesh of the job that saved."""

    tensors: dict[bytes, Tensor]
    blobs: dict[tuple[bytes, int], bytes]
    rank_count: int
    topology: dict[bytes, int]


def check(holds: object, what: str) -> None:
    if not holds:
        raise DamagedError(what)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingError(f"{path} is not there") from error


def payload(data: bytes, magic: bytes, *, exact: bool = True) -> bytes:
    """What stands behind a frame. `exact`: nothing may follow it."""
    check(len(data) >= layout.FRAME_BYTES, f"{len(data)} bytes are too few for a frame")
    frame = np.frombuffer(data, layout.FRAME, 1)[0]
    check(data[:8] == magic, f"the magic is {data[:8]!r}, not {magic!r}")
    check(frame["frame_checksum"] == layout.xxh64(data[:56]), "the frame's checksum is wrong")
    if frame["version"] > layout.VERSION:
        raise UnsupportedError(f"version {frame['version']}; {layout.VERSION} is the newest known here")
    if frame["required"]:
        raise UnsupportedError(f"required features {frame['required']:#x}; none are known here")
    size = int(frame["payload_bytes"])
    check(size <= (1 << 30) - layout.FRAME_BYTES and size <= len(data) - layout.FRAME_BYTES, f"a payload of {size} bytes in {len(data)}")
    check(not exact or size == len(data) - layout.FRAME_BYTES, "there are bytes behind the payload")
    found = data[layout.FRAME_BYTES :][:size]
    check(number(frame["payload_checksum"]) == layout.xxh128(found), "the payload's checksum is wrong")
    return found


def fixed(data: bytes, magic: bytes, of: np.dtype) -> np.void:
    """A frame whose payload is one struct."""
    found = payload(data, magic)
    check(len(found) == of.itemsize, f"a payload of {len(found)} bytes, not {of.itemsize}")
    return np.frombuffer(found, of)[0]


def table(data: bytes, magic: bytes, of: Table, *, exact: bool = True) -> Facts:
    return flat.decode(payload(data, magic, exact=exact), of)


def ascending(values: Iterable[Any], what: str) -> None:
    values = list(values)
    check(all(a < b for a, b in itertools.pairwise(values)), f"{what} do not ascend")


def key(attempt: np.void) -> tuple[int, int, int]:
    return int(attempt["step"]), int(attempt["incarnation"]), int(attempt["attempt"])


def check_attempt(attempt: np.void) -> None:
    check(attempt["step"] >= 0, "a step below 0")
    check(attempt["incarnation"] >= 1, "an incarnation of number 0")


def check_differ(values: list[Any], what: str) -> None:
    check(len(set(values)) == len(values), f"two of the {what} are the same")


def check_ranks(blobs: set[tuple[bytes, int]], rank_count: int) -> None:
    """Where there is a tree, plain values belong to the ranks that the document gives."""
    if all(name != b"tree" for name, _ in blobs):
        return
    check(all(rank == 0 for name, rank in blobs if name in (b"tree", b"metadata")), "a tree or metadata of another rank than 0")
    check(sum(name == b"place" for name, _ in blobs) == rank_count, "the values of some rank are not there")


def named(path: Path, read: Callable[[], Any]) -> Any:
    """What `read` returns; what it raises names the file."""
    try:
        return read()
    except layout.ReadError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error


class Pack:
    """A pack's bytes, once its header has been found to be that of its path."""

    def __init__(self, root: "Root", attempt: np.void, writer: int) -> None:
        self.path = root.file(str(layout.step_folder(attempt)), layout.pack_name(writer))
        self.data = memoryview(read_bytes(self.path))
        self.left = len(self.data)  # that the tables of a step may still name
        self.used: list[tuple[int, int]] = []  # the parts that the step knows
        header = named(self.path, lambda: fixed(bytes(self.data[: layout.HEADER_BYTES]), layout.MAGIC_HEADER, layout.PACK_HEADER))
        same = (number(header["store_id"]), key(header), header["writer"]) == (root.store_id, key(attempt), writer)
        named(self.path, lambda: check(same, "the header is of another pack"))
        self.nonce = number(header["nonce"])

    def claim(self, size: int) -> None:
        """In this version every byte is stored once."""
        self.left -= size
        check(self.left >= 0, f"{self.path}: the tables of the step name more than it holds")

    def read(self, offset: int, size: int) -> memoryview:
        named(self.path, lambda: check(4096 <= offset <= 1 << 62 and offset + size <= len(self.data), f"{size} bytes at {offset}"))
        return self.data[offset : offset + size]

    def use(self, begin: int, size: int) -> None:
        self.used.append((begin, begin + size))

    def check_padding(self) -> None:
        """What lies between the parts is 0."""
        covered = 0
        for begin, end in sorted(self.used):
            check(
                not bytes(self.data[covered:begin]).strip(b"\0"),
                f"{self.path}: a byte between {covered} and {begin}, which are padding, is not 0",
            )
            covered = max(covered, end)


class Writer:
    """One writer of a step: its pack, its index, and the packs that the index refers to."""

    def __init__(self, root: "Root", entry: np.void) -> None:
        self.pack = root.pack(entry["attempt"], int(entry["writer"]), number(entry["nonce"]))
        self.index = named(self.pack.path, lambda: self._read_index(root, entry))
        self.packs = [root.pack(p["attempt"], int(p["writer"]), number(p["nonce"])) for p in self.index["packs"]]
        self.pack.use(0, layout.HEADER_BYTES)
        self.unnamed = set(range(len(self.index["tables"])))  # tables that nothing has asked for
        for reference in self.index["tables"]:
            end = int(reference["offset"]) + 64 * int(reference["chunk_count"])
            check(end <= len(self.packs[reference["pack"]].data), f"{self.pack.path}: a table ends beyond its pack")

    def _read_index(self, root: "Root", entry: np.void) -> Facts:
        data, size = self.pack.data, int(entry["pack_bytes"])
        check(4224 <= size <= 1 << 62 and len(data) == size, f"it has {len(data)} bytes, the catalog says {size}")
        footer = fixed(bytes(data[-layout.FOOTER_BYTES :]), layout.MAGIC_FOOTER, layout.PACK_FOOTER)
        begin, index_bytes = int(footer["index_offset"]), int(footer["index_bytes"])
        check(number(footer["nonce"]) == number(entry["nonce"]) and footer["pack_bytes"] == size, "the footer is of another pack")
        check(number(footer["index_digest"]) == number(entry["index_digest"]), "footer and catalog give the index other digests")
        check(begin >= 4096 and begin + index_bytes + layout.FOOTER_BYTES == size, f"an index of {index_bytes} bytes at {begin}")
        index_data = bytes(data[begin : begin + index_bytes])
        self.pack.use(begin, index_bytes + layout.FOOTER_BYTES)
        check(layout.xxh128(index_data) == number(footer["index_digest"]), "the index's digest is wrong")
        index = table(index_data, layout.MAGIC_INDEX, layout.INDEX)
        for facts in (index["facts"], *index["packs"][:1]):
            same = (key(facts["attempt"]), facts["writer"]) == (key(entry["attempt"]), entry["writer"])
            check(same and number(facts["nonce"]) == number(entry["nonce"]), "the index is of another pack")
        check(number(index["facts"]["store_id"]) == root.store_id, "the index is of another store")
        check(len(index["packs"]), "the index does not name its own pack")
        for pack in index["packs"]:
            if pack["tier"]:
                raise UnsupportedError(f"tier {pack['tier']}")
            check_attempt(pack["attempt"])
        check_differ([(*key(pack["attempt"]), int(pack["writer"])) for pack in index["packs"]], "packs")
        for reference in index["tables"]:
            check(reference["pack"] < len(index["packs"]), "a table in a pack that the index does not name")
            check(reference["chunk_count"] <= 1 << 24, f"a table of {reference['chunk_count']} chunks")
            check(4096 <= reference["offset"] <= 1 << 62, f"a table at {reference['offset']}")
        return index

    def chunks(self, ordinal: int, elements: int, element_bytes: int) -> np.ndarray:
        """The records of a table, which hold exactly so many elements."""
        check(ordinal < len(self.index["tables"]), f"{self.pack.path}: there is no table {ordinal}")
        reference = self.index["tables"][ordinal]
        self.unnamed.discard(ordinal)
        pack = self.packs[reference["pack"]]
        pack.claim(64 * int(reference["chunk_count"]))
        data = pack.read(int(reference["offset"]), 64 * int(reference["chunk_count"]))
        pack.use(int(reference["offset"]), len(data))
        check(layout.xxh128(data) == number(reference["digest"]), f"{pack.path}: the digest of table {ordinal} is wrong")
        records = np.frombuffer(data, layout.CHUNK)
        named(pack.path, lambda: self._check_chunks(records, elements, element_bytes))
        for record in records:
            self.packs[record["pack"]].claim(int(record["stored_bytes"]))
            self.packs[record["pack"]].use(int(record["offset"]), int(record["stored_bytes"]))
        return records

    def _check_chunks(self, records: np.ndarray, elements: int, element_bytes: int) -> None:
        done = 0
        for record in records:
            raw, codec = int(record["raw_bytes"]), record["codec"]
            if codec in (1, 2, 3):
                raise UnsupportedError(f"codec {codec}")
            check(codec == 0 and record["reserved"].tobytes() == bytes(3), f"codec {codec}")
            check(record["element_begin"] == done, f"a chunk begins at element {record['element_begin']}, not at {done}")
            check(0 < raw <= 1 << 22 and raw % element_bytes == 0, f"a chunk of {raw} bytes")
            check(record["stored_bytes"] == raw and record["rule"] == layout.NO_RULE, "a raw chunk with a rule or another length")
            check(record["pack"] < len(self.packs), "a chunk in a pack that the index does not name")
            count = record["nonfinite_count"]
            check(count == layout.NOT_COUNTED or count <= 2 * raw // element_bytes, f"{count} values that are not finite")
            done += raw // element_bytes
        check(done == elements, f"{done} elements, not {elements}")

    def raw(self, record: np.void, dtype: str, seed: int) -> memoryview:
        """A chunk's elements."""
        pack = self.packs[record["pack"]]
        data = pack.read(int(record["offset"]), int(record["stored_bytes"]))
        check(layout.xxh64(data) == record["stored_checksum"], f"{pack.path}: the checksum of the bytes at {record['offset']} is wrong")
        check(
            layout.fingerprint(data, seed) == number(record["fingerprint"]), f"{pack.path}: the fingerprint at {record['offset']} is wrong"
        )
        if record["nonfinite_count"] != layout.NOT_COUNTED:
            found = nonfinite_count(data, dtype)
            check(found == record["nonfinite_count"], f"{pack.path}: {found} values at {record['offset']} are not finite")
        return data


def nonfinite_count(data: memoryview, dtype: str) -> int:
    if dtype not in layout.NONFINITE:
        return 0
    bits, mask, value = layout.NONFINITE[dtype]
    return int(np.count_nonzero((np.frombuffer(data, bits) & mask) == value))


class Root:
    """A root's directory.

    Args:
        path: the directory.
        bytes_max: a step whose tensors and blobs have more is refused.

    Raises:
        layout.ReadError: of every method; names the file.
    """

    def __init__(self, path: str | Path, bytes_max: int = 1 << 30) -> None:
        self.path, self.bytes_max = Path(path), bytes_max
        store = self.file("LAMINA")
        facts = named(store, lambda: fixed(read_bytes(store), layout.MAGIC_STORE, layout.STORE))
        self.store_id, self.seed = number(facts["store_id"]), int(facts["fingerprint_seed"])
        if facts["fingerprint_algorithm"] != 1:
            raise UnsupportedError(f"{store}: fingerprint algorithm {facts['fingerprint_algorithm']}")
        self._packs: dict[Path, Pack] = {}

    def file(self, *parts: str) -> Path:
        """The path of a file below the root. No link on the way, nor at its end, is followed."""
        path = self.path
        for part in Path(*parts).parts:
            path /= part
            check(not path.is_symlink(), f"{path} is a link")
        return path

    def record_numbers(self) -> list[int]:
        """Numbers of the regular files in log/, ascending."""
        log = self.file("log")
        names = [entry.name for entry in log.iterdir() if entry.is_file() and not entry.is_symlink()] if log.is_dir() else []
        # No number has more than 20 digits.
        numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 20]
        return sorted(wanted for wanted in numbers if 0 < wanted < 1 << 64 and f"{wanted:012d}" in names)

    def record(self, wanted: int) -> Facts:
        path, (first, second) = self.copies(wanted)
        try:
            return self._copy(first, wanted)
        except DamagedError:
            return named(path, lambda: self._copy(second, wanted))
        except UnsupportedError as error:
            raise UnsupportedError(f"{path}: {error}") from error

    def copies(self, wanted: int) -> tuple[Path, tuple[bytes, bytes]]:
        path = self.file("log", f"{wanted:012d}")
        data = read_bytes(path)
        named(path, lambda: check(len(data) <= 1 << 30, f"{len(data)} bytes of a log record"))
        return path, (data[: len(data) // 2], data[len(data) // 2 :])

    def check_record(self, wanted: int) -> None:
        """Both copies, of which a reader needs one."""
        path, (first, second) = self.copies(wanted)
        named(path, lambda: self._copy(first, wanted))
        named(path, lambda: self._copy(second, wanted))
        check(first == second and len(first) % 4096 == 0, f"{path}: {len(first) + len(second)} bytes that are not two copies of a record")

    def _copy(self, data: bytes, wanted: int) -> Facts:
        record = table(data, layout.MAGIC_RECORD, layout.LOG_RECORD, exact=False)
        facts, steps, opens = record["facts"], record["steps"], [int(n) for n in record["opens"]]
        check(number(facts["store_id"]) == self.store_id, "the record is of another store")
        check(facts["number"] == wanted and 1 <= wanted <= 1 << 62, f"the record is number {facts['number']}")
        check(1 <= facts["kind"] <= 6, f"kind {facts['kind']}")
        check(1 <= facts["floor"] <= wanted and facts["damaged"] < wanted, "floor or damaged is wrong")
        ascending(opens, "opens")
        check(
            opens and opens[0] >= 1 and opens[-1] <= wanted and opens[-1] == facts["incarnation"], "opens do not end with the incarnation"
        )
        check((facts["incarnation"] == wanted) == (facts["kind"] == 1), "an open has another incarnation, or another record its own")
        commits = [int(n) for n in steps["commit"]]
        ascending(commits, "steps")
        check(all(1 <= commit <= wanted for commit in commits), "a step's commit is out of range")
        check(all(steps["parent"] < steps["commit"]), "a step does not follow its parent")
        check(all((steps["state"] >= 1) & (steps["state"] <= 4)), "a step's state is none that is known")
        check(all(steps["state_bytes"] <= 1 << 62) and all(steps["stored_bytes"] <= 1 << 62), "a step of more than 2^62 bytes")
        check(facts["head"] == 0 or int(facts["head"]) in commits, "the head is not in the table")
        for attempt in (*steps["attempt"], *record["unswept"]):
            check_attempt(attempt)
        check_differ([key(attempt) for attempt in steps["attempt"]], "steps")
        by_commit = dict(zip(commits, steps["attempt"], strict=True))
        if facts["kind"] == 3:
            check_attempt(facts["subject"])
        elif facts["kind"] in (2, 4):
            about = by_commit.get(int(facts["head"]))
            check(about is not None and key(facts["subject"]) == key(about), "the record is about another step than the head")
            check(facts["kind"] == 4 or facts["head"] == wanted, "a commit of another step than the head")
        else:
            check(key(facts["subject"]) == (0, 0, 0), "a record about an attempt, of a kind that is about none")
        return record

    def newest(self) -> Facts | None:
        """The record that counts; None in a root that has none."""
        numbers = self.record_numbers()
        return self.record(numbers[-1]) if numbers else None

    def steps(self) -> list[np.void]:
        """All steps that can be read, by commit."""
        record = self.newest()
        return [step for step in record["steps"] if step["state"] != 4] if record else []

    def line(self) -> list[np.void]:
        """The newest step and its ancestors, newest first."""
        record = self.newest()
        by_commit = {int(step["commit"]): step for step in record["steps"]} if record else {}
        found, commit = [], int(record["facts"]["head"]) if record else 0
        while commit in by_commit:
            if by_commit[commit]["state"] != 4:
                found.append(by_commit[commit])
            commit = int(by_commit[commit]["parent"])
        return found

    def pack(self, attempt: np.void, writer: int, nonce: int) -> Pack:
        path = self.path / layout.step_folder(attempt) / layout.pack_name(writer)
        if path not in self._packs:
            self._packs[path] = Pack(self, attempt, writer)
        check(self._packs[path].nonce == nonce, f"{path}: it is another pack than the one that is meant")
        return self._packs[path]

    def catalog(self, step: np.void) -> Facts:
        path = self.file(str(layout.step_folder(step["attempt"])), "catalog")
        return named(path, lambda: self._catalog(read_bytes(path), step))

    def _catalog(self, data: bytes, step: np.void) -> Facts:
        check(layout.xxh128(data) == number(step["catalog_digest"]), "it is not the file that was committed")
        catalog = table(data, layout.MAGIC_CATALOG, layout.CATALOG)
        facts, writers = catalog["facts"], catalog["writers"]
        check(number(facts["store_id"]) == self.store_id, "it is of another store")
        check(key(facts["attempt"]) == key(step["attempt"]), "it is of another attempt")
        check(1 <= facts["rank_count"] < 1 << 31, f"it is of a job of {facts['rank_count']} ranks")
        check(all(dimension["extent"]["value"] >= 1 for dimension in catalog["topology"]), "a mesh dimension below 1")
        check(all(1 <= len(dimension["name"]) <= 65536 for dimension in catalog["topology"]), "the name of a mesh dimension")
        for attempt in (facts["attempt"], *writers["attempt"]):
            check_attempt(attempt)
        check_differ([(*key(writer["attempt"]), int(writer["writer"])) for writer in writers], "writers")
        names = [tensor["name"] for tensor in catalog["tensors"]]
        ascending(names, "tensors")
        ascending([(blob["name"], int(blob["facts"]["rank"])) for blob in catalog["blobs"]], "blobs")
        check(all(1 <= len(name) <= 65536 for name in [*names, *(blob["name"] for blob in catalog["blobs"])]), "a name's length")
        check(all(blob["facts"]["rank"] < facts["rank_count"] for blob in catalog["blobs"]), "a blob of a rank that was not there")
        places = [place for tensor in catalog["tensors"] for place in tensor["places"]] + [b["facts"]["place"] for b in catalog["blobs"]]
        check(all(place["writer"] < len(writers) for place in places), "bytes of a writer that was not there")
        check_differ([(int(place["writer"]), int(place["table"])) for place in places], "chunk tables of boxes and blobs")
        check(all(blob["facts"]["bytes"] <= 1 << 30 for blob in catalog["blobs"]), "a blob of more than a GiB")
        by_name = dict(zip(names, catalog["tensors"], strict=True))
        for tensor in catalog["tensors"]:
            _check_tensor(tensor, by_name)
        return catalog

    def packs(self, step: np.void) -> np.ndarray:
        """The entries of the file `packs`."""
        path = self.file(str(layout.step_folder(step["attempt"])), "packs")
        return named(path, lambda: self._packs_file(read_bytes(path), step))

    def _packs_file(self, data: bytes, step: np.void) -> np.ndarray:
        check(layout.xxh128(data) == number(step["packs_digest"]), "it is not the file that was committed")
        found = table(data, layout.MAGIC_PACKS, layout.PACKS)
        check(number(found["facts"]["store_id"]) == self.store_id, "it is of another store")
        check(key(found["facts"]["attempt"]) == key(step["attempt"]), "it is of another attempt")
        packs = found["packs"]
        ascending([(*key(pack["attempt"]), int(pack["writer"])) for pack in packs], "packs")
        check(all(packs["live_bytes"] <= packs["pack_bytes"]), "more bytes live than there are")
        for pack in packs:
            check_attempt(pack["attempt"])
        return packs

    def read(self, step: np.void) -> Contents:
        """All tensors and blobs of a step."""
        self._packs.clear()
        catalog = self.catalog(step)
        writers = [Writer(self, entry) for entry in catalog["writers"]]
        live: dict[Path, int] = {}
        boxes = {tensor["name"]: _boxes(tensor) for tensor in catalog["tensors"]}
        left = self.bytes_max
        for tensor in catalog["tensors"]:
            left -= math.prod(map(int, tensor["shape"])) * layout.DTYPES[int(tensor["facts"]["dtype"])][1] * (not tensor["alias_of"])
        left -= sum(int(blob["facts"]["bytes"]) for blob in catalog["blobs"])
        if left < 0:
            raise UnsupportedError(f"{self.path}: the step has more than {self.bytes_max} bytes")

        def box_bytes(place: np.void, elements: int, dtype: str, element_bytes: int) -> bytes:
            writer = writers[place["writer"]]
            records = writer.chunks(int(place["table"]), elements, element_bytes)
            for record in records:
                path = writer.packs[record["pack"]].path
                live[path] = live.get(path, 0) + int(record["stored_bytes"])
            return b"".join(writer.raw(record, dtype, self.seed) for record in records)

        tensors: dict[bytes, Tensor] = {}
        for tensor in catalog["tensors"]:
            dtype, element_bytes = layout.DTYPES[int(tensor["facts"]["dtype"])]
            shape = tuple(map(int, tensor["shape"]))
            if not tensor["alias_of"]:
                parts = [
                    (offsets, extents, box_bytes(place, math.prod(extents), dtype, element_bytes))
                    for place, (offsets, extents) in zip(tensor["places"], boxes[tensor["name"]], strict=True)
                ]
                where = f"{self.path / layout.step_folder(step['attempt'])}/catalog: {tensor['name']!r}"
                tensors[tensor["name"]] = Tensor(dtype, shape, _assemble(shape, element_bytes, parts, where))
        for tensor in catalog["tensors"]:
            if tensor["alias_of"]:
                target = tensors[tensor["alias_of"]]
                tensors[tensor["name"]] = Tensor(target.dtype, target.shape, target.data, tensor["alias_of"])
        blobs = {}
        for blob in catalog["blobs"]:
            facts = blob["facts"]
            blobs[blob["name"], int(facts["rank"])] = box_bytes(facts["place"], int(facts["bytes"]), "uint8", 1)
        check_ranks(set(blobs), int(catalog["facts"]["rank_count"]))
        for writer in writers:
            check(not writer.unnamed, f"{writer.pack.path}: table {min(writer.unnamed, default=0)} is of nothing that the catalog names")
            writer.pack.check_padding()
        self._check_reached(step, writers, live)
        topology = {dimension["name"]: int(dimension["extent"]["value"]) for dimension in catalog["topology"]}
        return Contents(tensors, blobs, int(catalog["facts"]["rank_count"]), topology)

    def _check_reached(self, step: np.void, writers: list[Writer], live: dict[Path, int]) -> None:
        """`packs` lists what the step needs, with its length and live bytes."""
        where = self.path / layout.step_folder(step["attempt"]) / "packs"
        listed = {}
        for entry in self.packs(step):
            pack = self.pack(entry["attempt"], int(entry["writer"]), number(entry["nonce"]))
            check(len(pack.data) == entry["pack_bytes"], f"{where}: {pack.path} has {len(pack.data)} bytes, not {entry['pack_bytes']}")
            listed[pack.path] = int(entry["live_bytes"])
        for path in {pack.path for writer in writers for pack in writer.packs} | listed.keys():
            check(listed.get(path) == live.get(path, 0), f"{where}: {path} has {live.get(path, 0)} live bytes, listed: {listed.get(path)}")

    def check(self) -> list[tuple[np.void, Contents]]:
        """Reads all that the root holds: every record that counts, every step.

        Returns:
            Steps by commit, each with what it holds.
        """
        newest = self.newest()
        if newest is None:
            return []
        floor, damaged = int(newest["facts"]["floor"]), int(newest["facts"]["damaged"])
        numbers = self.record_numbers()
        opens = set(map(int, newest["opens"]))
        if damaged:
            floor = min((number for number in numbers if number >= floor and number not in opens), default=floor)
        expected = {*range(max(floor, numbers[-1] - len(numbers)), numbers[-1] + 1), *opens}
        check(expected <= set(numbers), f"{self.path}: records of the log are missing")
        for wanted in numbers:
            if wanted < floor:
                continue
            try:
                self.check_record(wanted)
            except DamagedError:  # passed over, with only the newest of several named
                if wanted > damaged:
                    raise
        return [(step, self.read(step)) for step in self.steps()]


def _check_tensor(tensor: Facts, by_name: dict[bytes, Facts]) -> None:
    name, shape = tensor["name"], [int(extent) for extent in tensor["shape"]]
    check(int(tensor["facts"]["dtype"]) in layout.DTYPES, f"{name!r} has dtype {tensor['facts']['dtype']}")
    check(len(shape) <= 64 and all(extent >= 0 for extent in shape), f"{name!r} has shape {shape}")
    element_bytes = layout.DTYPES[int(tensor["facts"]["dtype"])][1]
    product = math.prod(extent for extent in shape if extent)
    check(product <= 1 << 62 and math.prod(shape) * element_bytes <= 1 << 62, f"{name!r} has shape {shape}")
    if tensor["alias_of"]:
        target = by_name.get(tensor["alias_of"])
        check(target is not None, f"{name!r} is an alias of a tensor that is not there")
        same = target and target["facts"] == tensor["facts"] and [int(extent) for extent in target["shape"]] == shape
        check(same and not target["alias_of"], f"{name!r} is an alias of what is another tensor, or an alias itself")
        check(not len(tensor["places"]), f"{name!r} is an alias and has bytes of its own")
        return
    boxes, cut = _boxes(tensor), set()
    for offsets, extents in boxes:
        inside = all(begin >= 0 and size > 0 and begin + size <= whole for begin, size, whole in zip(offsets, extents, shape, strict=True))
        check(inside, f"{name!r} has a box outside its shape")
        cut |= {dimension for dimension, (size, whole) in enumerate(zip(extents, shape, strict=True)) if size != whole}
    check(len(cut) <= 8 and len(boxes) << len(cut) <= 1 << 20, f"{name!r} is cut into too many boxes")
    check(sum(math.prod(extents) for _, extents in boxes) == math.prod(shape), f"the boxes of {name!r} do not cover it once")


def _boxes(tensor: Facts) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, extents) of each box."""
    rank, coordinates = len(tensor["shape"]), [int(c) for c in tensor["coordinates"]]
    expected = 0 if tensor["alias_of"] else 2 * rank * len(tensor["places"])
    check(len(coordinates) == expected, f"{tensor['name']!r} has {len(coordinates)} coordinates, not {expected}")
    begins = [2 * rank * box for box in range(len(tensor["places"]))]
    return [(tuple(coordinates[at : at + rank]), tuple(coordinates[at + rank : at + 2 * rank])) for at in begins]


def _assemble(shape: tuple[int, ...], element_bytes: int, parts: list[Any], where: str) -> bytes:
    """The whole from its boxes. With as many elements in the boxes as in the whole, none left out means none twice."""
    if not math.prod(shape):
        return b""
    whole, seen = np.zeros(shape, f"V{element_bytes}"), np.zeros(shape, bool)
    for offsets, extents, data in parts:
        place = tuple(slice(begin, begin + size) for begin, size in zip(offsets, extents, strict=True))
        whole[place] = np.frombuffer(data, whole.dtype).reshape(extents)
        seen[place] = True
    check(seen.all(), f"{where}: the boxes do not cover it once")
    return whole.tobytes()
