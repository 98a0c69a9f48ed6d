"""lamina.blobs: plain values that no reader would take are refused at the save."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_core
import numpy as np
import pytest
import torch
from torch import nn

import lamina
from lamina import blobs
from lamina.errors import ResourceExhaustedError


class Remembering(nn.Module):
    def get_extra_state(self) -> Any:
        return {"seen": torch.zeros(2000)}

    def set_extra_state(self, state: Any) -> None: ...


@pytest.fixture
def ckpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lamina.Checkpointer]:
    fake_core.install(monkeypatch)
    with lamina.Checkpointer(tmp_path / "root") as checkpointer:
        yield checkpointer


@pytest.mark.parametrize(
    ("state", "metadata", "told"),
    [
        (
            {"epoch": 1, "a.b": np.zeros(1000)},
            None,
            r'values of the state take 107\d\d bytes as text, 107\d\d of them "a.b"; .* 9000: hand',
        ),
        ({"epoch": 1, "net": nn.Sequential(Remembering())}, None, r"values of this rank take .* bytes as text, 107\d\d of them net;"),
        ({"mine": lamina.PerRank(np.zeros(1000))}, None, r"values of this rank take .* of them mine;"),
        ({}, {"note": "x", "table": np.zeros(1000)}, r"values of the metadata take .* of them metadata.table;"),
        ({}, [np.zeros(1000)], r"values of the metadata take .* of them metadata;"),
    ],
)
def test_too_much_text_is_refused_by_the_largest_part(
    ckpt: lamina.Checkpointer, monkeypatch: pytest.MonkeyPatch, state: dict[Any, Any], metadata: Any, told: str
) -> None:
    assert blobs._BYTES_MAX == 1 << 30
    monkeypatch.setattr(blobs, "_BYTES_MAX", 9000)
    with pytest.raises(ResourceExhaustedError, match=told):
        ckpt.save(1, state, metadata=metadata)
    assert not ckpt.restore(state)


def test_text_of_the_largest_size_is_taken(ckpt: lamina.Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"array": np.arange(1000)}
    tree = len(blobs.blobs_of(blobs.Capture(state), None)["tree"])
    monkeypatch.setattr(blobs, "_BYTES_MAX", tree)
    ckpt.save(1, state)
    monkeypatch.setattr(blobs, "_BYTES_MAX", tree - 1)
    with pytest.raises(ResourceExhaustedError):
        ckpt.save(2, state)
