"""What the trainer's use of the job's store costs while a save waits for a rank, and when nothing waits.

    torchrun --nproc-per-node 2 bench/store_wait.py --json store_wait.json

Each round times `new_group` (which goes through the store) and a small `all_reduce` on the training thread of rank 0, first idle, then
while rank 0's save polls the store for rank 1, which saves only afterwards. Idle and waiting alternate, because only their ratio means
much. The first round warms up and is not counted.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import lamina
from lamina.ranks import Ranks
from peers import commit, machine


def timed_calls(calls: int) -> dict[str, float]:
    """The median seconds of each call on this rank. Collective."""
    group_s, reduce_s = [], []
    for _ in range(calls):
        dist.barrier()
        begin = time.perf_counter()
        group = dist.new_group([0, 1])
        made = time.perf_counter()
        dist.all_reduce(torch.ones(1), group=group)
        reduce_s.append(time.perf_counter() - made)
        group_s.append(made - begin)
        dist.destroy_process_group(group)
    return {"new_group_s": statistics.median(group_s), "all_reduce_s": statistics.median(reduce_s)}


def measure(ckpt: lamina.Checkpointer, step: int, calls: int) -> dict[str, dict[str, float]]:
    state = {"w": torch.zeros(1 << 16)}
    if step == 0:  # the ranks meet in the first save
        ckpt.save(step, state).wait()
        return {}
    idle = timed_calls(calls)
    handle = ckpt.save(step, state) if dist.get_rank() == 0 else None
    waiting = timed_calls(calls)
    if handle is not None and handle.done():
        raise RuntimeError("the save ended without rank 1, so nothing was measured")
    dist.barrier()
    (handle or ckpt.save(step, state)).wait()
    return {"idle": idle, "waiting": waiting}


def tell(rounds: list[dict[str, dict[str, float]]]) -> None:
    for call in ("new_group_s", "all_reduce_s"):
        idle_ms = 1e3 * statistics.median(each["idle"][call] for each in rounds)
        ratios = sorted(each["waiting"][call] / each["idle"][call] for each in rounds)
        spread = f"{ratios[0]:.2f} / {statistics.median(ratios):.2f} / {ratios[-1]:.2f}"
        print(f"{call}: idle {idle_ms:.2f} ms; waiting / idle, min / median / max: {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=20, help="of each kind, idle and waiting, in each round")
    parser.add_argument("--json", type=Path, default=None, help="where the figures go (default: only told)")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    folder = tempfile.mkdtemp()
    with lamina.Checkpointer(Path(Ranks().gather(folder.encode())[0].decode(), "root")) as ckpt:
        rounds = [measure(ckpt, step, args.calls) for step in range(args.rounds + 2)][2:]
    if dist.get_rank() == 0:
        tell(rounds)
        if args.json:
            told = {"machine": machine(), "commit": commit(), "options": {"rounds": args.rounds, "calls": args.calls}, "rounds": rounds}
            args.json.write_text(json.dumps(told, indent=1) + "\n")
    dist.destroy_process_group()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
