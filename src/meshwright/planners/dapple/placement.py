"""Which devices a stage takes: fresh machines first, machines in use first, or one device from each machine in turn."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["append_first", "fresh_first", "next_cards", "reachable", "scatter_first"]

Counts = tuple[int, ...]
"""Devices taken of each machine; a machine always gives its lowest free ones, so counts say which."""


def fresh_first(used: Counts, sizes: Counts, n_cards: int) -> Counts | None:
    """Return the counts after taking `n_cards` from unused machines in order; None when they have too few."""
    return _fill(used, sizes, n_cards, fresh=True)


def append_first(used: Counts, sizes: Counts, n_cards: int) -> Counts | None:
    """Return the counts after taking `n_cards` from machines already in use, in order; None when they have too few."""
    return _fill(used, sizes, n_cards, fresh=False)


def _fill(used: Counts, sizes: Counts, n_cards: int, *, fresh: bool) -> Counts | None:
    counts = list(used)
    for machine, size in enumerate(sizes):
        if (used[machine] == 0) == fresh:
            taken = min(size - used[machine], n_cards)
            counts[machine] += taken
            n_cards -= taken
    return tuple(counts) if n_cards == 0 else None


def scatter_first(used: Counts, sizes: Counts, n_cards: int) -> Counts | None:
    """Return the counts after taking one device of each machine in turn; None when all together have too few."""
    if sum(sizes) - sum(used) < n_cards:
        return None
    counts = list(used)
    while n_cards:
        for machine, size in enumerate(sizes):
            if n_cards and counts[machine] < size:
                counts[machine] += 1
                n_cards -= 1
    return tuple(counts)


def next_cards(used: Counts, sizes: Counts, n_cards: int) -> tuple[Counts, ...]:
    """Return the distinct outcomes of the three policies, in the order fresh, append, scatter."""
    found = (policy(used, sizes, n_cards) for policy in (fresh_first, append_first, scatter_first))
    return tuple(dict.fromkeys(counts for counts in found if counts is not None))


def reachable(used: Sequence[Counts], sizes: Counts, n_times: int) -> dict[Counts, tuple[Counts, ...]]:
    """Return what each occupancy can become by taking one device `n_times`, every policy tried at every step.

    `used`: occupancies to start from.
    `sizes`: devices of each machine.
    `n_times`: devices taken, one at a time.
    Returns: for each occupancy of `used`, the distinct outcomes in ascending order.
    """
    step: dict[Counts, tuple[Counts, ...]] = {}
    outcomes = {}
    for start in used:
        current = {start}
        for _ in range(n_times):
            following: set[Counts] = set()
            for counts in current:
                if counts not in step:
                    step[counts] = next_cards(counts, sizes, 1)
                following.update(step[counts])
            current = following
        outcomes[start] = tuple(sorted(current))
    return outcomes
