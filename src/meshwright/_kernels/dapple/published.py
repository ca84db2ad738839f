"""DAPPLE's published evaluations as loops: two-stage plans, straight pipelines, and the authors' event simulation."""

from typing import NamedTuple

import numpy as np

from meshwright._kernels.arrays import total
from meshwright._kernels.compiling import kernel

NVLINK_BYTES_PER_SECOND = 25e9
ETHERNET_BYTES_PER_SECOND = 1e9
ETHERNET_COLLECTIVE_BYTES_PER_SECOND = 3e9


class Tables(NamedTuple):
    """Costs of stages, scaled to the global batch: seconds (n_states + 1, n_states), parameter bytes alike,
    cut bytes (n_states,).
    """

    seconds: np.ndarray
    parameter_bytes: np.ndarray
    cut_bytes: np.ndarray


class Arcs(NamedTuple):
    """Moves between occupancies, sorted by the one left: first arc of each, where arcs come from and lead,
    devices per machine.
    """

    first: np.ndarray
    source: np.ndarray
    target: np.ndarray
    cards: np.ndarray


@kernel
def all_reduce_seconds(n_cards, lowest, highest, n_bytes):
    """Time of an all-reduce over devices between machine `lowest` and machine `highest`."""
    if n_cards == 1:
        return 0.0
    share = (n_cards - 1) / n_cards
    if lowest != highest:
        return 2.0 * n_bytes * share / ETHERNET_COLLECTIVE_BYTES_PER_SECOND
    return 2.0 * n_bytes * share / NVLINK_BYTES_PER_SECOND / (n_cards // 2)


@kernel
def split_concat_seconds(source, target, n_bytes):
    """Time to hand a tensor over from devices `source` to devices `target` (devices per machine of each)."""
    n_source = 0
    low, high, target_low, target_high = -1, -1, -1, -1
    for machine in range(len(source)):
        n_source += source[machine]
        if target[machine] > 0:
            target_low = machine if target_low < 0 else target_low
            target_high = machine
        if source[machine] > 0 or target[machine] > 0:
            low = machine if low < 0 else low
            high = machine
    if target_low == target_high:
        remote = n_source - source[target_low]
        if remote > 0:
            return n_bytes / n_source * remote / ETHERNET_BYTES_PER_SECOND
        return n_bytes / NVLINK_BYTES_PER_SECOND
    if low != high:
        return n_bytes / ETHERNET_COLLECTIVE_BYTES_PER_SECOND
    return n_bytes / NVLINK_BYTES_PER_SECOND


@kernel
def ends(cards):
    """First and last machine of which devices are taken."""
    low, high = -1, -1
    for machine in range(len(cards)):
        if cards[machine] > 0:
            low = machine if low < 0 else low
            high = machine
    return low, high


@kernel
def analytical_speedup(tables, n_micro_batches, replication, block, begins, stops, cards):
    """The published closed form; stops are exclusive except the last, and both quirks of the original are kept."""
    alone = tables.seconds[0, tables.seconds.shape[1] - 1]
    if n_micro_batches == 0:
        return 0.0
    per_micro_batch = block / n_micro_batches
    length = per_micro_batch * (n_micro_batches - 1) + alone / replication / n_micro_batches
    for i in range(len(begins) - 1):
        n_bytes = tables.cut_bytes[stops[i] - 1] / replication / n_micro_batches
        length += split_concat_seconds(cards[i], cards[i + 1], n_bytes)
    delta = 0.0
    # a stage's all-reduce starts earlier the later the stage is: i blocks of it are hidden
    for i in range(len(begins)):
        low, high = ends(cards[i])
        reduce = all_reduce_seconds(total(cards[i]), low, high, tables.parameter_bytes[begins[i], stops[i]])
        late = reduce - i * per_micro_batch
        if late > delta:
            delta = late
    return alone / (length + delta)


@kernel(allocates=True)
def bipartition(tables, n_micro_batches, sizes, first_cards, first_sizes):
    """Best two-stage plan; ties go to the last one. Returns speed-up, last state of the first stage, placement."""
    n_states = len(tables.cut_bytes)
    n_devices = total(sizes)
    begins, stops = np.zeros(2, np.int64), np.zeros(2, np.int64)
    cards = np.zeros((2, len(sizes)), np.int64)
    best, best_state, best_placement = -1.0, -1, -1
    stops[1] = n_states - 1
    for state in range(n_states - 1):
        begins[1] = state + 1
        stops[0] = state + 1
        for placement in range(len(first_cards)):
            n_first = first_sizes[placement]
            for machine in range(len(sizes)):
                cards[0, machine] = first_cards[placement, machine]
                cards[1, machine] = sizes[machine] - cards[0, machine]
            block = max(tables.seconds[0, state] / n_first, tables.seconds[state + 1, n_states - 1] / (n_devices - n_first))
            block = max(block, split_concat_seconds(cards[0], cards[1], tables.cut_bytes[state]))
            speedup = analytical_speedup(tables, n_micro_batches, 1, block, begins, stops, cards)
            if speedup >= best:  # as published: of equal plans the last
                best, best_state, best_placement = speedup, state, placement
    return best, best_state, best_placement


@kernel(allocates=True)
def straight(tables, before_first, before, replication, arcs, level_first):
    """Smallest bottleneck of stages of `replication` devices each, as many as there are levels.

    Cells are (state, occupancy); occupancies are numbered by the devices taken, so level m holds those after m + 1 stages; the
    last arc leads from the empty cluster to the only cell of the first stage. The first transition found wins ties, in the
    order predecessors are given. Returns status (0 found, 1 none), bottleneck, stop (exclusive, the last inclusive) and arc per
    stage.
    """
    n_states = len(tables.cut_bytes)
    n_units = len(level_first) - 1
    block = np.full((n_states, level_first[n_units]), np.inf)
    split = np.full((n_states, level_first[n_units]), -1, np.int32)
    via = np.full((n_states, level_first[n_units]), -1, np.int32)
    start = len(arcs.target) - 1
    for j in range(n_states):
        block[j, arcs.target[start]] = max(tables.seconds[0, j] / replication, 0.0)
        via[j, arcs.target[start]] = start
    last_split, last_arc, last_block = -1, start, np.inf
    if n_units == 1:
        last_block = block[n_states - 1, arcs.target[start]]
    for m in range(1, n_units):
        for j in range(1, n_states):
            best = np.inf
            for at in range(before_first[j], before_first[j + 1]):
                k = before[at]
                stage = tables.seconds[k + 1, j] / replication
                n_bytes = 2.0 * tables.cut_bytes[k]
                for cell in range(level_first[m - 1], level_first[m]):
                    if block[k, cell] == np.inf:
                        continue
                    so_far = max(block[k, cell], stage)
                    for arc in range(arcs.first[cell], arcs.first[cell + 1]):
                        if so_far >= best and so_far >= block[j, arcs.target[arc]]:
                            continue
                        seconds = split_concat_seconds(arcs.cards[via[k, cell]], arcs.cards[arc], n_bytes)
                        t = max(so_far, seconds)
                        if t < best:
                            best = t
                            if m == n_units - 1 and j == n_states - 1:
                                last_split, last_arc, last_block = k, arc, t
                        if t < block[j, arcs.target[arc]]:
                            block[j, arcs.target[arc]] = t
                            split[j, arcs.target[arc]] = k
                            via[j, arcs.target[arc]] = arc
    stops, taken = np.zeros(n_units, np.int64), np.zeros(n_units, np.int64)
    if last_block == np.inf:
        return 1, last_block, stops, taken
    stops[n_units - 1] = n_states - 1
    for m in range(n_units - 1, -1, -1):
        taken[m] = last_arc
        if m > 0:
            stops[m - 1] = last_split + 1
            cell = arcs.source[last_arc]
            last_split, last_arc = split[last_split, cell], via[last_split, cell]
    return 0, last_block, stops, taken


@kernel(allocates=True)
def recursive_seconds(block_seconds, n_micro_batches, reduce_seconds):
    """Length of the authors' event simulation.

    Blocks alternate compute and transfer; forward and backward of one take equally long. Kept as published: in the drain phase
    a backward pass does not wait for the one before it on the same block.
    """
    n_blocks = len(block_seconds)
    forward = np.zeros((n_micro_batches, n_blocks))
    backward = np.zeros((n_micro_batches, n_blocks + 1))
    for i in range(n_micro_batches + n_blocks - 1):
        if i < n_micro_batches:
            for x in range(n_blocks):
                ready = 0.0
                if i - n_blocks + x >= 0:
                    ready = backward[i - n_blocks + x, x]
                if i > 0:
                    ready = max(ready, forward[i - 1, x])
                if x > 0:
                    ready = max(ready, forward[i, x - 1])
                forward[i, x] = block_seconds[x] + ready
        for x in range(n_blocks - 1, -1, -1):
            done = i - n_blocks + 1 + x
            if 0 <= done < n_micro_batches:
                ready = backward[done, x + 1]
                if i < n_micro_batches:
                    ready = max(ready, forward[i, x])
                backward[done, x] = block_seconds[x] + ready
    length = 0.0
    for x in range(n_blocks):
        end = backward[n_micro_batches - 1, x]
        if x % 2 == 0:
            end += reduce_seconds[x // 2]
        length = max(length, end)
    return length
