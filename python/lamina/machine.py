"""What a machine offers, tried rather than believed. Each check is a function of facts, which a test can make up."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
import resource
import secrets
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lamina.findings import Finding

_SMALL_SHM: Final = 64 << 20  # what containers get when nobody asks for more
_DESCRIPTORS_OF_JOB: Final = 64  # data loaders, sockets of the ranks, logs
_IO_URING_SETUP: Final = 425  # the same number on all architectures
_IO_URING_PARAMS_BYTES: Final = 120
_GET_USER_QUOTA: Final = 0x800007 << 8


class Mount(NamedTuple):
    """Where a path lies.

    Attributes:
        point: the directory at which it is mounted.
        kind: such as "ext4" or "nfs4".
        source: the device or server.
        options: of the mount and of the file system.
    """

    point: str
    kind: str
    source: str
    options: frozenset[str]


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The mount that holds `path`.

    Args:
        path: absolute.
        mountinfo: the text of /proc/self/mountinfo.
    """
    best: Mount | None = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, tail = fields.split(" "), rest.split(" ")
        if len(parts) < 6 or len(tail) < 3:
            continue
        point = _unescaped(parts[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):  # of mounts on one another the last one counts
            best = Mount(point, tail[0], _unescaped(tail[1]), frozenset(parts[5].split(",") + tail[2].split(",")))
    return best


def _unescaped(text: str) -> str:
    """Blanks and the like, which the kernel writes in octal.

    >>> _unescaped("/my\\\\040disk")
    '/my disk'
    """
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def nearest_existing(path: str) -> str:
    """`path`, or the nearest directory above it that is there, links resolved."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return os.path.realpath(path)


_GONE_AT_REBOOT: Final = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_WITHOUT_LINKS: Final = frozenset(("vfat", "exfat", "msdos"))


def file_system(mount: Mount | None) -> Finding:
    """Whether checkpoints are well kept on such a file system, as far as its kind and options tell."""
    if mount is None:
        return Finding("file-system", "ok", "not known: /proc/self/mountinfo does not tell")
    text = f"{mount.kind} at {mount.point} from {mount.source}"
    for sign, why, advice in _objections(mount):
        return Finding("file-system", "warn", f"{text}{', ' + sign if sign else ''}", why, advice)
    options = sorted(option for option in mount.options if option.partition("=")[0] in ("vers", "hard", "proto", "sync"))
    return Finding("file-system", "ok", ", ".join([text, *options]))


def _objections(mount: Mount) -> Iterator[tuple[str, str, str]]:
    """What speaks against it, the gravest first: the option, what were better, what to do."""
    if mount.kind in _GONE_AT_REBOOT:
        yield "in memory", "storage that outlives the machine", "use it for trials only: steps are gone at the next boot, and take memory"
    if mount.kind == "overlay":
        yield "a container's own layer", "storage that outlives the container", "mount a volume there and put the root on it"
    if mount.kind.startswith("fuse"):
        yield (
            "",
            "a file system of the kernel's",
            "ask its makers whether fsync and link are what POSIX says; what could be tried here passed or is listed",
        )
    if mount.kind in _WITHOUT_LINKS:
        yield "", "a file system with hard links", "use ext4 or xfs"
    if mount.kind.startswith("nfs"):
        for option in ("soft", "softerr"):
            if option in mount.options:
                yield (
                    option,
                    "hard",
                    "mount it with 'hard': else a write can be reported as failed, and still happen, when the server is slow",
                )
        if "noac" in mount.options:
            yield "noac", "attributes that are cached", "mount it without 'noac': every look at a file asks the server, and saves get slow"
    for option in ("nobarrier", "barrier=0"):
        if option in mount.options:
            yield option, "write barriers", "mount it without: a power cut can take what was synced"


def direct_io(directory: str) -> Finding:
    """Whether files can be written past the page cache. This version does not need it."""
    path = os.path.join(directory, f".lamina-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DIRECT, 0o666)
        try:
            with mmap.mmap(-1, mmap.PAGESIZE) as page:
                os.write(descriptor, page)
        finally:
            os.close(descriptor)
        return Finding("direct-io", "ok", "works here; this version writes through the page cache")
    except OSError as error:
        return Finding("direct-io", "ok", f"not here ({_errno_name(error)}); files are written through the page cache")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def memlock(soft: int, rank_bytes: int) -> Finding:
    """What a process may lock in memory. This version's window is ordinary memory, which needs no such right."""
    if soft == resource.RLIM_INFINITY:
        return Finding("memlock", "ok", "no limit")
    note = "; the window takes more, and is ordinary memory in this version" if soft < rank_bytes else ""
    return Finding("memlock", "ok", f"{size_text(soft)} may be locked{note}")


def shared_memory(total: int | None, free: int) -> Finding:
    """The room in /dev/shm, which PyTorch's data loaders and NCCL use beside the job's saves; Lamina does not."""
    advice = (
        "give the container more (docker run --shm-size, an emptyDir of medium Memory): data loaders and NCCL end in a bus error without"
    )
    if total is None:
        return Finding("shm", "warn", "/dev/shm is not there", "more than 64 MiB of shared memory", advice)
    text = f"{size_text(free)} free of {size_text(total)} in /dev/shm"
    if min(total, free) <= _SMALL_SHM:
        return Finding("shm", "warn", text, "more than 64 MiB", advice)
    return Finding("shm", "ok", text)


def open_files(soft: int, hard: int, open_now: int, rank_count: int) -> Finding:
    """Whether a restore may open the packs of all ranks."""
    wanted = open_now + 2 * rank_count + _DESCRIPTORS_OF_JOB
    text = f"{soft} allowed, {open_now} open"
    if soft != resource.RLIM_INFINITY and soft < wanted:
        advice = (
            f"ulimit -n {wanted}"
            if hard == resource.RLIM_INFINITY or hard >= wanted
            else "have the hard limit raised (LimitNOFILE, --ulimit nofile)"
        )
        return Finding("open-files", "warn", text, f"{wanted} for packs of {rank_count} ranks", advice)
    return Finding("open-files", "ok", text if soft != resource.RLIM_INFINITY else f"no limit, {open_now} open")


def io_uring(error_number: int, disabled: str) -> Finding:
    """Whether the kernel gives out rings. This version does without.

    Args:
        error_number: of the attempt; 0 when it worked.
        disabled: what /proc/sys/kernel/io_uring_disabled says; empty when it is not there.
    """
    if error_number == 0:
        return Finding("io-uring", "ok", "works here; this version writes with threads")
    why = {"1": ", kernel.io_uring_disabled = 1: privileged processes only", "2": ", kernel.io_uring_disabled = 2"}.get(disabled, "")
    if error_number == errno.EPERM and not why:
        why = ", refused by a seccomp filter, as containers have one"
    name = errno.errorcode.get(error_number, str(error_number))
    return Finding("io-uring", "ok", f"not here ({name}{why}); files are written with threads")


def try_io_uring() -> int:
    """Sets a ring up and gives it back: the errno, 0 when it worked."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(_IO_URING_SETUP, 1, ctypes.create_string_buffer(_IO_URING_PARAMS_BYTES))
    if ring < 0:
        return ctypes.get_errno()
    os.close(ring)
    return 0


class Quota(NamedTuple):
    """A user's bytes on a file system.

    Attributes:
        used: so far.
        limit: 0: none.
    """

    used: int
    limit: int


def try_quota(mount: Mount | None) -> Quota | None:
    """This user's quota; None where the kernel does not tell, as of network file systems."""
    if mount is None or not mount.source.startswith("/"):
        return None
    fields = (ctypes.c_uint64 * 9)()  # struct dqblk: limits in KiB, bytes used, then inodes and times
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.quotactl(_GET_USER_QUOTA, os.fsencode(mount.source), os.getuid(), ctypes.byref(fields)) != 0:
        return None
    return Quota(int(fields[2]), int(fields[1] or fields[0]) * 1024)


def quota(found: Quota | None, job_bytes: int, saves_wanted: int = 3) -> Finding:
    """Whether saves find room within the user's quota."""
    if found is None:
        return Finding("quota", "ok", "none that can be seen from here")
    if found.limit == 0:
        return Finding("quota", "ok", f"none, {size_text(found.used)} used")
    left = max(0, found.limit - found.used)
    text = f"{size_text(left)} left of {size_text(found.limit)}"
    expected, advice = f"room for {saves_wanted} saves of {size_text(job_bytes)}", "have the quota raised, or remove files of this user"
    if left < job_bytes:
        return Finding("quota", "fail", text, expected, advice)
    return Finding(
        "quota", "warn" if left < saves_wanted * job_bytes else "ok", text, expected, advice if left < saves_wanted * job_bytes else ""
    )


def examine(root: str | None, job_bytes: int, rank_bytes: int, rank_count: int) -> list[Finding]:
    """All checks of this module, on this process."""
    soft_files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = [
        memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], rank_bytes),
        shared_memory(*_room("/dev/shm")),
        open_files(soft_files, hard_files, _open_now(), rank_count),
        io_uring(try_io_uring(), _text("/proc/sys/kernel/io_uring_disabled").strip()),
    ]
    if root is not None:
        place = nearest_existing(root)
        mount = mount_of(place, _text("/proc/self/mountinfo"))
        found = [file_system(mount), quota(try_quota(mount), job_bytes), direct_io(place), *found]
    return found


def _room(path: str) -> tuple[int | None, int]:
    try:
        room = os.statvfs(path)
    except OSError:
        return None, 0
    return room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize


def _open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))


_UNITS: Final[Sequence[tuple[str, int]]] = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def size_text(count: int) -> str:
    """Bytes for people.

    >>> size_text(12_600_000), size_text(7)
    ('12.6 MB', '7 B')
    """
    for unit, unit_bytes in _UNITS:
        if count >= unit_bytes:
            return f"{count / unit_bytes:.1f} {unit}"
    return f"{count} B"
