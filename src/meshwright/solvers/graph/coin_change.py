"""Shortest sums of jumps modulo n: how far apart two servers are on a circulant graph, and over which jumps."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["last_coins", "shortest_sum"]


def last_coins(n: int, coins: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return, for every residue modulo `n`, the fewest coins that add up to it and the last of them.

    Parameters
    ----------
    n : int
        Modulus.
    coins : sequence of int
        Jumps, each from 1 to ``n - 1``.

    Returns
    -------
    n_coins : list of int
        Per residue; -1 where no sum reaches it, 0 for residue 0.
    last : list of int
        Per residue; 0 where there is none. Of equally short sums the smallest coin counts.

    References
    ----------
    .. [1] Wang et al., "TopoOpt", NSDI 2023, CoinChangeMod.
    """
    n_coins, last = [-1] * n, [0] * n
    n_coins[0] = 0
    reached = [0]
    while reached:
        following = []
        for at in reached:
            for coin in sorted(coins):
                to = (at + coin) % n
                if n_coins[to] < 0:
                    n_coins[to], last[to] = n_coins[at] + 1, coin
                    following.append(to)
        reached = sorted(following)
    return n_coins, last


def shortest_sum(n: int, residue: int, last: Sequence[int]) -> tuple[int, ...]:
    """Return the coins of a shortest sum, ascending; empty for residue 0 or one that no sum reaches."""
    found = []
    at = residue % n
    while at and last[at]:
        found.append(last[at])
        at = (at - last[at]) % n
    return () if at else tuple(sorted(found))
