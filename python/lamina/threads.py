"""Starts Lamina's own Python threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lamina.errors import ResourceExhaustedError


def start(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """A thread that runs and does not hold up the program's end.

    Raises:
        ResourceExhaustedError: the system grants none.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceExhaustedError(
            f"the system grants no further thread, which is needed for {name}: raise the limit of processes (ulimit -u) or of the job's "
            "cgroup (pids.max)"
        ) from error
    return thread
