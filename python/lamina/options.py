"""The options of a Checkpointer as the core takes them."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from lamina import _core
from lamina.errors import InvalidArgumentError, UnsupportedError
from lamina.mismatch import nearest

# What `options` may set, with the type; the core checks ranges.
KNOWN: Final[dict[str, type]] = {
    "expect_store": str,
    "begin_timeout_s": float,
    "exit_grace_s": float,
    "beat_s": float,
    "beat_timeout_s": float,
    "restore_retry_s": float,
    "gc_grace_s": float,
    "abandoned_grace_s": float,
    "restore_seconds_max": float,
    "verdict_timeout_s": float,
    "saves_in_flight_max": int,
    "io_threads": int,
}
_ACCEPTED: Final[dict[type, tuple[Any, str]]] = {float: ((int, float), "a number"), int: (int, "an integer"), str: (str, "a text")}
_FAULT_ENV: Final = "env"  # not an option: only tests can make one, to have files fail or go slowly
_ARGUMENTS: Final = (
    "root",
    "mode",
    "memory",
    "failures_tolerated",
    "save_timeout_s",
    "run_id",
    "takeover",
    "keep",
    "snapshot",
    "hooks",
    "process_group",
)
_RUN_IDS: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
# Ranks of the job on this machine: of torchrun, of mpirun (Open MPI, MPICH and its kin), of srun.
_LOCAL_COUNTS: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_RANDOM_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # what torchrun --standalone makes up at each launch


def checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options, each known and of its type.

    Raises:
        InvalidArgumentError: names the option and the nearest one.
    """
    found: dict[str, Any] = {}
    for name, value in (options or {}).items():
        if name == _FAULT_ENV and isinstance(value, _core.testing.FaultEnv):
            found[name] = value
            continue
        if name in _ARGUMENTS:
            raise InvalidArgumentError(f"{name} is an argument of Checkpointer, not one of its options")
        if name not in KNOWN:
            like = nearest(name, KNOWN)
            raise InvalidArgumentError(
                f"unknown option {name!r}: " + (f"did you mean {like!r}?" if like else f"there are {', '.join(KNOWN)}")
            )
        accepted, expected = _ACCEPTED[KNOWN[name]]
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise InvalidArgumentError(f"option {name} is {value!r}; expected {expected}")
        found[name] = KNOWN[name](value)
    return found


def checked_keep(keep: Any) -> int | None:
    """How many steps stay; None where it is not said.

    Raises:
        UnsupportedError: it is no number.
        InvalidArgumentError: the number is out of its range.
    """
    if keep is None:
        return None
    if isinstance(keep, bool) or not hasattr(keep, "__index__"):
        raise UnsupportedError(f"keep is {keep!r}: this version takes a number of steps, or None for all")
    if not 1 <= operator.index(keep) < 2**31:
        raise InvalidArgumentError(f"keep is {keep!r}; expected a number of steps of 1 or more, or None for all")
    return operator.index(keep)


def root_path(root: str | os.PathLike[str]) -> str:
    """The root as the core takes it.

    Raises:
        InvalidArgumentError: it is empty, which would be the folder where the job was started.
    """
    path = os.fspath(root)
    if not path:
        raise InvalidArgumentError('the root is "": name a directory')
    return os.path.abspath(path)


def default_run_id(environment: Mapping[str, str] = os.environ) -> str:
    """What names this job across its relaunches, from LAMINA_RUN_ID or the launcher; empty when nothing does."""
    if told := environment.get("LAMINA_RUN_ID"):
        return told
    for variable in _RUN_IDS:
        value = environment.get(variable, "")
        if value and value != "none" and not _RANDOM_ID.fullmatch(value):
            return value
    return ""


def local_rank_count(rank_count: int, environment: Mapping[str, str] = os.environ) -> int:
    """How many of the ranks share this machine, from the launcher; all of them, where none says so."""
    told = [int(text) for text in map(environment.get, _LOCAL_COUNTS) if text and text.isdigit()]
    told.append(_slurm_tasks(environment))
    return min(rank_count, next((count for count in told if count > 0), rank_count))


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    """Of this node in a list such as "8(x2),4"; 0 where there is none."""
    tasks: list[int] = []
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "")
    for part in text.split(","):
        if not (found := re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)):
            return 0
        tasks += [int(found[1])] * int(found[2] or 1)
    node = environment.get("SLURM_NODEID", "0")
    return tasks[int(node)] if node.isdigit() and int(node) < len(tasks) else 0
