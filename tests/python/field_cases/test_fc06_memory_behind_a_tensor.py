"""FC-06: the logical values count, and one storage is stored once and comes back as one storage."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fills import blank, check_same, iota, load, save
from on_ranks import on_ranks
from torch import nn

import lamina

EMBEDDING_BYTES = 64 * 16 * 4


class Tied(nn.Module):
    """A language model's two ends, which say that they are tied whether or not they are."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self, tied: bool, emb: float = 0, head: float = 0) -> None:
        super().__init__()
        self.emb, self.head, self.tie_word_embeddings = nn.Embedding(64, 16), nn.Linear(16, 64, bias=False), True
        nn.init.constant_(self.emb.weight, emb)
        nn.init.constant_(self.head.weight, head)
        if tied:
            self.head.weight = self.emb.weight


def payload(root: Path) -> int:
    """The bytes of all chunks as stored."""
    return int(lamina.open(root).verify()["bytes"])


def one_storage(root: Path) -> None:
    emb = iota([64, 16], torch.float32, 0)
    save(root / "mapping", {"emb": emb, "head": emb})
    assert EMBEDDING_BYTES <= payload(root / "mapping") <= 1.1 * EMBEDDING_BYTES
    there = blank(emb)
    state = {"emb": there, "head": there}
    load(root / "mapping", state)
    check_same("emb", state["emb"], emb)
    assert state["head"] is state["emb"]

    save(root / "module", {"model": Tied(True, emb=3)})
    model = Tied(True)
    load(root / "module", {"model": model})
    assert model.head.weight.data_ptr() == model.emb.weight.data_ptr()
    check_same("head.weight", model.head.weight, torch.full((64, 16), 3.0))


def separate_storages(root: Path) -> None:
    save(root, {"model": Tied(False, emb=1, head=2)})
    model = Tied(False)
    load(root, {"model": model})
    check_same("emb.weight", model.emb.weight, torch.full((64, 16), 1.0))
    check_same("head.weight", model.head.weight, torch.full((64, 16), 2.0))


def part_of_a_buffer(root: Path) -> None:
    big = iota([1000, 100], torch.float32, 0)
    save(root, {"row": big[0]})
    assert 400 <= payload(root) <= 4096
    state = {"row": torch.zeros(100)}
    load(root, state)
    check_same("row", state["row"], big[0])


def strides(root: Path) -> None:
    saved = {
        "transposed": iota([3, 4], torch.float32, 0).T,
        "expanded": iota([1, 4], torch.float32, 0).expand(5, 4),
        "channels_last": iota([2, 3, 4, 5], torch.float32, 0).contiguous(memory_format=torch.channels_last),
    }
    assert saved["transposed"].stride() == (1, 4)
    save(root, saved)
    dense = {name: torch.zeros(value.shape) for name, value in saved.items()}
    alike = {**{name: torch.empty_like(value).zero_() for name, value in saved.items()}, "expanded": torch.zeros(4, 5).T}
    assert alike["transposed"].stride() == (1, 4)
    for state in (dense, alike):
        load(root, state)
        for name, value in saved.items():
            check_same(name, state[name], value)


def overlapping_views(root: Path) -> None:
    whole = iota([10], torch.float32, 0)
    save(root, {"a": whole[0:6], "b": whole[3:9]})
    there = torch.zeros(10)
    for state in ({"a": torch.zeros(6), "b": torch.zeros(6)}, {"a": there[0:6], "b": there[3:9]}):
        load(root, state)
        check_same("a", state["a"], whole[0:6])
        check_same("b", state["b"], whole[3:9])


def no_elements(root: Path) -> None:
    shapes = {"vector": (0,), "rows": (0, 3), "columns": (2, 0)}
    save(root, {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()})
    state: dict[str, Any] = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}
    info = load(root, state)
    assert (info.missing, info.unexpected) == ((), ())
    for name, shape in shapes.items():
        check_same(name, state[name], torch.zeros(shape, dtype=torch.int64))


CASES = (one_storage, separate_storages, part_of_a_buffer, strides, overlapping_views, no_elements)


def all_of_them(root: Path) -> None:
    for case in CASES:
        case(root / case.__name__)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_fc06_memory_behind_a_tensor(tmp_path: Path, case: Any) -> None:
    case(tmp_path)


def test_fc06_memory_behind_a_tensor_on_two_ranks(tmp_path: Path) -> None:
    for case in CASES:
        (tmp_path / case.__name__).mkdir()
    on_ranks(2, all_of_them, tmp_path)
