"""Random generators of one rank: captured only when asked for, and put back last."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lamina import inline
from lamina.errors import MismatchError, UnsupportedError
from lamina.per_rank import ranks_text
from lamina.values import Json


class Rng:
    """Stands in a state for this rank's generators: Python's, NumPy's global one, PyTorch's, and CUDA's where it is in use.

    Args:
        seed: when a restore finds more ranks than the checkpoint has, the new ones are seeded from it and their rank; when it finds
            fewer, the streams that are left over are dropped and listed. Default None: another number of ranks is an error.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def capture(self) -> Json:
        """The node of all generators' states now."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        generators = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False), "torch": torch.get_rng_state(), "cuda": cuda}
        return inline.encode(generators)

    def choose(self, name: str, saved: Mapping[int, Json], rank: int, rank_count: int) -> Any:
        """What `put_back` takes on `rank`: a captured state, or a number to seed from.

        Raises:
            MismatchError: another number of ranks, and no seed.
        """
        if rank_count != len(saved) and self.seed is None:
            more = rank_count > len(saved)
            others = ranks_text(range(min(len(saved), rank_count), max(len(saved), rank_count)))
            what = f"{others} of this job have none" if more else f"those of {others} are unclaimed"
            raise MismatchError(f"{name}: the checkpoint holds random generators of {len(saved)} ranks, {what}: give lamina.Rng a seed")
        if rank in saved:
            return inline.decode(saved[rank])
        return int(np.random.SeedSequence([abs(self.seed or 0), rank]).generate_state(1)[0])

    def put_back(self, chosen: Any) -> None:
        """Sets all generators."""
        if isinstance(chosen, int):
            random.seed(chosen)
            np.random.seed(chosen)
            torch.manual_seed(chosen)
            return
        random.setstate(chosen["python"])
        np.random.set_state(chosen["numpy"])
        torch.set_rng_state(chosen["torch"])
        if chosen["cuda"] and torch.cuda.is_available():
            if len(chosen["cuda"]) != torch.cuda.device_count():
                raise UnsupportedError(
                    f"the checkpoint holds generators of {len(chosen['cuda'])} CUDA devices, here are {torch.cuda.device_count()}"
                )
            torch.cuda.set_rng_state_all(chosen["cuda"])
