"""Run on several ranks: trains a sharded model for some steps from where the root left off, and reports what it holds."""

import hashlib
import json
import random
import sys
from typing import Any

import torch
import torch.distributed as dist
from job_end import leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lamina
from lamina.ranks import Ranks


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all parameters and moments, whole."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        slots = optimizer.state[parameter]
        for value in (parameter, slots["exp_avg"], slots["exp_avg_sq"], slots["step"]):
            found.update(whole(value.detach()).reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    report, root, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("dp",))
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3), nn.LayerNorm(3))  # sizes that ranks cannot share evenly
    for each in (model[0], model):
        fully_shard(each, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    position = lamina.PerRank(100 * rank, merge=max, seed=lambda rank: -rank)
    state: dict[str, Any] = {"model": model, "optim": optimizer, "rng": lamina.Rng(seed=3), "data": position, "log": []}
    with lamina.Checkpointer(root) as ckpt:
        info = ckpt.restore(state)
        found = {
            "restored": info.step,
            "digest": digest(model, optimizer) if info else "",
            "draw": random.random(),
            "log": list(state["log"]),
        }
        for step in range(info.next_step, info.next_step + steps):
            optimizer.zero_grad()
            model(torch.ones(2, 7) * (step + 1)).square().mean().backward()
            optimizer.step()
            position.value += 1
            state["log"].append(step)
            with torch.no_grad():
                model(torch.ones(1, 7))  # an evaluation, after which the parameters are whole
            ckpt.save(step, state, metadata={"ranks": count})
    found.update(saved=digest(model, optimizer), next_draw=random.random(), position=position.value, source=dict(info.source_topology))
    parts = [json.loads(each) for each in Ranks().gather(json.dumps(found).encode())]
    if rank == 0:
        with open(report, "w") as file:
            file.write(json.dumps({"event": "ranks", "ranks": parts}) + "\n")
    leave()


if __name__ == "__main__":
    main()
