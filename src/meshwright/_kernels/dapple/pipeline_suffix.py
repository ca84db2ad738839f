"""Shortest step of every suffix of a pipeline: stages cut from the back, replicas taken from an order of devices."""

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel, part


class Layers(NamedTuple):
    """Cumulative costs of one sample at the nodes of the cut graph; node 0 is before the first layer.

    Attributes
    ----------
    forward_seconds, backward_seconds, activation_bytes, parameter_bytes : ndarray, shape (n_nodes,), float64
        Of everything before each node; parameters do not grow with samples.
    cut_bytes : ndarray, shape (n_nodes,), float64
        Bytes of one sample that cross a cut at each node.
    following_first, following : ndarray of int64
        A stage that begins at node k may end at nodes ``following[following_first[k] : following_first[k + 1]]``, all larger.
    """

    forward_seconds: np.ndarray
    backward_seconds: np.ndarray
    activation_bytes: np.ndarray
    parameter_bytes: np.ndarray
    cut_bytes: np.ndarray
    following_first: np.ndarray
    following: np.ndarray


class Places(NamedTuple):
    """What the devices at each position of an order can do, by number of replicas (column).

    Attributes
    ----------
    n_units, n_samples : ndarray, shape (n_columns,), int64
        Units of devices of a stage, and samples of its fullest replica; 0 samples: not allowed.
    reduce_class : ndarray, shape (n_positions + 1, n_columns), int64
        Row of `reduce_lines` for the group that begins at a position; -1 where devices run out.
    reduce_lines : ndarray, shape (n_classes, n_lines, 2), float64
        Latency and seconds per byte of each algorithm; the quickest counts.
    send_class : ndarray, shape (n_positions + 1, n_columns, n_columns), int64
        Row of `send_lines` for the group that ends at a position (first column) and the one that begins there (second).
    send_lines : ndarray, shape (n_classes, 2), float64
        Latency and seconds per byte of the whole micro-batch.
    memory_bytes : ndarray, shape (n_positions + 1, n_columns), float64
        Memory of the smallest device of the group.
    gate : ndarray, shape (n_positions + 1, n_columns), bool
        Whether the group lies on one machine through whose network links it sends both forward and backward.
    """

    n_units: np.ndarray
    n_samples: np.ndarray
    reduce_class: np.ndarray
    reduce_lines: np.ndarray
    send_class: np.ndarray
    send_lines: np.ndarray
    memory_bytes: np.ndarray
    gate: np.ndarray


class RunSettings(NamedTuple):
    """Numbers of one run: micro-batches, samples of one, warm-up factor (1 or 2), bytes per weight byte, recompute (0 never, 1
    where needed, 2 always), seconds beyond which nothing is kept, devices of a unit."""

    n_microbatches: int
    n_samples: int
    warm_up: int
    scaling_ratio: float
    recompute: int
    upper_seconds: float
    unit: int


class Suffixes(NamedTuple):
    """Best suffixes by number of stages, node and position: seconds with and without reductions,
    and the first stage's choice.
    """

    end_seconds: np.ndarray
    drain_seconds: np.ndarray
    next_node: np.ndarray
    column: np.ndarray


@part
def reduce_seconds(lines, n_bytes):
    """Quickest of an all-reduce's algorithms."""
    if n_bytes == 0.0:
        return 0.0
    best = np.inf
    for q in range(lines.shape[0]):
        seconds = lines[q, 0] + lines[q, 1] * n_bytes
        if seconds < best:
            best = seconds
    return best


@part
def stage_bytes(layers, rules, k, j, n_samples, depth, recomputes):
    """Memory of one device of the stage from node k to node j that holds `depth` micro-batches."""
    static = (layers.parameter_bytes[j] - layers.parameter_bytes[k]) * max(rules.scaling_ratio, 1.0)
    kept = (layers.activation_bytes[j] - layers.activation_bytes[k]) * n_samples
    if recomputes:
        return static + depth * layers.cut_bytes[k] * n_samples + kept
    return static + depth * kept


@kernel(allocates=True)
def by_stages(layers, places, rules, max_stages):
    """Best suffixes for every number of stages.

    A suffix that begins with a stage of F and B seconds per micro-batch, hands over in c and continues with a suffix that
    drains after D and ends, reductions included, after E, drains after max(M (F + B), F + B + 2 c + D, F + B + (M + 1) c) and
    ends after max(that + its own reduction, F + c + E). Of equal ends the earlier drain is kept, then the smaller node, then
    fewer replicas.
    """
    n_nodes = len(layers.forward_seconds)
    n_positions = places.reduce_class.shape[0] - 1
    n_columns = len(places.n_units)
    m = rules.n_microbatches
    whole = layers.forward_seconds[n_nodes - 1] + layers.backward_seconds[n_nodes - 1]
    work = float(m) * rules.n_samples / rules.unit
    shape = (max_stages + 1, n_nodes, n_positions + 1)
    found = Suffixes(np.full(shape, np.inf), np.full(shape, np.inf), np.full(shape, -1, np.int32), np.full(shape, -1, np.int32))
    for r in range(1, max_stages + 1):
        depth = min(m, r if rules.warm_up == 1 else 2 * r - 1)
        for k in range(n_nodes - 1):
            for at in range(layers.following_first[k], layers.following_first[k + 1]):
                j = layers.following[at]
                if (r == 1) != (j == n_nodes - 1):
                    continue
                parameters = layers.parameter_bytes[j] - layers.parameter_bytes[k]
                sample_forward = layers.forward_seconds[j] - layers.forward_seconds[k]
                sample_backward = layers.backward_seconds[j] - layers.backward_seconds[k]
                # devices before and after must have had, and have, the time for their layers
                before = layers.forward_seconds[k] + layers.backward_seconds[k]
                rest = whole - (layers.forward_seconds[j] + layers.backward_seconds[j])
                first_position = min(n_positions, int(np.ceil(before * work / rules.upper_seconds - 1e-9)))
                last_position = n_positions - min(n_positions, int(np.ceil(rest * work / rules.upper_seconds - 1e-9)))
                for i in range(n_columns):
                    samples = places.n_samples[i]
                    if samples == 0:
                        continue
                    forward, backward = sample_forward * samples, sample_backward * samples
                    if m * (forward + backward) > rules.upper_seconds:
                        continue
                    plain = np.inf
                    if rules.recompute < 2:
                        plain = stage_bytes(layers, rules, k, j, samples, depth, False)
                    small = np.inf
                    if rules.recompute > 0:
                        small = stage_bytes(layers, rules, k, j, samples, depth, True)
                    width = places.n_units[i]
                    for p in range(first_position, last_position - width + 1):
                        q = p + width
                        if r > 1 and found.end_seconds[r - 1, j, q] == np.inf:
                            continue
                        compute = forward + backward
                        if plain > places.memory_bytes[p, i]:
                            if small > places.memory_bytes[p, i]:
                                continue
                            compute += forward
                        drain = m * compute
                        after = 0.0
                        if r > 1:
                            line = places.send_lines[places.send_class[q, i, found.column[r - 1, j, q]]]
                            send = line[0] + line[1] * layers.cut_bytes[j] * rules.n_samples
                            drain = max(drain, compute + 2.0 * send + found.drain_seconds[r - 1, j, q])
                            drain = max(drain, compute + (m + 1) * send)
                            if places.gate[p, i]:
                                out = line[1] * (layers.cut_bytes[j] + layers.cut_bytes[k]) * rules.n_samples
                                drain = max(drain, compute + m * out)
                            after = forward + send + found.end_seconds[r - 1, j, q]
                        if max(drain, after) > min(found.end_seconds[r, k, p], rules.upper_seconds):
                            continue
                        end = drain + reduce_seconds(places.reduce_lines[places.reduce_class[p, i]], parameters)
                        end = max(end, after)
                        best = found.end_seconds[r, k, p]
                        if end < best or (end == best and drain < found.drain_seconds[r, k, p]):
                            found.end_seconds[r, k, p] = end
                            found.drain_seconds[r, k, p] = drain
                            found.next_node[r, k, p] = j
                            found.column[r, k, p] = i
    return found


@kernel(allocates=True)
def lower_bound(layers, n_units, n_samples, reduce_lines, rules, n_positions):
    """Seconds that no plan can beat, whatever its number of stages, placement and schedule: transfers free, memory unlimited.

    Drain and end are minimised apart from each other; a stage narrower than a unit of devices counts none. Returns both by node
    and units left, shape (2, n_nodes, n_positions + 1).
    """
    n_nodes = len(layers.forward_seconds)
    m = rules.n_microbatches
    bound = np.full((2, n_nodes, n_positions + 1), np.inf)
    for k in range(n_nodes - 2, -1, -1):
        for at in range(layers.following_first[k], layers.following_first[k + 1]):
            j = layers.following[at]
            parameters = layers.parameter_bytes[j] - layers.parameter_bytes[k]
            sample_forward = layers.forward_seconds[j] - layers.forward_seconds[k]
            sample_backward = layers.backward_seconds[j] - layers.backward_seconds[k]
            for i in range(len(n_units)):
                if n_samples[i] == 0:
                    continue
                forward = sample_forward * n_samples[i]
                compute = forward + sample_backward * n_samples[i] + (forward if rules.recompute == 2 else 0.0)
                if m * compute > rules.upper_seconds:
                    continue
                reduce = reduce_seconds(reduce_lines[i], parameters)
                for left in range(n_units[i], n_positions + 1):
                    drain, end = m * compute, 0.0
                    if j < n_nodes - 1:
                        rest = left - n_units[i]
                        drain = max(drain, compute + bound[0, j, rest])
                        end = forward + bound[1, j, rest]
                    end = max(end, drain + reduce)
                    bound[0, k, left] = min(bound[0, k, left], drain)
                    bound[1, k, left] = min(bound[1, k, left], end)
    return bound
