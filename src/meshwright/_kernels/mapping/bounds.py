"""Loop of a bound on stage mappings: how cheaply a chain of stages can be cut into pieces that fit into groups of devices."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.compiling import kernel

__all__ = ["chain_in_pieces"]


@kernel(allocates=True)
def chain_in_pieces(base, extra, whole, split, longest, short, n_short, most_whole):
    """Return the least largest cost of a stage over all ways to cut a chain and to choose whose rings stay in one group.

    Parameters
    ----------
    base : ndarray, shape (n,), float64
        Cost of each stage without its ring, nothing cut.
    extra : ndarray, shape (n - 1,), float64
        What both ends pay more when the chain is cut between a stage and the next.
    whole, split : ndarray, shape (n,), float64
        Cost of the ring of each stage, in one group or across groups.
    longest : int
        Most stages of a piece.
    short, n_short : int
        Most stages of a piece with one of the first `n_short` stages whose rings are whole.
    most_whole : int
        Most stages whose rings are whole.

    Returns
    -------
    float
        The cost; inf where there is no way.
    """
    n = len(base)
    n_counts = 1 + (min(most_whole, n) if most_whole < n else min(n_short, n))
    value = np.full((longest + 1, 2, n_counts), np.inf)
    value[0, 0, 0] = 0.0
    for s in range(n):
        after = np.full((longest + 1, 2, n_counts), np.inf)
        for length in range(longest + 1):
            for limited in range(2):
                for count in range(n_counts):
                    so_far = value[length, limited, count]
                    if so_far == np.inf:
                        continue
                    cost = base[s] + (extra[s - 1] if s > 0 and length == 0 else 0.0)
                    for kept in range(2):
                        now_limited, now_count = limited, count
                        if kept:
                            if count >= most_whole:
                                continue
                            if count < n_short:
                                now_limited = 1
                            now_count = min(count + 1, n_counts - 1)
                        if length + 1 > (min(short, longest) if now_limited else longest):
                            continue
                        own = cost + (whole[s] if kept else split[s])
                        open_cost = max(so_far, own)
                        if open_cost < after[length + 1, now_limited, now_count]:
                            after[length + 1, now_limited, now_count] = open_cost
                        cut_cost = max(so_far, own + (extra[s] if s < n - 1 else 0.0))
                        if cut_cost < after[0, 0, now_count]:
                            after[0, 0, now_count] = cut_cost
        if s < n - 1:
            value = after
        else:
            return after.min()
    return np.inf
