"""The names of the package itself: what a user's script finds after ``import meshwright``."""

from __future__ import annotations

import importlib
from types import FunctionType

import pytest

import meshwright


@pytest.mark.parametrize("name", ["plan", "codesign", "read", "simulate", "validate", "pose"])
def test_a_call_of_the_package_stays_a_call_whatever_was_imported_before(name: str) -> None:
    for module in ("api", "plan", "codesign", "validation"):
        importlib.import_module(f"meshwright.{module}")
    # asked for twice: the first answer imports more modules
    assert isinstance(getattr(meshwright, name), FunctionType)
    assert isinstance(getattr(meshwright, name), FunctionType)


def test_modules_of_the_same_name_are_still_imported_by_their_full_name() -> None:
    module = importlib.import_module("meshwright.plan")
    assert module.Plan is meshwright.Plan
    assert meshwright.plan is not module


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plna'"):
        _ = meshwright.plna
