"""How a chain of unlike layers is cut for the ranks of a pipeline so that all inequalities on the step hold: the loops of
`solvers.pipeline.layer_split`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.arrays import copy, smallest
from meshwright._kernels.compiling import kernel, part
from meshwright._kernels.pipeline.rank_memory import Holding, least_extra_of, least_of

__all__ = ["Chain", "cuts_within", "least_bottleneck"]


_NOTHING = -1e18
"""Fixed seconds of a rank of which an inequality says nothing: never the largest."""

_SAME, _FIRST_STEP, _FIRST_WAIT = 1e-7, 1e-3, 1e-2
"""How far above a limit that no cut stays within the next one is tried, as shares of it: to see whether that is the answer
itself, then; and where what others recompute is found anew for each.
"""

_FIRST = np.int64(0)
"""The first rank or layer; a plain 0 in a call is a type of its own, for which Numba compiles once more."""


_STEP, _BEFORE, _LATER = range(3)
"""Planes of `Chain.delays`: seconds of a whole step; those that layers of earlier, and of later, ranks delay a rank."""

_HIDDEN, _STATIC, _KEPT, _END, _PASSING = range(5)
"""Rows of `Chain.sums`: forward of one micro-batch, which hides `_LEAD` times; static bytes; activations of one micro-batch;
seconds of the end of the step on the first rank; of one micro-batch there and back.
"""

_FIXED, _LEAD = range(2)
"""Planes of `Chain.offsets`: seconds of a step whatever the rank takes; how many forward passes hide."""

_N_TIMES, _N_BEFORE, _N_LATER, _ENDS_FIRST = range(4)
"""Columns of `Chain.times`: how often recomputation counts; that of earlier, of later ranks; 1 where the first one ends it."""

_BUDGET, _IN_FLIGHT, _WEAK, _STRONG, _WEAK_EXTRA, _STRONG_EXTRA = range(6)
"""Columns of `Chain.ranks`: memory left for layers; micro-batches held; the most that one layer gives up of `_KEPT` by either
way to recompute, and the least seconds that this costs each time.
"""

_TURNS, _WAIT, _LEAST = range(3)
"""Columns of `Chain.turn_seconds`: how often; whatever layers lie there; a micro-batch there and back in the fewest layers."""


class Chain(NamedTuple):
    """Layers of several kinds as running sums, and the ranks they are cut for; rows of some are inequalities on the step.

    In few arrays, named above: each is seven arguments of every function.
    """

    delays: np.ndarray  # (3, n_inequalities, n_layers + 1)
    sums: np.ndarray  # (5, n_layers + 1)
    offsets: np.ndarray  # (2, n_inequalities, n_ranks)
    times: np.ndarray  # (n_inequalities, 4)
    ranks: np.ndarray  # (n_ranks, 6)
    prices: np.ndarray  # (n_prices,): seconds paid for a byte of one micro-batch
    worth: np.ndarray  # (n_prices, n_layers + 1): what recomputing earns at most at these prices
    dearest: float  # seconds of recomputing everything, each time, at most
    turn: np.ndarray  # (n_turns, 2), int64: first and last rank of stretches that micro-batches go down and up in turn
    turn_seconds: np.ndarray  # (n_turns, 3)
    holding: Holding


class _Space(NamedTuple):
    """What is worked in, made by NumPy: compiled, each kind of array costs a kernel a part of a second."""

    known: np.ndarray  # (n_ranks, n_layers + 1, n_layers + 1): `_repeated` by rank, first and last; below 0 where not asked yet
    again: np.ndarray  # (2, n_ranks, n_layers + 1): what earlier and later ranks recompute at least, by `_recomputing`
    nothing: np.ndarray  # (2, n_ranks, n_layers + 1): zeros
    front: np.ndarray  # (n_ranks + 1, n_layers + 1)
    back: np.ndarray  # (n_ranks + 1, n_layers + 1)
    behind: np.ndarray  # (n_ranks, n_layers + 1), int64: of each rank and first layer, the end of its last layers
    starts: np.ndarray  # (n_ranks + 1,), int64
    ends: np.ndarray  # (n_ranks + 1,), int64


def _space(chain: Chain) -> _Space:
    """Return the room for one question."""
    n_ranks, n_places = len(chain.ranks), chain.sums.shape[1]
    again, (front, back) = np.zeros((2, n_ranks, n_places)), np.zeros((2, n_ranks + 1, n_places))
    starts, ends = np.zeros((2, n_ranks + 1), dtype=np.int64)
    known, behind = np.full((n_ranks, n_places, n_places), -1.0), np.zeros((n_ranks, n_places), dtype=np.int64)
    return _Space(known, again, np.zeros_like(again), front, back, behind, starts, ends)


@part
def _repeated(chain, rank, first, last):
    """Least seconds that a rank recomputes of one micro-batch to hold layers first..last-1; inf when they do not fit."""
    sums, ranks = chain.sums, chain.ranks
    static, held = sums[_STATIC, last] - sums[_STATIC, first], ranks[rank, _IN_FLIGHT]
    excess = static + held * (sums[_KEPT, last] - sums[_KEPT, first]) - ranks[rank, _BUDGET]
    repeated = 0.0
    if excess > 0.0:
        weak, strong = held * ranks[rank, _WEAK], held * ranks[rank, _STRONG]
        repeated = least_extra_of(excess, last - first, weak, strong, ranks[rank, _WEAK_EXTRA], ranks[rank, _STRONG_EXTRA])
        for i in range(chain.prices.shape[0]):
            earned = chain.worth[i, last] - chain.worth[i, first]
            repeated = max(repeated, chain.prices[i] * excess / held - earned)
    if repeated < np.inf:
        repeated = max(repeated, least_of(chain.holding, rank, first, last))
    return repeated


@part
def _repeated_once(chain, known, rank, first, last):
    """Return `_repeated`, which `known` keeps by rank, first and last: below 0 where it was not asked yet."""
    repeated = known[rank, first, last]
    if repeated < 0.0:
        repeated = _repeated(chain, rank, first, last)
        known[rank, first, last] = repeated
    return repeated


@part
def _longest(chain, again, rank, first, last, end, repeated):
    """Least seconds of a step when a rank takes layers first..last-1 and recomputes so long: its largest inequality.

    `again` is what earlier and later ranks recompute at least, by `_recomputing`; `end` is how long the end of the step takes
    on the first rank.
    """
    before, later = again[0, rank, first], again[1, rank, last]
    if repeated == np.inf or before == np.inf or later == np.inf:
        return np.inf
    delays, offsets, times, hidden = chain.delays, chain.offsets, chain.times, chain.sums[_HIDDEN]
    most = 0.0
    for k in range(times.shape[0]):
        if offsets[_FIXED, k, rank] <= _NOTHING:
            continue
        seconds = delays[_STEP, k, last] - delays[_STEP, k, first] + offsets[_FIXED, k, rank]
        seconds -= offsets[_LEAD, k, rank] * (hidden[last] - hidden[first])
        seconds += delays[_BEFORE, k, first] + delays[_LATER, k, -1] - delays[_LATER, k, last] + times[k, _ENDS_FIRST] * end
        seconds += times[k, _N_TIMES] * repeated + times[k, _N_BEFORE] * before + times[k, _N_LATER] * later
        most = max(most, seconds)
    return most


@part
def _seconds(chain, again, known, rank, first, last, end):
    """Least seconds of a step when a rank takes layers first..last-1: its largest inequality; inf when they do not fit."""
    return _longest(chain, again, rank, first, last, end, _repeated_once(chain, known, rank, first, last))


@part
def _recomputing(chain, space, limit):
    """Fill `space.again` with what the ranks before and behind each one recompute at least of a micro-batch.

    By the first layer of a rank, and by the layer behind its last one, for every cut within the limit in which it has those
    layers and maybe more; inf where there is none. So they never fall when the rank begins earlier, or ends later.
    """
    n_layers, n_ranks = chain.sums.shape[1] - 1, chain.ranks.shape[0]
    known, again, front, back, behind = space.known, space.again, space.front, space.back, space.behind
    end = smallest(chain.sums[_END])
    for place in range(n_layers + 1):
        for rank in range(n_ranks + 1):
            front[rank, place] = back[rank, place] = np.inf
        for rank in range(n_ranks):
            again[0, rank, place] = again[1, rank, place] = np.inf
            behind[rank, place] = n_layers + 1
    front[0, 0] = back[n_ranks, n_layers] = 0.0
    for rank in range(n_ranks):
        for first in range(n_layers + 1):
            if front[rank, first] == np.inf:
                continue
            for last in range(first, n_layers + 1):
                repeated = _repeated_once(chain, known, rank, first, last)
                if _longest(chain, space.nothing, rank, first, last, end, repeated) > limit:
                    behind[rank, first] = last
                    break
                front[rank + 1, last] = min(front[rank + 1, last], front[rank, first] + repeated)
    for rank in range(n_ranks - 1, -1, -1):
        for first in range(n_layers + 1):
            if front[rank, first] == np.inf:
                continue
            for last in range(first, behind[rank, first]):
                back[rank, first] = min(back[rank, first], back[rank + 1, last] + known[rank, first, last])
    for rank in range(n_ranks):
        least = np.inf
        for first in range(n_layers + 1):
            if back[rank, first] < np.inf:
                least = min(least, front[rank, first])
            again[0, rank, first] = least
        least = np.inf
        for last in range(n_layers, -1, -1):
            if front[rank + 1, last] < np.inf:
                least = min(least, back[rank + 1, last])
            again[1, rank, last] = least


@part
def _in_turn(chain, k, start, stop, end, limit):
    """Return whether a stretch of ranks stays within the limit where it has some layers, and maybe more."""
    there_and_back = max(chain.sums[_PASSING, stop] - chain.sums[_PASSING, start], chain.turn_seconds[k, _LEAST])
    return chain.turn_seconds[k, _WAIT] + chain.turn_seconds[k, _TURNS] * there_and_back + end <= limit


@part
def _may_end(chain, rank, ends, stop, end, limit):
    """Return whether all stretches that a rank is in allow it to end behind some layers; `ends`: where those before it do."""
    for k in range(chain.turn.shape[0]):
        first = chain.turn[k, 0]
        if first <= rank <= chain.turn[k, 1]:
            start = ends[first - 1] if first > 0 else 0
            if not _in_turn(chain, k, start, stop, end, limit):
                return False
    return True


@part
def _may_begin(chain, rank, starts, start, end, limit):
    """Return whether all stretches that a rank is in allow it to begin with some layer; `starts`: where those behind it do."""
    for k in range(chain.turn.shape[0]):
        if chain.turn[k, 0] <= rank <= chain.turn[k, 1]:
            if not _in_turn(chain, k, start, starts[chain.turn[k, 1] + 1], end, limit):
                return False
    return True


@part
def _starts(chain, again, known, limit, end, starts):
    """Fill `starts` with the first layer of each rank when from the last one back each takes as many as stay within the limit.

    No cut within the limit lets a rank but the first begin later than that. `end` is how long the end of the step takes on the
    first rank. What a rank without layers takes is not asked here. The last entry is the number of layers.
    """
    starts[-1] = last = chain.sums.shape[1] - 1
    for rank in range(chain.ranks.shape[0] - 1, 0, -1):
        first = last
        while first > 0 and _seconds(chain, again, known, rank, first - 1, last, end) <= limit:
            if not _may_begin(chain, rank, starts, first - 1, end, limit):
                break
            first -= 1
        starts[rank] = last = first


@part
def _fill(chain, again, known, limit, n_first, ends):
    """Fill `ends`: after the first rank, each takes as many layers as stay within the limit; return whether none is left.

    No cut within the limit lets a rank end later than that.
    """
    n_layers = chain.sums.shape[1] - 1
    ends[0] = first = n_first
    for rank in range(1, chain.ranks.shape[0]):
        last = first
        while last < n_layers and _seconds(chain, again, known, rank, first, last + 1, chain.sums[_END, n_first]) <= limit:
            if not _may_end(chain, rank, ends, last + 1, chain.sums[_END, n_first], limit):
                break
            last += 1
        if last == first and _seconds(chain, again, known, rank, first, first, chain.sums[_END, n_first]) > limit:
            return False
        if last == first and not _may_end(chain, rank, ends, last, chain.sums[_END, n_first], limit):
            return False
        ends[rank] = first = last
    return first == n_layers


@part
def _cut(chain, space, limit, ends):
    """Find a cut of the chain that stays within the limit and fill `ends` with it; return whether there is one.

    More layers on the first rank lengthen the end of the step, which others wait for, so that these take fewer: from none on,
    the first rank's layers grow to what the others leave.
    """
    n_first, end, again, known, starts = 0, chain.sums[_END], space.again, space.known, space.starts
    while n_first < len(end) and _seconds(chain, again, known, _FIRST, _FIRST, n_first, end[n_first]) <= limit:
        _starts(chain, again, known, limit, end[n_first], starts)
        if starts[1] <= n_first and _fill(chain, again, known, limit, n_first, ends):
            return True
        n_first = max(starts[1], n_first + 1)
    return False


def cuts_within(chain: Chain, limit: float, cuts: np.ndarray) -> int:
    """Fill `cuts`, a row of ends each, with every cut that stays within the limit; return their number,
    or one more than fit.
    """
    found: int = _cuts_within(chain, _space(chain), limit, cuts)
    return found


@kernel
def _cuts_within(chain, space, limit, cuts):
    """Return `cuts_within`."""
    n_layers, n_ranks = chain.sums.shape[1] - 1, chain.ranks.shape[0]
    again, known, starts, ends = space.again, space.known, space.starts, space.ends
    _recomputing(chain, space, limit)
    n_cuts = 0
    for n_first in range(n_layers + 1):
        if _seconds(chain, again, known, _FIRST, _FIRST, n_first, chain.sums[_END, n_first]) > limit:
            break  # more layers take no less
        _starts(chain, again, known, limit, chain.sums[_END, n_first], starts)
        if starts[1] > n_first:
            continue
        # depth first over the ends of the ranks: each from where the next one must begin, up to where the limit is
        ends[0] = n_first
        ends[1] = n_first - 1
        rank = 1
        while rank > 0:
            if rank == n_ranks:
                if n_cuts == cuts.shape[0]:
                    return n_cuts + 1
                copy(cuts[n_cuts], ends, n_ranks)
                n_cuts += 1
                rank -= 1
                continue
            last = max(ends[rank] + 1, starts[rank + 1])
            if last > n_layers or _seconds(chain, again, known, rank, ends[rank - 1], last, chain.sums[_END, n_first]) > limit:
                rank -= 1
                continue
            if not _may_end(chain, rank, ends, last, chain.sums[_END, n_first], limit):  # more layers take no less
                rank -= 1
                continue
            ends[rank] = last
            rank += 1
            ends[rank] = last - 1
    return n_cuts


@part
def _least(chain, space, ends, low, high):
    """Smallest limit between two that some cut stays within, `low` where one stays within that; fills `ends` with the cut.

    `ends` is a cut within `high`. The least is mostly near `low`: it is looked for upwards from there, in steps that double,
    then by halves.
    """
    tried = space.ends[: len(ends)]
    low = min(low, high)
    step = _SAME if low > 0.0 else np.inf
    while high - low > 1e-6 * high:
        limit = low * (1.0 + step)
        if not limit < high:
            limit = 0.5 * (low + high)
        if _cut(chain, space, limit, tried):
            copy(ends, tried, len(ends))
            if step == _SAME:
                break
            high, step = limit, np.inf
        else:
            low, step = limit, max(2.0 * step, _FIRST_STEP)
    return low


def least_bottleneck(chain: Chain, ends: np.ndarray, low: float, limit: float) -> float:
    """Smallest largest seconds over all ways to cut the chain; fills `ends` with the cuts; inf when nothing fits within the
    limit.

    Where a cut stays within `low`, that is the answer.

    In every inequality the seconds of a rank, or of a stretch of ranks, never rise when its last layer moves back or its first
    one forward, so giving each rank, in order, as much as it can take is optimal for a limit.
    """
    found: float = _least_bottleneck(chain, _space(chain), ends, low, min(_highest(chain), limit))
    return found


def _highest(chain: Chain) -> float:
    """Return a limit that even the dearest recomputation stays below."""
    step, before, later = chain.delays[:, :, -1].max(axis=1, initial=-np.inf).tolist()
    n_times = chain.times[:, _N_TIMES] + chain.times[:, _N_BEFORE] + chain.times[:, _N_LATER]
    turns, wait, least = chain.turn_seconds[:, _TURNS], chain.turn_seconds[:, _WAIT], chain.turn_seconds[:, _LEAST]
    in_turn = (wait + turns * np.maximum(chain.sums[_PASSING, -1], least)).max(initial=0.0)
    high: float = step + float(max(chain.offsets[_FIXED].max(initial=0.0), in_turn)) + before + later
    return high + (float(chain.sums[_END].max(initial=-np.inf)) + float(n_times.max(initial=-np.inf)) * chain.dearest)


@kernel
def _least_bottleneck(chain, space, ends, low, high):
    """Return `least_bottleneck`; `high`: the limit, at most `_highest`."""
    near, step = high, 0.0  # at first nobody waits for what others recompute
    while True:
        if step > 0.0:
            _recomputing(chain, space, near)
        if _cut(chain, space, near, ends):
            low = _least(chain, space, ends, low, near)
            first, repeated = 0, 0.0
            for rank in range(chain.ranks.shape[0]):
                repeated, first = repeated + _repeated_once(chain, space.known, rank, first, ends[rank]), ends[rank]
            if step > 0.0 or repeated == 0.0:
                return low
            step = _FIRST_WAIT
        elif near == high:
            return np.inf
        else:  # they recompute more in cuts within a limit that is nearer to the least
            low, step = near, 4.0 * step
        near = min(low * (1.0 + step), high) if low > 0.0 else high
