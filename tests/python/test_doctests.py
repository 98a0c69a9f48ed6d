"""The examples in docstrings run and say what they claim."""

import doctest
import importlib
import pkgutil

import lamina


def test_every_example_in_a_docstring_holds() -> None:
    names = [module.name for module in pkgutil.iter_modules(lamina.__path__, "lamina.") if not module.name.startswith("lamina._")]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert not [name for name, result in results.items() if result.failed]
    assert sum(result.attempted for result in results.values()) > 0
