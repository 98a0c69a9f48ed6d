"""lamina.store_coordinator and lamina.ranks: a client of one's own, calls that do not wait, and byte tensors among real ranks."""

import ast
import datetime
import inspect
import threading

import fake_core
import pytest
import torch.distributed as dist

from lamina import store_coordinator
from lamina.ranks import Ranks
from lamina.store_coordinator import StoreCoordinator, own_client


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.TCPStore:
    fake_core.install(monkeypatch)
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def ask(coordinator: StoreCoordinator, operation: str, key: str, value: bytes = b"") -> tuple[str, bytes | None]:
    queue = coordinator.queue
    queue.requests.put((7, operation, key, value))  # type: ignore[attr-defined]
    number, status, answer = queue.replies.get(timeout=30)  # type: ignore[attr-defined]
    assert number == 7
    return status, answer


def test_requests_are_served(store: dist.TCPStore) -> None:
    coordinator = StoreCoordinator(dist.PrefixStore("job", store))
    try:
        assert ask(coordinator, "get", "k") == ("absent", None)
        assert ask(coordinator, "check", "k") == ("absent", None)
        assert ask(coordinator, "delete", "k") == ("ok", None)
        assert ask(coordinator, "set", "k", b"\x00\xff") == ("ok", None)
        assert ask(coordinator, "get", "k") == ("ok", b"\x00\xff")
        assert ask(coordinator, "check", "k") == ("ok", None)
        assert dist.PrefixStore("job", store).get("k") == b"\x00\xff"
        assert ask(coordinator, "set", "k", b"") == ("ok", None)
        assert ask(coordinator, "get", "k") == ("ok", b"")
        assert ask(coordinator, "delete", "k") == ("ok", None)
        assert ask(coordinator, "get", "k") == ("absent", None)
    finally:
        coordinator.close()
    assert "lamina-store" not in [thread.name for thread in threading.enumerate()]


def test_a_failing_store_is_an_answer(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("connection reset")

    monkeypatch.setattr(store_coordinator, "own_client", lambda store: Broken())
    coordinator = StoreCoordinator(store)
    try:
        assert ask(coordinator, "get", "k") == ("unavailable", b"RuntimeError: connection reset")
    finally:
        coordinator.close()


def test_a_waiting_trainer_does_not_hold_up_the_coordinator(store: dist.TCPStore) -> None:
    coordinator = StoreCoordinator(store)
    waiting = threading.Thread(target=lambda: store.get("later"))
    waiting.start()
    try:
        assert ask(coordinator, "set", "now", b"x") == ("ok", None)
        assert ask(coordinator, "get", "now") == ("ok", b"x")
        assert ask(coordinator, "set", "later", b"x") == ("ok", None)
    finally:
        coordinator.close()
        waiting.join()


def test_the_trainers_client_keeps_its_timeout(store: dist.TCPStore) -> None:
    store.set_timeout(datetime.timedelta(seconds=77))
    client = own_client(store)
    assert client is not store
    assert store.timeout == datetime.timedelta(seconds=77)
    assert client.timeout < store.timeout


def test_a_store_that_cannot_be_cloned_is_connected_anew(store: dist.TCPStore) -> None:
    nested = dist.PrefixStore("b", dist.PrefixStore("a", store))
    client = store_coordinator._connected_anew(nested)
    client.set("k", b"v")
    assert store_coordinator._connected_anew(store).get("k") == b"v"


def test_the_given_store_is_only_cloned() -> None:
    """By structure: the thread gets the client alone, and no name of the given store reaches a call but `own_client`'s."""
    tree = ast.parse(inspect.getsource(StoreCoordinator))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "store" and isinstance(node.ctx, ast.Load)]
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "own_client"]
    assert [ast.dump(use) for use in uses] == [ast.dump(argument) for argument in call.args]


def test_one_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = Ranks()
    assert (ranks.rank, ranks.count, ranks.gather(b"x")) == (0, 1, [b"x"])
    assert len(ranks.nonce()) == 32
    assert ranks.nonce() != ranks.nonce()
