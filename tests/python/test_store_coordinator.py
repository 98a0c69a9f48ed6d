"""lamina.store_coordinator and lamina.ranks: a client of one's own, calls that do not wait, and byte tensors among real ranks."""

import ast
import datetime
import inspect
import threading
from pathlib import Path

import fake_core
import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks

import lamina
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


def test_a_waiting_coordinator_does_not_hold_up_the_trainer(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one connection the trainer's set would stand behind the wait that only it can end."""
    monkeypatch.setattr(store_coordinator, "_call", lambda client, operation, key, value: (client.wait([key]), ("ok", client.get(key)))[1])
    coordinator = StoreCoordinator(store)
    coordinator.queue.requests.put((7, "get", "later", b""))  # type: ignore[attr-defined]
    try:
        store.set("later", b"x")
        assert coordinator.queue.replies.get(timeout=30) == (7, "ok", b"x")  # type: ignore[attr-defined]
    finally:
        coordinator.close()


def test_no_call_of_the_client_waits() -> None:
    """By structure: of the client's calls only `get` could, and an absent key is told above to be absent at once."""
    tree = ast.parse(inspect.getsource(store_coordinator._call))
    calls = [node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    assert sorted(calls) == ["check", "delete_key", "get", "set"]


def save_while_a_rank_is_missing(root: str) -> str:
    state, handle = {"w": torch.ones(4)}, None
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(1, state).wait()  # the first one, in which the ranks meet
        if dist.get_rank() == 0:
            handle = ckpt.save(2, state)
        group = dist.new_group([0, 1])  # through the store
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        assert total.item() == 2
        assert handle is None or not handle.done()  # it waits for the other rank, which comes only after all of this
        dist.barrier()
        handle = handle or ckpt.save(2, state)
        return handle.wait().outcome


def test_collectives_go_on_while_a_save_waits_for_a_rank(tmp_path: Path) -> None:
    assert on_ranks(2, save_while_a_rank_is_missing, str(tmp_path / "root")) == ["committed"] * 2


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
