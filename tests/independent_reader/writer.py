"""Writes a small root of one step from docs/format.md, true or not: each part can be changed before it is framed, and all checksums and
digests are taken after that, so that a lie is told with a straight face."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import flat, layout

STORE_ID, NONCE, RECORD_NONCE = 0x1F1E1D1C1B1A1918 << 64 | 0x1716151413121110, 0x2F << 64 | 0x20, 0x3F << 64 | 0x30
SEED = 0x0123456789ABCDEF
STEP, INCARNATION = 100, 1
ELEMENTS_MAX = 262144

Part = Any  # a NumPy record, an array of them, or the dict of a FlatBuffers table
NUMBERS = {name: number for number, (name, _) in layout.DTYPES.items()}


@dataclass(frozen=True)
class Lies:
    """What is changed on the way.

    Attributes:
        parts: by the name of a part (LAMINA, header, chunks, index, footer, catalog, packs, open, commit), what changes it in place, or
            returns another one in its place.
        frames: by the same names, fields of the part's frame.
    """

    parts: Mapping[str, Callable[[Part], Part | None]] = field(default_factory=dict)
    frames: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def told(self, name: str, part: Part) -> Part:
        other = self.parts.get(name, lambda part: None)(part)
        return part if other is None else other

    def framed(self, name: str, magic: bytes, payload: bytes) -> bytes:
        return frame(magic, payload, **self.frames.get(name, {}))


def frame(magic: bytes, payload: bytes, **lies: int) -> bytes:
    """The payload behind its frame."""
    true = {"magic": magic, "payload_bytes": len(payload), "payload_checksum": layout.digest(layout.xxh128(payload))}
    front = record(layout.FRAME, **{**true, **lies})
    front["frame_checksum"] = layout.xxh64(front.tobytes()[:56])
    return front.tobytes() + payload


def record(of: np.dtype, **fields: Any) -> np.void:
    """A struct, fields that are not given being 0."""
    made = np.zeros(1, of)[0]
    for name, value in fields.items():
        made[name] = value
    return made


def vector(of: np.dtype, *rows: Mapping[str, Any]) -> np.ndarray:
    return np.array([record(of, **row) for row in rows], of)


@dataclass
class _Pack:
    """A pack in the making: what is in it so far, and the tables that tell."""

    data: bytearray
    tables: list[dict[str, Any]]
    lies: Lies

    def add(self, raw: bytes, element_bytes: int) -> int:
        """Appends a box's chunks and their table; returns the table's ordinal."""
        step = ELEMENTS_MAX * element_bytes
        rows = [self._chunk(raw[begin : begin + step], begin // element_bytes) for begin in range(0, len(raw), step)]
        records = self.lies.told("chunks", vector(layout.CHUNK, *rows))
        offset = self._append(records.tobytes(), 64)
        digest = layout.digest(layout.xxh128(records.tobytes()))
        self.tables.append({"digest": digest, "offset": offset, "chunk_count": len(records)})
        return len(self.tables) - 1

    def _chunk(self, raw: bytes, element_begin: int) -> dict[str, Any]:
        return {
            "element_begin": element_begin,
            "raw_bytes": len(raw),
            "stored_bytes": len(raw),
            "fingerprint": layout.digest(layout.fingerprint(raw, SEED)),
            "offset": self._append(raw, 4096 if len(raw) >= 65536 else 64),
            "stored_checksum": layout.xxh64(raw),
            "nonfinite_count": layout.NOT_COUNTED,
            "rule": layout.NO_RULE,
        }

    def _append(self, data: bytes, alignment: int) -> int:
        self.data += bytes(-len(self.data) % alignment)
        self.data += data
        return len(self.data) - len(data)

    def finish(self, attempt: np.void) -> tuple[int, int]:
        """Appends index and footer. Returns the index's digest and the length."""
        own = {"attempt": attempt, "nonce": layout.digest(NONCE)}
        parts = {
            "facts": record(layout.INDEX_FACTS, store_id=layout.digest(STORE_ID), **own),
            "packs": vector(layout.PACK_REFERENCE, own),
            "tables": vector(layout.TABLE_REFERENCE, *self.tables),
        }
        index = self.lies.framed("index", layout.MAGIC_INDEX, flat.encode(self.lies.told("index", parts), layout.INDEX))
        offset, digest = self._append(index, 64), layout.xxh128(index)
        footer = record(
            layout.PACK_FOOTER,
            nonce=layout.digest(NONCE),
            index_offset=offset,
            index_bytes=len(index),
            index_digest=layout.digest(digest),
            pack_bytes=len(self.data) + layout.FOOTER_BYTES,
        )
        self.data += self.lies.framed("footer", layout.MAGIC_FOOTER, self.lies.told("footer", footer).tobytes())
        return digest, len(self.data)


def write_root(
    path: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    blobs: Mapping[str, bytes] | None = None,
    lies: Lies | None = None,
) -> None:
    """Writes the root.

    Args:
        path: the directory to be made.
        tensors: dtype, shape and raw bytes by name; each is one box.
        blobs: by name; all of rank 0.
        lies: what is changed on the way.
    """
    lies, blobs = lies or Lies(), blobs or {}
    attempt = record(layout.ATTEMPT, step=STEP, incarnation=INCARNATION)
    folder = path / layout.step_folder(attempt)
    folder.mkdir(parents=True)
    (path / "log").mkdir()
    store = record(layout.STORE, store_id=layout.digest(STORE_ID), fingerprint_seed=SEED, fingerprint_algorithm=1)
    (path / "LAMINA").write_bytes(lies.framed("LAMINA", layout.MAGIC_STORE, lies.told("LAMINA", store).tobytes()))

    header = record(layout.PACK_HEADER, store_id=layout.digest(STORE_ID), step=STEP, incarnation=INCARNATION, nonce=layout.digest(NONCE))
    pack = _Pack(bytearray(lies.framed("header", layout.MAGIC_HEADER, lies.told("header", header).tobytes())), [], lies)
    catalog_tensors, catalog_blobs = [], []
    for name, (dtype, shape, raw) in sorted(tensors.items(), key=lambda item: item[0].encode()):
        box = {"places": [], "coordinates": []}
        if raw:
            table = pack.add(raw, len(raw) // math.prod(shape))
            box = {"places": vector(layout.PLACE, {"table": table}), "coordinates": [0] * len(shape) + list(shape)}
        facts = record(layout.TENSOR_FACTS, dtype=NUMBERS[dtype])
        catalog_tensors.append({"facts": facts, "name": name.encode(), "shape": list(shape), **box})
    for name, raw in sorted(blobs.items()):
        facts = record(layout.BLOB_FACTS, place=record(layout.PLACE, table=pack.add(raw, 1)), bytes=len(raw))
        catalog_blobs.append({"facts": facts, "name": name.encode()})
    index_digest, pack_bytes = pack.finish(attempt)
    (folder / layout.pack_name(0)).write_bytes(pack.data)

    own = {"attempt": attempt, "nonce": layout.digest(NONCE), "pack_bytes": pack_bytes}
    live = sum(len(raw) for _, _, raw in tensors.values()) + sum(map(len, blobs.values()))
    of_step = {"store_id": layout.digest(STORE_ID), "attempt": attempt}
    catalog = {
        "facts": record(layout.CATALOG_FACTS, rank_count=1, **of_step),
        "writers": vector(layout.WRITER, {**own, "index_digest": layout.digest(index_digest)}),
        "tensors": catalog_tensors,
        "blobs": catalog_blobs,
    }
    packs = {"facts": record(layout.PACKS_FACTS, **of_step), "packs": vector(layout.REACHED_PACK, {**own, "live_bytes": live})}
    step = {"commit": 2, "attempt": attempt, "state_bytes": live, "stored_bytes": pack_bytes, "state": 1}
    for name, magic, table, part in (
        ("catalog", layout.MAGIC_CATALOG, layout.CATALOG, catalog),
        ("packs", layout.MAGIC_PACKS, layout.PACKS, packs),
    ):
        data = lies.framed(name, magic, flat.encode(lies.told(name, part), table))
        (folder / name).write_bytes(data)
        step[f"{name}_digest"] = layout.digest(layout.xxh128(data))
    _write_record(path, lies, "open", 1, [])
    _write_record(path, lies, "commit", 2, [step], head=2, subject=attempt)


def _write_record(path: Path, lies: Lies, name: str, number: int, steps: list[dict[str, Any]], **facts: Any) -> None:
    told = record(
        layout.RECORD_FACTS,
        store_id=layout.digest(STORE_ID),
        nonce=layout.digest(RECORD_NONCE + number),
        number=number,
        incarnation=INCARNATION,
        floor=1,
        kind=number,
        **facts,
    )
    parts = {
        "facts": told,
        "trainer": {"process": record(layout.PROCESS, pid=1), "run_id": b"run", "host": b"host"},
        "opens": [INCARNATION],
        "steps": vector(layout.STEP, *steps),
    }
    copy = lies.framed(name, layout.MAGIC_RECORD, flat.encode(lies.told(name, parts), layout.LOG_RECORD))
    copy += bytes(-len(copy) % 4096)
    (path / "log" / f"{number:012d}").write_bytes(copy * 2)
