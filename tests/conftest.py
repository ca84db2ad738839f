"""What tests of every room may ask for."""

from __future__ import annotations

import gc
import os
import pathlib

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in the processes of a run: threads that wait for each other take a core

import pytest

from recorded import Recorded


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which recorded figures are written anew."""
    parser.addoption("--record", action="store_true", help="write the figures that tests recorded, instead of comparing")


def pytest_collection_finish() -> None:
    """Leave modules and tests out of the search for garbage, and search as seldom as the command line does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """Figures as they were when a test was written: `recorded(value)` compares, with `--record` it writes them."""
    path = pathlib.Path(request.path)
    file = path.parent / "recorded" / f"{path.stem}.json"
    return Recorded(file, request.node.name, write=request.config.getoption("--record"))
