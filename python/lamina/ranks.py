"""What the ranks of a job tell one another on the training thread: byte tensors through the caller's process group."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from lamina.errors import InvalidArgumentError, StateError


class Ranks:
    """The ranks that save and restore together.

    Args:
        process_group: theirs. Default None: the default group if there is one, else this process alone.

    Attributes:
        rank: of this process in the group.
        count: how many there are.

    Raises:
        StateError: the environment says WORLD_SIZE > 1, and there is no process group.
        InvalidArgumentError: this process is not in the group.
    """

    def __init__(self, process_group: Any = None) -> None:
        if process_group is None and dist.is_available() and dist.is_initialized():
            process_group = dist.group.WORLD
        world_size = os.environ.get("WORLD_SIZE", "1")
        if process_group is None and world_size.isdigit() and int(world_size) > 1:
            raise StateError(
                f"WORLD_SIZE is {world_size}, but there is no process group, so each process would write a checkpoint of its own into one "
                "root: call torch.distributed.init_process_group first, or unset WORLD_SIZE"
            )
        self.group = process_group
        self.rank = 0 if process_group is None else dist.get_rank(process_group)
        self.count = 1 if process_group is None else dist.get_world_size(process_group)
        if self.rank < 0:
            raise InvalidArgumentError("this process is not in process_group: construct the Checkpointer on the group's ranks only")

    def nonce(self) -> str:
        """16 random bytes in hexadecimal, the same on all ranks. Collective: one broadcast."""
        nonce = torch.frombuffer(bytearray(os.urandom(16)), dtype=torch.uint8)
        if self.count > 1:
            nonce = nonce.to(self._device())
            dist.broadcast(nonce, dist.get_global_rank(self.group, 0), group=self.group)
        return bytes(nonce.tolist()).hex()

    def gather(self, message: bytes) -> list[bytes]:
        """The message of each rank, in order. Collective."""
        if self.count == 1:
            return [message]
        device = self._device()
        size = torch.tensor([len(message)], dtype=torch.int64, device=device)
        sizes = [torch.zeros_like(size) for _ in range(self.count)]
        dist.all_gather(sizes, size, group=self.group)
        lengths = [int(each.item()) for each in sizes]
        # One byte more, since a message may be empty and a tensor made of bytes may not.
        padded = torch.zeros(max(lengths) + 1, dtype=torch.uint8, device=device)
        padded[: len(message) + 1] = torch.frombuffer(bytearray(message + b"\0"), dtype=torch.uint8)
        parts = [torch.zeros_like(padded) for _ in range(self.count)]
        dist.all_gather(parts, padded, group=self.group)
        return [part[:length].cpu().numpy().tobytes() for part, length in zip(parts, lengths)]

    def _device(self) -> torch.device:
        kinds = {device.type for device in self.group._device_types}
        return torch.device("cpu") if "cpu" in kinds or not kinds else torch.device("cuda", torch.cuda.current_device())
