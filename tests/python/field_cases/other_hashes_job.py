"""Run on several ranks: each orders a set of strings in its own way, and so the keys of its state."""

import os
import sys
from pathlib import Path


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != os.environ["RANK"]:  # read when an interpreter starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": os.environ["RANK"]})
    import background_saves
    import torch.distributed as dist

    dist.init_process_group("gloo")
    background_saves.run(Path(sys.argv[2]), list(set(background_saves.KEYS)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
