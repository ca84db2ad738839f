"""Kernel: which numbers of replicas and devices a pipeline can do with when no stage may take longer than a threshold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from meshwright._kernels.pipeline import knapsack
from meshwright._kernels.pipeline.choice import decide, stage_items
from meshwright._kernels.pipeline.pairs import FAST_A, FAST_B, LOW_A, LOW_B, UNSUPPORTED, WEIGHT

__all__ = ["Labels", "Pairs", "label_seconds", "reach"]

FAR = np.int32(2**31 - 1)

WINDOW = 96
"""How many larger sums of replicas a new label is remembered to dominate; the sweep over all follows once a downset is done."""


class Pairs(NamedTuple):
    """Stages that may be used: see `meshwright._kernels.pipeline.pairs.list_pairs`."""

    first: NDArray[np.int64]
    lower: NDArray[np.int32]
    seconds: NDArray[np.float64]


class Labels(NamedTuple):
    """Ways to run a downset: sum of replicas, devices and stages; and the stage on top with the label below it.

    ``cell_*`` is scratch space, shape (n_layers, n_replicas + 1), `cell_devices` and `cell_floor` full of the largest int32.
    """

    first: NDArray[np.int64]
    replicas: NDArray[np.int32]
    devices: NDArray[np.int32]
    stages: NDArray[np.int32]
    below: NDArray[np.int32]
    lower: NDArray[np.int32]
    option: NDArray[np.int32]
    cell_devices: NDArray[np.int32]
    cell_floor: NDArray[np.int32]
    cell_below: NDArray[np.int32]
    cell_lower: NDArray[np.int32]
    cell_option: NDArray[np.int32]


@njit(cache=True)
def reach(space, pairs, menu, rules, memo, labels, limits, by_stages):
    """Fill in all undominated labels of all downsets whose stages stay within a threshold.

    Parameters
    ----------
    space, pairs, menu, rules, memo, labels : Space, Pairs, Menu, Rules, Memo, Labels
        The instance; `memo` and `labels` are written.
    limits : ndarray, shape (4,), float64
        Threshold in seconds per micro-batch, memory in bytes, number of devices, largest sum of replicas.
    by_stages : int
        Whether fewer stages count as better too (then there is one layer of cells per number of stages).

    Returns
    -------
    n_labels : int
        Number of labels, or -1 when they do not fit; those of the last downset are the answers.
    n_undecided : int
        Inner choices that could not be decided.

    Notes
    -----
    A label dominates another with no fewer replicas, devices and stages, since later memory only grows with the sum of replicas.
    For one stage on one label only the smallest number of replicas that keeps the threshold matters.
    """
    threshold, memory, n_devices, n_replicas = limits[0], limits[1], limits[2], limits[3]
    words, sums, work = space.words, space.sums, space.work
    n_sets = len(words)
    last = n_sets - 1
    n_degrees = len(rules.degrees)
    n_options = len(rules.replicas)
    largest = len(rules.next_replica) - 1
    n_layers = len(labels.cell_devices)
    most = np.int64(n_replicas)
    lowest = np.full(most + 1, FAR, np.int32)
    labels.first[0] = 0
    labels.first[1] = 1
    labels.replicas[0] = 0
    labels.devices[0] = 0
    labels.stages[0] = 0
    labels.below[0] = -1
    n_labels = 1
    n_undecided = 0
    for upper in range(1, n_sets):
        smallest_s = most + 1
        largest_s = -1
        rest_work = (work[last, 0] - work[upper, 0]) / threshold
        rest_replicas = (work[last, 1] - work[upper, 1]) / threshold
        rest_a = (work[last, 2] - work[upper, 2]) / memory * (1.0 - 1e-9)
        rest_b = (work[last, 3] - work[upper, 3]) / memory * (1.0 - 1e-9)
        if upper != last:
            rest_work = max(rest_work, 1.0)
            rest_replicas = max(rest_replicas, 1.0)
        room_k = n_devices - rest_work + 1e-6
        room_s = n_replicas - rest_replicas + 1e-6
        for p in range(pairs.first[upper], pairs.first[upper + 1]):
            lower = pairs.lower[p]
            if labels.first[lower] == labels.first[lower + 1]:
                continue
            for t in range(n_degrees):
                if sums[upper, t, UNSUPPORTED] > sums[lower, t, UNSUPPORTED]:
                    continue
                crossed = pairs.seconds[p, rules.column[t]]
                seconds = crossed + sums[upper, t, 0] - sums[lower, t, 0]
                load = seconds / threshold
                if load > largest:
                    continue
                start = rules.next_replica[max(1, np.int64(np.ceil(load * (1.0 - 1e-13))))]
                if start < 0:
                    continue
                degree = rules.degrees[t]
                room = memory - rules.reserve[t]
                weight = sums[upper, t, WEIGHT] - sums[lower, t, WEIGHT]
                fast_a = sums[upper, t, FAST_A] - sums[lower, t, FAST_A]
                fast_b = sums[upper, t, FAST_B] - sums[lower, t, FAST_B]
                low_a = sums[upper, t, LOW_A] - sums[lower, t, LOW_A]
                low_b = sums[upper, t, LOW_B] - sums[lower, t, LOW_B]
                # The smallest choices hold low_a * y + low_b: more micro-batches in flight than this never fit.
                in_flight = np.int64(n_replicas) + 1
                if low_a * in_flight + low_b > room * (1.0 + 1e-9):
                    if low_a + low_b > room * (1.0 + 1e-9):
                        continue
                    in_flight = np.int64((room * (1.0 + 1e-9) - low_b) / low_a)
                for label in range(labels.first[lower], labels.first[lower + 1]):
                    s0 = np.int64(labels.replicas[label])
                    k0 = np.int64(labels.devices[label])
                    m = np.int64(labels.stages[label]) + 1
                    layer = m if by_stages else 0
                    if layer >= n_layers or (by_stages and upper != last and layer + 1 >= n_layers):
                        continue
                    begin = start
                    if s0 > in_flight - 1:
                        if in_flight < 2:
                            continue
                        fewest = (s0 + in_flight - 2) // (in_flight - 1)
                        if fewest > largest:
                            continue
                        begin = max(begin, rules.next_replica[fewest])
                    for r in range(begin, n_options):
                        d = rules.replicas[r]
                        s = s0 + d
                        k = k0 + d * degree
                        if k > room_k or s > room_s or rest_a * (s + 1) + rest_b > n_devices - k + 1e-6:
                            break
                        if labels.cell_floor[layer, s] <= k:
                            break
                        synchronise = weight * rules.sync[t, r]
                        if synchronise > threshold:
                            break
                        loaded = seconds + crossed * (rules.border[t, r] - 1.0)
                        if loaded * rules.share[r] + synchronise > threshold:
                            continue
                        y = 1 + (s0 + d - 1) // d
                        limit = room + (rules.sharded * (1.0 - 1.0 / d)) * weight
                        if not menu.alike or fast_a * y + fast_b > limit * (1.0 - 1e-9):
                            budget = threshold
                            if menu.alike:
                                budget = (threshold - synchronise) / rules.share[r] - loaded
                            answer = decide(space, menu, memo, rules, upper, lower, t, r, y, room, budget)
                            if answer == 2:
                                n_undecided += 1
                                answer = rules.optimistic
                            if answer == 0:
                                continue
                        labels.cell_devices[layer, s] = k
                        for further in range(s, min(s + WINDOW, most + 1)):
                            if labels.cell_floor[layer, further] <= k:
                                break
                            labels.cell_floor[layer, further] = k
                        labels.cell_below[layer, s] = label
                        labels.cell_lower[layer, s] = lower
                        labels.cell_option[layer, s] = t * n_options + r
                        smallest_s = min(smallest_s, s)
                        largest_s = max(largest_s, s)
                        break
        labels.first[upper] = n_labels
        for layer in range(n_layers):
            current = FAR
            for s in range(smallest_s, largest_s + 1):
                k = labels.cell_devices[layer, s]
                if k < current and k < lowest[s]:
                    if n_labels == len(labels.replicas):
                        return -1, n_undecided
                    labels.replicas[n_labels] = s
                    labels.devices[n_labels] = k
                    labels.stages[n_labels] = labels.stages[labels.cell_below[layer, s]] + 1
                    labels.below[n_labels] = labels.cell_below[layer, s]
                    labels.lower[n_labels] = labels.cell_lower[layer, s]
                    labels.option[n_labels] = labels.cell_option[layer, s]
                    n_labels += 1
                    current = k
                lowest[s] = min(lowest[s], current)
                labels.cell_devices[layer, s] = FAR
            for s in range(smallest_s, min(largest_s + WINDOW, most + 1)):
                labels.cell_floor[layer, s] = FAR
        for s in range(smallest_s, largest_s + 1):
            lowest[s] = FAR
        labels.first[upper + 1] = n_labels
    return n_labels, n_undecided


@njit(cache=True)
def label_seconds(space, pairs, menu, rules, labels, label, memory, once):
    """Return the time of the slowest stage of a label's pipeline, its inner choices made anew.

    Parameters
    ----------
    space, pairs, menu, rules, labels : Space, Pairs, Menu, Rules, Labels
        The instance, with labels of `reach`.
    label : int
        A label of the whole model.
    memory : float
        Memory of a device.
    once : bool
        Whether borders are charged as listed in `pairs` (a tensor once) and not edge by edge.

    Returns
    -------
    float
        Seconds per micro-batch.
    """
    upper = len(space.words) - 1
    slowest = 0.0
    n_options = len(rules.replicas)
    while label > 0:
        lower, below, option = labels.lower[label], labels.below[label], labels.option[label]
        t, r = option // n_options, option % n_options
        d = rules.replicas[r]
        y = 1 + (labels.replicas[below] + d - 1) // d
        first, cost, held, position = stage_items(space, menu, rules, upper, lower, t, r, y)
        chosen = np.empty(len(first) - 1, np.int64)
        if rules.exact:
            knapsack.exact(first, cost, held, memory - rules.reserve[t], np.inf, chosen)
        else:
            knapsack.greedy(first, cost, held, memory - rules.reserve[t], rules.all_or_none != 0, chosen)
        seconds = 0.0
        for c in chosen:
            seconds += cost[c]
        if once:
            seconds = 0.0
            for c in chosen:
                at = position[c]
                seconds += menu.seconds[at] * rules.share[r] + menu.weight[at] * rules.sync[t, r]
            for p in range(pairs.first[upper], pairs.first[upper + 1]):
                if pairs.lower[p] == lower:
                    seconds += pairs.seconds[p, rules.column[t]] * rules.border[t, r] * rules.share[r]
        slowest = max(slowest, seconds)
        upper, label = lower, below
    return slowest
