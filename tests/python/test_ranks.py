"""lamina.ranks among real processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_messages_are_gathered_in_order(run_ranks: Callable[..., list[dict[str, Any]]]) -> None:
    (found,) = run_ranks(Path(__file__).with_name("ranks_report.py"), 3)
    assert found["messages"] == ["", "x", "xx"]
    assert len(set(found["nonces"])) == 1
    assert found["odd"] == [0, 2, "1", "2"]
