"""Saves without end, in a process of its own with few descriptors: ROOT, a folder on a disk. Prints nothing when all is well."""

import os
import resource
import shutil
import sys
import threading
from pathlib import Path

import torch

import lamina
from lamina import _core

MIB = 1 << 20
Use = dict[str, int]


def use() -> Use:
    """Memory, threads and descriptors of this process; nothing of it may lie in shared memory that has a name."""
    open_files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            open_files.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # the one that lists
            continue
    assert not [file for file in open_files if "/dev/shm" in file]
    assert "/dev/shm" not in Path("/proc/self/maps").read_text()
    return {"memory": status_bytes("VmRSS"), "threads": len(os.listdir("/proc/self/task")), "descriptors": len(open_files)}


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def check_no_growth(before: Use, after: Use, memory: int) -> None:
    assert after["threads"] == before["threads"], (before, after)
    assert after["descriptors"] == before["descriptors"], (before, after)
    assert after["memory"] <= before["memory"] + memory, (before, after)


def check_a_long_run(root: Path) -> None:
    """200 saves in a row of a small state."""
    state = {f"w{number}": torch.ones(8192) for number in range(16)} | {"epoch": 0}
    with lamina.Checkpointer(root) as ckpt:
        for step in range(200):
            state["epoch"] = step
            state["w0"] += 1
            ckpt.save(step, state).wait()
            if step == 20:
                early = use()
        check_no_growth(early, use(), 8 * MIB)


def check_large_saves(root: Path, state: dict[str, torch.Tensor]) -> None:
    """FC-17: 40 saves of 64 MiB, with a wait after each."""
    with lamina.Checkpointer(root) as ckpt:
        for step in range(40):
            ckpt.save(step, state).wait()
            if step == 4:
                early = use()
        check_no_growth(early, use(), 16 * MIB)


def check_a_slow_disk(root: Path, state: dict[str, torch.Tensor]) -> None:
    """FC-17: ten saves that nobody waits for, with room for two copies."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    begin = status_bytes("VmRSS")
    disk = _core.testing.FaultEnv()
    disk.set_write_bytes_per_second(8 * MIB)  # eight seconds a save, until it is let go
    with lamina.Checkpointer(root, memory=2 * 66 * MIB, options={"env": disk, "saves_in_flight_max": 2}) as ckpt:
        handles = [ckpt.save(step, state) for step in range(2)]
        assert not handles[0].done()
        let_go = threading.Timer(0.5, disk.set_write_bytes_per_second, [256 * MIB])
        let_go.start()
        for step in range(2, 10):
            handles.append(ckpt.save(step, state))
            assert sum(not handle.done() for handle in handles) <= 2
        for handle in handles:
            assert handle.wait().outcome == "committed"
        let_go.join()
    assert status_bytes("VmHWM") <= begin + 3 * 64 * MIB, (begin, status_bytes("VmHWM"))


def main(root: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    torch.set_num_threads(1)
    alone = use()
    check_a_long_run(root / "long")
    state = {f"w{number}": torch.full((8192,), float(number)) for number in range(2048)}
    check_a_slow_disk(root / "slow", state)
    shutil.rmtree(root / "slow")
    check_large_saves(root / "large", state)
    shutil.rmtree(root / "large")
    after = use()
    assert (after["threads"], after["descriptors"]) == (alone["threads"], alone["descriptors"]), (alone, after)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
