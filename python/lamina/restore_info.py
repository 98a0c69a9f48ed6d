"""What `Checkpointer.restore` returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class RestoreInfo:
    """What was restored; falsy when there was nothing to restore.

    Attributes:
        step: the step restored; None when none was found.
        next_step: the one to go on with.
        missing: names that the state has and the checkpoint lacks (only with strict=False).
        unexpected: names that the checkpoint has and the state lacks (only with strict=False), and generators of ranks that are gone.
        source_topology: the mesh that saved it, axis name to size.
        metadata: what `save(metadata=...)` was given.
        line: the steps of the line, newest first.
        passed_over: newer steps that were not taken, each with why: damage, or a hook's refusal; in the order tried, the same on all ranks.
            The step is -1 where the log's newest record is damaged, so that it is not known what it committed.
    """

    step: int | None = None
    next_step: int = 0
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    source_topology: Mapping[str, int] = dataclasses.field(default_factory=dict)
    metadata: Any = None
    line: tuple[int, ...] = ()
    passed_over: tuple[tuple[int, str], ...] = ()

    def __bool__(self) -> bool:
        return self.step is not None
