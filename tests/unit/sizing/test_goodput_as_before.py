"""Goodput of jobs as it was when this was written, for rates and recovery that the test states."""

from __future__ import annotations

import itertools
import math
from typing import Any

from meshwright.base.errors import InputError
from meshwright.sizing import goodput
from meshwright.sizing.failures import FailureRates
from recorded import Recorded

HOUR, DAY = 3600.0, 86400.0


def jobs() -> dict[str, Any]:
    """Return the goodput of jobs that differ in one thing each."""
    rates = [FailureRates(1.0 / (400 * DAY), 1.0 / (4000 * DAY), 1.0 / (300 * DAY), "own") if False else r for r in RATES]
    return {}


RATES: tuple[FailureRates, ...] = ()
