"""Kernel: how far back along one order a pipeline reaches with every number of devices when no stage may take too long."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.compiling import kernel, part

__all__ = ["Line", "fill"]


class Line(NamedTuple):
    """Nodes along one topological order, one tensor degree; choices of the node at position i are ``first[i]`` and on.

    ``edge_first`` and ``edge_end`` list for every position the positions of its neighbours, heads as they are and tails as
    ``-1 - position``; ``edge_cost`` the seconds that the edge costs the stage of this node where the neighbour is in another.
    ``fast`` is the position of each node's fastest choice.
    """

    first: NDArray[np.int64]
    fast: NDArray[np.int64]
    seconds: NDArray[np.float64]
    weight: NDArray[np.float64]
    per_microbatch: NDArray[np.float64]
    fixed: NDArray[np.float64]
    edge_first: NDArray[np.int64]
    edge_end: NDArray[np.int64]
    edge_cost: NDArray[np.float64]


@part(allocates=True)
def _fits(line, begin, end, in_flight, share, reduce, spared, memory, threshold):
    """Return whether the nodes of a stretch make a stage within time and memory, choices swapped greedily."""
    seconds = 0.0
    weight = 0.0
    held = 0.0
    n_swaps = 0
    for i in range(begin, end):
        c = line.fast[i]
        seconds += line.seconds[c]
        weight += line.weight[c]
        held += line.per_microbatch[c] * in_flight + line.fixed[c]
        n_swaps += line.first[i + 1] - line.first[i] - 1
        for e in range(line.edge_first[i], line.edge_first[i + 1]):
            other = line.edge_end[e]
            if other >= end or (other < 0 and -1 - other < begin):
                seconds += line.edge_cost[e]
    seconds = seconds * share + weight * reduce
    need = held - spared * weight - memory
    if seconds > threshold:
        return False
    if need <= 0.0:
        return True
    ratio = np.empty(n_swaps)
    saving = np.empty(n_swaps)
    count = 0
    most = 0.0
    for i in range(begin, end):
        fast = line.fast[i]
        largest = 0.0
        for c in range(line.first[i], line.first[i + 1]):
            saved = (line.per_microbatch[fast] - line.per_microbatch[c]) * in_flight + line.fixed[fast] - line.fixed[c]
            if saved > 0.0:
                ratio[count] = (line.seconds[c] - line.seconds[fast]) / saved
                saving[count] = saved
                count += 1
                largest = max(largest, saved)
        most += largest
    if most < need:
        return False
    extra = 0.0
    for j in np.argsort(ratio[:count]):
        taken = min(saving[j], need)
        extra += taken * ratio[j]
        need -= taken
        if need <= 0.0:
            break
    return seconds + extra * share <= threshold


@kernel(allocates=True)
def fill(line, replicas, share, reduce, spared, memory, n_devices, threshold):
    """Return where the pipeline begins with every number of replicas, and the stage in front.

    Parameters
    ----------
    line : Line
        The order.
    replicas : ndarray, shape (n_options,), int64
        Allowed numbers of replicas, ascending.
    share, reduce, spared : ndarray, shape (n_options,), float64
        Share of the micro-batches of one replica, seconds per weight byte, and copies of the weights' bytes spared.
    memory, threshold : float
        Bytes of a device; seconds.
    n_devices : int
        Most replicas.

    Returns
    -------
    begin, option : ndarray, shape (n_devices + 1,), int64
        For every number of replicas: the first position that the pipeline holds, and the option of its first stage (-1: as with
        one replica less).

    Notes
    -----
    A longer stretch with as many replicas counts as better, which is exact along the order where borders cost nothing. Swapped
    choices count in parts, so the stretches are at most one node of a stage too long.
    """
    n = len(line.first) - 1
    begin = np.full(n_devices + 1, n, np.int64)
    option = np.full(n_devices + 1, -1, np.int64)
    for s in range(1, n_devices + 1):
        best = begin[s - 1]
        for r in range(len(replicas)):
            d = replicas[r]
            if d > s:
                break
            end = begin[s - d]
            if end == 0:
                continue
            y = (s + d - 1) // d
            step = 1
            low = best - 1
            if best == 0 or best > end or not _fits(line, low, end, y, share[r], reduce[r], spared[r], memory, threshold):
                continue
            while low > 0:
                trial = max(low - step, 0)
                if _fits(line, trial, end, y, share[r], reduce[r], spared[r], memory, threshold):
                    low = trial
                    step *= 2
                elif step == 1:
                    break
                else:
                    step = max(1, step // 4)
            best = low
            option[s] = r
        begin[s] = best
        if best == 0:
            for more in range(s + 1, n_devices + 1):
                begin[more] = 0
            break
    return begin, option
