"""Run on several ranks until it is killed: changes a small sharded state, saves it at each step, and tells what it did before and after.

Each line of the report is one append of one rank, so what is there when the ranks are killed was true.
"""

import hashlib
import json
import os
import random
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

import lamina
from state_digest import rows_held, state_digest

MESHES = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2), 6: (3, 2)}  # dp, tp
SLOTS = ("exp_avg", "exp_avg_sq")


def placements_of(name: str, mesh: DeviceMesh) -> list[Placement]:
    return {
        "both": [Shard(0), Shard(1)],
        "rows": [Shard(0), Replicate()],  # beside replicas
        "nested": [_StridedShard(0, split_factor=mesh.size(1)), Shard(0)],  # fully_shard over tensor parallelism
        "columns": [Replicate(), Shard(1)],
        "whole": [Replicate(), Replicate()],
    }[name]


SHAPES = {"both": (13, 7), "rows": (11,), "nested": (24, 5), "columns": (3, 301), "whole": (5, 4)}  # few that ranks can share evenly


def cut(whole: Tensor, name: str, mesh: DeviceMesh) -> DTensor:
    """This rank's part of a tensor that all ranks have whole, without a word to them."""
    placements = placements_of(name, mesh)
    rows = [rows_held(size, dim, mesh, tuple(placements)) for dim, size in enumerate(whole.shape)]
    local = whole[np.ix_(*rows)].clone()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


class Trainer:
    """A state as AdamW would have it, with another rule that needs no communication, so that a step takes milliseconds."""

    def __init__(self, mesh: DeviceMesh, launch: int) -> None:
        self.mesh, self.launch = mesh, launch
        self.model = nn.Module()
        for name, shape in SHAPES.items():
            dtype = torch.bfloat16 if name == "columns" else torch.float32
            values = torch.arange(int(np.prod(shape))).reshape(shape) / 7
            self.model.register_parameter(name, nn.Parameter(cut(values.to(dtype), name, mesh)))
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data: dict[str, Any] = {"launch": launch, "steps": []}
        self.state = {"model": self.model, "optim": self.optim, "rng": lamina.Rng(seed=5), "data": self.data}

    def step(self, step: int) -> None:
        """What comes out depends on all that was restored, and on the launch: no two launches save the same bits under one step."""
        for parameter in self.model.parameters():
            slots = self.optim.state[parameter]
            for slot in SLOTS:
                slots.setdefault(slot, torch.zeros_like(parameter, requires_grad=False))
            slots.setdefault("step", torch.zeros(())).add_(1)
            value, mean, square = (each.detach().to_local() for each in (parameter, *(slots[slot] for slot in SLOTS)))
            mean.mul_(0.9).add_(value)
            square.mul_(0.99).add_(mean)
            value.mul_(0.5).add_(square).add_(self.launch)
        self.optim.param_groups[0]["lr"] *= 0.999
        self.data["launch"] = self.launch
        self.data["steps"] = [*self.data["steps"][-9:], step]
        random.random()

    def told(self) -> dict[str, str]:
        """The digest of everything, and of rank 0's generator. Collective."""
        generator = hashlib.sha256(repr(random.getstate()).encode()).hexdigest()
        return {"digest": state_digest(self.model, self.optim, self.data, self.mesh), "generator": generator}


def main() -> None:
    path, root, launch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else None  # None: until it is killed
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    report = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(event: str, **fields: Any) -> None:
        os.write(report, (json.dumps({"event": event, "rank": rank, **fields}) + "\n").encode())

    def tell_finished(wait: bool) -> None:
        for step in [step for step, handle in handles.items() if wait or handle.done()]:
            if handles.pop(step).wait().outcome == "committed":
                tell("committed", step=step)

    trainer = Trainer(init_device_mesh("cpu", MESHES[dist.get_world_size()], mesh_dim_names=("dp", "tp")), launch)
    handles: dict[int, lamina.SaveHandle] = {}
    dist.barrier()
    tell("ready")
    with lamina.Checkpointer(root, run_id="kill rounds") as ckpt:
        info = ckpt.restore(trainer.state)
        if info:
            tell("restored", step=info.step, **trainer.told())
        step = info.next_step
        while steps is None or step < info.next_step + steps:
            trainer.step(step)
            tell("saving", step=step, **trainer.told())
            handles[step] = ckpt.save(step, trainer.state)
            tell_finished(wait=False)
            step += 1
        tell_finished(wait=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
