"""Kernel: the least that all stages of a pipeline but the longest take together when no stage may take longer than a
threshold.
"""

from __future__ import annotations

import numpy as np

from meshwright._kernels.compiling import kernel
from meshwright._kernels.pipeline.choice import swap_bounds
from meshwright._kernels.pipeline.pairs import LOW_A, LOW_B, UNSUPPORTED, WEIGHT

__all__ = ["least_others"]


@kernel(allocates=True)
def least_others(space, pairs, menu, rules, memo, least_replicas, least_devices, limits, prices):
    """Return a lower bound on the sum of seconds times replicas over all stages but the one where that is most.

    Parameters
    ----------
    space, pairs, menu, rules, memo : Space, Pairs, Menu, Rules, Memo
        The instance.
    least_replicas, least_devices : ndarray, shape (n_sets,), int64
        What every pipeline of a set within the threshold needs at least; -1 where there is none.
    limits : ndarray, shape (4,), float64
        Threshold in seconds per micro-batch, memory in bytes, number of devices, largest sum of replicas.
    prices : ndarray, shape (n_prices, 2), float64
        Seconds charged for a device and for a replica, to be tried; stages pay, and in the end the limits are paid back.

    Returns
    -------
    float
        Seconds of one micro-batch; infinite where no pipeline keeps the threshold.

    Notes
    -----
    A shortest path over nested sets for every price, which proves as no pipeline uses more than the limits. The stages behind
    count as if they had the fewest replicas and devices; swapped choices count in parts.
    """
    threshold, memory, n_devices, n_replicas = limits[0], limits[1], limits[2], limits[3]
    sums, work = space.sums, space.work
    n_sets = len(space.words)
    last = n_sets - 1
    largest = len(rules.next_replica) - 1
    swaps = rules.exact and menu.alike and not rules.sharded
    every = np.full((n_sets, len(prices)), np.inf)  # of all stages, and of all but one
    others = np.full((n_sets, len(prices)), np.inf)
    every[0] = 0.0
    for upper in range(1, n_sets):
        rest_devices = n_devices - (work[last, 0] - work[upper, 0]) / threshold + 1e-6
        rest_replicas = n_replicas - (work[last, 1] - work[upper, 1]) / threshold + 1e-6
        for p in range(pairs.first[upper], pairs.first[upper + 1]):
            lower = pairs.lower[p]
            if least_replicas[lower] < 0 or every[lower, 0] == np.inf:
                continue
            for t in range(len(rules.degrees)):
                if sums[upper, t, UNSUPPORTED] > sums[lower, t, UNSUPPORTED]:
                    continue
                most = min((rest_devices - least_devices[lower]) / rules.degrees[t], rest_replicas - least_replicas[lower])
                most = min(most, np.float64(largest))
                inside = sums[upper, t, 0] - sums[lower, t, 0]
                seconds = pairs.seconds[p, rules.column[t]] + inside
                load = seconds / threshold
                if most < 1.0 or load > most:
                    continue
                r = rules.next_replica[max(1, np.int64(np.ceil(load * (1.0 - 1e-12))))]
                if r < 0 or rules.replicas[r] > most:
                    continue
                weight = sums[upper, t, WEIGHT] - sums[lower, t, WEIGHT]
                free_bytes = memory - rules.reserve[t]
                low_a = sums[upper, t, LOW_A] - sums[lower, t, LOW_A]
                low_b = sums[upper, t, LOW_B] - sums[lower, t, LOW_B]
                fewest = 1 + np.int64(np.ceil(least_replicas[lower] / np.floor(most)))
                before, extra = -1, 0.0
                while r < len(rules.replicas) and rules.replicas[r] <= most:
                    d = rules.replicas[r]
                    y = 1 + (least_replicas[lower] + d - 1) // d
                    if y != before:
                        before, extra = y, 0.0
                        if low_a * y + low_b > free_bytes * (1.0 + 1e-9):
                            extra = np.inf
                        elif swaps and y < memo.sorted.shape[1]:
                            extra = max(0.0, swap_bounds(space, menu, memo, rules, upper, lower, t, y, free_bytes)[0])
                        way = (
                            inside
                            + extra
                            + pairs.seconds[p, rules.column[t]] * rules.border[t, r]
                            + weight * rules.sync[t, r] * d
                        )
                        for i in range(len(prices) if extra < np.inf else 0):
                            charge = d * (prices[i, 0] * rules.degrees[t] + prices[i, 1])
                            shorter = min(others[lower, i] + way + charge, every[lower, i] + charge)
                            every[upper, i] = min(every[upper, i], every[lower, i] + way + charge)
                            others[upper, i] = min(others[upper, i], shorter)
                    if y <= fewest:
                        break
                    r += 1
    best = 0.0
    for i in range(len(prices)):
        best = max(best, others[last, i] * (1.0 - 1e-12) - prices[i, 0] * n_devices - prices[i, 1] * n_replicas)
    return best
