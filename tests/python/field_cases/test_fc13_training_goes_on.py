"""FC-13: what is saved is the state at the moment of the call."""

import time
from pathlib import Path
from typing import Any

import torch
from fills import check_same, load
from on_ranks import on_ranks

import lamina
from lamina import _core

COUNT = 4_194_304


def save_and_train_on(root: Path, weight: torch.Tensor, change: Any) -> None:
    """Saves to a slow disk, and changes all of the state while that goes on."""
    env = _core.testing.FaultEnv()
    env.set_write_bytes_per_second(4 << 20)
    state: dict[str, Any] = {"w": weight, "step": torch.tensor(1.0), "log": ["a"]}
    with lamina.Checkpointer(root, options={"env": env}) as ckpt:
        began_s = time.monotonic()
        handle = ckpt.save(0, state)
        assert time.monotonic() - began_s <= 1
        for _ in range(10):
            change(weight)
            state["step"] += 1
            state["log"].append("b")
        assert not handle.done()
        handle.wait()
    assert weight[-1] == 11
    found = {"w": torch.zeros(COUNT), "step": torch.tensor(0.0), "log": ["other"]}
    load(root, found)
    check_same("w", found["w"], torch.ones(COUNT))
    check_same("step", found["step"], torch.tensor(1.0))
    assert found["log"] == ["a"]


def add_one(weight: torch.Tensor) -> None:
    weight += 1


def with_own_memory(root: Path) -> None:
    save_and_train_on(root, torch.ones(COUNT), add_one)


def test_fc13_training_goes_on(tmp_path: Path) -> None:
    with_own_memory(tmp_path)


def test_fc13_training_goes_on_in_memory_shared_with_numpy(tmp_path: Path) -> None:
    weight = torch.ones(COUNT)
    array = weight.numpy()

    def change(_: torch.Tensor) -> None:
        array[:] += 1

    save_and_train_on(tmp_path, weight, change)


def test_fc13_training_goes_on_on_two_ranks(tmp_path: Path) -> None:
    on_ranks(2, with_own_memory, tmp_path)
