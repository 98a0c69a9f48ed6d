"""At a limit of threads a call raises what says so, the process lives, and with threads to spare the next call works."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("thread_limit_job.py")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can go on as a user that has no other processes")
def test_a_thread_limit_is_an_error_that_says_so() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2] / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shutil.rmtree(found["folder"])
    told = found["told"]
    for case, end in told.items():
        for raised in end["raised"]:
            assert raised.startswith("True "), f"{case}: {raised}"
            assert "pids.max" in raised, f"{case}: {raised}"
        if case.startswith("work"):
            assert end["newest"] == 2, f"{case}: {end}"
    assert told["making 0"]["raised"]
    assert told["work 0"]["raised"]
    assert not told["making 15"]["raised"]
    assert not told["work 15"]["raised"]
