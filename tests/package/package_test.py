"""The C++ package as its users have it: installed and found by CMake, examples built, killed and resumed, roots exchanged with Python."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina

SOURCE = Path(__file__).parents[2]
BUILD = SOURCE / "build" / "release"
PACKAGE = SOURCE / "build" / "package"  # stays, so that the next run compiles only what has changed
TIMEOUT_S = 300
JOB = "package"  # one run id, so that nobody waits for the lease of this process


def run(*command: object, **more: Any) -> str:
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, **more
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.fixture(scope="session")
def prefix() -> Path:
    assert (BUILD / "build.ninja").exists(), "./dev setup builds what is installed here"
    found = PACKAGE / "prefix"
    shutil.rmtree(found, ignore_errors=True)
    run("cmake", "--build", BUILD, "--target", "lamina")
    run("cmake", "--install", BUILD, "--prefix", found, "--component", "cpp")
    return found


@pytest.fixture(scope="session")
def build(prefix: Path) -> Callable[[Path], Path]:
    def build_project(source: Path) -> Path:
        found = PACKAGE / source.name
        paths = f"-DCMAKE_PREFIX_PATH={prefix};{torch.utils.cmake_prefix_path}"
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        run("cmake", "-S", source, "-B", found, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", paths, *launcher)
        run("cmake", "--build", found)
        return found

    return build_project


@pytest.fixture(scope="session")
def examples(build: Callable[[Path], Path]) -> Path:
    return build(SOURCE / "examples")


@pytest.fixture(scope="session")
def check(build: Callable[[Path], Path]) -> Path:
    return build(SOURCE / "tests" / "package") / "check"


def test_installed_headers_stand_alone_and_need_only_the_standard_library_and_status(prefix: Path) -> None:
    headers = sorted((prefix / "include" / "lamina").glob("*.h"))
    assert {"engine.h", "options.h", "tensor_view.h", "save_handle.h", "hooks.h", "events.h", "torch.h"} <= {path.name for path in headers}
    for path in headers:
        if path.name == "torch.h":  # check.cc includes it first
            continue
        for include in re.findall(r"#include (.+)", path.read_text()):
            assert re.match(r'<[a-z_0-9]+>|"lamina/[a-z_]+\.h"|"absl/status/status(or)?\.h"', include), f"{path.name}: {include}"
        alone = f'#include "lamina/{path.name}"\n'
        warnings = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
        run("c++", "-std=c++20", *warnings, "-fsyntax-only", "-x", "c++", "-I", prefix / "include", "-", input=alone)


def test_nothing_of_python_is_installed_with_it(prefix: Path) -> None:
    assert sorted(path.name for path in prefix.iterdir()) == ["include", "lib"]
    assert not [path for path in prefix.rglob("*") if path.is_file() and path.suffix not in (".h", ".a", ".cmake")]


def killed_after(line: str, *command: object) -> None:
    """Runs a trainer that would go on for ever, and kills it soon after it has printed `line`."""
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        try:
            assert any(each.startswith(line) for each in trainer.stdout)
        finally:
            trainer.kill()


@pytest.mark.parametrize("name", ["minimal", "libtorch_trainer"])
def test_a_killed_example_goes_on_with_the_same_numbers(examples: Path, name: str, tmp_path: Path) -> None:
    program, root = examples / name, tmp_path / "killed"
    killed_after("step 3 is saved", program, root, 10**9)
    begins = int(re.search(r"begins at step (\d+)", run(program, root, 0))[1])  # type: ignore[index]
    assert begins >= 4
    resumed = run(program, root, begins + 3).splitlines()
    straight = run(program, tmp_path / "straight", begins + 3).splitlines()
    assert resumed[0] == f"begins at step {begins}"
    assert straight[0] == "begins at step 0"
    assert resumed[-1] == straight[-1]
    assert resumed[-1].startswith(f"after {begins + 3} steps: ")


def test_ranks_meet_in_a_directory_and_one_rank_goes_on(examples: Path, tmp_path: Path) -> None:
    program, root = examples / "minimal", tmp_path / "root"
    environment = {**os.environ, "LAMINA_RANK_COUNT": "2", "LAMINA_COORDINATION_DIR": str(tmp_path / "meeting")}
    ranks = [
        subprocess.Popen([program, root, "4"], env={**environment, "LAMINA_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    last = {rank.communicate(timeout=TIMEOUT_S)[0].splitlines()[-1] for rank in ranks}
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert last == {run(program, root, 4).splitlines()[-1]}
    assert not list((tmp_path / "meeting").iterdir())


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_views_of_libtorch_tensors(check: Path) -> None:
    pairs = [line.split()[1:] for line in run(check, "views").splitlines() if line.startswith("dtype ")]
    taken = {name: libtorch for libtorch, name in pairs if name != "-"}
    assert len(taken) == 22
    for name, libtorch in taken.items():
        assert torch.empty(0, dtype=getattr(torch, name)).type() == f"torch.{libtorch}Tensor"


def test_python_reads_what_c_plus_plus_saved(check: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    run(check, "save", root)
    matrix = torch.arange(12.0).reshape(4, 3)
    store = lamina.open(root)
    assert {entry.name: entry.alias_of for entry in store.entries()}["tied"] == "matrix"
    assert torch.equal(store.load()["matrix"], matrix)
    assert store.verify()["ok"]

    shared = torch.zeros(4, 3)
    state: dict[str, Any] = {
        "matrix": shared,
        "tied": shared,
        "layers": [{"flags": torch.zeros(3, dtype=torch.bool)}, {"bias": torch.zeros(2, dtype=torch.bfloat16)}],
    }
    with lamina.Checkpointer(root, mode="read") as ckpt:
        with pytest.raises(lamina.MismatchError, match=r"unexpected in the checkpoint: layers\[1\]\.bias"):
            ckpt.restore({**state, "layers": [state["layers"][0], {}]})
        info = ckpt.restore(state)
    assert (info.step, info.next_step, info.metadata) == (3, 4, None)
    assert info.source_topology == {"dp": 1}
    assert torch.equal(shared, matrix)
    assert state["layers"][0]["flags"].tolist() == [True, False, True]
    assert state["layers"][1]["bias"].tolist() == [1.5, -2.0]


def test_c_plus_plus_restores_what_python_saved(check: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_RUN_ID", JOB)
    w = torch.arange(6.0).reshape(2, 3)
    with lamina.Checkpointer(tmp_path / "root", run_id=JOB) as ckpt:
        ckpt.save(5, {"w": w, "again": {"w": w}, "more": {"n": torch.tensor(7), "text": "hello"}}).wait()
    run(check, "restore", tmp_path / "root")


def test_python_takes_a_libtorch_trainer_over_and_hands_it_back(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_RUN_ID", JOB)
    program, root = examples / "libtorch_trainer", tmp_path / "root"
    run(program, root, 4)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    state = {"model": model, "optim": adam, "rng": torch.zeros_like(torch.get_rng_state())}
    with lamina.Checkpointer(root, run_id=JOB) as ckpt:
        assert ckpt.restore(state).next_step == 4
        assert all(slots["step"] == 4 for slots in adam.state.values())
        ckpt.save(3, state).wait()  # in place of what C++ saved: with plain values beside the tensors
    digest = run(program, root, 6).splitlines()[-1]
    assert digest == run(program, tmp_path / "straight", 6).splitlines()[-1]
