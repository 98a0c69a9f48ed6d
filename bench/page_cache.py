"""Whether files lie in the page cache, how they get out of it, and what this process has read from the disk."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE


def files_of(path: Path) -> list[Path]:
    return [each for each in ([path] if path.is_file() else sorted(path.rglob("*"))) if each.is_file()]


def evict(files: Iterable[Path]) -> None:
    """Asks the kernel to forget files. They must be synced: dirty pages stay."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resident_bytes(files: Iterable[Path]) -> int:
    """How much of the files is in the page cache, by mincore(2)."""
    return sum(_resident_pages(file) for file in files) * _PAGE


def _resident_pages(file: Path) -> int:
    size = file.stat().st_size
    if size == 0:
        return 0
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        pages = (ctypes.c_ubyte * -(-size // _PAGE))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # the mapping cannot be closed while it is looked at
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore of {file}")
        return sum(page & 1 for page in pages)


def read_bytes() -> int:
    """What all threads of this process have read from storage so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes:")).split()[1])
