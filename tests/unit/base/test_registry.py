"""Modules are found by the folder they lie in."""

from __future__ import annotations

import importlib
import pathlib

from meshwright.base import registry

SOURCE = pathlib.Path(registry.__file__).parents[1]


def test_what_is_to_be_compiled_is_found_in_every_package_that_says_so() -> None:
    found = registry.beside("precompile")
    assert list(found) == sorted(path.parent.name for path in SOURCE.rglob("precompile.py"))
    for package, path in found.items():
        assert path.split(".")[-2] == package
        assert callable(importlib.import_module(path).run)


def test_nothing_is_found_where_no_package_has_such_a_module() -> None:
    assert registry.beside("no_such_module") == {}
