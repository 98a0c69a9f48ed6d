"""Store.diff, lamina diff and lamina stat: what changed from one step to another."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lamina
from lamina import cli
from lamina.difference import ChangedEntry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    state: dict[str, Any] = {
        "same": torch.arange(6.0),
        "empty": torch.empty(0, 3),
        "none": torch.tensor([float("nan"), 1.0]),
        "values": torch.zeros(600_000),  # of several chunks
        "shape": torch.zeros(4),
        "dtype": torch.zeros(4),
        "gone": torch.zeros(1),
        "epoch": 1,
    }
    state["tied"] = state["same"]
    with lamina.Checkpointer(tmp_path / "root") as ckpt:
        ckpt.save(1, state).wait()
        ckpt.save(2, state).wait()
        state["values"] = state["values"].clone()
        state["values"][[0, 599_999]] = 1
        state["shape"], state["dtype"] = torch.zeros(2, 2), torch.zeros(4, dtype=torch.bfloat16)
        state["tied"] = state["same"].clone()
        state["new"], state["epoch"] = state.pop("gone"), 2
        ckpt.save(3, state, metadata={"note": "x"}).wait()
    return tmp_path / "root"


CHANGED = (
    ChangedEntry("dtype", "dtype", "float32", "bfloat16"),
    ChangedEntry("shape", "shape", "(4,)", "(2, 2)"),
    ChangedEntry("values", "values", "600000", "2"),
)


def test_what_differs_is_named(root: Path) -> None:
    store = lamina.open(root)
    alike = store.diff(1, 2)
    assert not alike
    assert alike.same == 8
    found = store.diff(1, 3)
    assert found
    assert [each for each in found.changed if each.what != "alias"] == list(CHANGED)
    (alias,) = (each for each in found.changed if each.what == "alias")  # which of the two stands for the other is the save's choice
    assert {alias.before, alias.after} & {"same", "tied"}
    assert (found.removed, found.added, found.same) == (("gone",), ("new",), 3)
    assert found.values == ("metadata", "tree")
    assert str(CHANGED[2]) == "2 of 600000 elements differ"
    with pytest.raises(lamina.NotFoundError, match="no step 9"):
        store.diff(1, 9)
    same = store.load(3, names=["values"])["values"]
    assert np.count_nonzero(np.asarray(same)) == 2


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(arguments)
    out = capsys.readouterr()
    return code, out.out + out.err


def test_diff_on_the_command_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "diff", f"{root}@1", f"{root}@2") == (0, "8 tensors are the same, and nothing differs\n")
    code, text = run(capsys, "diff", f"{root}@1", str(root))
    assert code == 1
    for line in ("- gone", "+ new", "~ shape: shape (4,) became (2, 2)", "~ values: 2 of 600000 elements differ", "~ plain values: tree"):
        assert line in text.splitlines()
    found = json.loads(run(capsys, "diff", f"{root}@1", f"{root}@3", "--json")[1])
    assert (found["differ"], found["added"]) == (True, ["new"])
    assert run(capsys, "diff", f"{root}@1", f"{root}@9")[0] == 2
    assert run(capsys, "diff", f"{root}@1")[0] == 2


def test_stat_on_the_command_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "stat", f"{root}@3")
    assert code == 0
    assert text.splitlines() == ["step 3: 8 tensors, 2.4 MB", "dtype\tsize", "bfloat16\t8 B", "float32\t2.4 MB"]
    assert json.loads(run(capsys, "stat", str(root), "--json")[1])["step"] == 3
