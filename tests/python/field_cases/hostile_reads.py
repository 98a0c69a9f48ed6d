"""Reads the roots in a folder, by each way in, and tells as JSON what came of it: hostile_reads.py FOLDER

The root called `good` is read first, so that all that is imported late is there when the file `begin` in the folder is asked for.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lamina


def state() -> dict[str, Any]:
    return {"n": 0, "w": torch.zeros(2, 2)}


def restore(root: Path) -> str:
    found = state()
    with lamina.Checkpointer(root, run_id="run", options={"restore_retry_s": 0.0}) as ckpt:
        info = ckpt.restore(found)
    return f"step {info.step}: {found['n']} {found['w'].tolist()}"


def load(root: Path) -> str:
    found = lamina.open(root).load()
    return f"{sorted(found)} {found['w'].tolist()}"


def verify(root: Path) -> str:
    report = lamina.open(root).verify()
    return "fine" if report["ok"] else "; ".join(f"{problem['file']}: {problem['message']}" for problem in report["problems"])


def outcome(way: Callable[[Path], str], root: Path) -> dict[str, Any]:
    """What the call returned or raised, and by how much memory rose in it at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    try:
        told, error = way(root), None
    except lamina.Error as caught:
        told, error = str(caught), type(caught).__name__
    return {"told": told, "error": error, "rise": memory("VmHWM") - before}


def memory(name: str) -> int:
    """Bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":")]
    return int(line.split()[1]) << 10


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for way in (load, verify, restore):
        outcome(way, folder / "good")
    os.access(folder / "begin", os.F_OK)
    for root in sorted(path for path in folder.iterdir() if path.is_dir()):
        print(json.dumps({"root": root.name, **{way.__name__: outcome(way, root) for way in (load, verify, restore)}}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
