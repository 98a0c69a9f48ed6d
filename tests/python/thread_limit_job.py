"""Run as one process by root: what a Checkpointer does with ever fewer threads to spare.

It goes on as a user of its own, so that no other process counts against the limit. Told on standard output as one JSON object: of each
number of threads to spare what was raised, and which step is in its root at the end.
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import lamina

USER = 54321
SPARE_MAX = 16
ELEMENTS = 1 << 18


class Hook:
    """Told of a save, and asked."""

    def committed(self, event: object) -> None: ...
    def may_commit(self, step: int) -> bool:
        return True


def limit(spare: int | None) -> None:
    """So many threads beyond those that run; None: as many as before."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    running = len(os.listdir("/proc/self/task"))
    resource.setrlimit(resource.RLIMIT_NPROC, (most if spare is None else running + spare, most))


def attempt(root: Path, spare_first: int | None, spare: int | None) -> list[str]:
    """A save and a restore. What was raised: class, and whether it says what to do."""
    state = {"w": torch.ones(ELEMENTS), "v": torch.ones(ELEMENTS)}
    raised = []

    def note(error: Exception) -> None:
        raised.append(f"{isinstance(error, lamina.ResourceExhaustedError)} {type(error).__name__} {error}")

    limit(spare_first)
    try:
        checkpointer = lamina.Checkpointer(root, hooks=[Hook()])
    except Exception as error:
        note(error)
        limit(None)
        return raised
    limit(spare)
    for work in (lambda: checkpointer.restore(state), lambda: checkpointer.save(1, state).wait(), lambda: lamina.open(root).verify()):
        try:
            work()
        except Exception as error:
            note(error)
            break
    limit(None)
    try:
        checkpointer.save(2, state).wait()
        checkpointer.close()
    except Exception as error:
        note(error)
    return raised


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, USER, USER)
    os.setgid(USER)
    os.setuid(USER)
    told: dict[str, Any] = {}
    for during in ("making", "work"):
        for spare in range(SPARE_MAX):
            root = folder / f"{during}{spare}"
            raised = attempt(root, spare if during == "making" else None, spare)
            told[f"{during} {spare}"] = {"raised": raised, "newest": lamina.open(root).latest() if root.exists() else None}
    print(json.dumps({"folder": str(folder), "told": told}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
