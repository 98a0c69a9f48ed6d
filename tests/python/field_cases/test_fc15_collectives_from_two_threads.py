"""FC-15: saves in the background leave the caller's process group alone, and do not depend on the order of keys."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import background_saves
import torch.distributed as dist
from on_ranks import on_ranks


def run(root: Path) -> None:
    keys = background_saves.KEYS
    rank = dist.get_rank()
    background_saves.run(root, keys[rank:] + keys[:rank])


def test_fc15_collectives_from_two_threads(tmp_path: Path) -> None:
    on_ranks(4, run, tmp_path)


def test_fc15_collectives_from_two_threads_with_other_hashes_on_each_rank(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(Path(__file__).with_name("other_hashes_job.py"), 4, str(tmp_path / "root"))
