"""Where four fifths of measured steps lie around a prediction, by kind of device."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COVERAGE_RATIO", "Interval", "around", "factors"]

COVERAGE_RATIO = 0.8
"""Share of measured runs that an interval should hold."""

Factors = Mapping[str, tuple[float, float]]
"""Device kind -> lowest and highest measured time as multiples of the predicted one."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval around a predicted time.

    Parameters
    ----------
    low_seconds, high_seconds : float
        Its ends.
    """

    low_seconds: float
    high_seconds: float


def factors() -> Factors:
    """Return the ends of the interval by kind of device, as multiples of a prediction; ``default`` for kinds never measured.

    Notes
    -----
    They stand in ``core/data/intervals.toml``, which ``benchmarks/fit_costs.py`` writes from the residuals of the runs it fits.
    """
    path = Path(__file__).parent / "data" / "intervals.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: (float(entry["low"]), float(entry["high"])) for name, entry in entries.items()}


def around(seconds: float, devices: Iterable[str], known: Factors | None = None) -> Interval:
    """Return the interval around a predicted time.

    Parameters
    ----------
    seconds : float
        Predicted.
    devices : iterable of str
        Kinds of device that the step runs on, by `Device.name`; of several, the widest interval counts.
    known : mapping or None
        What `factors` returns, where it is at hand.

    Returns
    -------
    Interval
        The ends.
    """
    known = factors() if known is None else known
    ends = [known.get(device, known["default"]) for device in devices] or [known["default"]]
    return Interval(seconds * min(low for low, _ in ends), seconds * max(high for _, high in ends))
