"""Include lines against the table of layers in docs/architecture.md: a folder includes only what stands below it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each layer and the layers that it names; what those may include comes with them.
ARROWS: dict[str, set[str]] = {
    "base": set(),
    "env": {"base"},
    "device": {"env"},
    "coord": {"env"},
    "codec": {"base"},
    "shard": {"base"},
    "format": {"codec", "shard"},
    "io": {"env", "device"},
    "plan": {"format", "shard"},
    "tier": {"io", "format"},
    "snapshot": {"device", "format", "shard"},
    "hooks": {"env", "shard"},
    "engine": {"codec", "coord", "device", "env", "format", "hooks", "io", "plan", "shard", "snapshot", "tier"},
    "observe": {"hooks", "env"},
    "stability": {"hooks", "env"},
    "cli": {"engine"},
    "cuda": {"device", "codec"},
    "bindings": {"engine"},
}
OUTER = {"cli", "bindings"}  # beside the engine itself, those who may see it
PYTHON_OR_TORCH = re.compile(r"(Python\.h|pybind11/|torch/|ATen/|c10/)")
GPU = re.compile(r"(cuda|nccl|nvtx|nvToolsExt|cub/|thrust/)")
# A plain <mutex> is left out: one that is never held across a call of Env is no place to wait.
WAITS = {"<thread>", "<condition_variable>", "<future>", "<semaphore>", "<latch>", "<barrier>", "<pthread.h>"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<][^">]+[">])')


def allowed(layer: str) -> set[str]:
    """The layer itself, those it names, and all that they may include."""
    below = {layer}
    for other in ARROWS[layer]:
        below |= allowed(other)
    return below


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return {"src": parts[1], "include": "include", "cuda": "cuda", "python": "bindings"}[parts[0]]


def sources() -> Iterator[Path]:
    for folder in ("src", "include", "cuda", "python/bindings"):
        for pattern in ("*.h", "*.cc", "*.cu"):
            yield from sorted((ROOT / folder).rglob(pattern))


def problem(layer: str, path: Path, include: str) -> str:
    """What is wrong with this include line, or an empty text."""
    name, knows_torch = include[1:-1], layer == "bindings" or path.name == "torch.h"
    if PYTHON_OR_TORCH.match(name):
        return "" if knows_torch else "only the bindings and lamina/torch.h know Python or libtorch"
    if GPU.match(name) and include[0] == "<":
        return "" if layer == "cuda" else "only cuda/ knows the GPU's libraries"
    if include in WAITS:
        return "" if layer in {"env", "bindings"} else "what waits or runs at the same time goes through env"
    if name in {"lamina/engine.h", "lamina/save_handle.h"}:
        return "" if layer in OUTER | {"engine", "include"} else "for the engine and what stands above it"
    if name == "lamina/torch.h":
        return "" if layer == "bindings" else "for bindings, examples and tests"
    target = name.split("/")[0]
    if include[0] == '"' and target in ARROWS:
        if layer == "include":
            return "an installed header includes installed headers only"
        return "" if target in allowed(layer) else f"{layer} may include {', '.join(sorted(allowed(layer)))}"
    return ""


def test_every_folder_of_src_has_a_row_in_the_table() -> None:
    folders = {path.name for path in (ROOT / "src").iterdir() if path.is_dir() and any(path.iterdir())}
    assert folders <= ARROWS.keys()


def test_include_lines_point_downwards() -> None:
    found, count = [], 0
    for path in sources():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                count += 1
                why = problem(layer_of(path), path, match[1])
                if why:
                    found.append(f"{path.relative_to(ROOT)}:{number}: {match[1]}: {why}")
    assert count > 0
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("layer", "include"),
    [
        ("base", '"env/env.h"'),
        ("format", '"io/io_queue.h"'),
        ("plan", '"tier/tier.h"'),
        ("tier", '"lamina/engine.h"'),
        ("observe", '"engine/engine.h"'),
        ("engine", "<Python.h>"),
        ("engine", "<torch/torch.h>"),
        ("device", "<cuda_runtime.h>"),
        ("io", "<thread>"),
        ("include", '"engine/engine.h"'),
    ],
)
def test_a_line_that_points_upwards_is_found(layer: str, include: str) -> None:
    assert problem(layer, ROOT / "src" / layer / "any.h", include)


@pytest.mark.parametrize(
    ("layer", "include"), [("tier", '"env/env.h"'), ("engine", '"plan/save_plan.h"'), ("bindings", "<pybind11/pybind11.h>")]
)
def test_a_line_that_points_downwards_passes(layer: str, include: str) -> None:
    assert not problem(layer, ROOT / "src" / layer / "any.h", include)
