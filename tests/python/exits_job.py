"""Run as one process: the ends of two-rank programs, each with a save under way. One import for all of them.

Each rank of each case is a fork of this process that goes on to the end of the script, as a program of its own would. Told on standard
output as one JSON object: of each case and rank the exit code, how long it took, and what it said.
"""

import atexit
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what the ranks would import, each for itself
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import lamina.checkpointer
from lamina import _core

testing: Any = _core.testing  # type: ignore[attr-defined]
ELEMENTS = 1 << 19  # 2 MiB a rank
STEP = 5
QUICK = {"beat_s": 0.2, "beat_timeout_s": 3.0}


class Rank:
    """What one rank of a case has."""

    def __init__(self, rank: int, root: str, port: int) -> None:
        self.rank, self.root, self.port = rank, root, port
        self.env = testing.FaultEnv()

    def meet(self) -> None:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{self.port}", rank=self.rank, world_size=2, timeout=timedelta(seconds=60)
        )

    def begin(self, slow: bool = True, hooks: Sequence[object] = (), **options: float) -> tuple[lamina.Checkpointer, lamina.SaveHandle]:
        """A step that is there, and a save on a slow disk that takes some seconds."""
        mesh = init_device_mesh("cpu", (2,))
        rows = DTensor.from_local(torch.ones(ELEMENTS), mesh, [Shard(0)], run_check=False)
        ckpt = lamina.Checkpointer(self.root, hooks=hooks, options={"env": self.env, **QUICK, **options})
        ckpt.save(STEP - 1, {"rows": rows}).wait()
        if slow:
            self.env.set_write_bytes_per_second(1 << 20)
        return ckpt, ckpt.save(STEP, {"rows": rows})

    def writes(self) -> None:
        """Waits until this rank is in the middle of its save."""
        while not list(Path(self.root).glob(f"steps/{STEP:012d}/*/{self.rank:05d}.pack")):
            time.sleep(0.01)


def told(handle: lamina.SaveHandle) -> None:
    began_s = time.monotonic()
    error = handle.exception()
    print(f"{type(error).__name__} {error.rank if error else None} after {time.monotonic() - began_s:.1f} s: {error}")


KEPT: list[Any] = []  # what must not be freed before the end


def plain_end(rank: Rank) -> None:
    rank.meet()
    KEPT.extend(rank.begin())


def env_end(rank: Rank) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(rank.port), RANK=str(rank.rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    KEPT.extend(rank.begin())


def rank_0_first(rank: Rank) -> None:
    """Rank 0, whose process holds the store, is gone before rank 1 asks how the save ended."""
    rank.meet()
    KEPT.extend(rank.begin())
    if rank.rank == 1:
        time.sleep(4)


def exit_code(rank: Rank) -> None:
    rank.meet()
    KEPT.extend(rank.begin())
    sys.exit(3)


def exception(rank: Rank) -> None:
    rank.meet()
    ckpt, _ = rank.begin()
    with ckpt:
        raise ValueError("x")


def exception_while_it_fails(rank: Rank) -> None:
    rank.meet()
    if rank.rank == 1:
        rank.env.fail("write", 5, "steps/000000000005", 2, -1)
    ckpt, _ = rank.begin()
    with ckpt:
        raise ValueError("x")


class Stalls:
    def committed(self, event: lamina.Event) -> None:
        time.sleep(600)


def stalled_hook(rank: Rank) -> None:
    rank.meet()
    ckpt, handle = rank.begin(slow=False, hooks=[Stalls()], exit_grace_s=1)
    handle.wait()
    with ckpt:
        raise ValueError("x")


def destroyed_before_close(rank: Rank) -> None:
    rank.meet()
    ckpt, handle = rank.begin()
    dist.destroy_process_group()
    ckpt.close()
    print(handle.wait().outcome)


def rank_1_vanishes(rank: Rank) -> None:
    rank.meet()
    ckpt, handle = rank.begin()
    if rank.rank == 1:
        rank.writes()
        os._exit(7)
    told(handle)
    ckpt.close()


def rank_1_is_terminated(rank: Rank) -> None:
    rank.meet()
    ckpt, handle = rank.begin()
    if rank.rank == 1:
        rank.writes()
        os.kill(os.getpid(), signal.SIGTERM)
    told(handle)
    ckpt.close()


def rank_0_is_killed(rank: Rank) -> None:
    rank.meet()
    ckpt, handle = rank.begin()
    if rank.rank == 0:
        rank.writes()
        os.kill(os.getpid(), signal.SIGKILL)
    told(handle)
    ckpt.close()


def store_dies(rank: Rank) -> None:
    """The store is a process of its own, and goes while a save runs."""
    file = Path(f"{rank.root}.store")
    if rank.rank == 0 and (child := os.fork()) == 0:
        held = dist.TCPStore("127.0.0.1", rank.port, is_master=True, wait_for_workers=False)
        file.write_text(str(os.getpid()))
        time.sleep(120)
        del held
        os._exit(0)
    while not file.exists():
        time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", rank.port, is_master=False, timeout=timedelta(seconds=20))
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=2)
    ckpt, handle = rank.begin()
    if rank.rank == 0:
        rank.writes()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    told(handle)
    ckpt.close()


def forked_child(rank: Rank) -> None:
    """A data loader's worker: every call is refused, and nothing of the save runs at its exit."""
    rank.meet()
    ckpt, handle = rank.begin()
    if (child := os.fork()) == 0:
        for call in (handle.wait, handle.done, ckpt.restore, lambda _=None: ckpt.save(9, {})):
            try:
                call({}) if call == ckpt.restore else call()
                os._exit(1)
            except lamina.StateError:
                pass
        ckpt.close()
        atexit._run_exitfuncs()
        os._exit(0)  # PyTorch 2.13 hangs where a forked child takes its gloo group down
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    KEPT.extend((ckpt, handle))


CASES: dict[str, Callable[[Rank], None]] = {
    case.__name__: case
    for case in (
        plain_end, env_end, rank_0_first, exit_code, exception, exception_while_it_fails, stalled_hook, destroyed_before_close,
        rank_1_vanishes, rank_1_is_terminated, rank_0_is_killed, store_dies, forked_child,
    )
}  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(case: str, rank: int, folder: Path, port: int) -> int:
    """The fork's process id; in the fork itself 0."""
    if child := os.fork():
        return child
    said = os.open(folder / f"{case}.{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    return 0


def main(folder: Path, cases: list[str]) -> Rank | tuple[str, Rank] | None:
    began_s = time.monotonic()
    running: dict[int, tuple[str, int]] = {}
    for case in cases:
        port = free_port()
        for rank in (0, 1):
            child = start(case, rank, folder, port)
            if child == 0:
                return case, Rank(rank, str(folder / f"{case}_root"), port)
            running[child] = (case, rank)
    found: dict[str, list[Any]] = {case: [None, None] for case in cases}
    while running:
        child, status = os.wait()
        case, rank = running.pop(child)
        found[case][rank] = [os.waitstatus_to_exitcode(status), time.monotonic() - began_s, (folder / f"{case}.{rank}").read_text()]
    print(json.dumps(found))
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert threading.active_count() == 1  # forks are whole only then
    tempfile.gettempdir()
    chosen = main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
    if chosen is not None:
        case, rank = chosen
        CASES[case](rank)
