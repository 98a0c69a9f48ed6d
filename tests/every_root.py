"""Reads each root that a test has written twice, by Lamina and by the independent reader, and compares."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from independent_reader import values
from independent_reader.reader import Contents, Root

import lamina


@pytest.fixture(autouse=True)
def every_root(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test the independent reader reads every root that it has written, and Lamina reads the same."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None and request.node.get_closest_marker("damages_roots") is None:
        for root in roots_under(folder):
            compare(root)


def roots_under(folder: Path) -> list[Path]:
    """Directories that hold a file LAMINA."""
    return [Path(path) for path, _, files in os.walk(folder) if "LAMINA" in files]


def compare(path: Path) -> None:
    """Both readers list the same steps and find the same bits in them."""
    root, store = Root(path), lamina.open(path)
    line = {int(step["commit"]): int(step["attempt"]["step"]) for step in root.line()}
    assert [step["step"] for step in store.steps()] == list(line.values())
    for step, contents in root.check():
        if any(name == b"tree" for name, _ in contents.blobs):  # else the blobs are the trainer's own bytes
            for (name, _), blob in contents.blobs.items():
                values.decode(name.decode(), blob)
        if int(step["commit"]) in line:
            _compare_step(store, line[int(step["commit"])], contents)


def _compare_step(store: lamina.Store, step: int, contents: Contents) -> None:
    listed = {
        entry.name.encode("utf-8", "surrogateescape"): (
            entry.dtype,
            tuple(entry.shape),
            (entry.alias_of or "").encode("utf-8", "surrogateescape"),
        )
        for entry in store.entries(step)
    }
    assert listed == {name: (tensor.dtype, tensor.shape, tensor.alias_of) for name, tensor in contents.tensors.items()}
    for name, tensor in store.load(step).items():
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == contents.tensors[name.encode("utf-8", "surrogateescape")].data, (
            name
        )
