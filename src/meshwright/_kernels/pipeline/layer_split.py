"""How many equal layers each pipeline rank can take within a step time and a memory: the loops of `solvers.pipeline_split`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel, part

__all__ = ["Ranks", "capacities", "least_step"]


_FORWARD, _BACKWARD, _FIXED, _FIXED_FORWARD, _BUDGET, _LEAD, _AFTER = range(7)
"""Rows of `Ranks.figures`: forward of one layer; what returns up the pipeline per layer (backward, or its input gradients);
work of what is pinned to the rank (embedding, head), one micro-batch; the forward part of it; bytes left for layers;
micro-batches forwarded before the first backward; per layer, once a step after the last backward of the rank.
"""


class Ranks(NamedTuple):
    """Pipeline ranks and the variants of one layer on each (what it recomputes), as arrays."""

    work_seconds: np.ndarray  # (n_ranks, n_variants): forward, backward and recomputation of one layer, one micro-batch
    layer_bytes: np.ndarray  # (n_ranks, n_variants): static bytes of one layer + in-flight micro-batches times its activations
    figures: np.ndarray  # (7, n_ranks)


@part
def _most(work, n_times, once, size, seconds, n_bytes, extra):
    """Largest real number of layers with total work <= seconds and total size <= n_bytes, mixing variants.

    A linear program with two rows: an optimum mixes at most two variants, so all single ones and pairs are tried. The work of
    each is done `n_times`, `once` comes on top, and `extra` is subtracted (forward passes that hide in the warm-up).
    """
    best = 0.0
    if seconds < 0.0 or n_bytes < 0.0:
        return -1.0
    n = work.shape[0]
    for i in range(n):
        a = work[i] * n_times + once - extra
        alone = np.inf
        if a > 0.0:
            alone = seconds / a
        if size[i] > 0.0:
            alone = min(alone, n_bytes / size[i])
        best = max(best, alone)
        for j in range(i + 1, n):
            b = work[j] * n_times + once - extra
            determinant = a * size[j] - b * size[i]
            if determinant == 0.0:
                continue
            x = (seconds * size[j] - b * n_bytes) / determinant
            y = (a * n_bytes - size[i] * seconds) / determinant
            if x >= 0.0 and y >= 0.0:
                best = max(best, x + y)
    return best


@kernel
def capacities(ranks, n_layers, n_microbatches, split_backward, whole, step_seconds, most_layers):
    """Return `_capacities`."""
    return _capacities(ranks, n_layers, n_microbatches, split_backward, whole, step_seconds, most_layers)


@part
def _capacities(ranks, n_layers, n_microbatches, split_backward, whole, step_seconds, most_layers):
    """Fill `most_layers` with how many layers each rank can take if the step may last `step_seconds`; return their sum.

    Every constraint is implied by the order of 1F1B (or ZB-H1 where `split_backward`): a rank works for all micro-batches
    between the first arrival and the last return, and its first backward waits for the round trip of the first micro-batch.
    """
    n_ranks = ranks.work_seconds.shape[0]
    total_fixed = 0.0
    total_fixed_forward = 0.0
    for s in range(n_ranks):
        total_fixed += ranks.figures[_FIXED, s]
        total_fixed_forward += ranks.figures[_FIXED_FORWARD, s]
        left = step_seconds - n_microbatches * ranks.figures[_FIXED, s]
        budget = ranks.figures[_BUDGET, s]
        most_layers[s] = _most(ranks.work_seconds[s], n_microbatches, 0.0, ranks.layer_bytes[s], left, budget, 0.0)
        if most_layers[s] < 0.0:
            return -1.0
        most_layers[s] = min(most_layers[s], n_layers)
        if whole:
            most_layers[s] = np.floor(most_layers[s] + 1e-9)
    all_room = 0.0
    least_forward = least_backward = np.inf
    for s in range(n_ranks):
        all_room += most_layers[s]
        least_forward = min(least_forward, ranks.figures[_FORWARD, s])
        least_backward = min(least_backward, ranks.figures[_BACKWARD, s])
    round_trip = total_fixed + n_layers * (least_forward + least_backward)
    forward_trip = total_fixed_forward + n_layers * least_forward
    before_room = 0.0
    tight = 0.0
    for s in range(n_ranks):
        own = most_layers[s]
        # layers that must lie on earlier and on later ranks, whatever the split
        before = max(0.0, n_layers - (all_room - before_room))
        after = max(0.0, n_layers - (before_room + own))
        before_room += own
        fixed = n_microbatches * ranks.figures[_FIXED, s]
        once = ranks.figures[_AFTER, s] if s == 0 else 0.0
        work, size, budget, n_times = ranks.work_seconds[s], ranks.layer_bytes[s], ranks.figures[_BUDGET, s], n_microbatches
        returns = least_forward if split_backward else least_forward + least_backward
        limit = _most(work, n_times, once, size, step_seconds - fixed - before * returns, budget, 0.0)
        hidden = ranks.figures[_LEAD, s]
        if split_backward:
            wait = forward_trip + after * least_backward + fixed - hidden * ranks.figures[_FIXED_FORWARD, s]
            extra = hidden * ranks.figures[_FORWARD, s]
        else:
            wait = round_trip + fixed - ranks.figures[_FIXED, s] - (hidden - 1.0) * ranks.figures[_FIXED_FORWARD, s]
            n_times = n_microbatches - 1.0
            extra = (hidden - 1.0) * ranks.figures[_FORWARD, s]
        limit = min(limit, _most(work, n_times, once, size, step_seconds - wait, budget, extra))
        if limit < 0.0:
            return -1.0
        limit = min(limit, own)
        if whole:
            limit = np.floor(limit + 1e-9)
        # `most_layers` of this rank is not lowered before the later ranks used it: their bounds stay independent of the order
        tight += limit
        most_layers[s] = limit
    return tight


def least_step(
    ranks: Ranks,
    n_layers: float,
    n_microbatches: float,
    split_backward: bool,
    whole: bool,
    limit_seconds: float,
    tolerance: float,
) -> float:
    """Smallest step at which the ranks have room for all layers: a lower bound over all splits; inf above the limit."""
    most_layers = np.zeros(len(ranks.work_seconds))
    found: float = _least_step(ranks, n_layers, n_microbatches, split_backward, whole, limit_seconds, tolerance, most_layers)
    return found


@kernel
def _least_step(ranks, n_layers, n_microbatches, split_backward, whole, limit_seconds, tolerance, most_layers):
    """Return `least_step`; `most_layers`: room for every rank."""
    for s in range(len(most_layers)):
        if ranks.figures[_BUDGET, s] < 0.0:
            return np.inf
    if _capacities(ranks, n_layers, n_microbatches, split_backward, whole, limit_seconds, most_layers) < n_layers:
        return np.inf
    low, high = 0.0, limit_seconds
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        if _capacities(ranks, n_layers, n_microbatches, split_backward, whole, middle, most_layers) >= n_layers:
            high = middle
        else:
            low = middle
    return low
