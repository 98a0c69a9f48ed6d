"""Lamina and other ways to save the same training state, interleaved in one run, because only the ratios of one run mean much.

Each round takes a training step and then saves through everyone in turn: how long the call holds the caller, when the bytes are durable
(files and folders synced), how long a load into the state's own memory takes from the disk, and how long from the page cache. A load counts
as cold only where none of its files was in the page cache before, and the process has then read as many bytes from storage as were loaded.
`raw` is the floor: the bytes of all tensors in one file. The first round warms up and is not counted. Writes JSON with machine, commit and
options.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from page_cache import evict, files_of, read_bytes, resident_bytes

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import lamina
from training import Training

FIGURES = {"hold_s": "holds the caller", "durable_s": "durable", "cold_s": "load, cold", "warm_s": "load, warm"}
Figures = dict[str, float | None]
Finish = Callable[[], None]


def sync_tree(path: Path) -> None:
    """Forces a file, or a folder and all in it, to the disk."""
    for each in [path, *path.rglob("*")]:
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Peer:
    """One way to save. `save` returns what must be called to be durable; `load` fills the training's own tensors from the last save."""

    name = ""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training, self.folder = training, folder / self.name
        self.folder.mkdir()

    def path(self, step: int) -> Path:
        return self.folder / str(step)

    def save(self, step: int) -> Finish:
        raise NotImplementedError

    def load(self, step: int) -> None:
        raise NotImplementedError

    def files(self, step: int) -> list[Path]:
        """What a load reads, and perhaps more."""
        return files_of(self.path(step))

    def drop(self, step: int) -> None:
        path = self.path(step)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def synced(self, step: int) -> Finish:
        return lambda: (sync_tree(self.path(step)), sync_tree(self.folder))[0]

    def copy_in(self, loaded: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self.training.tensors().items():
                tensor.copy_(loaded[name])


class Raw(Peer):
    name = "raw"

    def _views(self) -> Iterator[memoryview]:
        for tensor in self.training.tensors().values():
            yield memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())

    def save(self, step: int) -> Finish:
        with self.path(step).open("wb") as file:
            for view in self._views():
                file.write(view)
        return self.synced(step)

    def load(self, step: int) -> None:
        with self.path(step).open("rb") as file:
            for view in self._views():
                file.readinto(view)


class TorchSave(Peer):
    name = "torch.save"

    def save(self, step: int) -> Finish:
        torch.save(self.training.tensors(), self.path(step))
        return self.synced(step)

    def load(self, step: int) -> None:
        self.copy_in(torch.load(self.path(step), weights_only=True))


class Safetensors(Peer):
    name = "safetensors"

    def save(self, step: int) -> Finish:
        save_file(self.training.tensors(), self.path(step))
        return self.synced(step)

    def load(self, step: int) -> None:
        self.copy_in(load_file(self.path(step)))


class Dcp(Peer):
    name = "DCP save"

    def save(self, step: int) -> Finish:
        dcp.save(self.training.state_dict(), checkpoint_id=self.path(step))
        return self.synced(step)

    def load(self, step: int) -> None:
        dcp.load(self.training.state_dict(), checkpoint_id=self.path(step))


class DcpAsync(Dcp):
    name = "DCP async_save"

    def save(self, step: int) -> Finish:
        future = dcp.async_save(self.training.state_dict(), checkpoint_id=self.path(step))
        synced = self.synced(step)
        return lambda: (future.result(), synced())[1]


class Lamina(Peer):
    """Keeps one checkpointer and one root for all rounds, as a training job does."""

    name = "Lamina"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.state = training.state()
        self.ckpt = lamina.Checkpointer(self.folder / "root")
        self.ckpt.restore(self.state)

    def save(self, step: int) -> Finish:
        handle = self.ckpt.save(step, self.state)
        return lambda: handle.wait() and None

    def load(self, step: int) -> None:
        with lamina.Checkpointer(self.folder / "root", mode="read") as reader:
            reader.restore(self.state, step=step)

    def files(self, step: int) -> list[Path]:
        """Of all steps, without the log: its few KiB are read by the trainer too, at any time."""
        return files_of(self.folder / "root" / "steps")

    def drop(self, step: int) -> None:
        """Its steps stay until the end of the run, but free the memory of the page cache as those of others do that are deleted."""
        evict(self.files(step))


PEERS = (Raw, TorchSave, Safetensors, Dcp, DcpAsync, Lamina)


def measure(peer: Peer, step: int) -> Figures:
    """One save and two loads, in seconds. What others left unsynced is written before the clock starts."""
    os.sync()
    begin = time.perf_counter()
    finish = peer.save(step)
    held = time.perf_counter()
    finish()
    durable = time.perf_counter()
    files = peer.files(step)
    evict(files)
    resident, read_before = resident_bytes(files), read_bytes()
    cold_s = timed(peer, step)
    read = read_bytes() - read_before
    was_cold = resident == 0 and read >= peer.training.bytes()
    warm_s = timed(peer, step)
    peer.drop(step)
    return {
        "hold_s": held - begin,
        "durable_s": durable - begin,
        "cold_s": cold_s if was_cold else None,
        "warm_s": warm_s,
        "resident_bytes_before_cold": resident,
        "read_bytes_when_cold": read,
    }


def timed(peer: Peer, step: int) -> float:
    begin = time.perf_counter()
    peer.load(step)
    return time.perf_counter() - begin


def run(peers: list[Peer], training: Training, rounds: int) -> list[dict[str, Figures]]:
    """The figures of each round after the first, by peer. Everyone comes first once in a while."""
    found = []
    for step in range(rounds + 1):
        training.step()
        turn = step % len(peers)
        figures = {peer.name: measure(peer, step) for peer in peers[turn:] + peers[:turn]}
        found.append({peer.name: figures[peer.name] for peer in peers})
    return found[1:]


def spread(values: list[float | None]) -> str:
    """Least, median and most of what was measured; "not proven" where some load may not have been cold."""
    found = [value for value in values if value is not None]
    return f"{min(found):.2f} / {statistics.median(found):.2f} / {max(found):.2f}" if len(found) == len(values) else "not proven"


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours / theirs


def tell(rounds: list[dict[str, Figures]], ours: str, console: Console) -> None:
    def seconds(name: str, figure: str) -> str:
        return spread([each[name][figure] for each in rounds])

    def ratios(name: str, figure: str) -> str:
        return spread([ratio(each[ours][figure], each[name][figure]) for each in rounds])

    for title, cell in (("seconds", seconds), (f"{ours} / peer, in the same round", ratios)):
        table = Table(title=f"{title}: min / median / max over {len(rounds)} rounds", title_justify="left")
        for column in ("", *FIGURES.values()):
            table.add_column(column)
        for name in rounds[0]:
            table.add_row(name, *(cell(name, figure) for figure in FIGURES))
        console.print(table)


def machine() -> dict[str, Any]:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ""
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": os.cpu_count(), "memory_bytes": memory, "kernel": platform.release(), "torch": torch.__version__}


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "HEAD") + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, default=500, help="size of the training state (default 500)")
    parser.add_argument("--steps", type=int, default=60, help="training steps before the first save (default 60)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; its file system is what is measured (default: build/)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch's threads (default: all cores)")
    parser.add_argument("--json", type=Path, default=None, help="where the figures go (default: build/bench/peers.json)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    torch.set_num_threads(args.threads)
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    console = Console(width=None if sys.stdout.isatty() else 140)
    training = Training(args.state_mb * 1_000_000, args.steps, build / "bench")
    console.print(f"state: {training.bytes() / 1e6:.0f} MB after {args.steps} steps of training", highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="peers-", dir=args.folder or build))
    try:
        peers = [kind(training, folder) for kind in PEERS]
        rounds = run(peers, training, args.rounds)
        peers[-1].ckpt.close()
    finally:
        shutil.rmtree(folder)
        dist.destroy_process_group()
    tell(rounds, Lamina.name, console)
    target = args.json or build / "bench" / "peers.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    options = {"state_bytes": training.bytes(), "steps": args.steps, "rounds": args.rounds, "threads": args.threads}
    target.write_text(json.dumps({"machine": machine(), "commit": commit(), "options": options, "rounds": rounds}, indent=1) + "\n")
    console.print(f"figures: {target}", highlight=False)


if __name__ == "__main__":
    main()
