"""`lamina.preflight`: what a job's machines and its root are fit for, tried before the first step."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import secrets
import socket
import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lamina import __version__, _core, machine
from lamina.errors import Error
from lamina.findings import Finding, Preflight, RankFindings, merged

if TYPE_CHECKING:
    from lamina.ranks import Ranks

_SEEN_WITHIN_S: Final = 10.0  # a name that another machine made, on a network file system


def preflight(
    root: str | os.PathLike[str],
    state: MutableMapping[Any, Any] | None = None,
    *,
    process_group: Any = None,
    memory: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Preflight:
    """Tries root and machine before the first step: a second or two. Collective on `process_group`; creates no root.

    Args:
        root: what `Checkpointer` will be given.
        state: what will be saved; its size is what room, memory and times are judged by. Default None: they are only told.
        process_group: as of `Checkpointer`.
        memory: as of `Checkpointer`.
        options: as of `Checkpointer`.

    Returns:
        The findings of all ranks, the worst first; `print` it.

    Raises:
        InvalidArgumentError: an option is unknown or out of its range.
    """
    from lamina.checkpointer import core_options
    from lamina.ranks import Ranks

    ranks = Ranks(process_group)
    chosen = core_options(root, ranks, memory, options)
    findings, job_bytes, rank_bytes = _sizes(ranks, state)
    findings += core_findings(chosen, job_bytes, rank_bytes)
    findings += machine.examine(chosen["root"], job_bytes, rank_bytes, ranks.count)
    findings.append(versions())
    if ranks.count > 1:
        findings.append(_shared_path(ranks, chosen["root"]))
    return Preflight(merged(_gathered(ranks, findings)))


def core_findings(options: dict[str, Any], job_bytes: int, rank_bytes: int) -> list[Finding]:
    """What the core finds, of the root that `options` name and of this machine's memory.

    Args:
        options: the core's.
        job_bytes: of a save; 0: not known.
        rank_bytes: of them, what this rank writes.

    Raises:
        InvalidArgumentError: an option is unknown or out of its range, also one that the environment sets.
    """
    return [Finding(**each) for each in _core.preflight(options, job_bytes, rank_bytes)]


def versions() -> Finding:
    """What runs here. All ranks should say the same."""
    names = {"lamina": __version__, "torch": _version_of("torch"), "python": platform.python_version()}
    return Finding("versions", "ok", ", ".join(f"{name} {version or 'not installed'}" for name, version in names.items()))


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _sizes(ranks: Ranks, state: MutableMapping[Any, Any] | None) -> tuple[list[Finding], int, int]:
    """What the state is like, the bytes of a save, and those of this rank. Collective."""
    if state is None:
        return [], 0, 0
    from lamina.state import Capture, tensor_args, topology_of

    failure, description = "", b""
    try:
        captured = Capture(state)
        args, alive = tensor_args(captured.entries)
        description = _core.describe(args, topology_of(captured.entries, ranks.count))
        del alive
    except Error as error:
        failure = str(error)
    descriptions = ranks.gather(description)
    if failure:
        return [Finding("state", "fail", failure, "a state that can be saved", "see what the message names")], 0, 0
    if not all(descriptions):
        return [Finding("state", "ok", "described")], 0, 0
    try:
        job_bytes, by_rank = _core.planned_bytes(descriptions)
    except Error as error:
        return [Finding("state", "fail", str(error), "parts of the ranks that fit together", "see what the message names")], 0, 0
    text = f"{machine.size_text(job_bytes)} a save, {machine.size_text(max(by_rank))} at most by one rank"
    return [Finding("state", "ok", text)], job_bytes, by_rank[ranks.rank]


def _shared_path(ranks: Ranks, root: str) -> Finding:
    """Whether a file that rank 0 makes is seen by all. Collective. (The first save tries the other direction too.)"""
    place = root if os.path.isdir(root) else os.path.dirname(root)
    name, told = f".tmp-{secrets.token_hex(8)}", secrets.token_hex(16)
    if ranks.rank == 0:
        try:
            with open(os.path.join(place, name), "x", encoding="ascii") as file:
                file.write(told)
        except OSError:
            name = ""  # the check of the root says why
    name, told = json.loads(ranks.gather(json.dumps([name, told]).encode())[0])
    seen = not name or _sees(os.path.join(place, name), told)
    ranks.gather(b"")  # until all have looked
    if ranks.rank == 0 and name:
        os.unlink(os.path.join(place, name))
    if not name:
        return Finding("shared-path", "ok", "not tried, since rank 0 cannot write there")
    if seen:
        return Finding("shared-path", "ok", "what rank 0 writes is seen by all")
    advice = "use a directory that all machines share; is the file system mounted here?"
    return Finding("shared-path", "fail", "what rank 0 writes is not seen", f"'{root}' to be one directory for all ranks", advice)


def _sees(path: str, told: str) -> bool:
    end_s = time.monotonic() + _SEEN_WITHIN_S
    while True:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            if file.read() == told:
                return True
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.1)


def _gathered(ranks: Ranks, findings: Sequence[Finding]) -> list[RankFindings]:
    mine = {"host": socket.gethostname(), "findings": [dataclasses.asdict(finding) for finding in findings]}
    told = [json.loads(each) for each in ranks.gather(json.dumps(mine).encode())]
    return [RankFindings(rank, each["host"], tuple(Finding(**finding) for finding in each["findings"])) for rank, each in enumerate(told)]
