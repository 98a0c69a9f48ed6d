"""Trains the GPT on the text of Python's own library, and saves the whole state as often as asked.

    torchrun --nproc-per-node 4 examples/train_gpt.py --root /tmp/run1 --mesh dp=2,tp=2 --steps 20

Start it again with the same root and any mesh, and it goes on where it was.
"""

import argparse
import contextlib
import json
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import lamina
from gpt import Gpt, GptConfig, lay_out
from state_digest import state_digest

END_OF_FILE = 256
CORPUS_BYTES = 4 << 20


class Corpus:
    """The sources of Python's library as byte tokens. A batch depends on its step only, whatever the mesh."""

    def __init__(self, context: int, rows: int, seed: int) -> None:
        self.context, self.rows, self.seed = context, rows, seed
        texts, size = [], 0
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            texts += [np.frombuffer(path.read_bytes(), dtype=np.uint8).astype(np.int64), np.array([END_OF_FILE])]
            size += len(texts[-2])
            if size >= CORPUS_BYTES:
                break
        self.tokens = np.concatenate(texts)

    def batch(self, step: int, part: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of this part's rows of the global batch, each of shape (rows / parts, context)."""
        starts = np.random.default_rng((self.seed, step)).integers(0, len(self.tokens) - self.context, self.rows)
        rows = np.stack([self.tokens[at : at + self.context + 1] for at in starts[part::parts]])
        return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])


class Report:
    """One JSON line an event, from rank 0, flushed at once: what is there when the job is killed is true."""

    def __init__(self, path: str | None) -> None:
        self.file = open(path, "a") if path and dist.get_rank() == 0 else None  # noqa: SIM115

    def __call__(self, event: str, **fields: Any) -> None:
        if self.file:
            self.file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")
            self.file.flush()


class Trainer:
    """A model, its optimizer and all else that a restart needs, on one mesh."""

    def __init__(self, mesh: DeviceMesh, args: argparse.Namespace) -> None:
        self.mesh, self.config = mesh, GptConfig()
        torch.manual_seed(args.seed)
        self.model = lay_out(Gpt(self.config), mesh)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.optim, warm_up)
        self.corpus = Corpus(self.config.context, args.batch, args.seed)
        self.data = {"seed": args.seed, "tokens_seen": 0}
        rng = lamina.Rng(seed=args.seed)
        self.state = {"model": self.model, "optim": self.optim, "sched": self.sched, "rng": rng, "data": self.data}

    def step(self, step: int) -> float:
        """One step of training; the mean loss of the global batch."""
        inputs, targets = self.corpus.batch(step, self.mesh.get_local_rank("dp"), self.mesh["dp"].size())
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        self.optim.step()
        self.optim.zero_grad(set_to_none=True)
        self.sched.step()
        self.data["tokens_seen"] += self.corpus.rows * self.corpus.context
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=self.mesh["dp"].get_group())
        return mean.item() / self.mesh["dp"].size()

    def digest(self) -> str:
        """The same on every mesh; without the generators, which belong to a place in the mesh."""
        return state_digest(self.model, self.optim, [self.sched.state_dict(), self.data], self.mesh)


def warm_up(step: int) -> float:
    return min(1.0, (step + 1) / 20)


def parse_mesh(text: str) -> DeviceMesh:
    """ "dp=2,tp=2" to a mesh over all ranks."""
    axes = dict(part.split("=") for part in text.split(","))
    return init_device_mesh("cpu", tuple(int(size) for size in axes.values()), mesh_dim_names=tuple(axes))


def restore(ckpt: lamina.Checkpointer, trainer: Trainer, report: Report, step: int | None = None) -> int:
    """Brings the state back and says which step comes next."""
    begin = time.perf_counter()
    info = ckpt.restore(trainer.state, step=step)
    seconds = time.perf_counter() - begin
    if info:
        report("restored", step=info.step, rollback=step is not None, digest=trainer.digest(), restore_s=seconds)
    return info.next_step


def train(ckpt: lamina.Checkpointer, trainer: Trainer, report: Report, args: argparse.Namespace) -> None:
    """Trains and saves until the last step; rolls back once on the way when asked to."""
    handles: dict[int, lamina.SaveHandle] = {}

    def tell_finished(wait: bool) -> None:
        for step in [step for step, handle in handles.items() if wait or handle.done()]:
            told = handles.pop(step).wait()
            report("committed", step=step, hold_s=told.hold_s, durable_s=told.durable_s, written_bytes=told.total.written_bytes)

    step = restore(ckpt, trainer, report, args.restore_step)
    first = step
    while step < args.steps:
        loss = trainer.step(step)
        digest = trainer.digest() if args.digest else None
        report("step", step=step, loss=loss, digest=digest)
        if (step + 1) % args.save_every == 0:
            handles[step] = ckpt.save(step, trainer.state)
            report("saving", step=step)
            tell_finished(wait=False)
        step += 1
        if args.roll_back and step == first + args.roll_back_after:
            tell_finished(wait=True)
            step = restore(ckpt, trainer, report, step=step - 1 - args.roll_back)
    tell_finished(wait=True)


def time_peer(trainer: Trainer, report: Report, folder: str) -> None:
    """The same state through torch.distributed.checkpoint.async_save, three times."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    for attempt in range(3):
        model, optim = get_state_dict(trainer.model, trainer.optim)
        dist.barrier()
        begin = time.perf_counter()
        future = dcp.async_save({"model": model, "optim": optim}, checkpoint_id=f"{folder}/{attempt}")
        hold_s = time.perf_counter() - begin
        future.result()
        durable_s = time.perf_counter() - begin
        written = sum(path.stat().st_size for path in Path(folder, str(attempt)).iterdir())
        report("peer", attempt=attempt, hold_s=hold_s, durable_s=durable_s, written_bytes=written)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="where the checkpoints are; created when its parent exists")
    parser.add_argument("--steps", type=int, default=20, help="stop before this step (default 20)")
    parser.add_argument("--mesh", default=None, help='"dp=4" or "dp=2,tp=2" (default: all ranks on dp)')
    parser.add_argument("--batch", type=int, default=8, help="rows of the global batch (default 8)")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--save-every", type=int, default=1, help="steps between saves (default 1)")
    parser.add_argument("--restore-step", type=int, default=None, help="go back to this step (default: the newest)")
    parser.add_argument("--roll-back", type=int, default=0, help="go back this many steps once, in the running job")
    parser.add_argument("--roll-back-after", type=int, default=3, help="after this many steps (default 3)")
    parser.add_argument("--report", default=None, help="a file for one JSON line an event")
    parser.add_argument("--digest", action="store_true", help="put the digest of the whole state into each step's line")
    parser.add_argument("--peer-root", default=None, help="at the end, save the state there with DCP and tell the times")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        trainer = Trainer(parse_mesh(args.mesh or f"dp={dist.get_world_size()}"), args)
        report = Report(args.report)
        report("start", mesh=args.mesh, parameters=sum(p.numel() for p in trainer.model.parameters()))
        with lamina.Checkpointer(args.root) as ckpt:
            train(ckpt, trainer, report, args)
        if args.peer_root:
            time_peer(trainer, report, args.peer_root)
    finally:
        with contextlib.suppress(ValueError):
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
