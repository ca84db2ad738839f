"""Kernels as plain Python, so that their parts can be called one by one."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from numba import config

OWN = ("meshwright._kernels", "meshwright.solvers")


@pytest.fixture(scope="session")
def plain() -> Callable[[str], ModuleType]:
    """Return a function that gives a module of kernels, or of solvers on them, with nothing compiled."""
    before = {name: module for name, module in sys.modules.items() if name.startswith(OWN)}
    for name in before:
        del sys.modules[name]
    was, config.DISABLE_JIT = config.DISABLE_JIT, 1
    asked = os.environ.get("NUMBA_DISABLE_JIT")
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # which our kernels look at, so that Numba need not be imported
    try:
        for name in ("pipeline.search", "pipeline.layer_split", "pipeline.fill", "pipeline.nodes", "pipeline.filling"):
            importlib.import_module(f"meshwright.solvers.{name}")
        for package in ("pipeline", "dapple"):
            folder = importlib.import_module(f"meshwright._kernels.{package}")
            for file in pkgutil.iter_modules(folder.__path__):
                importlib.import_module(f"{folder.__name__}.{file.name}")
        found = {name: module for name, module in sys.modules.items() if name.startswith(OWN)}
    finally:
        config.DISABLE_JIT = was
        os.environ.pop("NUMBA_DISABLE_JIT")
        if asked is not None:
            os.environ["NUMBA_DISABLE_JIT"] = asked
        for name in [name for name in sys.modules if name.startswith(OWN)]:
            del sys.modules[name]
        sys.modules.update(before)
    return lambda name: found[f"meshwright.{name}"]
