"""How measured peaks of memory lie around predicted ones, by framework; which share of a device a predicted peak may fill."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshwright.base import files
from meshwright.base.errors import InputError

__all__ = [
    "ALL",
    "DATA",
    "FEWEST_RAN",
    "FEWEST_RUNS",
    "PLAIN_RISK",
    "REFUSED_RATIO",
    "RISK",
    "SHARES",
    "PeakRoom",
    "known_peaks",
    "peaks",
    "risk",
]

DATA = Path(__file__).parent / "data" / "memory.toml"
"""Written by ``benchmarks/fit_intervals.py`` from the residuals of all measured runs."""

ALL = "all frameworks"
"""The entry of every run, sets counting alike."""

RISK = 0.01
"""Chance of not fitting that a plan may have unless its question says otherwise."""

PLAIN_RISK = 0.5
"""The chance that takes predictions as they are."""

FEWEST_RUNS = 10
"""Measured peaks that a framework has to have for them to count."""

FEWEST_RAN = 20
"""Runs of which it is only known that they ran that a framework has to have for them to count."""

REFUSED_RATIO = 0.03
"""Share of a framework's runs that ran which the room that is left may refuse, where its peaks are not measured."""

SHARES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
"""Shares of measured runs whose multiples of their prediction are kept; between them multiples are interpolated."""


@dataclass(frozen=True, slots=True)
class PeakRoom:
    """Which multiples of predicted peaks measured peaks are.

    Parameters
    ----------
    low_ratio, high_ratio : float
        Between them lie 80 %.
    below_ratio : tuple of float
        Below each lies the share of `SHARES` at its place.
    n_runs, n_sets : int
        What they rest on.
    basis : str
        Whose runs they are: a framework's, or `ALL`.
    n_ran : int
        For a framework whose measured peaks are too few for a chance of `RISK`, or none: how many of its runs, of which only
        that they ran is known, say that less room than all frameworks' is enough (`REFUSED_RATIO`); 0 elsewhere.
    """

    low_ratio: float
    high_ratio: float
    below_ratio: tuple[float, ...]
    n_runs: int
    n_sets: int
    basis: str = ALL
    n_ran: int = 0

    @property
    def words(self) -> str:
        """What they rest on, in words."""
        measured = f"{self.n_runs} measured runs of {self.basis}, {self.n_sets} set{'s' * (self.n_sets != 1)}"
        if self.n_runs == 0:
            measured = f"no measured peak of {self.basis}"
        elif not self._reaches(RISK):
            measured += f", beyond them those of {ALL}"
        if not self.n_ran:
            return measured
        passed = f"{1.0 - REFUSED_RATIO:.0%} of its {self.n_ran} runs that ran pass with this room"
        return f"{measured}; {passed}"

    def claim(self, risk_ratio: float) -> str:
        """Say what is known of the multiple for a chance of not fitting: n runs say nothing of a chance below 1 in n.

        `risk_ratio`: as of `most_ratio`. Returns the words that stand before the bytes.
        """
        if risk_ratio >= PLAIN_RISK:
            return "taken as predicted,"
        if self.n_ran or not self._reaches(risk_ratio):
            return "room kept up to"
        if self.n_runs * risk_ratio < 1.0 - 1e-9:
            return f"largest of {self.n_runs} measured runs at"
        return f"{100.0 * (1.0 - risk_ratio):g}% below"

    def _reaches(self, risk_ratio: float) -> bool:
        """Tell whether its own runs are enough to say what a chance of not fitting asks for."""
        return self.basis == ALL or (self.n_runs + 1) * risk_ratio >= 1.0

    def most_ratio(self, risk_ratio: float) -> float:
        """Return the multiple of their prediction that all but `risk_ratio` of the measured peaks lie below.

        Parameters
        ----------
        risk_ratio : float
            Above 0, at most `PLAIN_RISK`, for which predictions are taken as they are.

        Returns
        -------
        float
            At least 1: where a framework's runs hold less than predicted, predictions count.
        """
        if risk_ratio >= PLAIN_RISK:
            return 1.0
        share = 1.0 - risk_ratio
        after = max(1, bisect_left(SHARES, share - 1e-12))
        (low, high), (below, above) = SHARES[after - 1 : after + 1], self.below_ratio[after - 1 : after + 1]
        return max(1.0, below + (above - below) * (share - low) / (high - low))

    def share(self, risk_ratio: float) -> float:
        """Return the share of a device's memory that a predicted peak may fill for a chance of not fitting."""
        return 1.0 / self.most_ratio(risk_ratio)


@cache
def known_peaks() -> Mapping[str, PeakRoom]:
    """Return what the data file says, by framework; `ALL` is always there."""
    entries = files.read_toml(DATA)
    return {
        name: PeakRoom(**{**entry, "below_ratio": tuple(entry["below_ratio"])}, basis=name) for name, entry in entries.items()
    }


def peaks(framework: str = "") -> PeakRoom:
    """Return how measured peaks of a framework's runs lie around predicted ones; of all runs where it has fewer than
    `FEWEST_RUNS`.

    Parameters
    ----------
    framework : str
        Its name; empty for none.
    """
    known = known_peaks()
    own = known.get(framework)
    return own if own is not None and (own.n_runs >= FEWEST_RUNS or own.n_ran) else known[ALL]


def risk(text: str | float, place: str = "--memory-risk") -> float:
    """Return a chance as a user writes it: ``1%`` or ``0.01``.

    Parameters
    ----------
    text : str or float
        Above 0 and at most a half.
    place : str
        Where it stands, for the message.

    Raises
    ------
    InputError
        When it is neither.
    """
    word = str(text).strip()
    try:
        value = float(word[:-1]) / 100.0 if word.endswith("%") else float(word)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= PLAIN_RISK:
        raise InputError(
            f"{place} {word}: must be a chance above 0 and at most 0.5, like 0.01 or 1% (0.5 takes predictions as they are)"
        )
    return value
