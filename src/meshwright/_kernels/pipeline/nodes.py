"""Kernels: whether a pipeline keeps a threshold when tensors between nodes take longer than those within one.

The labels of `threshold`, with the letters of Piper's dynamic program explained there, and one thing more to tell them apart:
where in its node the stage on top begins, if the stage before it, which the next label adds, is to lie in the same node. Piper
(NeurIPS 2021) itself knows one kind of link; this is ours, and a relaxation: what it refuses, no placement in nodes keeps.
"""

from __future__ import annotations

import numpy as np

from meshwright._kernels.compiling import inlined, kernel
from meshwright._kernels.pipeline.choice import decide
from meshwright._kernels.pipeline.pairs import UNSUPPORTED, stage_between
from meshwright._kernels.pipeline.threshold import FAR, keep_label, leaves_too_little, left_by_the_rest

__all__ = ["border_seconds", "reach_nodes"]

ONE = np.uint64(1)

ABOVE = 1.0 + 1e-12
"""What a stage may be above the threshold, as what leaves it is a difference of sums."""


@kernel(allocates=True)
def border_seconds(space, pairs, crossing, behind, threshold, node_size, slow_ratio):
    """Return what crosses the borders of every stage at least, by how many devices of its node other stages may have.

    Parameters
    ----------
    space, pairs, crossing : Space, Pairs, Crossing
        The sets, the stages between them and the edges, sorted by source.
    behind : ndarray, shape (2, n_sets, n_nodes), float64
        Device-seconds of the descendants of a node (itself too) outside a set, and of its ancestors within the set.
    threshold : float
        Seconds per micro-batch that no stage takes longer than.
    node_size : int
        Devices of a node.
    slow_ratio : float
        How many times longer a tensor takes between nodes.

    Returns
    -------
    ndarray, shape (2, n_pairs, n_columns, node_size), float64
        Seconds per micro-batch entering and leaving; the first of each is for a neighbour in another node.

    Notes
    -----
    Both ends of an edge are in one node only where all stages between are, with all descendants of its tail that precede the
    stage, or all ancestors of its head that follow it.
    """
    words = space.words
    n_edges = len(crossing.source)
    result = np.zeros((2, len(pairs.lower), crossing.into.shape[1], node_size))
    for upper in range(1, len(words)):
        for p in range(pairs.first[upper], pairs.first[upper + 1]):
            lower = pairs.lower[p]
            for e in range(n_edges):
                u, v = crossing.source[e], crossing.target[e]
                tail, head = np.uint64(u & 63), np.uint64(v & 63)
                tail_at = np.int64((words[upper, u >> 6] >> tail) & ONE) + np.int64((words[lower, u >> 6] >> tail) & ONE)
                head_at = np.int64((words[upper, v >> 6] >> head) & ONE) + np.int64((words[lower, v >> 6] >> head) & ONE)
                if tail_at == 0 and head_at == 1:
                    way, work = 0, behind[0, upper, u]
                elif tail_at == 1 and head_at == 2:
                    way, work = 1, behind[1, lower, v]
                else:
                    continue
                for t in range(result.shape[2]):
                    seconds = crossing.into[e, t] if way == 0 else crossing.out_of[e, t]
                    for m in range(node_size):
                        near = m > 0 and work <= m * threshold * (1.0 + 1e-9)
                        result[way, p, t, m] += seconds if near else seconds * slow_ratio
    return result


@inlined
def _may_fit(space, menu, memo, rules, stage, r, y, loaded, synchronise, threshold):
    """Return whether the nodes of a stage may have choices that fit and keep the threshold; undecided counts as yes."""
    limit = stage.free_bytes + (rules.sharded * (1.0 - 1.0 / rules.replicas[r])) * stage.weight
    if stage.low_a * y + stage.low_b > limit * (1.0 + 1e-9):
        return False
    if stage.fast_a * y + stage.fast_b > limit * (1.0 - 1e-9):
        budget = (threshold * ABOVE - synchronise) / rules.share[r] - loaded
        return decide(space, menu, memo, rules, stage.upper, stage.lower, stage.t, r, y, stage.free_bytes, budget) != 0
    return True


@inlined
def _keep_undominated(labels, lowest, n_labels):
    """Make labels of the cells that no other dominates, and empty the cells; return how many labels there are,
    -1 for too many.
    """
    n_layers, n_cells = labels.cell_devices.shape
    for layer in range(n_layers):
        if layer < 2:  # of those that are joined, fewer devices in the node are better
            lowest[:] = FAR
        current = FAR
        for s in range(n_cells):
            k = labels.cell_devices[layer, s]
            if k < current and k < lowest[s]:
                if n_labels == len(labels.replicas):
                    return -1
                keep_label(labels, n_labels, layer, s, layer)
                n_labels += 1
                current = k
            labels.cell_devices[layer, s] = FAR
            lowest[s] = min(lowest[s], current)
    return n_labels


@kernel(allocates=True)
def reach_nodes(space, pairs, borders, menu, rules, memo, labels, limits, node_size, slow_ratio):
    """Fill in undominated labels of all downsets whose stages stay within a threshold, however they lie in nodes.

    Parameters
    ----------
    space, pairs, menu, rules, memo, labels : Space, Pairs, Menu, Rules, Memo, Labels
        The instance, priced at the links within nodes, its choices alike; `memo` and `labels` are written. ``labels.devices``
        counts those left out too. ``labels.stages`` holds how many devices from the end of its node on the first stage and
        those after it take, where the stage before it is to lie there too, and 0 where it is not; there is one layer of cells
        for each.
    borders : ndarray, shape (2, n_pairs, n_columns, node_size), float64
        Of `border_seconds`.
    limits : ndarray, shape (4,), float64
        Threshold in seconds per micro-batch, memory in bytes, number of devices, largest sum of replicas.
    node_size : int
        Devices of a node.
    slow_ratio : float
        How many times longer a tensor takes between nodes.

    Returns
    -------
    int
        Number of labels, or -1 when they do not fit; those of the last downset are the answers.

    Notes
    -----
    Stages stand on the devices one after the other, and devices may be left out before any of them. A relaxation: the plan's
    rule says which, and `border_seconds` are the least. Undecided inner choices count as fitting.
    """
    threshold, memory, n_replicas = limits[0], limits[1], limits[3]
    n_devices = np.ceil(limits[2] / node_size) * node_size
    n_sets, n_options = len(space.words), len(rules.replicas)
    last, largest = n_sets - 1, len(rules.next_replica) - 1
    lowest = np.empty(np.int64(n_replicas) + 1, np.int32)
    labels.first[0], labels.first[1] = 0, 1
    labels.replicas[0] = labels.stages[0] = 0
    labels.devices[0] = np.int64(n_devices - limits[2])  # what the last node lacks
    labels.below[0] = -1
    n_labels = 1
    for upper in range(1, n_sets):
        rest_of_model = left_by_the_rest(space.work, upper, limits, n_devices)
        for p in range(pairs.first[upper], pairs.first[upper + 1]):
            lower = pairs.lower[p]
            for t in range(len(rules.degrees)):
                if space.sums[upper, t, UNSUPPORTED] > space.sums[lower, t, UNSUPPORTED]:
                    continue
                inside = space.sums[upper, t, 0] - space.sums[lower, t, 0]
                load = inside / threshold / ABOVE
                if load > largest:
                    continue
                start = rules.next_replica[max(1, np.int64(np.ceil(load * (1.0 - 1e-12))))]
                if start < 0:
                    continue
                stage = stage_between(space.sums, upper, lower, t, memory - rules.reserve[t])
                entering, leaving = borders[0, p, rules.column[t]], borders[1, p, rules.column[t]]
                for label in range(labels.first[lower], labels.first[lower + 1]):
                    used = labels.stages[label] > 0
                    s0, k0 = np.int64(labels.replicas[label]), np.int64(labels.devices[label])
                    rest = (node_size - k0 % node_size) % node_size
                    # The stage before it elsewhere or in the same node; each right behind the devices used, or in a new node.
                    for way in range(4):
                        joined, skipped = way % 2, rest if way > 1 else 0
                        if (joined and upper == last) or (way > 1 and (used or rest == 0)):
                            continue
                        begin = (k0 + skipped) % node_size
                        for r in range(start, n_options):
                            d = rules.replicas[r]
                            size = d * rules.degrees[t]
                            s, k = s0 + d, k0 + skipped + size
                            if leaves_too_little(s, k, rest_of_model, n_devices):
                                break
                            if (used and begin + size > node_size) or (joined and begin + size >= node_size):
                                break  # joined stages share one node, and the next one needs a device of it
                            layer = begin + size if joined else 0
                            if labels.cell_devices[layer, s] <= k:
                                break
                            synchronise = stage.weight * rules.sync[t, r]
                            if synchronise > threshold:
                                break
                            if begin + size > node_size and size <= node_size:
                                synchronise = synchronise * slow_ratio  # across two nodes, though one would do
                            # of the devices of its node, a neighbour has at most those that the stages up to here leave
                            loaded = inside + entering[node_size - begin - size if joined else 0]
                            loaded += leaving[node_size - size if used else 0]
                            if loaded * rules.share[r] + synchronise > threshold * ABOVE:
                                continue
                            y = 1 + (s0 + d - 1) // d
                            if not _may_fit(space, menu, memo, rules, stage, r, y, loaded, synchronise, threshold):
                                continue
                            labels.cell_devices[layer, s] = k
                            labels.cell_below[layer, s] = label
                            labels.cell_lower[layer, s] = lower
                            labels.cell_option[layer, s] = t * n_options + r
                            break
        labels.first[upper] = n_labels
        n_labels = _keep_undominated(labels, lowest, n_labels)
        if n_labels < 0:
            return -1
        labels.first[upper + 1] = n_labels
    return n_labels
