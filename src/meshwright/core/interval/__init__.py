"""Where measured runs lie around predictions: 80 % of the steps, by how near the question is to a measured run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.units import format_seconds
from meshwright.core.interval.run_kind import ALL, Kind

__all__ = [
    "COVERAGE_RATIO", "FAR", "FEWEST_NEAR_RUNS", "FEWEST_SETS", "LIKE_RATIO", "MEASURED_COSTS", "NEAR_RATIO", "UNMEASURED",
    "Interval", "NearRun", "TimeInterval", "around", "factors",
]  # fmt: skip

COVERAGE_RATIO = 0.8
"""Share of measured runs that an interval should hold."""

MEASURED_COSTS = ("analytic", "sharded")
"""Cost models whose errors are known from measured runs."""

FEWEST_NEAR_RUNS = 9
"""Runs that have to speak of the nearest class: of nine runs and a further one, one tenth is one run."""

FEWEST_SETS = 4
"""Sets that have to speak of a class before it stands alone: the range of K sets holds K / (K + 1) of the next one's runs in
the mean.
"""

FAR = "runs unlike those of other sets"
"""The class of runs whose length, devices, layers or precision no other set had near."""

NEAR_RATIO = 1.5
"""How many times longer, wider or slower than all measured runs of a class another may be and still be within their reach: of
1.5, 2, 4 and 8 the one by which the sets that the intervals of other sets hold less than 80 % of fall short of it least.
"""

LIKE_RATIO = 1.25
"""How many times longer, wider or slower than one measured run another may be and still be like it: of 1.1, 1.25, 1.5 and 2 the
largest by which the sets that the intervals of other sets hold less than 80 % of fall short of it least.
"""

UNMEASURED = "kinds of device taken as not measured"
"""The class of runs predicted with the shares of another kind of device, as kinds are that nobody measured."""

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True)
class NearRun:
    """Where a measured run lies, as far as another one may be like it.

    Parameters
    ----------
    framework, precision : str
        As of `Kind`.
    n_tokens, n_devices : int
        As of `Kind`.
    layer_seconds : float
        As of `Kind`.
    """

    framework: str
    precision: str
    n_tokens: int
    n_devices: int
    layer_seconds: float

    def distance(self, kind: Kind) -> float:
        """Return how many times longer, wider or slower one of the two is, in what they differ by most."""
        pairs = (
            (kind.length, self.n_tokens), (kind.n_devices, self.n_devices), (kind.layer_seconds, self.layer_seconds)
        )  # fmt: skip
        return max((1.0, *(max(mine / its, its / mine) for mine, its in pairs if mine and its)))


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """Between which multiples of a prediction measured seconds of one class lie.

    Parameters
    ----------
    low_ratio, high_ratio : float
        Ends.
    n_runs, n_sets : int
        What they rest on.
    n_tokens, n_devices : tuple of (int, int)
        Fewest and most tokens of a sample and devices among these runs; zeros where that is not known.
    layer_seconds : tuple of (float, float)
        Least and most of `Kind.layer_seconds` among them.
    precisions : tuple of str
        Of their products.
    distance_ratio : float
        Of `FAR`: how many times what the other sets reached its runs exceeded, in the geometric mean over sets.
    further_low_ratio, further_high_ratio : float
        Of `Kind.near`: between which multiples the runs of a further set are expected; 0 elsewhere.
    runs : tuple of NearRun
        Of `Kind.near`: its runs, those alike once.
    """

    low_ratio: float
    high_ratio: float
    n_runs: int
    n_sets: int
    n_tokens: tuple[int, int] = (0, 0)
    n_devices: tuple[int, int] = (0, 0)
    layer_seconds: tuple[float, float] = (0.0, 0.0)
    precisions: tuple[str, ...] = ()
    distance_ratio: float = 1.0
    further_low_ratio: float = 0.0
    further_high_ratio: float = 0.0
    runs: tuple[NearRun, ...] = ()

    def nearest(self, kind: Kind) -> NearRun | None:
        """Return the run of a question's own framework and precision that is nearest to it; None where there is none."""
        alike = [
            run for run in self.runs
            if run.framework == kind.framework and _products(run.precision) == _products(kind.precision)
        ]  # fmt: skip
        return min(alike, key=lambda run: run.distance(kind), default=None)

    def has_like(self, kind: Kind) -> bool:
        """Tell whether the class has runs enough to speak of others like them, and one like a question's."""
        nearest = self.nearest(kind) if self.n_runs >= FEWEST_NEAR_RUNS and not kind.offload else None
        return nearest is not None and nearest.distance(kind) <= LIKE_RATIO * (1.0 + 1e-9)

    def distance(self, kind: Kind) -> float:
        """Return how many times the reach of its runs a question exceeds, in what it exceeds most; 1 where in nothing."""
        reaches = (
            (kind.length, self.n_tokens), (kind.n_devices, self.n_devices), (kind.layer_seconds, self.layer_seconds)
        )  # fmt: skip
        return max((1.0, *(max(value / high, low / value) for value, (low, high) in reaches if value and high)))

    def unlike_products(self, kind: Kind) -> bool:
        """Tell whether its runs' products are of another precision than a question's."""
        return bool(kind.precision and self.precisions) and _products(kind.precision) not in map(_products, self.precisions)

    def beyond(self, kind: Kind) -> tuple[str, ...]:
        """Return in which respects no run of the class is near another one, in words: the question's, and what was measured."""
        found = [f"{kind.offload} on the host"] if kind.offload else []
        if _far(kind.length, *self.n_tokens):
            found.append(f"{kind.length:,} tokens a sample, not {_range(*self.n_tokens)}")
        if _far(kind.n_devices, *self.n_devices):
            found.append(f"{kind.n_devices:,} device{'s' * (kind.n_devices != 1)}, not {_range(*self.n_devices)}")
        if _far(kind.layer_seconds, *self.layer_seconds):
            short, long = (format_seconds(seconds) for seconds in self.layer_seconds)
            found.append(f"layers of {format_seconds(kind.layer_seconds)}, not {short} to {long}")
        if self.unlike_products(kind):
            found.append(f"{kind.precision}, not {', '.join(self.precisions)}")
        return tuple(found)


def _far(value: float, low: float, high: float) -> bool:
    """Tell whether a figure is known and no measured one is near."""
    return bool(value and high) and not low / NEAR_RATIO <= value <= high * NEAR_RATIO


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _products(precision: str) -> str:
    """Return a name for precisions whose products run at one rate."""
    return {"fp16": "bf16", "mxfp8": "fp8"}.get(precision, precision)


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval around a predicted time.

    Parameters
    ----------
    low_seconds, high_seconds : float
        Its ends.
    basis : str
        In words, which measured runs it rests on, and whether they are near.
    n_runs, n_sets : int
        How many runs, of the widest class it rests on, and of how many sets.
    unmeasured : str
        The kinds of device, in words, where no run on them was measured; empty where there were some.
    unlike : str
        In which respects no measured run is near, in words; empty where one is.
    """

    low_seconds: float
    high_seconds: float
    basis: str = ""
    n_runs: int = 0
    n_sets: int = 0
    unmeasured: str = ""
    unlike: str = ""


@cache
def factors() -> Mapping[str, TimeInterval]:
    """Return the ends by name of class (`Kind.near`, `Kind.classes`).

    Notes
    -----
    They stand in ``core/data/intervals.toml``, which ``benchmarks/fit_intervals.py`` writes from the residuals of all measured
    runs, each predicted as ``plan`` would.
    """
    entries = files.read_toml(DATA / "intervals.toml")
    return MappingProxyType({name: _stored(entry) for name, entry in entries.items()})


def _stored(entry: Mapping[str, Any]) -> TimeInterval:
    """Return a class from its table."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if "runs" in fields:
        fields["runs"] = tuple(
            NearRun(*word.rsplit(", ", 1), *run) for word, runs in fields["runs"].items() for run in runs
        )  # fmt: skip
    return TimeInterval(**fields)


def around(seconds: float, kind: Kind, known: Mapping[str, TimeInterval] | None = None) -> Interval:
    """Return the interval around a predicted time.

    Parameters
    ----------
    seconds : float
        Predicted.
    kind : Kind
        What kind of run it is of.
    known : mapping or None
        What `factors` returns, where it is at hand.

    Returns
    -------
    Interval
        Where the framework's runs on the kind of cluster are enough and one of them is like this (`TimeInterval.has_like`),
        the middle of these. Else what a further set is expected to take: of the nearest class that enough sets measured (the
        framework's on the kind of cluster, then the wider ones), widened by nearer ones that fewer did. Where no run of its
        work is near in length, devices, layers or precision, or state lies on the host, not less than `FAR`, which widens with
        the distance. On kinds of device that no set measured, in precisions that none measured on them, and with state on the
        host not less than what other kinds would be off by if nobody had measured them.
    """
    known = factors() if known is None else known
    own = known.get(kind.near)
    if own is not None and own.has_like(kind):
        basis = f"{_counted(own)} ({kind.near})"
        return Interval(seconds * own.low_ratio, seconds * own.high_ratio, basis, own.n_runs, own.n_sets)
    here = known.get(kind.classes[0])
    strange = here is not None and here.unlike_products(kind)
    device_measured = any(name.endswith(f", on {kind.on}") for name in known)
    found = _ladder(kind, known, device_measured, strange)
    widest = next((known[name] for name in kind.classes[1:] if name in known), known[ALL])
    unlike = widest.beyond(kind)
    if strange and here and not widest.unlike_products(kind):
        unlike = (*unlike, f"{kind.precision} on {kind.on}, not {', '.join(here.precisions)}")
    if widest.beyond(kind) and FAR in known:
        found.append((FAR, _farther(known[FAR], widest.distance(kind))))
    if UNMEASURED in known and (not device_measured or strange or kind.offload or widest.unlike_products(kind)):
        found.append((UNMEASURED, known[UNMEASURED]))
    low, high = min(ends.low_ratio for _, ends in found), max(ends.high_ratio for _, ends in found)
    last = found[-1][1]
    basis, unmeasured = _basis(kind, found, device_measured, unlike), "" if device_measured else kind.on
    return Interval(seconds * low, seconds * high, basis, last.n_runs, last.n_sets, unmeasured, "; ".join(unlike))


def _ladder(
    kind: Kind, known: Mapping[str, TimeInterval], device_measured: bool, strange: bool
) -> list[tuple[str, TimeInterval]]:
    """Return the classes that a further set's runs are expected by, the nearest first: up to the first that enough sets
    measured and that reaches the question.

    `device_measured`: whether any run on the question's kinds of device was; `strange`: whether none of its work on them was in
    its precision.
    """
    found: list[tuple[str, TimeInterval]] = []
    if (own := known.get(kind.near)) is not None:
        found.append((kind.near, _further(own)))
        if own.n_sets >= FEWEST_SETS and not own.beyond(kind):
            return found
    for name in kind.wider:
        if name in known:
            found.append((name, known[name]))
            if device_measured and known[name].n_sets >= FEWEST_SETS and not (strange and name == kind.classes[0]):
                break
    return found


def _further(own: TimeInterval) -> TimeInterval:
    """Return what is expected of a further set of a nearest class."""
    if not own.further_high_ratio:
        return own
    return replace(own, low_ratio=own.further_low_ratio, high_ratio=own.further_high_ratio)


def _farther(ends: TimeInterval, distance_ratio: float) -> TimeInterval:
    """Return the ends of `FAR` for a question that is farther off than its runs were: as many times, in logarithms."""
    times = max(1.0, math.log(distance_ratio) / math.log(max(ends.distance_ratio, NEAR_RATIO)))
    return replace(ends, low_ratio=ends.low_ratio**times, high_ratio=ends.high_ratio**times)


def _basis(
    kind: Kind, found: Sequence[tuple[str, TimeInterval]], device_measured: bool, unlike: Sequence[str]
) -> str:  # fmt: skip
    """Say which runs an interval rests on, none of which is like the question."""
    names = [name for name, _ in found]
    if unlike:
        why = f"no run like this was measured ({'; '.join(unlike)})"
    elif not device_measured:
        why = f"no run on {kind.on} was measured"
    elif names[0] == kind.near and (nearest := found[0][1].nearest(kind)) is not None:
        why = f"no run of {kind.framework} like this on {kind.cluster} was measured (the nearest: {_place(nearest)})"
    elif kind.classes[0] not in names[:2]:
        why = f"no run like this on {kind.on} was measured"
    elif kind.near:
        others = names[0] == kind.near and any(run.framework == kind.framework for run in found[0][1].runs)
        precision = f" in {kind.precision}" * others
        why = f"no run of {kind.framework} on {kind.cluster} was measured{precision}"
    else:
        why = ""
    rests = "; ".join(f"{_counted(ends)} ({name})" for name, ends in found)
    return f"{why}; interval from {rests}" if why else rests


def _place(run: NearRun) -> str:
    """Say where a run lies."""
    devices = f"{run.n_devices:,} device{'s' * (run.n_devices != 1)}"
    return f"{devices}, {run.n_tokens:,} tokens a sample, layers of {format_seconds(run.layer_seconds)}"


def _counted(ends: TimeInterval) -> str:
    """Return how many runs of how many sets."""
    return f"{ends.n_runs} run{'s' * (ends.n_runs != 1)} of {ends.n_sets} set{'s' * (ends.n_sets != 1)}"
