"""Saves, restores, kills and races on NFS: FOLDER, and the same export mounted once more as OTHER, which caches apart from it.

tests/nfs/loopback.sh mounts both and runs this. All processes are forked from one that has made no Checkpointer yet: new ones would each
import PyTorch for seconds.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

import lamina

KILLS = 30
RACERS = 6
PUBLISHED = 100
ELEMENTS = 300_000


def child(work: Callable[[], object]) -> int:
    """Runs `work` in a process of its own; its exit status is 0 when it returned."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def ended_well(*pids: int) -> bool:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(pids)


def state_of(step: int) -> dict[str, object]:
    return {"w": torch.arange(float(ELEMENTS)) + step, "step": step}


def check_restored(root: Path, at_least: int) -> int:
    """What a new job would go on from: whole, and no older than what was acknowledged."""
    found = state_of(-1)
    with lamina.Checkpointer(root, mode="read") as ckpt:
        info = ckpt.restore(found)
    step = -1 if info.step is None else info.step
    assert step >= at_least, (step, at_least)
    assert found["step"] == step
    assert torch.equal(found["w"], state_of(step)["w"])  # type: ignore[call-overload]
    return step


def check_saves(root: Path, other: Path) -> None:
    """Each save is seen through the other mount as soon as it is acknowledged."""
    with lamina.Checkpointer(root) as ckpt:
        for step in range(10):
            ckpt.save(step, state_of(step)).wait()
            store = lamina.open(other)
            assert store.latest() == step
            assert torch.equal(store.load(step, ["w"])["w"], state_of(step)["w"])  # type: ignore[call-overload]
    assert lamina.open(other).verify()["ok"]


def check_kills(root: Path) -> None:
    """A job that is killed at any moment and started again goes on from what it had been told was safe."""
    acknowledged = root.with_name("acknowledged")

    def train(count: int) -> None:
        with lamina.Checkpointer(root, run_id="run") as ckpt:
            begin = ckpt.restore(state_of(-1)).next_step
            for step in range(begin, begin + count):
                ckpt.save(step, state_of(step)).wait()
                acknowledged.write_text(str(step))

    began = time.monotonic()
    assert ended_well(child(lambda: train(3)))
    three_saves_s = time.monotonic() - began
    dice = random.Random(0)
    newest = 2
    for _ in range(KILLS):
        pid = child(lambda: train(100))
        time.sleep(dice.uniform(0, three_saves_s))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        newest = max(newest, int(acknowledged.read_text() or -1))
        assert ended_well(child(lambda at_least=newest: check_restored(root, at_least)))
    assert newest > 2
    assert lamina.open(root).verify()["ok"]


def check_races(folder: Path, other: Path) -> None:
    """Of those who put the same name, on either mount, one alone is told that it did."""

    def put(racer: int) -> None:
        home = (folder, other)[racer % 2]
        mine = home / f".mine-{racer}"
        mine.write_text(str(racer))
        won = []
        for number in range(PUBLISHED):
            try:
                os.link(mine, home / f"{number:012d}")
                won.append(number)
            except FileExistsError:
                continue
        (home / f"won-{racer}").write_text(" ".join(map(str, won)))

    assert ended_well(*[child(lambda racer=racer: put(racer)) for racer in range(RACERS)])
    told = {racer: (folder / f"won-{racer}").read_text().split() for racer in range(RACERS)}
    assert sorted(int(number) for numbers in told.values() for number in numbers) == list(range(PUBLISHED)), told
    for racer, numbers in told.items():
        assert all((folder / f"{int(number):012d}").read_text() == str(racer) for number in numbers)


def check_takeovers(root: Path, other: Path) -> None:
    """Jobs that take one root from each other, on both mounts: each ends well or fenced, and what is listed is whole."""
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(0, state_of(0)).wait()

    def train(racer: int) -> None:
        try:
            with lamina.Checkpointer((root, other)[racer % 2], takeover=True, run_id=f"run{racer}") as ckpt:
                state = state_of(-1)
                begin = ckpt.restore(state).next_step
                for step in range(begin, begin + 3):
                    ckpt.save(step, state_of(step)).wait()
        except lamina.FencedError:  # also where the newer one has swept what was being written
            return

    assert ended_well(*[child(lambda racer=racer: train(racer)) for racer in range(RACERS)])
    assert ended_well(child(lambda: check_restored(root, 0)))
    assert lamina.open(root).verify()["ok"]


def main(folder: Path, other: Path) -> None:
    torch.set_num_threads(1)
    for name in ("races", "kills", "takeovers", "saves"):
        (folder / name).mkdir()
    for name, check in (
        ("put if absent", lambda: check_races(folder / "races", other / "races")),
        ("kills", lambda: check_kills(folder / "kills" / "root")),
        ("takeovers", lambda: check_takeovers(folder / "takeovers" / "root", other / "takeovers" / "root")),
        ("saves seen by another client", lambda: check_saves(folder / "saves" / "root", other / "saves" / "root")),
    ):
        began = time.monotonic()
        assert ended_well(child(check)), name
        print(f"{name}: fine, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
