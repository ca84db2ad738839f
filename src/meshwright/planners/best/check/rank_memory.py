"""What the layers of a rank must recompute at least to fit its memory: every choice of ways, like layers counted together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.base.integer_program import ProgramRow, solve
from meshwright.planners.best.check.prices import PricedLayer

__all__ = ["least_extra", "least_program", "least_repeated"]

_MOST_CHOICES = 64
_ROUNDING = 1e-9
_MOST_NODES = 2000  # of the integer program
_SOLVER_ROUNDING = 1e-6  # share by which its solver may miss a row, and what it proves

Sort = tuple[int, Sequence[PricedLayer]]
"""How many layers are alike, and what one of them is by each way to recompute, the least first."""


def least_repeated(sorts: Sequence[Sort], room_bytes: float, held: float, pinned_working_bytes: float) -> float:
    """Return the least seconds of a micro-batch that some layers recompute to fit; inf where no choice does.

    Lemma: the layer that needs most while it runs needs as much as one of the ways says. For each such level, layers that need no more
    choose freely among what is left of their ways, and all that is kept of every micro-batch in flight must fit beside the level. The
    least over all levels is the least of all. Where choices are too many, only the least of every figure is asked to fit.

    Parameters
    ----------
    sorts : sequence of Sort
        The layers.
    room_bytes : float
        For activations and for what layers need while they run.
    held : float
        Micro-batches in flight.
    pinned_working_bytes : float
        What pinned layers need while they run.
    """
    sorts = sorted((own for own in sorts if own[0]), key=lambda own: own[0])
    keeps = sum(n * min(way.kept_bytes for way in ways) for n, ways in sorts)
    needs = max([pinned_working_bytes, *(min(way.working_bytes for way in ways) for _, ways in sorts)])
    if held * keeps + needs > room_bytes:
        return math.inf
    freely = sum(n * ways[0].kept_bytes for n, ways in sorts)
    if held * freely + max([pinned_working_bytes, *(ways[0].working_bytes for _, ways in sorts)]) <= room_bytes:
        return 0.0  # by the first way of each nothing is recomputed
    if math.prod((n + 1) * (n + 2) // 2 for n, _ in sorts[:-1]) > _MOST_CHOICES:
        return 0.0
    best = math.inf
    for level in sorted({max(needs, way.working_bytes) for _, ways in sorts for way in ways} or {needs}):
        open_ways = [
            (n, [(way.kept_bytes, max(0.0, way.work - ways[0].work)) for way in ways if way.working_bytes <= level])
            for n, ways in sorts
        ]
        best = min(best, _least(open_ways, (room_bytes - level) / held * (1.0 + _ROUNDING), best))
    return best


def _least(sorts: Sequence[tuple[int, list[tuple[float, float]]]], room: float, most: float) -> float:
    """Return the least seconds in which layers keep no more than `room` of a micro-batch; of each way: bytes kept, seconds. What takes
    `most` or longer is of no interest.
    """
    if not sorts:
        return 0.0 if room >= 0.0 else math.inf
    (n, ways), others = sorts[0], sorts[1:]
    if not others:
        return _least_alike(n, ways, room)
    best = math.inf
    for counts in _counts(n, len(ways)):
        seconds = sum(count * way[1] for count, way in zip(counts, ways, strict=True))
        if seconds >= min(best, most):
            continue
        kept = sum(count * way[0] for count, way in zip(counts, ways, strict=True))
        best = min(best, seconds + _least(others, room - kept, min(best, most) - seconds))
    return best


def _counts(n: int, n_ways: int) -> Iterator[tuple[int, ...]]:
    """Yield how many of n layers go each way."""
    for cuts in itertools.combinations_with_replacement(range(n + 1), n_ways - 1):
        ends = (0, *cuts, n)
        yield tuple(ends[i + 1] - ends[i] for i in range(n_ways))


def _least_alike(n: int, ways: Sequence[tuple[float, float]], room: float) -> float:
    """Return `_least` of like layers: for any numbers of the other ways the first two are exchanged one by one, so that seconds rise
    or fall all the way; none, all, and the numbers next to where it just fits are enough.
    """
    if not ways:
        return 0.0 if n == 0 and room >= 0.0 else math.inf
    if len(ways) == 1:
        return n * ways[0][1] if n * ways[0][0] <= room else math.inf
    (kept_first, seconds_first), (kept_second, seconds_second) = ways[:2]
    saved, longer, best = kept_first - kept_second, seconds_second - seconds_first, math.inf
    for n_both, *rest in _counts(n, len(ways) - 1):
        kept, seconds = n_both * kept_first, n_both * seconds_first
        for count, way in zip(rest, ways[2:], strict=True):
            kept, seconds = kept + count * way[0], seconds + count * way[1]
        if min(seconds, seconds + n_both * longer) >= best:
            continue
        turn = int(min(max((kept - room) / saved, 0.0), n_both)) if saved else 0
        for n_second in (0, turn, min(turn + 1, n_both), n_both):
            if kept - n_second * saved <= room:
                best = min(best, seconds + n_second * longer)
    return best


def least_program(
    sorts: Sequence[tuple[int, int, Sequence[PricedLayer]]],
    times: NDArray[np.float64],
    at: NDArray[np.int64],
    room_bytes: float,
    counted: int | None = None,
) -> float:
    """Return what layers of several stages recompute at least of a micro-batch, to fit at every moment; inf where no choice does.

    Lemma: every choice that fits gives numbers that keep all rows of an integer program; what its solver proves at least is below their work.

    Parameters
    ----------
    sorts : sequence of tuple
        Of layers that are alike and in one stage: that stage, how many they are, and what one of them is by each way.
    times : ndarray, shape (n_moments, n_stages), float64
        Micro-batches held of each stage.
    at : ndarray, shape (n_moments,), int64
        The stage at work.
    room_bytes : float
        Memory less what is held all the time.
    counted : int or None
        The stage whose layers' seconds count; None for all.
    """
    asked = [counted in (None, stage) for stage, _, _ in sorts]
    flat = [(i, own[0], way, (way.work - own[2][0].work) * asked[i]) for i, own in enumerate(sorts) for way in own[2]]
    n, n_stages, unit = len(flat), times.shape[1], max(abs(room_bytes), 1.0)
    price = max([extra for *_, extra in flat] or [0.0])
    if price <= 0.0:
        return 0.0
    # variables: how many layers go each way; whether any does; the most needed while each stage works; the most reserved
    rows: list[ProgramRow] = []

    def keep(values: dict[int, float], least: float, most: float) -> None:
        used = sorted(column for column, value in values.items() if value)
        rows.append(ProgramRow(np.array(used, dtype=np.int64), np.array([values[column] for column in used]), least, most))

    for i, (_, count, _) in enumerate(sorts):
        keep({j: 1.0 for j in range(n) if flat[j][0] == i}, count, count)
    for j, (i, stage, way, _) in enumerate(flat):
        keep({j: 1.0, n + j: -float(sorts[i][1])}, -math.inf, 0.0)
        keep({n + j: way.working_bytes / unit, 2 * n + stage: -1.0}, -math.inf, 0.0)
        keep({n + j: way.reserved_bytes / unit, 2 * n + n_stages: -1.0}, -math.inf, 0.0)
    for held, place in zip(times, at.tolist(), strict=True):
        moving = {j: held[stage] * way.kept_bytes / unit for j, (_, stage, way, _) in enumerate(flat)}
        keep(moving | {2 * n + place: 1.0, 2 * n + n_stages: 1.0}, -math.inf, room_bytes / unit + _SOLVER_ROUNDING)
    cost = np.concatenate(([max(extra, 0.0) / price for *_, extra in flat], np.zeros(n + n_stages + 1)))
    whole = np.arange(len(cost)) < 2 * n
    found = solve(cost, whole, np.inf, rows, most_nodes=_MOST_NODES)
    if found.infeasible:
        return math.inf
    proven = found.bound or 0.0
    return max(0.0, proven * (1.0 - _SOLVER_ROUNDING) - _SOLVER_ROUNDING) * price


def least_extra(n_bytes: float, n_layers: int, saved: Sequence[float], extra: Sequence[float]) -> float:
    """Return the least seconds in which some of like layers free so many bytes of a micro-batch, in whole layers; inf where they cannot.

    `saved`, `extra`: of one or two ways to recompute a layer, the weaker first.
    """
    if not saved:
        return math.inf
    best = math.inf
    for n_strong in range(n_layers + 1):
        rest, seconds = n_bytes - n_strong * saved[-1], n_strong * extra[-1]
        if rest > 1e-9 * n_bytes:
            n_weak = math.ceil(rest / saved[0] * (1.0 - 1e-9)) if saved[0] > 0.0 else n_layers + 1
            if n_strong + n_weak > n_layers:
                continue
            seconds += n_weak * extra[0]
        best = min(best, seconds)
    return best
