"""lamina.store and lamina.cli: what is stored, without torch.distributed and even without PyTorch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_core
import numpy as np
import pytest
import torch

import lamina
from lamina import _core, cli
from lamina.errors import NotFoundError
from lamina.state import Entry, tensor_args
from lamina.store import EntryInfo, _numpy_array, entry_bytes
from lamina.tensors import DTYPES, dtype_named


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_core.install(monkeypatch)
    with lamina.Checkpointer(tmp_path) as ckpt:
        for step in (1, 2):
            shared = torch.arange(6.0).reshape(2, 3) * step
            ckpt.save(step, {"w": shared, "tied": shared, "b": torch.ones(3, dtype=torch.bfloat16), "s": torch.tensor(step)})
    return tmp_path


def test_tensors_are_loaded_by_name(root: Path) -> None:
    store = lamina.open(root)
    assert (store.latest(), [step["step"] for step in store.steps()]) == (2, [2, 1])
    assert [entry.name for entry in store.entries()] == ["b", "s", "tied", "w"]
    assert store.entries()[3] == EntryInfo("w", "float32", (2, 3), "tied")
    found = store.load()
    assert torch.equal(found["w"], torch.arange(6.0).reshape(2, 3) * 2)
    assert (found["b"].dtype, found["s"].item()) == (torch.bfloat16, 2)
    assert store.load(1, names=["s"])["s"].item() == 1
    with pytest.raises(NotFoundError, match="no entry 'tide'; did you mean 'tied'"):
        store.load(names=["tide"])
    assert store.stat() == {"step": 2, "entry_count": 3, "bytes": 38, "bytes_by_dtype": {"bfloat16": 6, "int64": 8, "float32": 24}}


def test_without_pytorch_there_is_numpy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    store = lamina.open(root)
    found = store.load(names=["w"])["w"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [[0, 2, 4], [6, 8, 10]]
    raw = store.load(names=["b"])["b"]
    assert isinstance(raw, lamina.RawArray)
    assert (raw.dtype_name, raw.dtype, raw[1:].dtype_name) == ("bfloat16", np.uint16, "bfloat16")
    assert raw.tolist() == [0x3F80] * 3  # ones


def test_every_dtype_has_an_array() -> None:
    for name in DTYPES:
        found = _numpy_array(bytearray(64), EntryInfo("x", name, (64 // dtype_named(name).itemsize,)))
        assert found.nbytes == 64
        assert isinstance(found, lamina.RawArray) == (not hasattr(np, name.replace("bool", "bool_")))


def test_package_does_not_import_pytorch() -> None:
    program = (
        "import sys, types; sys.modules['lamina._core'] = types.ModuleType('lamina._core'); import lamina, lamina.cli; lamina.open; "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'torch']"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


def test_sizes_of_all_dtypes() -> None:
    for name in DTYPES:
        assert entry_bytes(EntryInfo("x", name, (3,))) == 3 * torch.empty(0, dtype=dtype_named(name)).element_size()


FORKS = """
import os, sys
import lamina
store = lamina.open(sys.argv[1])
reading = store.reading(1)
opened = reading.__enter__()
child = os.fork()
if child:
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), opened.step, store.verify()["ok"])
else:
    for call in (store.latest, store.verify, opened.blobs, lambda: opened.read("w")):
        try:
            call()
            os._exit(9)
        except lamina.StateError:
            pass
    assert lamina.open(sys.argv[1]).latest() == 1
"""


def test_a_forked_child_uses_no_store_of_its_parent_and_ends(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(1, {"w": torch.ones(9)}).wait()
    done = subprocess.run([sys.executable, "-c", FORKS, root], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "child 0 1 True\n"), done.stderr


def test_empty_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_core.install(monkeypatch)
    store = lamina.open(tmp_path)
    assert store.latest() is None
    with pytest.raises(NotFoundError, match="holds no step"):
        store.load()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, Any]:
    code = cli.main(arguments)
    out = capsys.readouterr()
    return code, out.out + out.err, json.loads(out.out) if "--json" in arguments else None


def test_ls(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "ls", str(root))
    assert code == 0
    assert text.splitlines() == [
        "step\tcommitted\tstate\tstored\tplace",
        "2\t2001-09-09 01:46:40Z\t2.5 MB\t999 B\thead",
        "1\t2001-09-09 01:46:40Z\t2.5 MB\t999 B\tline",
    ]
    code, _, found = run(capsys, "ls", str(root), "--json")
    assert [step["step"] for step in found["steps"]] == [2, 1]


def test_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "show", f"{root}@1")
    assert code == 0
    assert "w\tfloat32\t2×3\t24 B\ttied" in text
    assert "step 1: 3 tensors, 38 B" in text
    _, _, found = run(capsys, "show", str(root), "--json")
    assert found["entries"][0] == {"name": "b", "dtype": "bfloat16", "shape": [3], "alias_of": ""}


@pytest.mark.damages_roots
def test_names_that_a_terminal_would_obey_are_printed_as_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, shown = "red\x1b[31m\tand\nnext \x9b2J\u202e", r"red\x1b[31m\tand\nnext \x9b2J\u202e"
    for root, tensors in (("one", {name: torch.ones(1)}), ("other", {"plain": torch.ones(1)})):
        engine = _core.Engine({"root": str(tmp_path / root)}, None)
        args, alive = tensor_args({each: Entry(tensor) for each, tensor in tensors.items()})
        engine.save(1, args, {}, []).wait(None)
        engine.close(None)
        del alive
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    assert run(capsys, "show", one)[1].splitlines()[1] == f"{shown}\tfloat32\t1\t4 B\t"
    assert f"- {shown}\n" in run(capsys, "diff", one, other)[1]
    for pack in (tmp_path / "one/steps").rglob("*.pack"):
        os.truncate(pack, pack.stat().st_size - 1)
    text = run(capsys, "verify", one)[1]
    assert not {"\x1b", "\x9b", "\u202e"} & set(text), text
    assert cli._printable(name) == shown


def test_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "verify", str(root))[:2] == (0, "2 steps checked: fine\n")
    fake_core.RestoreSession.damaged = {1}
    code, text, _ = run(capsys, "verify", str(root))
    assert (code, text) == (1, "00000.pack: w: checksum wrong\n2 steps checked: 1 problems\n")
    assert run(capsys, "verify", f"{root}@2")[0] == 0
    code, _, found = run(capsys, "verify", f"{root}@1", "--json")
    assert (code, found["ok"], found["problems"][0]["entry"]) == (1, False, "w")


def test_verify_looks_a_few_times_however_many_the_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[list[int]] = []

    class Many:
        def __init__(self, _: str) -> None:
            pass

        def steps(self) -> list[dict[str, Any]]:
            return [{"step": step} for step in range(12_000)]

        def verify(self, steps: list[int] | None, full: bool) -> dict[str, Any]:
            looks.append(steps or [])
            return {"ok": False, "problems": [{"file": f"f{step}", "entry": "", "message": "bad"} for step in steps or [1]]}

    monkeypatch.setattr("lamina.cli.Store", Many)
    code, _, found = run(capsys, "verify", "root", "--json")
    assert [step for look in looks for step in look] == found["steps"] == list(range(12_000))
    assert len(looks) < 100
    assert (code, found["ok"]) == (1, False)
    assert [problem["file"] for problem in found["problems"]] == [f"f{step}" for step in range(10_000)]


@pytest.mark.parametrize("arguments", [[], ["ls"], ["nothing", "x"], ["show", "x", "--what"]])
def test_wrong_use_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(capsys, *arguments)[0] == 2


def test_no_step_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_core.install(monkeypatch)
    code, text, _ = run(capsys, "show", str(tmp_path))
    assert code == 2
    assert "holds no step" in text


def test_help_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "--help")
    assert code == 0
    assert "verify" in text


def test_a_load_without_memory_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with lamina.Checkpointer(root) as ckpt:
        ckpt.save(1, {"w": torch.zeros(256 << 20, dtype=torch.uint8)}).wait()
    script = (
        "import resource, sys, lamina\n"
        "store = lamina.open(sys.argv[1])\n"
        "store.entries(1)\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (160 << 20),) * 2)\n"
        "try:\n"
        "    store.load(1)\n"
        "except MemoryError:\n"
        "    print('told')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr
