"""FlatBuffers by hand: a table is described by its fields, and becomes a dict. Every offset is checked before it is followed."""

import struct
from typing import Any

import numpy as np

from .layout import DamagedError, Field, Table


class _Reader:
    """Counts its work: tables visited, and bytes taken over, since a small buffer may refer to the same bytes many times."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tables_left = len(data) // 8 + 1
        self.bytes_left = 2 * len(data) + (32 << 20)

    def word(self, at: int, code: str) -> int:
        width = struct.calcsize(code)
        if not 0 <= at <= len(self.data) - width or at % width:
            raise DamagedError(f"FlatBuffer: a number at {at} of {len(self.data)} bytes")
        return int(struct.unpack_from("<" + code, self.data, at)[0])

    def target(self, at: int) -> int:
        """Where the offset that stands at `at` points to."""
        offset = self.word(at, "I")
        if offset == 0:
            raise DamagedError(f"FlatBuffer: the offset at {at} is 0")
        return at + offset

    def take(self, begin: int, size: int, alignment: int) -> bytes:
        if not 0 <= begin <= len(self.data) - size or begin % alignment:
            raise DamagedError(f"FlatBuffer: {size} bytes at {begin} of {len(self.data)}")
        return self.data[begin : begin + size]

    def spend(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise DamagedError("FlatBuffer: it refers to more than it can hold")

    def table(self, at: int, table: Table, depth: int) -> dict[str, Any]:
        self.tables_left -= 1
        if depth > 8 or self.tables_left < 0:
            raise DamagedError("FlatBuffer: too many tables")
        vtable = at - self.word(at, "i")
        vtable_bytes = self.word(vtable, "H")
        if vtable_bytes % 2:
            raise DamagedError(f"FlatBuffer: the vtable at {vtable} has {vtable_bytes} bytes")
        self.take(vtable, vtable_bytes, 2)
        value = {}
        for ordinal, field in enumerate(table):
            slot = 4 + 2 * ordinal
            offset = self.word(vtable + slot, "H") if slot < vtable_bytes else 0
            if offset == 0 and field.required:
                raise DamagedError(f"FlatBuffer: {field.name} is not there")
            value[field.name] = self.field(at + offset, field, depth) if offset else _absent(field)
        return value

    def field(self, at: int, field: Field, depth: int) -> Any:
        if field.kind == "struct":
            return np.frombuffer(self.take(at, field.of.itemsize, field.of.alignment), field.of)[0]
        if field.kind == "table":
            return self.table(self.target(at), field.of, depth + 1)
        begin = self.target(at)
        count = self.word(begin, "I")
        if field.kind == "tables":
            self.take(begin + 4, 4 * count, 4)
            self.spend(count * field.held_bytes)
            return [self.table(self.target(begin + 4 + 4 * i), field.of, depth + 1) for i in range(count)]
        if field.kind == "string":
            text = self.take(begin + 4, count + 1, 1)
            if text[-1]:
                raise DamagedError(f"FlatBuffer: the string at {begin} does not end with a zero")
            self.spend(count + 1)
            return text[:-1]
        data = self.take(begin + 4, count * field.of.itemsize, field.of.alignment if count else 4)
        self.spend(len(data))
        return np.frombuffer(data, field.of)


def _absent(field: Field) -> Any:
    if field.kind == "string":
        return b""
    return [] if field.kind == "tables" else np.empty(0, field.of)


def decode(data: bytes, table: Table) -> dict[str, Any]:
    """The root table. Strings are bytes, structs NumPy records, vectors of structs and scalars NumPy arrays, vectors of tables lists."""
    reader = _Reader(data)
    return reader.table(reader.target(0), table, depth=1)


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray(4)

    def align(self, alignment: int, then: int = 0) -> None:
        """So that what follows after `then` more bytes is aligned."""
        self.data += bytes(-(len(self.data) + then) % alignment)

    def point(self, at: int) -> None:
        """The offset at `at` points to what comes next."""
        struct.pack_into("<I", self.data, at, len(self.data) - at)

    def table(self, value: dict[str, Any], table: Table, pointer: int) -> None:
        offsets, size, waiting = [], 4, []
        for field in table:
            width, alignment = (field.of.itemsize, field.of.alignment) if field.kind == "struct" else (4, 4)
            if field.name not in value:
                offsets.append(0)
                continue
            size += -size % alignment
            offsets.append(size)
            size += width
        self.align(2)
        vtable = len(self.data)
        self.data += struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), size, *offsets)
        self.align(8)
        at = len(self.data)
        self.point(pointer)
        self.data += struct.pack("<i", at - vtable) + bytes(size - 4)
        for field, offset in zip(table, offsets, strict=True):
            if offset and field.kind == "struct":
                self.data[at + offset : at + offset + field.of.itemsize] = np.array(value[field.name], field.of).tobytes()
            elif offset:
                waiting.append((field, at + offset))
        for field, place in waiting:
            self.field(value[field.name], field, place)

    def field(self, value: Any, field: Field, pointer: int) -> None:
        if field.kind == "table":
            self.table(value, field.of, pointer)
        elif field.kind == "string":
            self.align(4)
            self.point(pointer)
            self.data += struct.pack("<I", len(value)) + value + b"\0"
        elif field.kind == "vector":
            self.align(max(field.of.alignment, 4), then=4)
            self.point(pointer)
            self.data += struct.pack("<I", len(value)) + np.array(value, field.of).tobytes()
        else:
            self.align(4)
            self.point(pointer)
            begin = len(self.data) + 4
            self.data += struct.pack("<I", len(value)) + bytes(4 * len(value))
            for ordinal, child in enumerate(value):
                self.table(child, field.of, begin + 4 * ordinal)


def encode(value: dict[str, Any], table: Table) -> bytes:
    """The reverse of `decode`; a field that `value` lacks is absent, required or not."""
    writer = _Writer()
    writer.table(value, table, pointer=0)
    writer.align(8)
    return bytes(writer.data)
