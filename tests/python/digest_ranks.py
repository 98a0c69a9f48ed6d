"""Run on four ranks: the digest of one logical state on several meshes, then with a replica that differs."""

import json
import sys

import torch
import torch.distributed as dist
from job_end import leave
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gpt import Gpt, GptConfig, lay_out
from state_digest import state_digest

SMALL = GptConfig(vocabulary=37, context=8, width=20, heads=4, layers=1)  # sizes that four ranks cannot share evenly


def model_on(mesh: DeviceMesh) -> Gpt:
    torch.manual_seed(0)
    whole = Gpt(SMALL).state_dict()
    torch.manual_seed(dist.get_rank())  # what stands in the laid-out model before is each rank's own
    model = lay_out(Gpt(SMALL), mesh)
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True))
    return model


def digest(model: Gpt, mesh: DeviceMesh, plain: dict[str, int]) -> str:
    try:
        return state_digest(model, torch.optim.AdamW(model.parameters()), plain, mesh)
    except ValueError as error:
        return str(error)


def main() -> None:
    dist.init_process_group("gloo")
    found: dict[str, str] = {}
    for shape in ((4, 1), (2, 2), (1, 4)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        model = model_on(mesh)
        found[str(shape)] = digest(model, mesh, {"step": 1})
        if shape == (2, 2):
            found["another plain value"] = digest(model, mesh, {"step": 2})
            found["plain values differ"] = digest(model, mesh, {"step": dist.get_rank()})
            with torch.no_grad():
                model.norm.weight.to_local().view(torch.int32)[0] ^= int(dist.get_rank() == 3)
            found["replicas differ"] = digest(model, mesh, {"step": 1})
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as report:
            report.write(json.dumps({"event": "digests", **found}) + "\n")
    leave()


if __name__ == "__main__":
    main()
