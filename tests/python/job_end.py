"""How a rank of a test's job ends right after a collective."""

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def leave() -> NoReturn:
    """Ends the process without taking the interpreter down.

    A gloo thread of PyTorch (2.13) may drop the tensors of a collective that has just ended while the interpreter goes down; it then
    aborts the process (`terminate called without an active exception`), whatever the job was about.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
