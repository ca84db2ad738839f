"""How measured runs lie around what `plan` would have predicted of them: intervals for steps, ratios for peaks, and whether
they hold.

References
----------
.. [1] Dunn, Wasserman, Ramdas, "Distribution-Free Prediction Sets for Two-Layer Hierarchical Models", JASA 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np

from meshwright.core.interval import COVERAGE_RATIO, FAR, NearRun, TimeInterval, around
from meshwright.core.interval.run_kind import Kind
from meshwright.core.peaks import ALL, FEWEST_RAN, FEWEST_RUNS, REFUSED_RATIO, RISK, SHARES, PeakRoom
from meshwright.validation._points import Point

__all__ = ["ends", "far", "kept_back", "left_out", "of_families", "peak_ratios"]

Sets = Mapping[str, Sequence[Point]]
"""Predicted rows by the name of their set."""


def ends(sets: Sets) -> dict[str, TimeInterval]:
    """Return the ends of the interval of every class that the rows of some sets fall into.

    Parameters
    ----------
    sets : mapping of str to sequence of Point
        Rows; those that failed or predict no plan do not count.

    Notes
    -----
    Runs of one framework on one kind of cluster are taken as exchangeable with the next one that is like one of them: of n
    runs, sets counting alike, the middle ``0.8 (n + 1) / n`` hold it with 0.8.
    In the wider classes, and where no run is like it, the next user's runs are like a further set, not like further rows of
    these, so that sets count alike,
    however many rows they have. Of K sets that are exchangeable with the next, their weights and one more of unknown residual
    make the share ``0.8 (K + 1) / K`` of the known weight hold the next set's rows with 0.8 in the mean over sets [1]; up to
    four sets all of it.
    """
    near: dict[str, dict[str, list[float]]] = {}
    wide: dict[str, dict[str, list[float]]] = {}
    kinds: dict[str, list[Kind]] = {}
    for name, points in sets.items():
        for point in _timed(points):
            kind, residual = _kind(point), math.log(point.measured_seconds / point.planned_seconds)
            if kind.near:
                near.setdefault(kind.near, {}).setdefault(name, []).append(residual)
            for word in (*kind.classes, kind.near):
                kinds.setdefault(word, []).append(kind)
            for word in kind.classes:
                wide.setdefault(word, {}).setdefault(name, []).append(residual)
    found = {word: _ends(own, len(own)) for word, own in wide.items()}
    for word, own in near.items():
        alike, further = _ends(own, sum(map(len, own.values()))), _ends(own, len(own))
        found[word] = replace(
            alike, further_low_ratio=further.low_ratio, further_high_ratio=further.high_ratio, runs=_places(kinds[word])
        )
    return {word: _reaching(found[word], kinds[word]) for word in sorted(found)}


def _places(kinds: Sequence[Kind]) -> tuple[NearRun, ...]:
    """Return where runs lie, those alike once; of seconds two digits count."""
    return tuple(
        sorted(
            {
                NearRun(kind.framework, kind.precision, kind.n_tokens, kind.n_devices, float(f"{kind.layer_seconds:.2g}"))
                for kind in kinds
            },
            key=astuple,
        )
    )


def _reaching(ends: TimeInterval, kinds: Sequence[Kind]) -> TimeInterval:
    """Return the ends of a class with the reach of its runs."""
    tokens, devices = [kind.n_tokens for kind in kinds], [kind.n_devices for kind in kinds]
    seconds = [kind.layer_seconds for kind in kinds]
    return replace(
        ends, n_tokens=(min(tokens), max(tokens)), n_devices=(min(devices), max(devices)),
        layer_seconds=(min(seconds), max(seconds)), precisions=tuple(sorted({kind.precision for kind in kinds} - {""})),
    )  # fmt: skip


def far(sets: Sets) -> TimeInterval | None:
    """Return the ends of the interval of runs that no other set has near: of every set left out, the rows that lie beyond what
    the other sets' runs of their work reach; None where there are none.

    Parameters
    ----------
    sets : mapping of str to sequence of Point
        Rows.

    Notes
    -----
    The next question that is like no measured run is like a further set of these, so that sets count alike, as in `ends`.
    """
    residuals: dict[str, list[float]] = {}
    distances: dict[str, list[float]] = {}
    for name, points in sets.items():
        known = ends({other: rows for other, rows in sets.items() if other != name})
        for point in _timed(points):
            kind = _kind(point)
            word = next((word for word in kind.classes[1:] if word in known), "")
            if word and known[word].beyond(kind):
                residuals.setdefault(name, []).append(math.log(point.measured_seconds / point.planned_seconds))
                distances.setdefault(name, []).append(math.log(known[word].distance(kind)))
    if not residuals:
        return None
    mean = sum(sum(own) / len(own) for own in distances.values()) / len(distances)
    return replace(_ends(residuals, len(residuals)), distance_ratio=math.exp(mean))


def of_families(families: Mapping[str, Sets]) -> TimeInterval:
    """Return the ends of the interval on a kind of device that nobody measured.

    Parameters
    ----------
    families : mapping of str to mapping of str to sequence of Point
        Rows by set, of every family of devices, predicted as if no run on it were known.

    Notes
    -----
    The next kind of device is like a further family, so that families count alike, as sets do in the wide classes of `ends`.
    """
    residuals = {
        family: [
            math.log(point.measured_seconds / point.planned_seconds) for points in sets.values() for point in _timed(points)
        ]
        for family, sets in families.items()
    }
    found = _ends(residuals, len(residuals))
    n_sets = len({name for sets in families.values() for name, points in sets.items() if _timed(points)})
    return TimeInterval(found.low_ratio, found.high_ratio, found.n_runs, n_sets)


def _with_far(sets: Sets) -> dict[str, TimeInterval]:
    """Return the ends of every class of some sets, `FAR` with them."""
    found, beyond = ends(sets), far(sets)
    return found | ({FAR: beyond} if beyond else {})


def left_out(sets: Sets) -> dict[str, tuple[int, int]]:
    """Return, for every set, how many of its rows lie inside the intervals that the other sets give, and how many rows it has.

    Parameters
    ----------
    sets : mapping of str to sequence of Point
        Rows.
    """
    found = {}
    for name, points in sets.items():
        known, timed = _with_far({other: rows for other, rows in sets.items() if other != name}), _timed(points)
        if timed:
            found[name] = sum(_inside(point, known) for point in timed), len(timed)
    return found


def kept_back(sets: Sets, n_parts: int = 5) -> dict[str, tuple[int, int]]:
    """Return, for every set, how many of its rows lie inside the intervals that the other rows of all sets give, and how many
    rows it has.

    Parameters
    ----------
    sets : mapping of str to sequence of Point
        Rows.
    n_parts : int
        Every so many-th row of every set is kept back at once, as often as there are parts.
    """
    timed = {name: _timed(points) for name, points in sets.items()}
    n_inside = dict.fromkeys(timed, 0)
    for part in range(n_parts):
        known = _with_far({name: [p for i, p in enumerate(rows) if i % n_parts != part] for name, rows in timed.items()})
        for name, rows in timed.items():
            n_inside[name] += sum(_inside(point, known) for point in rows[part::n_parts])
    return {name: (n_inside[name], len(rows)) for name, rows in timed.items() if rows}


def _inside(point: Point, known: Mapping[str, TimeInterval]) -> bool:
    """Tell whether a row took what the interval around its prediction says."""
    found = around(point.planned_seconds, _kind(point), known)
    return found.low_seconds <= point.measured_seconds <= found.high_seconds


def peak_ratios(sets: Sets) -> dict[str, PeakRoom]:
    """Return how measured peaks lie around those that ``plan`` would have predicted: of every framework, and of all together.

    Parameters
    ----------
    sets : mapping of str to sequence of Point
        Rows; those without memory, or of no plan, do not count. Sets count alike.

    Notes
    -----
    Of n measured runs a new one lies above all with a chance of 1 / (n + 1). What lies beyond them is taken from the runs of
    all frameworks: for a chance p below that, their share 1 - p (n + 1), and never less than the largest of the n.

    Of most runs it is only known that they ran. They bound the room that all frameworks' runs ask for, where a framework's own
    peaks are not measured or do not reach: as much as lets all but `REFUSED_RATIO` of them fit. Tables list what ran, so that
    this says nothing of how often plans fail that nobody lists. Runs that do not tell what they recompute do not count.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    for name, points in sets.items():
        for point in points:
            if point.measured_bytes > 0.0 and point.planned_bytes > 0.0 and point.kind:
                for word in filter(None, (point.framework, ALL)):
                    own = ratios.setdefault(word, {}).setdefault(name, [])
                    own.append(point.measured_bytes / point.planned_bytes)
    if ALL not in ratios:
        return {}
    ran: dict[str, list[float]] = {}
    for point in (point for points in sets.values() for point in points):
        if point.ran and point.kind and point.framework and point.recompute_told:
            ran.setdefault(point.framework, []).append(point.room_ratio)
    found = {}
    for word in sorted({*ratios, *ran}):
        held: Mapping[str, Sequence[float]] = ratios.get(word, {})
        if word != ALL and sum(map(len, held.values())) < FEWEST_RUNS:
            held = {}
        room = _peaks(word, held, ratios[ALL], ran.get(word, []))
        if room.n_runs or room.n_ran:
            found[word] = room
    return found


def _peaks(
    word: str, own: Mapping[str, Sequence[float]], every: Mapping[str, Sequence[float]], ran: Sequence[float]
) -> PeakRoom:
    """Return how the peaks of one framework lie: its own ratios and those of all, and the room of its runs that ran."""
    n_runs, tail = sum(map(len, own.values())), (1.0 - COVERAGE_RATIO) / 2.0

    def below(share: float, most: float) -> float:
        held = _quantile(own, share) if own else 0.0
        beyond = 1.0 - (1.0 - share) * (n_runs + 1)
        return held if word == ALL or beyond <= 0.0 else max(held, min(most, _quantile(every, beyond)))

    most = max(1.0, sorted(ran)[int(REFUSED_RATIO * len(ran))]) if len(ran) >= FEWEST_RAN else math.inf
    bounds = below(1.0 - RISK, most) < below(1.0 - RISK, math.inf)
    high = _quantile(own, 1.0 - tail) if own else below(1.0 - tail, most)
    return PeakRoom(
        _quantile(own or every, tail), high, tuple(below(share, most) for share in SHARES), n_runs, len(own), word,
        len(ran) if bounds else 0,
    )  # fmt: skip


def _timed(points: Sequence[Point]) -> list[Point]:
    """Return the rows that measured the step of a plan whose prediction has an interval."""
    timed = (point for point in points if point.ran and point.measured_seconds > 0.0)
    return [point for point in timed if point.kind is not None and not point.kind.no_interval]


def _kind(point: Point) -> Kind:
    """Return the kind of a row that has one."""
    assert point.kind is not None
    return point.kind


def _ends(residuals: Mapping[str, Sequence[float]], n_alike: int) -> TimeInterval:
    """Return the ends of one class; `n_alike`: how many things, sets or runs, the next one is like."""
    tail = (1.0 - min(1.0, COVERAGE_RATIO * (n_alike + 1) / n_alike)) / 2.0
    low, high = (math.exp(_quantile(residuals, share)) for share in (tail, 1.0 - tail))
    return TimeInterval(low, high, sum(map(len, residuals.values())), len(residuals))


def _quantile(values: Mapping[str, Sequence[float]], share: float) -> float:
    """Return the smallest value at or below which at least a share of the weight lies, sets weighing alike."""
    weighed = sorted((value, 1.0 / (len(own) * len(values))) for own in values.values() for value in own)
    at = int(np.searchsorted(np.cumsum([weight for _, weight in weighed]), share - 1e-9))
    return weighed[min(at, len(weighed) - 1)][0]
