"""Which bytes are where: the structs and tables of docs/format.md, and the frame that stands in front of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash


class ReadError(Exception):
    """The bytes are not what the document says."""


class DamagedError(ReadError):
    """A checksum or a structure is wrong."""


class UnsupportedError(ReadError):
    """Newer than this reader."""


class MissingError(ReadError):
    """A file, a step or a name is not there."""


def struct(*fields: tuple[str, Any]) -> np.dtype:
    """Fields at multiples of their own width; as wide as the largest alignment demands."""
    return np.dtype(list(fields), align=True)


DIGEST = struct(("low", "<u8"), ("high", "<u8"))
ATTEMPT = struct(("step", "<i8"), ("incarnation", "<u8"), ("attempt", "<u4"), ("reserved", "<u4"))

FRAME = struct(
    ("magic", "S8"),
    ("version", "<u4"),
    ("reserved", "<u4"),
    ("required", "<u8"),
    ("optional", "<u8"),
    ("payload_bytes", "<u8"),
    ("payload_checksum", DIGEST),
    ("frame_checksum", "<u8"),
)
STORE = struct(("store_id", DIGEST), ("fingerprint_seed", "<u8"), ("fingerprint_algorithm", "<u4"), ("reserved", "<u4"))
PACK_HEADER = struct(
    ("store_id", DIGEST),
    ("step", "<i8"),
    ("incarnation", "<u8"),
    ("attempt", "<u4"),
    ("writer", "<u4"),
    ("nonce", DIGEST),
    ("reserved", "V3976"),
)
PACK_FOOTER = struct(
    ("nonce", DIGEST), ("index_offset", "<u8"), ("index_bytes", "<u8"), ("index_digest", DIGEST), ("pack_bytes", "<u8"), ("reserved", "<u8")
)
CHUNK = struct(
    ("element_begin", "<u8"),
    ("raw_bytes", "<u4"),
    ("stored_bytes", "<u4"),
    ("fingerprint", DIGEST),
    ("offset", "<u8"),
    ("stored_checksum", "<u8"),
    ("nonfinite_count", "<u4"),
    ("pack", "<u4"),
    ("rule", "<u4"),
    ("codec", "u1"),
    ("reserved", "V3"),
)

INDEX_FACTS = struct(("store_id", DIGEST), ("nonce", DIGEST), ("attempt", ATTEMPT), ("writer", "<u4"))
PACK_REFERENCE = struct(("attempt", ATTEMPT), ("nonce", DIGEST), ("writer", "<u4"), ("tier", "u1"))
TABLE_REFERENCE = struct(("digest", DIGEST), ("offset", "<u8"), ("chunk_count", "<u8"), ("pack", "<u4"))
RULE_FACTS = struct(("rule", "<u2"), ("version", "<u2"), ("variant", "<u2"))
CATALOG_FACTS = struct(("store_id", DIGEST), ("attempt", ATTEMPT), ("rank_count", "<u4"))
MESH_EXTENT = struct(("value", "<i8"))
WRITER = struct(("attempt", ATTEMPT), ("nonce", DIGEST), ("index_digest", DIGEST), ("pack_bytes", "<u8"), ("writer", "<u4"))
PLACE = struct(("writer", "<u4"), ("table", "<u4"))
TENSOR_FACTS = struct(("dtype", "u1"))
BLOB_FACTS = struct(("place", PLACE), ("rank", "<u4"), ("bytes", "<u8"))
PACKS_FACTS = struct(("store_id", DIGEST), ("attempt", ATTEMPT))
REACHED_PACK = struct(("attempt", ATTEMPT), ("nonce", DIGEST), ("pack_bytes", "<u8"), ("live_bytes", "<u8"), ("writer", "<u4"))
RECORD_FACTS = struct(
    ("store_id", DIGEST),
    ("nonce", DIGEST),
    ("number", "<u8"),
    ("incarnation", "<u8"),
    ("head", "<u8"),
    ("floor", "<u8"),
    ("damaged", "<u8"),
    ("written_ns", "<i8"),
    ("subject", ATTEMPT),
    ("kind", "u1"),
)
STEP = struct(
    ("commit", "<u8"),
    ("parent", "<u8"),
    ("attempt", ATTEMPT),
    ("catalog_digest", DIGEST),
    ("packs_digest", DIGEST),
    ("committed_ns", "<i8"),
    ("state_bytes", "<u8"),
    ("stored_bytes", "<u8"),
    ("state", "u1"),
)
PROCESS = struct(("pid", "<i8"), ("start_ticks", "<i8"))


@dataclass(frozen=True)
class Field:
    """A field of a FlatBuffers table. `kind`: struct, string, vector (of structs or scalars) or tables; `of`: of what. `held_bytes`: what
    each element of tables counts of a reader's budget."""

    name: str
    kind: str
    of: Any = None
    required: bool = False
    held_bytes: int = 0


def facts(of: np.dtype) -> Field:
    return Field("facts", "struct", of, required=True)


Table = tuple[Field, ...]
RULE: Table = (facts(RULE_FACTS), Field("scalars", "vector", np.dtype("<u4")), Field("inputs", "vector", np.dtype("<u8")))
INDEX: Table = (
    facts(INDEX_FACTS),
    Field("packs", "vector", PACK_REFERENCE),
    Field("tables", "vector", TABLE_REFERENCE),
    Field("rules", "tables", RULE, held_bytes=56),
)
MESH_DIMENSION: Table = (Field("extent", "struct", MESH_EXTENT, required=True), Field("name", "string"))
TENSOR: Table = (
    facts(TENSOR_FACTS),
    Field("name", "string", required=True),
    Field("shape", "vector", np.dtype("<i8")),
    Field("alias_of", "string"),
    Field("places", "vector", PLACE),
    Field("coordinates", "vector", np.dtype("<i8")),
)
BLOB: Table = (facts(BLOB_FACTS), Field("name", "string", required=True))
CATALOG: Table = (
    facts(CATALOG_FACTS),
    Field("topology", "tables", MESH_DIMENSION, held_bytes=40),
    Field("writers", "vector", WRITER),
    Field("tensors", "tables", TENSOR, held_bytes=152),
    Field("blobs", "tables", BLOB, held_bytes=56),
)
PACKS: Table = (facts(PACKS_FACTS), Field("packs", "vector", REACHED_PACK))
TRAINER: Table = (
    Field("process", "struct", PROCESS, required=True),
    Field("run_id", "string"),
    Field("host", "string"),
    Field("boot_id", "string"),
    Field("pid_namespace", "string"),
)
LOG_RECORD: Table = (
    facts(RECORD_FACTS),
    Field("trainer", "table", TRAINER, required=True),
    Field("reason", "string"),
    Field("opens", "vector", np.dtype("<u8")),
    Field("steps", "vector", STEP),
    Field("unswept", "vector", ATTEMPT),
)

MAGIC_STORE, MAGIC_RECORD, MAGIC_HEADER, MAGIC_FOOTER = b"LamStore", b"LamLogRc", b"LamPackH", b"LamPackF"
MAGIC_INDEX, MAGIC_CATALOG, MAGIC_PACKS = b"LamIndex", b"LamCatlg", b"LamPacks"
VERSION = 0
FRAME_BYTES, HEADER_BYTES, FOOTER_BYTES = 64, 4096, 128
NO_RULE = NOT_COUNTED = 0xFFFFFFFF

# number -> (name, bytes of an element)
DTYPES = {
    1: ("bool", 1),
    2: ("uint8", 1),
    3: ("uint16", 2),
    4: ("uint32", 4),
    5: ("uint64", 8),
    6: ("int8", 1),
    7: ("int16", 2),
    8: ("int32", 4),
    9: ("int64", 8),
    10: ("float16", 2),
    11: ("bfloat16", 2),
    12: ("float32", 4),
    13: ("float64", 8),
    14: ("complex32", 4),
    15: ("complex64", 8),
    16: ("complex128", 16),
    17: ("float8_e4m3fn", 1),
    18: ("float8_e5m2", 1),
    19: ("float8_e4m3fnuz", 1),
    20: ("float8_e5m2fnuz", 1),
    21: ("float8_e8m0fnu", 1),
    22: ("float4_e2m1fn_x2", 1),
}

# name -> (type of a value's bits, mask, what the masked bits of an infinity or NaN are). Others have none.
NONFINITE = {
    "float16": ("<u2", 0x7C00, 0x7C00),
    "bfloat16": ("<u2", 0x7F80, 0x7F80),
    "float32": ("<u4", 0x7F800000, 0x7F800000),
    "float64": ("<u8", 0x7FF << 52, 0x7FF << 52),
    "complex32": ("<u2", 0x7C00, 0x7C00),
    "complex64": ("<u4", 0x7F800000, 0x7F800000),
    "complex128": ("<u8", 0x7FF << 52, 0x7FF << 52),
    "float8_e4m3fn": ("u1", 0x7F, 0x7F),
    "float8_e5m2": ("u1", 0x7C, 0x7C),
    "float8_e4m3fnuz": ("u1", 0xFF, 0x80),
    "float8_e5m2fnuz": ("u1", 0xFF, 0x80),
    "float8_e8m0fnu": ("u1", 0xFF, 0xFF),
}


def number(digest: np.void) -> int:
    """A digest as one number of 128 bits."""
    return int(digest["high"]) << 64 | int(digest["low"])


def digest(value: int) -> tuple[int, int]:
    """The same, back: what NumPy takes for a DIGEST."""
    return value & (1 << 64) - 1, value >> 64


def xxh128(data: bytes | memoryview) -> int:
    return xxhash.xxh3_128_intdigest(data)


def xxh64(data: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data)


def fingerprint(raw: bytes | memoryview, seed: int) -> int:
    """The hash over the hashes of leaves of 16 KiB."""
    leaves = (raw[begin : begin + 16384] for begin in range(0, len(raw), 16384))
    return xxhash.xxh3_128_intdigest(b"".join(xxhash.xxh3_128_digest(leaf, seed) for leaf in leaves), seed)


def step_folder(attempt: np.void) -> Path:
    return Path("steps", f"{attempt['step']:012d}", f"{attempt['incarnation']}-{attempt['attempt']}")


def pack_name(writer: int) -> str:
    return f"{writer:05d}.pack"
