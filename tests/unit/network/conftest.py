"""Shared helpers of the network tests."""

from __future__ import annotations

import importlib.util
import pathlib
from types import ModuleType

import pytest


def _oracle(name: str) -> ModuleType:
    path = pathlib.Path(__file__).resolve().parents[2] / "oracle" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"oracle_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def routes_oracle() -> ModuleType:
    """The slow twin of routes."""
    return _oracle("routes")
