"""`lamina doctor`: what is wrong with a root or this machine, each finding with what to do about it. Without PyTorch."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import platform
import re
from collections.abc import Mapping
from typing import Any, Final

from lamina import _core, machine
from lamina.checks import core_findings, versions
from lamina.errors import CorruptionError, Error, InvalidArgumentError, NotFoundError
from lamina.findings import Finding, Preflight, worst_first
from lamina.mismatch import nearest

GC_ABANDONED_S: Final = 7 * 24 * 3600.0  # what `lamina gc` does without options
GC_GRACE_S: Final = 600.0
_LEASE_S: Final = 60.0  # a trainer touches its lease each 10 s
_READER_LEASE_S: Final = 120.0


def diagnose(root: str | None, job_bytes: int = 0) -> Preflight:
    """All that can be found out from one process.

    Args:
        root: a root, or where one is to be. Default None: the machine alone.
        job_bytes: of a save. Default 0: of the newest step, if there is one.
    """
    findings = [versions(), system(), cuda(_text("/proc/driver/nvidia/version"), glob.glob("/dev/nvidia[0-9]*"), os.environ)]
    findings += environment(os.environ)
    if root is not None:
        root = os.path.abspath(root)
        state, state_findings = _root(root)
        job_bytes = job_bytes or int(state.get("state_bytes", 0))
        findings += state_findings
    if root is not None:
        try:
            findings += core_findings({"root": root}, job_bytes, job_bytes)
        except InvalidArgumentError as error:  # what the environment sets
            findings.append(Finding("environment", "fail", str(error), "", "unset it, or set what is in docs/options.md"))
    findings += machine.examine(root, job_bytes, job_bytes, rank_count=1)
    return Preflight(worst_first(findings))


def as_json(found: Preflight, root: str | None) -> str:
    """One JSON object."""
    return json.dumps({"root": root, "ok": found.ok, "findings": [dataclasses.asdict(finding) for finding in found.findings]})


def system() -> Finding:
    """The kernel and the C library."""
    library, version = platform.libc_ver()
    return Finding("system", "ok", f"{platform.system()} {platform.release()} on {platform.machine()}, {library or 'libc'} {version}")


def cuda(driver: str, devices: list[str], environment: Mapping[str, str]) -> Finding:
    """The devices that a job would see.

    Args:
        driver: the text of /proc/driver/nvidia/version; empty when there is no driver.
        devices: paths of device files.
        environment: for CUDA_VISIBLE_DEVICES.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    chosen = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}"
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", driver)
    if not devices:
        if driver:
            return Finding("cuda", "warn", f"a driver, and no device{chosen}", "device files", "give the container its devices (--gpus)")
        return Finding("cuda", "ok", f"no device{chosen}")
    return Finding("cuda", "ok", f"{len(devices)} device(s), driver {version[0] if version else 'of unknown version'}{chosen}")


def environment(variables: Mapping[str, str]) -> list[Finding]:
    """The variables that Lamina reads, and those that look as if."""
    known = {f"LAMINA_{name.upper()}" for name in _core.option_names()}
    found = []
    for name in sorted(variables):
        if not name.startswith("LAMINA_"):
            continue
        text = f"{name}={variables[name]}"
        if name in known:
            found.append(Finding("environment", "ok", text))
            continue
        like = nearest(name, known)
        advice = f"did you mean {like}?" if like else "docs/options.md has those that there are"
        found.append(Finding("environment", "warn", text, "a variable that Lamina reads", advice))
    return found or [Finding("environment", "ok", "no LAMINA_ variable is set")]


def _root(root: str) -> tuple[Mapping[str, Any], list[Finding]]:
    """What the core sees of the root, and what is to be said of it."""
    try:
        state = _core.look_at_root(root)
    except NotFoundError:
        return {}, [Finding("store", "ok", f"'{root}' holds no store yet")]
    except CorruptionError as error:
        return {}, [
            Finding("store", "fail", str(error), "", f"lamina verify {root} tells what else is damaged; copy the root before all else")
        ]
    except Error as error:
        return {}, [Finding("store", "fail", str(error), "a store that can be read", "see the other findings of this root")]
    return state, [
        Finding("store", "ok", f"format version {state['format_version']}, store id {state['store_id']}"),
        steps(state, root),
        holder(state),
        damaged_record(state, root),
        readers(state),
        leftovers(state),
        _unneeded(root),
    ]


def steps(state: Mapping[str, Any], root: str) -> Finding:
    """What there is to resume from."""
    if state["step"] is None:
        return Finding("steps", "ok", "none yet")
    text = f"newest {state['step']} of {state['line_count']}, {machine.size_text(state['state_bytes'])}, by record {state['record']}"
    return Finding("steps", "ok", text)


def holder(state: Mapping[str, Any]) -> Finding:
    """Who trains on the root."""
    if not state["incarnation"]:
        return Finding("holder", "ok", "no job has claimed it")
    run = f", run {state['run_id']}" if state["run_id"] else ""
    who = f"incarnation {state['incarnation']} on {state['host']}, pid {state['pid']}{run}"
    age_s = state["lease_age_s"]
    if age_s is None:
        return Finding("holder", "ok", f"nobody: {who} has ended")
    text = f"{who}, seen {age_s:.0f} s ago"
    if state["holder"] == "dead":
        return Finding(
            "holder", "warn", f"{text}, is dead", "a job that ends takes its lease with it", "start a job: it takes over at once"
        )
    if age_s >= _LEASE_S:
        advice = "a job that starts takes over at once" + (
            "; its process still runs: is it stopped, or its storage hung?" if state["holder"] == "alive" else ""
        )
        return Finding("holder", "warn", text, f"a lease that is touched within {_LEASE_S:.0f} s", advice)
    return Finding("holder", "ok", f"{text}: another job is refused meanwhile, unless it has the same run id or takeover=True")


def damaged_record(state: Mapping[str, Any], root: str) -> Finding:
    """Whether the log has been passed over somewhere."""
    if not state["damaged"]:
        return Finding("log", "ok", f"record {state['record']} is sound")
    text = f"record {state['damaged']} is damaged in both copies"
    return Finding("log", "fail", text, "", f"lamina verify {root}; steps are sound as far as it says, but nothing is deleted any more")


def readers(state: Mapping[str, Any]) -> Finding:
    """Who keeps dropped steps from being deleted."""
    ages = [age_s for _, age_s in state["readers"]]
    if not ages:
        return Finding("readers", "ok", "none")
    gone = sum(age_s >= _READER_LEASE_S for age_s in ages)
    text = f"{len(ages) - gone} at work, {gone} gone without a word"
    return Finding("readers", "ok", text)


def leftovers(state: Mapping[str, Any]) -> Finding:
    """What cut-off publications have left."""
    count = len(state["leftovers"])
    return Finding("leftovers", "ok", f"{count} hidden files; the next job removes those older than a day" if count else "none")


def _unneeded(root: str) -> Finding:
    try:
        planned = _core.Collector(root).collect(None, 0, GC_ABANDONED_S, GC_GRACE_S, dry_run=True)
    except Error as error:
        advice = f"lamina verify {root}; until then files that nothing needs stay"
        return Finding("unneeded", "warn", str(error), "a root of which it is known what is needed", advice)
    return unneeded(planned, root)


def unneeded(planned: Mapping[str, Any], root: str) -> Finding:
    """What `lamina gc` would drop and remove: what dead jobs, failed saves and dropped steps have left."""
    parts, advice = [], []
    if planned["removed"]:
        size = machine.size_text(sum(size for _, size in planned["removed"]))
        parts.append(f"{len(planned['removed'])} files, {size}, that nothing needs")
    if planned["dropped"]:
        parts.append(f"{len(planned['dropped'])} steps that are off the line for a week")
    if parts:
        advice.append(f"lamina gc {root} removes them" + ("" if planned["dropped"] else ", and so does the next job that starts"))
    if planned["waiting"]:
        size = machine.size_text(sum(step["bytes"] for step in planned["waiting"]))
        parts.append(f"{len(planned['waiting'])} dropped steps, {size}, that stay for readers")
        advice.append("a later gc or the trainer removes what stays")
    return Finding("unneeded", "ok", "; ".join(parts) or "no file", "", "; ".join(advice))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
