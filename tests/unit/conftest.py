"""Answers shared by the tests of what is said about them."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.core.result import Result

TINY = pathlib.Path(__file__).resolve().parents[1] / "data" / "tiny_llama.json"


@pytest.fixture(scope="session")
def planned() -> Result:
    """A four-layer Llama in two stages on four devices, found by search best."""
    return api.plan(str(TINY), "flat:4", batch=Batch(16), settings={"pipeline": "2"})
