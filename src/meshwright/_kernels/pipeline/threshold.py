"""Kernel: which numbers of replicas and devices a pipeline can do with when no stage may take longer than a threshold.

Piper's dynamic program (Tarnawski et al., NeurIPS 2021, section 4) with its value turned round. The paper has
``dp[D][k][s]``, the time of the slowest stage when a downset D of the graph runs on k devices with data-parallel degrees
that sum up to s, as the least over downsets D' within D, over d and t, of ``max(dp[D'][k - d t][s - d], TPS(D - D'))``.
Here the slowest stage's time is given (`limits`), and what is kept per downset are the undominated (s, k): a few labels
in place of a table of all k and s. A bisection over the time, outside, then finds what the paper's table holds.

========================  =====================================================================================
Here                      In the paper
========================  =====================================================================================
`upper`, `lower`          D and D' as rows of `Space.words`; the stage is D - D'
`k`, `k0`                 k and k - d t, the devices of D and of D'
`s`, `s0`                 s and s - d, the sums of data-parallel degrees of D and of D'
`d`, `r`                  d, the stage's data-parallel degree, and its position in `Rules.replicas`
`t`                       position in `Rules.degrees` of t, the stage's tensor-parallel degree
`y`                       micro-batches in flight per replica of the stage, ``ceil(s / d)``
`decide`                  whether TPS, the stage's time by the knapsack over the choices of its nodes, keeps the threshold
========================  =====================================================================================

Not in the paper: labels that leave too little for the rest of the model are dropped (`left_by_the_rest`), pairs (D, D')
are listed beforehand (`pairs`), and inner choices are bounded before they are made (`choice`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.compiling import inlined, kernel
from meshwright._kernels.pipeline import knapsack
from meshwright._kernels.pipeline.choice import decide, stage_items
from meshwright._kernels.pipeline.pairs import UNSUPPORTED, stage_between

__all__ = ["FAR", "Labels", "Pairs", "keep_label", "label_seconds", "leaves_too_little", "left_by_the_rest", "reach"]

FAR = np.int32(2**31 - 1)
"""More devices than there are: an empty cell."""

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


@inlined
def left_by_the_rest(work, upper, limits, n_devices):
    """Return the most devices and replicas that the rest of the model leaves, and its bytes per micro-batch and fixed,
    in devices.
    """
    threshold, memory = limits[0], limits[1]
    last = len(work) - 1
    floor = 0.0 if upper == last else 1.0  # there is one more stage at least
    room_k = n_devices - max((work[last, 0] - work[upper, 0]) / threshold, floor) + 1e-6
    room_s = limits[3] - max((work[last, 1] - work[upper, 1]) / threshold, floor) + 1e-6
    rest_a = (work[last, 2] - work[upper, 2]) / memory * (1.0 - 1e-9)
    rest_b = (work[last, 3] - work[upper, 3]) / memory * (1.0 - 1e-9)
    return room_k, room_s, rest_a, rest_b


@inlined
def leaves_too_little(s, k, rest_of_model, n_devices):
    """Return whether the rest of the model cannot do with what k devices and s replicas leave."""
    room_k, room_s, rest_a, rest_b = rest_of_model
    return k > room_k or s > room_s or rest_a * (s + 1) + rest_b > n_devices - k + 1e-6


@inlined
def _most_in_flight(low_a, low_b, free_bytes, most):
    """Return the most micro-batches y for which the smallest choices, low_a * y + low_b bytes, fit; 0 where not one does."""
    if low_a * most + low_b > free_bytes * (1.0 + 1e-9):
        if low_a + low_b > free_bytes * (1.0 + 1e-9):
            return 0
        return np.int64((free_bytes * (1.0 + 1e-9) - low_b) / low_a)
    return most


@inlined
def _first_option(rules, start, s0, in_flight):
    """Return the first option from `start` on with at most `in_flight` micro-batches in flight, 1 + ceil(s0 / d);
    -1 for none.
    """
    if s0 <= in_flight - 1:  # even one replica holds no more than that
        return start
    if in_flight < 2:
        return -1
    fewest = (s0 + in_flight - 2) // (in_flight - 1)
    if fewest > len(rules.next_replica) - 1:
        return -1
    return max(start, rules.next_replica[fewest])


@inlined
def _inner_choice(space, menu, memo, rules, stage, r, y, seconds, synchronise, threshold):
    """Return whether the nodes of a stage have choices that fit and keep the threshold: 1 yes, 0 no, 2 undecided."""
    d = rules.replicas[r]
    limit = stage.free_bytes + (rules.sharded * (1.0 - 1.0 / d)) * stage.weight
    if menu.alike and not stage.fast_a * y + stage.fast_b > limit * (1.0 - 1e-9):
        return 1  # the fastest choices fit, and the caller found them fast enough: there is nothing to choose
    budget = threshold
    if menu.alike:  # then all choices have the same borders and weights: what is left for the nodes themselves
        budget = (threshold - synchronise) / rules.share[r] - seconds
    return decide(space, menu, memo, rules, stage.upper, stage.lower, stage.t, r, y, stage.free_bytes, budget)


@inlined
def _enter(labels, layer, s, k, label, lower, option):
    """Write a way with s replicas and k devices into its cell, and its k where larger sums of replicas look first."""
    labels.cell_devices[layer, s] = k
    for further in range(s, min(s + WINDOW, labels.cell_floor.shape[1])):
        if labels.cell_floor[layer, further] <= k:
            break
        labels.cell_floor[layer, further] = k
    labels.cell_below[layer, s] = label
    labels.cell_lower[layer, s] = lower
    labels.cell_option[layer, s] = option


@inlined
def keep_label(labels, n_labels, layer, s, n_stages):
    """Make the label of a cell the next one of its downset."""
    labels.replicas[n_labels] = s
    labels.devices[n_labels] = labels.cell_devices[layer, s]
    labels.stages[n_labels] = n_stages
    labels.below[n_labels] = labels.cell_below[layer, s]
    labels.lower[n_labels] = labels.cell_lower[layer, s]
    labels.option[n_labels] = labels.cell_option[layer, s]


@inlined
def _keep_undominated(labels, lowest, n_labels, smallest_s, largest_s):
    """Make labels of the cells that no other dominates, and empty the cells; return how many labels there are,
    -1 for too many.
    """
    n_layers, n_cells = labels.cell_devices.shape
    for layer in range(n_layers):
        # Fewest devices of this layer so far; those of layers with fewer stages are in `lowest`, per sum of replicas.
        current = FAR
        for s in range(smallest_s, largest_s + 1):
            k = labels.cell_devices[layer, s]
            if k < current and k < lowest[s]:
                if n_labels == len(labels.replicas):
                    return -1
                keep_label(labels, n_labels, layer, s, labels.stages[labels.cell_below[layer, s]] + 1)
                n_labels += 1
                current = k
            lowest[s] = min(lowest[s], current)
            labels.cell_devices[layer, s] = FAR
        for s in range(smallest_s, min(largest_s + WINDOW, n_cells)):
            labels.cell_floor[layer, s] = FAR
    for s in range(smallest_s, largest_s + 1):
        lowest[s] = FAR
    return n_labels


@kernel(allocates=True)
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
    A label dominates another with no fewer replicas, devices and stages, since later memory only grows with the sum of
    replicas. For one stage on one label only the smallest number of replicas that keeps the threshold matters.
    """
    threshold, memory, n_devices, n_replicas = limits[0], limits[1], limits[2], limits[3]
    sums = space.sums
    n_sets, n_options = len(space.words), len(rules.replicas)
    last, largest = n_sets - 1, len(rules.next_replica) - 1
    n_layers, most = len(labels.cell_devices), np.int64(n_replicas)
    lowest = np.full(most + 1, FAR, np.int32)
    labels.first[0], labels.first[1] = 0, 1
    labels.replicas[0] = labels.devices[0] = labels.stages[0] = 0
    labels.below[0] = -1
    n_labels, n_undecided = 1, 0
    for upper in range(1, n_sets):
        smallest_s, largest_s = most + 1, -1
        rest_of_model = left_by_the_rest(space.work, upper, limits, n_devices)
        for p in range(pairs.first[upper], pairs.first[upper + 1]):
            lower = pairs.lower[p]
            if labels.first[lower] == labels.first[lower + 1]:
                continue
            for t in range(len(rules.degrees)):
                if sums[upper, t, UNSUPPORTED] > sums[lower, t, UNSUPPORTED]:
                    continue
                crossed = pairs.seconds[p, rules.column[t]]
                seconds = crossed + sums[upper, t, 0] - sums[lower, t, 0]
                # d replicas take seconds / d each: so many are needed, whatever else the stage does
                load = seconds / threshold
                if load > largest:
                    continue
                start = rules.next_replica[max(1, np.int64(np.ceil(load * (1.0 - 1e-13))))]
                if start < 0:
                    continue
                stage = stage_between(sums, upper, lower, t, memory - rules.reserve[t])
                in_flight = _most_in_flight(stage.low_a, stage.low_b, stage.free_bytes, most + 1)
                if in_flight == 0:
                    continue
                for label in range(labels.first[lower], labels.first[lower + 1]):
                    s0, k0 = np.int64(labels.replicas[label]), np.int64(labels.devices[label])
                    layer = np.int64(labels.stages[label]) + 1 if by_stages else 0
                    if layer >= n_layers or (by_stages and upper != last and layer + 1 >= n_layers):
                        continue
                    begin = _first_option(rules, start, s0, in_flight)
                    for r in range(begin if begin >= 0 else n_options, n_options):
                        d = rules.replicas[r]
                        s, k = s0 + d, k0 + d * rules.degrees[t]
                        # What is too much, or no better than a label known, is so for more replicas too.
                        if leaves_too_little(s, k, rest_of_model, n_devices):
                            break
                        if labels.cell_floor[layer, s] <= k:
                            break
                        synchronise = stage.weight * rules.sync[t, r]
                        if synchronise > threshold:
                            break
                        loaded = seconds + crossed * (rules.border[t, r] - 1.0)
                        if loaded * rules.share[r] + synchronise > threshold:
                            continue
                        y = 1 + (s0 + d - 1) // d
                        answer = _inner_choice(space, menu, memo, rules, stage, r, y, loaded, synchronise, threshold)
                        if answer == 2:
                            n_undecided += 1
                            answer = rules.optimistic
                        if answer == 0:
                            continue
                        _enter(labels, layer, s, k, label, lower, t * n_options + r)
                        smallest_s, largest_s = min(smallest_s, s), max(largest_s, s)
                        break
        labels.first[upper] = n_labels
        n_labels = _keep_undominated(labels, lowest, n_labels, smallest_s, largest_s)
        if n_labels < 0:
            return -1, n_undecided
        labels.first[upper + 1] = n_labels
    return n_labels, n_undecided


@kernel(allocates=True)
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
