"""Run as one process: kills a two-rank job that saves a step again, after some milliseconds, on a copy of a root, many times.

The ranks of each try are forks of this process, so that they need not import PyTorch anew. Tells as JSON what each copy holds afterwards.
"""

import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import lamina
from lamina import _core

testing: Any = _core.testing  # type: ignore[attr-defined]
LATEST_S = 0.2
WRITE_RATE = 150_000  # bytes a second: the step is there after about half of that


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def save_again(root: Path, rank: int, port: int, begun: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    rows = DTensor.from_local(torch.zeros(32), init_device_mesh("cpu", (2,)), [Shard(0)], run_check=False)
    env = testing.FaultEnv()
    ckpt = lamina.Checkpointer(root, options={"env": env})
    assert ckpt.restore({"w": rows}).step == 5
    rows.to_local().fill_(2)
    env.set_write_bytes_per_second(WRITE_RATE)
    if rank == 0:
        os.write(begun, b"x")
    ckpt.save(5, {"w": rows})
    time.sleep(60)


def forked(function: object, *arguments: object) -> int:
    if child := os.fork():
        return child
    try:
        function(*arguments)  # type: ignore[operator]
    finally:
        os._exit(0)


def trial(root: Path, seed: int) -> None:
    port, (begun, tell) = free_port(), os.pipe()
    ranks = [forked(save_again, root, rank, port, tell) for rank in (0, 1)]
    os.close(tell)
    assert os.read(begun, 1) == b"x", "a rank ended early"
    os.close(begun)
    time.sleep(random.Random(seed).uniform(0, LATEST_S))
    for each in ranks:
        os.kill(each, signal.SIGKILL)
        os.waitpid(each, 0)


def main(first: Path, trials: int) -> None:
    roots = [first.with_name(f"trial{seed}") for seed in range(trials)]
    for seed, root in enumerate(roots):
        shutil.copytree(first, root)
        trial(root, seed)
    # Only now: what reads starts threads, and forks are whole only where there are none.
    print(json.dumps([lamina.open(root).load()["w"].tolist() for root in roots]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
