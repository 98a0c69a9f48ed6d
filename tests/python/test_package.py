"""What the package shows of itself: names, version, and stubs that say what the extension module has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import TypeAlias

import lamina
from lamina import _core

Surface: TypeAlias = "dict[str, Surface | list[str]]"
ROOT = Path(__file__).parents[2]


def test_lazy_names_are_shown() -> None:
    assert set(lamina.__all__) <= set(dir(lamina))
    for name in lamina.__all__:
        assert getattr(lamina, name) is not None


def test_one_version() -> None:
    project = re.search(r"project\(Lamina VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert project is not None
    assert project[1] == lamina.__version__


def test_what_needs_pytorch_says_so() -> None:
    program = "import sys; sys.modules['torch'] = None; import lamina; lamina.Checkpointer"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "lamina.Checkpointer needs PyTorch" in ended.stderr


def test_stubs_are_complete() -> None:
    assert stubbed(ast.parse((ROOT / "python" / "lamina" / "_core.pyi").read_text()).body) == bound(_core)


def stubbed(body: list[ast.stmt]) -> Surface:
    """What a stub shows: the arguments of functions, the members of classes (and of submodules, which it shows as classes)."""
    found: Surface = {}
    for each in body:
        if isinstance(each, ast.ClassDef):
            found[each.name] = stubbed(each.body)
        elif isinstance(each, ast.FunctionDef):
            is_property = any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in each.decorator_list)
            found[each.name] = [] if is_property else [argument.arg for argument in each.args.args]
    return found


def bound(home: object) -> Surface:
    """The same of what pybind11 has bound, which keeps arguments in the first line of the docstring alone."""
    found: Surface = {}
    for name, member in vars(home).items():
        if isinstance(member, (type, types.ModuleType)):
            found[name] = bound(member)
        elif isinstance(member, property):
            found[name] = []
        elif (name == "__init__" or name[0] != "_") and (text := member.__doc__ or "").startswith(f"{name}("):
            while text != (text := re.sub(r"\[[^\[\]]*\]", "", text)):  # types hold commas too
                pass
            found[name] = re.findall(r"(\w+):", text.splitlines()[0])
    return found
