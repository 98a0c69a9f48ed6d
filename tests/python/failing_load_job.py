"""Run on several ranks: restores that fail on rank 1 alone, and what each rank is told."""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from job_end import leave

import lamina
from lamina.ranks import Ranks


class Position:
    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def state_dict(self) -> Any:
        if self.broken == "before":
            raise KeyError("template")
        return {"pos": 1}

    def load_state_dict(self, state: Any) -> None:
        if self.broken == "after":
            raise KeyError("pos")


def told(ckpt: lamina.Checkpointer, state: dict[str, Any], step: int | None = None) -> list[Any]:
    try:
        info = ckpt.restore(state, step)
    except lamina.Error as error:
        return [type(error).__name__, error.rank, str(error), state["w"].tolist()]
    return ["nothing", info.step]


def refused(ckpt: lamina.Checkpointer) -> list[Any]:
    try:
        ckpt.save(2, {"w": torch.ones(2), "data": Position()})
    except lamina.Error as error:
        return [type(error).__name__, str(error)]
    return ["nothing"]


def main() -> None:
    report, root = sys.argv[1:3]
    dist.init_process_group("gloo")
    ranks = Ranks()
    is_odd = ranks.rank == 1
    with lamina.Checkpointer(root) as ckpt:
        for step in (0, 1):
            ckpt.save(step, {"w": torch.ones(2), "data": Position()}).wait()
        found = {
            "other shape": told(ckpt, {"w": torch.zeros(3 if is_odd else 2), "data": Position()}),
            "template": told(ckpt, {"w": torch.zeros(2), "data": Position("before" if is_odd else "")}),
            "callback": told(ckpt, {"w": torch.zeros(2), "data": Position("after" if is_odd else "")}, 0),
            "saved": refused(ckpt),
            "well": told(ckpt, {"w": torch.zeros(2), "data": Position()}),
        }
        ckpt.save(2, {"w": torch.ones(2), "data": Position()}).wait()
    parts = [json.loads(each) for each in ranks.gather(json.dumps(found).encode())]
    if ranks.rank == 0:
        with open(report, "w") as file:
            file.write(json.dumps({"event": "ranks", "ranks": parts}) + "\n")
    leave()


if __name__ == "__main__":
    main()
