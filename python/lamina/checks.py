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
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lamina import __version__, _core, errors, machine
from lamina import options as option_names
from lamina.errors import Error, class_and_message
from lamina.findings import Finding, Preflight, RankFindings, merged

if TYPE_CHECKING:
    from lamina.ranks import Ranks

_Found = TypeVar("_Found")

_SEEN_WITHIN_S: Final = 10.0  # a name that another machine made, on a network file system


def preflight(
    root: str | os.PathLike[str],
    state: MutableMapping[Any, Any] | None = None,
    *,
    process_group: Any = None,
    keep: int | None = None,
    memory: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Preflight:
    """Tries root and machine before the first step: a second or two. Collective on `process_group`; creates no root.

    Args:
        root: what `Checkpointer` will be given.
        state: what will be saved; its size is what room, memory and times are judged by. Default None: they are only told.
        process_group: as of `Checkpointer`.
        keep: as of `Checkpointer`; room is judged by it. Default None: room for the saves that may be in flight and one more is asked for.
        memory: as of `Checkpointer`.
        options: as of `Checkpointer`.

    Returns:
        The findings of all ranks, the worst first; `print` it.

    Raises:
        InvalidArgumentError: an option is unknown or out of its range, on any rank.
        UnsupportedError: `keep` is no number, on any rank.
    """
    from lamina.checkpointer import core_options
    from lamina.ranks import Ranks

    ranks = Ranks(process_group)

    def checked_options() -> dict[str, Any]:
        chosen = core_options(root, ranks, memory, options)
        if (steps := option_names.checked_keep(keep)) is not None:
            chosen["keep"] = steps
        _core.own_options(chosen)  # also what the environment sets
        return chosen

    chosen = _on_all(ranks, checked_options)
    findings, job_bytes, rank_bytes = _sizes(ranks, state)
    findings += _on_all(
        ranks,
        lambda: [
            *core_findings(chosen, job_bytes, rank_bytes),
            *machine.examine(chosen["root"], job_bytes, rank_bytes, ranks.count),
            versions(),
        ],
    )
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
    except Exception as error:  # also what the trainer's own state_dict raises: the others wait for this rank
        failure = class_and_message(error)[1]
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
    """Whether a file that rank 0 makes is seen by all, and one of each machine's first rank by rank 0. Collective."""
    place = root if os.path.isdir(root) else os.path.dirname(root)
    hosts = ranks.gather(socket.gethostname().encode())
    name, told = f".lamina-{secrets.token_hex(8)}", secrets.token_hex(16)
    mine = os.path.join(place, name) if hosts.index(hosts[ranks.rank]) == ranks.rank else ""
    if mine:
        try:
            with open(mine, "x", encoding="ascii") as file:
                file.write(told)
        except OSError:
            mine = ""  # the check of the root says why
    made = [json.loads(each) for each in ranks.gather(json.dumps([name if mine else "", told]).encode())]
    wanted = made if ranks.rank == 0 else made[:1]
    end_s = time.monotonic() + _SEEN_WITHIN_S
    unseen = [rank for rank, (name, told) in enumerate(wanted) if name and not _sees(os.path.join(place, name), told, end_s)]
    ranks.gather(b"")  # until all have looked
    if mine:
        with contextlib.suppress(OSError):
            os.unlink(mine)
    if unseen:
        advice = "use a directory that all machines share; is the file system mounted here?"
        found = f"what rank {', '.join(map(str, unseen))} writes is not seen"
        return Finding("shared-path", "fail", found, f"'{root}' to be one directory for all ranks", advice)
    if not made[0][0]:
        return Finding("shared-path", "ok", "not tried, since rank 0 cannot write there")
    return Finding("shared-path", "ok", "what rank 0 writes is seen by all")


def _sees(path: str, told: str, end_s: float) -> bool:
    while True:
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            if file.read() == told:
                return True
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.1)


def _on_all(ranks: Ranks, work: Callable[[], _Found]) -> _Found:
    """What `work` returns; where it raises on any rank, all raise, so that none waits for one that has gone. Collective."""
    failure = None
    try:
        return_value = work()
    except Exception as error:
        failure = error
    told = [json.loads(each) for each in ranks.gather(json.dumps(failure and class_and_message(failure)).encode())]
    if failure is not None:
        raise failure
    for rank, failed in enumerate(told):
        if failed is not None:
            raise getattr(errors, failed[0])(f"rank {rank}: {failed[1]}", rank=rank)
    return return_value


def _gathered(ranks: Ranks, findings: Sequence[Finding]) -> list[RankFindings]:
    mine = {"host": socket.gethostname(), "findings": [dataclasses.asdict(finding) for finding in findings]}
    told = [json.loads(each) for each in ranks.gather(json.dumps(mine).encode())]
    return [RankFindings(rank, each["host"], tuple(Finding(**finding) for finding in each["findings"])) for rank, each in enumerate(told)]
