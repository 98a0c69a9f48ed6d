"""FC-17: memory, threads and descriptors stay as they are, however many saves there were."""

import os
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).parent / "many_saves_job.py"


def test_fc17_memory_that_only_grows(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(JOB), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(scratch.iterdir()) == []
    assert not [name for name in os.listdir("/dev/shm") if "lamina" in name]
