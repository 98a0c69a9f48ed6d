"""Values that belong to one rank, such as a position in the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from lamina import inline, values
from lamina.errors import InvalidArgumentError, MismatchError, UnsupportedError
from lamina.names import Path
from lamina.values import Json

_MERGES: Final = (None, "first", "drop")


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 2 and 3" or "ranks 4–7"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]}–{numbers[-1]}"
    return "ranks " + ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


class PerRank:
    """Marks a value of which each rank has its own.

    Args:
        obj: a plain value (also with tensors in it), or an object with `state_dict` and `load_state_dict`. After a restore, `value` has it.
        axis: the mesh axis that it belongs to. Only None, the whole job, in this version.
        merge: what to do when the job has fewer ranks than the checkpoint: a function from the list of all ranks' values to this rank's
            value; "first" for rank 0's value; "drop" to keep one's own and drop those of the ranks that are gone. Default: an error.
        seed: what a rank gets that the checkpoint does not have: a function from the rank to the value, or a value. Default: an error.

    Attributes:
        value: the value.
    """

    def __init__(
        self,
        obj: Any,
        axis: str | None = None,
        merge: Callable[[list[Any]], Any] | str | None = None,
        seed: Any = None,
    ) -> None:
        if axis is not None:
            raise UnsupportedError(f"PerRank(axis={axis!r}): values of a mesh axis are not in this version; leave axis out")
        if not callable(merge) and merge not in _MERGES:
            raise InvalidArgumentError(f'PerRank(merge={merge!r}): expected a function, "first" or "drop"')
        self.value = obj
        self.merge = merge
        self.seed = seed

    def capture(self, path: Path) -> Json:
        """The node of the value now."""
        return inline.encode(self.value.state_dict() if hasattr(self.value, "load_state_dict") else self.value, path)

    def choose(self, name: str, saved: Mapping[int, Json], rank: int, rank_count: int) -> Any:
        """What `put_back` takes on `rank`.

        Raises:
            MismatchError: another number of ranks, and no rule for it; names the ranks.
        """
        if rank_count < len(saved) and self.merge is None:
            raise MismatchError(
                f"{name}: the checkpoint holds values of {len(saved)} ranks, and those of {ranks_text(range(rank_count, len(saved)))} are "
                "unclaimed: say with PerRank(merge=...) what becomes of them"
            )
        if rank_count > len(saved) and self.seed is None:
            raise MismatchError(
                f"{name}: the checkpoint holds values of {len(saved)} ranks, and {ranks_text(range(len(saved), rank_count))} have none: "
                "say with PerRank(seed=...) what they start with"
            )
        if rank_count < len(saved) and callable(self.merge):
            return self.merge([inline.decode(saved[each]) for each in sorted(saved)])
        if rank not in saved:
            return self.seed(rank) if callable(self.seed) else self.seed
        return inline.decode(saved[0 if rank_count < len(saved) and self.merge == "first" else rank])

    def put_back(self, chosen: Any) -> None:
        """Sets the value, in place where that can be."""
        if hasattr(self.value, "load_state_dict"):
            self.value.load_state_dict(chosen)
        elif isinstance(self.value, torch.Tensor) and isinstance(chosen, torch.Tensor) and self.value.shape == chosen.shape:
            with torch.no_grad():
                self.value.copy_(chosen)
        else:
            self.value = values.assign(self.value, chosen)
