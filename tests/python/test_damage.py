"""Every file of a root, damaged in seven ways: what is read are the exact bits, or an error that names the file; a restart takes the newest
step that proves whole and says why it passed over others; and verify tells of any change.

LAMINA_DAMAGE_TRIALS is how often each file is damaged in each way; 100 take some ten minutes.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina

TRIALS = int(os.environ.get("LAMINA_DAMAGE_TRIALS", "1"))
Files = dict[Path, bytes]
Damage = Callable[[random.Random, Path, bytes, Files], Files]  # chance, the file, its bytes, files to take others from -> changed files


def state(fill: int) -> dict[str, Any]:
    return {"w": torch.arange(40.0) + fill, "b": torch.full((3,), fill, dtype=torch.bfloat16), "n": fill}


def same(found: dict[str, Any], fill: int) -> bool:
    wanted = state(fill)
    return all(torch.equal(found[name], wanted[name]) for name in ("w", "b")) and found.get("n", fill) == fill


LINE = {3: 13, 2: 12, 1: 1}  # step to fill, newest first


def write(root: Path) -> Files:
    """A root whose steps 2 and 3 were saved twice, the first time on a line that was left. Returns its files."""
    for first, fills in ((None, (1, 2, 3)), (1, (12, 13))):
        with lamina.Checkpointer(root, run_id="same") as ckpt:
            ckpt.restore(state(0), step=first)
            for fill in fills:
                ckpt.save(fill % 10, state(fill)).wait()
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files]:
    """The files of a root, and those of another that was made in the same way."""
    folder = tmp_path_factory.mktemp("sound")
    return write(folder / "root"), write(folder / "other")


def kind(path: Path) -> str:
    return path.parts[0] if path.parts[0] == "log" else path.name


def flip(chance: random.Random, path: Path, data: bytes, other: Files) -> Files:
    """One bit."""
    bit = chance.randrange(8 * len(data))
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return {path: bytes(changed)}


def zero(chance: random.Random, path: Path, data: bytes, other: Files) -> Files:
    """A range of bytes is zero."""
    begin, end = sorted((chance.randrange(len(data)), chance.randrange(len(data) + 1)))
    return {path: data[:begin] + bytes(end - begin) + data[end:]}


def cut(chance: random.Random, path: Path, data: bytes, other: Files) -> Files:
    """The end is missing."""
    return {path: data[: chance.randrange(len(data))]}


def extend(chance: random.Random, path: Path, data: bytes, other: Files) -> Files:
    """There is more behind the end."""
    return {path: data + chance.choice((bytes, chance.randbytes))(chance.choice((1, 64, 4096, len(data))))}


def garbage(chance: random.Random, path: Path, data: bytes, other: Files) -> Files:
    """Random bytes of the same length."""
    return {path: chance.randbytes(len(data))}


def swap(chance: random.Random, path: Path, data: bytes, other: Files) -> Files:
    """Exchanged with another file of its kind."""
    alike = [each for each in sorted(other) if kind(each) == kind(path) and each != path and other[each] != data]
    if not alike:
        return {}
    partner = chance.choice(alike)
    return {path: other[partner], partner: data}


def older(chance: random.Random, path: Path, data: bytes, other: Files) -> Files:
    """What stood under this name in another root, or stands in another attempt of the step, or in the record before."""
    versions = [each for each in _versions(path, other) if each != data]
    return {path: chance.choice(versions)} if versions else {}


def _versions(path: Path, files: Files) -> list[bytes]:
    if kind(path) == "log":
        return [files[path], *(files[each] for each in files if kind(each) == "log" and each < path)]
    return [files[each] for each in files if each.name == path.name and each.parts[:-2] == path.parts[:-2]]


def place(root: Path, files: Files) -> None:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def must_name(text: object, changed: Files) -> None:
    """One of the files that were changed."""
    assert any(str(path) in str(text) for path in changed), text


def read(root: Path, changed: Files, caplog: pytest.LogCaptureFixture) -> dict[int, int]:
    """The fills of the steps of the line that can be read, newest first; asserts that all else is said."""
    caplog.clear()
    try:
        store = lamina.open(root)
        listed = [step["step"] for step in store.steps()]
    except lamina.Error as error:
        must_name(error, changed)
        return {}
    if listed != list(LINE):
        must_name(caplog.text, changed)
    found = {}
    for step in listed:
        fills = [LINE[step], step]  # the record before the last may name the line that was left
        try:
            tensors = store.load(step)
            store._core.read_blobs(step)  # a restore needs these too
        except lamina.Error as error:
            must_name(error, changed)
        else:
            (found[step],) = [fill for fill in fills if same(tensors, fill)][:1]
    return found


def check(root: Path, changed: Files, caplog: pytest.LogCaptureFixture) -> None:
    found = read(root, changed, caplog)
    try:
        report = lamina.open(root).verify()
    except lamina.Error as error:
        must_name(error, changed)
    else:
        assert not report["ok"]
        must_name(report["problems"], changed)
    caplog.clear()
    resumed = state(0)
    try:
        with lamina.Checkpointer(root, run_id="same", options={"restore_retry_s": 0.0}) as ckpt:
            info = ckpt.restore(resumed)
    except lamina.Error as error:
        must_name(error, changed)
        assert not found
        return
    assert info.step == next(iter(found))
    assert same(resumed, found[info.step])
    if info.step != next(iter(LINE)):
        must_name(caplog.text, changed)
        must_name(info.passed_over, changed)
    newer = [step for step in LINE if step > info.step]
    assert [step for step, _ in info.passed_over if step >= 0] in ([], newer)  # none where the log itself names an older head


@pytest.mark.damages_roots
@pytest.mark.parametrize("damage", [flip, zero, cut, extend, swap, older, garbage])
def test_damage_is_told_and_never_read(
    damage: Damage, roots: tuple[Files, Files], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, other_root = roots
    assert len(files) >= 20
    tried = 0
    for path in sorted(files):
        for trial in range(TRIALS):
            chance = random.Random(f"{damage.__name__} {path} {trial}")
            of_another_root = damage is older and (path == Path("LAMINA") or chance.random() < 0.5)
            changed = damage(chance, path, files[path], other_root if of_another_root else files)
            if all(files[each] == data for each, data in changed.items()):
                continue
            root = tmp_path / f"{tried}"
            place(root, {**files, **changed})
            check(root, changed, caplog)
            tried += 1
    assert tried >= len(files) // 2
