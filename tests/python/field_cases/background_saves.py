"""Saves that nobody waits for, while the training thread uses the same process group."""

import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from fills import ceil_part, check_same, load, sharded
from torch.distributed.device_mesh import init_device_mesh

import lamina

ROUNDS = 50
ELEMENTS = 26_214  # a tenth of 1 MiB on each rank
KEYS = [f"k{number}" for number in range(10)]


def whole(key: str, step: int) -> torch.Tensor:
    return torch.arange(ELEMENTS * dist.get_world_size(), dtype=torch.float32) + 1000 * int(key[1:]) + step


def run(root: Path, order: list[str]) -> None:
    """Saves `ROUNDS` times, and restores; `order` is that of the keys here."""
    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,))
    dice = random.Random(rank)
    began_s = time.monotonic()
    with lamina.Checkpointer(root) as ckpt:
        for step in range(ROUNDS):
            ckpt.save(step, {key: sharded(whole(key, step), mesh) for key in order})
            total = torch.tensor([rank])
            dist.all_reduce(total)
            assert total.item() == sum(range(count))
            dist.barrier()
            time.sleep(dice.uniform(0, 0.005))
    assert time.monotonic() - began_s <= 120
    state = {key: sharded(torch.zeros_like(whole(key, 0)), mesh) for key in order}
    assert load(root, state).step == ROUNDS - 1
    for key in KEYS:
        check_same(key, state[key].to_local(), ceil_part(whole(key, ROUNDS - 1), rank, count))
