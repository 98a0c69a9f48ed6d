"""A job like `launch.Job`, whose processes are forks of one that has imported PyTorch: for each rank an import would cost seconds.

Its launcher holds the store, as torchrun's agent does, and kills the other ranks when one fails. Torchrun itself starts the jobs of
on_ranks.py, and those of the demo.
"""

import contextlib
import multiprocessing.process
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from on_ranks import forkserver

from launch import Job


class _Process:
    """What of a subprocess.Popen a Job uses."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        process.start()
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()


class ForkedJob(Job):
    """One launch of `script`, run as a program on each rank."""

    def __init__(self, ranks: int, script: Path, arguments: list[str], report: Path) -> None:
        self.report, self.log = report, report.with_suffix(".log")
        arguments = [str(script), *arguments]
        self.process = _Process(  # type: ignore[assignment]
            forkserver().Process(target=_launch, args=(ranks, arguments, self.log, dict(os.environ)), daemon=True)
        )


def _launch(count: int, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("w") as file, open(os.devnull) as nothing:
        for stream, number in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(stream.fileno(), number)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    ranks = [_fork(rank, count, port, arguments) for rank in range(count)]
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    failed = False
    while ranks:
        rank, status = os.wait()
        ranks.remove(rank)
        if status != 0 and not failed:
            failed = True
            for other in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGTERM)
    del store
    sys.exit(failed)


def _fork(rank: int, count: int, port: int, arguments: list[str]) -> int:
    """The process id of a rank; it never returns in the rank itself."""
    if process := os.fork():
        return process
    code = 1
    try:
        os.setsid()
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(count),
            LOCAL_WORLD_SIZE=str(count),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RESTART_COUNT="0",
        )
        torch.set_num_threads(1)
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
