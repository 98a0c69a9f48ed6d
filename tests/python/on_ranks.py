"""Runs a function on the ranks of a real job: torchrun's own agent, whose workers are forked from a process that has imported PyTorch.

A rank so costs a tenth of a second instead of an import, and each job still has new processes.
"""

import datetime
import multiprocessing.context
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_PRELOADED = ["__main__", "pytest", "torch._dynamo", "torch.distributed.tensor.parallel", "torch.distributed.fsdp", "lamina.checkpointer"]


def forkserver() -> multiprocessing.context.ForkServerContext:
    """One for all jobs of the tests: its processes begin with all imported that is listed above."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _work(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=90))
    try:
        result = function(*arguments)
    except pytest.fail.Exception as failure:  # what torchrun would not take for an exception
        raise AssertionError(str(failure)) from failure
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def on_ranks(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)`, a function of a module, returned on each rank. With more than one rank there is a gloo group.

    Raises:
        AssertionError: it raised; with the traceback of the first rank where it did.
    """
    forkserver()
    with tempfile.TemporaryDirectory() as folder:
        return _run(count, function, arguments, folder)


def _run(count: int, function: Callable[..., Any], arguments: tuple[Any, ...], folder: str) -> list[Any]:
    """The same, with what the agent writes in `folder`."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="none",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.02,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    try:
        results = elastic_launch(config, _work)(function, arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        told = failure.message if isinstance(failure.message, str) else failure.message["extraInfo"]["py_callstack"]
        raise AssertionError(f"rank {rank}: {told}") from None
    return [results[rank] for rank in range(count)]
