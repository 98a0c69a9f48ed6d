"""The digest that judges the demo, and the demo itself."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from launch import Event
from state_digest import element_sum

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "examples" / "demo.py"


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_the_sum_does_not_depend_on_where_the_elements_lie(values: list[int]) -> None:
    bits, numbers = np.array(values, dtype=np.uint32), np.arange(len(values))
    order = np.random.default_rng(len(values)).permutation(len(values))
    cut = len(values) // 2
    parts = [element_sum("w", bits[part], numbers[part]) for part in (order[:cut], order[cut:])]
    assert sum(parts) % 2**64 == element_sum("w", bits, numbers)


@given(st.lists(st.integers(0, 2**16 - 1), min_size=2, max_size=50), st.data())
def test_the_sum_changes_with_any_bit_any_swap_and_the_name(values: list[int], data: st.DataObject) -> None:
    bits, numbers = np.array(values, dtype=np.uint16), np.arange(len(values))
    whole = element_sum("w", bits, numbers)
    at = data.draw(st.integers(0, len(values) - 1))
    flipped = bits.copy()
    flipped[at] ^= 1 << data.draw(st.integers(0, 15))
    assert element_sum("w", flipped, numbers) != whole
    assert element_sum("v", bits, numbers) != whole
    other = (at + 1) % len(values)
    swapped = bits.copy()
    swapped[[at, other]] = bits[[other, at]]
    assert (element_sum("w", swapped, numbers) != whole) == (bits[at] != bits[other])


def test_the_digest_is_the_same_on_every_mesh_and_sees_a_replica_that_differs(run_ranks: Callable[..., list[Event]]) -> None:
    (told,) = run_ranks(HERE / "digest_ranks.py", 4)
    assert told["(4, 1)"] == told["(2, 2)"] == told["(1, 4)"]
    assert told["another plain value"] != told["(2, 2)"]
    assert "replicas of this state differ" in told["plain values differ"]
    assert "replicas of this state differ" in told["replicas differ"]


def test_the_demo_resumes_with_every_bit_on_each_topology(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(DEMO), "--folder", str(tmp_path)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("all digests matched")
