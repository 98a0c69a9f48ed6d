"""Serves the core's small shared map from the job's c10d store, on one thread with a client connection of its own.

A client that waits blocks all others who use it, `new_group()` included; so the trainer's own client is never used here, and no call waits.
"""

from __future__ import annotations

import datetime
import threading
from typing import Any, Final

import torch.distributed

from lamina import _core, threads

dist: Any = torch.distributed  # its stores are not in its type hints

_POLL_S: Final = 1.0  # a request, and the closing, end the wait at once
_CALL_S: Final = 10.0  # what one call of the store may take


def store_of(group: Any) -> Any:
    """The store that the ranks of a process group met through."""
    return group.get_group_store() if hasattr(group, "get_group_store") else dist.distributed_c10d._get_process_group_store(group)


def own_client(store: Any) -> Any:
    """A second client of the same store, which shares no connection with the first."""
    client = store.clone() if hasattr(store, "clone") else _connected_anew(store)
    client.set_timeout(datetime.timedelta(seconds=_CALL_S))
    return client


def _connected_anew(store: Any) -> Any:
    """What `clone` makes, for a PyTorch that lacks it. Prefixes cannot be read there, and the core's keys have one of their own."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return dist.PrefixStore("lamina", dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False))


class StoreCoordinator:
    """The thread, from construction to `close()`.

    Args:
        store: the trainer's store; only a client is made from it.

    Attributes:
        queue: what the core puts its requests into.
    """

    def __init__(self, store: Any) -> None:
        self.queue = _core.StoreQueue()
        self._stop = threading.Event()
        self._thread = threads.start("lamina-store", _serve, self.queue, own_client(store), self._stop)

    def close(self) -> None:
        """Ends and joins the thread. The core must have no requests any more."""
        self._stop.set()
        self.queue.close()
        self._thread.join()


def _serve(queue: _core.StoreQueue, client: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        request = queue.next(_POLL_S)
        if request is None:
            continue
        number, operation, key, value = request
        try:
            status, answer = _call(client, operation, key, value)
        except Exception as error:
            status, answer = "unavailable", f"{type(error).__name__}: {error}".encode()
        queue.reply(number, status, answer)


def _call(client: Any, operation: str, key: str, value: bytes) -> tuple[str, bytes | None]:
    """One request: "ok" with the value of a get, "absent", or an exception of the store."""
    if operation == "set":
        client.set(key, value)
        return "ok", None
    if operation == "delete":
        client.delete_key(key)
        return "ok", None
    if not client.check([key]):
        return "absent", None
    return "ok", client.get(key) if operation == "get" else None
