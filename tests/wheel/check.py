"""The wheel as someone else meets it: what it needs and shows, in a new environment, without PyTorch, with it, and beside others.

python tests/wheel/check.py dist/lamina-*.whl, which is what `./dev wheel --check` does.
"""

import re
import shutil
import subprocess
import sys
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "wheel-check"
PYTHON = FOLDER / "venv" / "bin" / "python"
NEEDED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}

# What README's lines take for given.
BEFORE_README = """
import torch
model = torch.nn.Linear(300, 300)
optim = torch.optim.AdamW(model.parameters())
sched = torch.optim.lr_scheduler.StepLR(optim, 2)
steps = int(__import__("sys").argv[1])
def train(step):
    loss = model(torch.ones(300)).sum()
    loss.backward()
    optim.step()
    optim.zero_grad()
    sched.step()
    return loss
"""
AFTER_README = """
print(f"began at step {info.next_step}, ended at {steps}")
"""


def run(*command: object, **how: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def pip_install(*what: str) -> None:
    run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def check_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"lamina/py.typed", "lamina/_core.pyi"} <= names, names
    (module,) = (name for name in names if name.endswith(".so"))  # nothing bundled
    with zipfile.ZipFile(wheel) as file:
        module_path = Path(file.extract(module, FOLDER))
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", module_path)))
    assert needed <= NEEDED, needed
    shown = run("nm", "--dynamic", "--defined-only", "--format=just-symbols", module_path).split()
    assert shown == ["PyInit__core"], shown
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, needs {', '.join(sorted(needed))}")


def check_without_torch(wheel: Path) -> None:
    pip_install(str(wheel))
    golden = ROOT / "tests" / "golden" / "v0"
    print(run(PYTHON, HERE / "without_torch.py", golden / "one_rank", golden / "expected.json", cwd=FOLDER), end="")
    command = PYTHON.with_name("lamina")
    for arguments in (["ls"], ["show"], ["verify"]):
        assert run(command, *arguments, golden / "line", cwd=FOLDER)


def check_readme() -> None:
    pip_install(f"torch=={version('torch').split('+')[0]}")
    lines = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert lines is not None
    program = BEFORE_README + lines[1].replace("/ckpt/run1", str(FOLDER / "root")) + AFTER_README
    assert run(PYTHON, "-c", program, 3, cwd=FOLDER) == "began at step 0, ended at 3\n"
    assert run(PYTHON, "-c", program, 5, cwd=FOLDER) == "began at step 3, ended at 5\n"
    print("README's lines ran, and went on where they had stopped")


def check_beside_others() -> None:
    pip_install("pyarrow", "grpcio")
    for number, order in enumerate((["lamina._core", "grpc", "pyarrow.parquet"], ["pyarrow.parquet", "grpc", "lamina._core"])):
        print(run(PYTHON, HERE / "beside_others.py", FOLDER / f"beside{number}", *order, cwd=FOLDER), end="")


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    run(sys.executable, "-m", "venv", FOLDER / "venv")
    for check in (lambda: check_contents(wheel), lambda: check_without_torch(wheel), check_readme, check_beside_others):
        began = time.monotonic()
        check()
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
