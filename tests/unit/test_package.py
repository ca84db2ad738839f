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


@pytest.mark.parametrize(("cluster", "precision"), [("dgx-a100:8", "bf16"), ("g4dn-t4:4", "fp16"), ("dgx-v100:8", "fp16")])
def test_products_are_in_bf16_unless_a_device_has_none(cluster: str, precision: str) -> None:
    assert meshwright.pose("gpt2", cluster).training.precision == precision
