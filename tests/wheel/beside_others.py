"""A save and a restore beside modules that bring an abseil of their own: FOLDER, and the modules in the order of their import."""

import importlib
import sys

modules = {name: importlib.import_module(name) for name in sys.argv[2:]}
import torch  # noqa: E402  # after those whose order is tried

import lamina  # noqa: E402
from lamina import _core  # noqa: E402


def check_others() -> None:
    """That the others still work: a call over a socket, an array through a file format."""
    from concurrent import futures

    import grpc
    import pyarrow as pa
    import pyarrow.parquet as pq

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary("/none/none")(b"", timeout=30)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED  # noqa: PT017
    server.stop(None)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": list(range(1000))}), sink)
    assert pq.read_table(pa.BufferReader(sink.getvalue()))["x"].to_pylist() == list(range(1000))


def refused(how: object) -> None:
    """That what the module throws ends as an exception, whoever else's C++ runtime is here."""
    try:
        how()  # type: ignore[operator]
    except (lamina.Error, TypeError, RuntimeError):
        return
    raise AssertionError("not refused")


state = {"w": torch.arange(1_000_000.0), "epoch": 3}
with lamina.Checkpointer(sys.argv[1]) as ckpt:
    ckpt.save(1, state).wait()
    check_others()
    state["w"].zero_()
    assert ckpt.restore(state).step == 1
    refused(lambda: ckpt.restore(state, step=9))
    refused(lambda: ckpt.restore({"other": torch.ones(3)}))
refused(lambda: _core.boxes_of([4], [2], [0], [("shard", "one", 1)]))
refused(lambda: _core.boxes_of([4], [2], [5], [("shard", 0, 1)]))
refused(lambda: _core.Store(3))
assert torch.equal(state["w"], torch.arange(1_000_000.0))
print("imported in this order: " + ", ".join(modules))
