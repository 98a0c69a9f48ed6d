"""The command `lamina`: what is stored, whether it is sound, and what may go."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import io
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from lamina import _core, doctor
from lamina.difference import compare
from lamina.doctor import GC_ABANDONED_S, GC_GRACE_S
from lamina.errors import CorruptionError, Error, InvalidArgumentError, NotFoundError
from lamina.options import root_path
from lamina.store import Store, entry_bytes

_FINE: Final = 0
_CHECK_FAILED: Final = 1
_WRONG_USE: Final = 2
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # and what turns the direction of text
_LOOKS_MAX: Final = 20
_PROBLEMS_MAX: Final = 10_000
_T = TypeVar("_T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: without the program's name. Default: those of this process.

    Returns:
        0 fine, 1 the check failed, 2 wrong use.
    """
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names are any bytes
    try:
        return int(options.command(options))
    except CorruptionError as error:
        _print_error(error)
        return _CHECK_FAILED
    except Error as error:
        _print_error(error)
        return _WRONG_USE
    except BrokenPipeError:
        return _FINE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lamina", description="Checkpoints of a root: list, show, verify, remove.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = _command(commands, "ls", _ls, "ROOT[@STEP]", "list the steps, newest first")
    listing.add_argument("--all", action="store_true", help="abandoned steps too")
    _command(commands, "show", _show, "ROOT[@STEP]", "show the tensors of a step (default: the newest)")
    verify = _command(commands, "verify", _verify, "ROOT[@STEP]", "check a step (default: all of the line)")
    verify.add_argument("--quick", action="store_true", help="check what describes the bytes, without reading all of them")
    _command(commands, "stat", _stat, "ROOT[@STEP]", "count the tensors and bytes of a step (default: the newest)")
    diff = _command(commands, "diff", _diff, "ROOT[@STEP]", "compare two steps to the bit; 1 when they differ")
    diff.add_argument("other", metavar="ROOT[@STEP]", help="the later one")
    checks = _command(commands, "doctor", _doctor, "ROOT", "check this machine, and a root or the place for one", nargs="?")
    checks.add_argument(
        "--bytes", type=_byte_count, default=0, metavar="N", help="of the state that will be saved (default: of the newest step)"
    )
    gc = _command(commands, "gc", _gc, "ROOT[@STEP]", "drop steps (STEP alone, or by --keep and --abandoned) and remove what nothing needs")
    gc.add_argument("--dry-run", action="store_true", help="say what would go, and write nothing")
    gc.add_argument("--keep", type=int, metavar="N", help="drop steps of the line beyond the newest N, pinned ones apart")
    gc.add_argument("--abandoned", type=float, default=GC_ABANDONED_S, metavar="S", help="drop steps off the line for S seconds (a week)")
    gc.add_argument("--grace", type=float, default=GC_GRACE_S, metavar="S", help="files stay S seconds for unregistered readers (600)")
    gc.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait up to S seconds for readers and grace (0)")
    pin = _command(commands, "pin", _pin, "ROOT@STEP", "keep a step, whatever retention says")
    pin.add_argument("--off", action="store_true", help="let it go again")
    return parser


def _command(commands: Any, name: str, function: Any, operand: str, text: str, nargs: str | None = None) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("root", metavar=operand, nargs=nargs)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.set_defaults(command=function)
    return parser


def split_step(text: str) -> tuple[str, int | None]:
    """A root and the step after its last "@", if that is a number and the whole is no directory.

    >>> split_step("/ckpt/run@1@200")
    ('/ckpt/run@1', 200)
    >>> split_step("/ckpt/me@home")
    ('/ckpt/me@home', None)
    """
    root, mark, step = text.rpartition("@")
    if not (mark and root and step.isascii() and step.isdigit()) or os.path.isdir(text):
        return text, None
    return root, int(step)


def _ls(options: argparse.Namespace) -> int:
    root, step = split_step(options.root)
    steps = [each for each in Store(root).steps(options.all or step is not None) if step in (None, each["step"])]
    if step is not None and not steps:
        raise NotFoundError(f"there is no step {step} in {root}; lamina ls --all lists those there are")
    if options.json:
        return _print_json({"root": root, "steps": steps})
    _print_table(["step", "committed", "state", "stored", "place"], map(_step_row, steps))
    return _FINE


def _step_row(step: Mapping[str, Any]) -> list[str]:
    committed = datetime.datetime.fromtimestamp(step["committed_ns"] / 1e9, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    place = "head" if step["is_head"] else "line" if step["on_line"] else "abandoned"
    place += ", pinned" if step["pinned"] else ""
    return [str(step["step"]), committed, _size(step["state_bytes"]), _size(step["stored_bytes"]), place]


def _show(options: argparse.Namespace) -> int:
    root, step = split_step(options.root)
    store = Store(root)
    stat, entries = store.stat(step), store.entries(step)
    if options.json:
        tensors = [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape), "alias_of": each.alias_of} for each in entries]
        return _print_json({"root": root, **stat, "entries": tensors})
    rows = (
        [each.name, each.dtype, "×".join(map(str, each.shape)) or "scalar", _size(entry_bytes(each)), each.alias_of] for each in entries
    )
    _print_table(["name", "dtype", "shape", "size", "alias of"], rows)
    print(f"step {stat['step']}: {stat['entry_count']} tensors, {_size(stat['bytes'])}")
    return _FINE


def _verify(options: argparse.Namespace) -> int:
    root, step = split_step(options.root)
    store = Store(root)
    steps = [step] if step is not None else [each["step"] for each in store.steps()]
    result = _verify_each(store, steps, not options.quick, whole_root=step is None)
    if options.json:
        _print_json({"root": root, **result})
    else:
        for problem in result["problems"]:
            print(_printable(": ".join(str(problem[part]) for part in ("file", "entry", "message") if problem[part])))
        print(f"{len(result['steps'])} steps checked: " + ("fine" if result["ok"] else f"{len(result['problems'])} problems"))
    return _FINE if result["ok"] else _CHECK_FAILED


def _verify_each(store: Store, steps: Sequence[int], full: bool, whole_root: bool) -> dict[str, Any]:
    """Each look reads the log: there are few, however many the steps, and enough for a progress bar. `whole_root`: the store's header too,
    and the log, and what describes abandoned steps."""
    at_once = max(1, -(-len(steps) // _LOOKS_MAX))
    looks = (store.verify(steps[first : first + at_once], full) for first in _with_progress(range(0, len(steps), at_once)))
    problems: dict[tuple[Any, ...], dict[str, Any]] = {}
    for found in itertools.chain(looks, (store.verify(None, full=False) for _ in range(whole_root))):
        for problem in found["problems"]:
            if len(problems) < _PROBLEMS_MAX:
                problems.setdefault(tuple(problem.values()), problem)
    return {"ok": not problems, "problems": list(problems.values()), "steps": list(steps)}


def _with_progress(steps: Sequence[_T], what: str = "verifying") -> Iterable[_T]:
    """The steps, or what else takes long, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        return steps
    from rich.console import Console
    from rich.progress import track

    return track(steps, description=what, console=Console(stderr=True), transient=True)


def _stat(options: argparse.Namespace) -> int:
    root, step = split_step(options.root)
    stat = Store(root).stat(step)
    if options.json:
        return _print_json({"root": root, **stat})
    print(f"step {stat['step']}: {stat['entry_count']} tensors, {_size(stat['bytes'])}")
    _print_table(["dtype", "size"], ([dtype, _size(count)] for dtype, count in sorted(stat["bytes_by_dtype"].items())))
    return _FINE


def _diff(options: argparse.Namespace) -> int:
    first, second = ((Store(root), step) for root, step in map(split_step, (options.root, options.other)))
    found = compare(*first, *second, lambda names: _with_progress(names, "comparing"))
    if options.json:
        _print_json({"first": options.root, "second": options.other, "differ": bool(found), **dataclasses.asdict(found)})
    else:
        for sign, names in (("-", found.removed), ("+", found.added)):
            for name in names:
                print(f"{sign} {_printable(name)}")
        for changed in found.changed:
            print(f"~ {_printable(changed.name)}: {_printable(str(changed))}")
        for name in found.values:
            print(f"~ plain values: {name}")
        print(f"{found.same} tensors are the same" + ("" if found else ", and nothing differs"))
    return _CHECK_FAILED if found else _FINE


def _byte_count(text: str) -> int:
    """A number of bytes of 1 or more, also as 4e9.

    >>> _byte_count("4e9")
    4000000000
    """
    count = float(text)
    if not 1 <= count < 2**63:
        raise ValueError(text)
    return int(count)


def _doctor(options: argparse.Namespace) -> int:
    found = doctor.diagnose(options.root, options.bytes)
    print(doctor.as_json(found, options.root) if options.json else found)
    return _FINE if found.ok else _CHECK_FAILED


def _gc(options: argparse.Namespace) -> int:
    root, step = split_step(options.root)
    if options.keep is not None and (options.keep < 1 or step is not None):
        raise InvalidArgumentError(f"--keep {options.keep}: expected 1 or more, and no step beside it")
    result = _collect(root, step, options)
    if options.json:
        return _print_json({"root": root, "dry_run": options.dry_run, **result})
    would = "would be " if options.dry_run else ""
    for each in result["dropped"]:
        print(f"step {each['step']} {would}dropped")
    folders: dict[str, list[int]] = collections.defaultdict(list)
    for name, size in result["removed"]:
        folders[os.path.dirname(name)].append(size)
    for folder, sizes in folders.items():
        print(f"{would}removed: {folder}, {len(sizes)} files, {_size(sum(sizes))}")
    for each in result["waiting"]:
        print(f"step {each['step']}: {_size(each['bytes'])} stay: {_waits_for(each)}")
    print(f"{_size(result['disk_bytes'])} under {root}/steps, of which {_size(result['needed_bytes'])} are needed")
    return _FINE


def _collect(root: str, step: int | None, options: argparse.Namespace) -> dict[str, Any]:
    collector = _core.Collector(root_path(root))
    result = collector.collect(step, options.keep or 0, options.abandoned if step is None else None, options.grace, options.dry_run)
    end_s = time.monotonic() + options.wait
    while result["waiting"] and not options.dry_run and (left_s := end_s - time.monotonic()) > 0:
        if sys.stderr.isatty():
            print(f"\rwaiting: {_waits_for(result['waiting'][0])}\033[K", end="", file=sys.stderr, flush=True)
        time.sleep(min(1.0, left_s))
        again = collector.collect(None, 0, None, options.grace, False)
        result = {**again, "dropped": result["dropped"], "removed": result["removed"] + again["removed"]}
    if options.wait and sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return result


def _waits_for(step: Mapping[str, Any]) -> str:
    reasons = [f"readers at work: {len(step['readers'])}"] if step["readers"] else []
    if step["grace_s"] > 0:
        reasons.append(f"{step['grace_s']:.0f} s for readers that cannot register")
    return ", ".join(reasons) + "; a later gc or the trainer removes them"


def _pin(options: argparse.Namespace) -> int:
    root, step = split_step(options.root)
    if step is None:
        raise InvalidArgumentError(f"{options.root} names no step: pin takes ROOT@STEP")
    _core.Collector(root_path(root)).pin(step, not options.off)
    if options.json:
        return _print_json({"root": root, "step": step, "pinned": not options.off})
    print(f"step {step} is {'let go' if options.off else 'pinned'}")
    return _FINE


def _print_json(value: Any) -> int:
    print(json.dumps(value))
    return _FINE


def _print_error(error: Error) -> None:
    print("lamina: " + "\n".join(map(_printable, str(error).split("\n"))), file=sys.stderr)


def _printable(text: str) -> str:
    """`text` with escapes in place of control characters: names of a root may hold what a terminal obeys."""
    return _CONTROL.sub(lambda hit: hit[0].encode("unicode_escape").decode("ascii"), text)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; in a pipe, lines with tabs between the fields."""
    rows = [[_printable(field) for field in row] for row in rows]
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def _size(count: int) -> str:
    for unit, bytes_of_unit in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= bytes_of_unit:
            return f"{count / bytes_of_unit:.1f} {unit}"
    return f"{count} B"


if __name__ == "__main__":
    sys.exit(main())
