"""These tests price collectives on real networks, not on the plain one of the folder above."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def plain_network() -> None:
    """Leave the network as it is."""
