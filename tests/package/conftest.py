"""Roots that C++ programs write are read twice too."""

from every_root import every_root  # noqa: F401
