"""Circulant graphs: jumps that make rings over equally spaced servers, chosen as TopoOpt does, or best by enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["best_jumps", "candidates", "geometric", "hop_counts", "summary"]

MOST_SETS = 200_000


def candidates(n: int, group: int) -> tuple[int, ...]:
    """Return the jumps that visit every member of a group of equally spaced servers, ascending.

    Parameters
    ----------
    n : int
        Servers in all.
    group : int
        Members, a divisor of `n`: every ``n / group``-th server.

    Returns
    -------
    tuple of int
        ``n / group * k`` for every k below `group` without a common divisor with it.

    References
    ----------
    .. [1] Wang et al., "TopoOpt: Co-optimizing network topology and parallelization strategy", NSDI 2023, TotientPerms.
    """
    return tuple(n // group * k for k in range(1, group) if math.gcd(group, k) == 1)


def geometric(found: Sequence[int], n_jumps: int, *, bidirectional: bool) -> tuple[int, ...]:
    """Return jumps near a geometric sequence, ascending; fewer than asked where the candidates end.

    Parameters
    ----------
    found : sequence of int
        Candidates, ascending.
    n_jumps : int
        How many.
    bidirectional : bool
        Whether every jump is also laid backwards, which makes the sequence end before the last candidate.

    Returns
    -------
    tuple of int
        The jumps.

    References
    ----------
    .. [1] Wang et al., NSDI 2023, SelectPermutations.

    Notes
    -----
    Each member of the sequence takes the first free candidate that is not smaller. The released program reads past the list,
    or stops, where there is none; here such a member is left out.
    """
    if n_jumps <= 1:
        return tuple(found[:1])
    ratio = (found[-1] / found[0]) ** (1.0 / (n_jumps if bidirectional else n_jumps - 1))
    chosen: list[int] = []
    current = float(found[0])
    for _ in range(n_jumps):
        free = [jump for jump in found if jump >= current and jump not in chosen]
        if free:
            chosen.append(free[0])
        current *= ratio
    return tuple(sorted(chosen))


def hop_counts(n: int, jumps: Sequence[int]) -> list[int]:
    """Return the hops from server 0 to every server over jumps in both directions; -1 where there is no way."""
    hops = [-1] * n
    hops[0] = 0
    reached = [0]
    while reached:
        following = []
        for at in reached:
            for jump in jumps:
                for to in ((at + jump) % n, (at - jump) % n):
                    if hops[to] < 0:
                        hops[to] = hops[at] + 1
                        following.append(to)
        reached = following
    return hops


def summary(n: int, jumps: Sequence[int]) -> tuple[int, float]:
    """Return diameter and mean hops between different servers; (-1, inf) where some cannot be reached."""
    hops = hop_counts(n, jumps)
    if min(hops) < 0:
        return -1, math.inf
    return max(hops), sum(hops) / max(n - 1, 1)


def best_jumps(n: int, degree: int, *, coprime: bool = True) -> tuple[int, ...]:
    """Return the jumps of the circulant graph with the fewest mean hops, then the smallest diameter; one of them is 1.

    Parameters
    ----------
    n : int
        Servers.
    degree : int
        Interfaces of a server; every jump takes two, the jump of half way round one.
    coprime : bool
        Whether every jump must make one ring through all servers.

    Returns
    -------
    tuple of int
        Jumps up to ``n // 2``, ascending; the smallest set in lexicographic order among equals.

    Notes
    -----
    Every set is looked at where there are at most 200,000; otherwise jumps are exchanged one at a time, from the geometric
    sequence, until none improves. With jump 1 fixed no generality is lost for sets with a jump coprime to `n`: multiplying all
    jumps by its inverse is an isomorphism.
    """
    pool = [j for j in range(2, n // 2 + 1) if (math.gcd(n, j) == 1 or not coprime) and 2 * j != n]
    count = min(degree // 2 - 1, len(pool))
    half = () if coprime or degree % 2 == 0 or n % 2 else (n // 2,)
    if count <= 0:
        return (1, *half) if n > 2 else (1,)
    if math.comb(len(pool), count) <= MOST_SETS // max(n // 32, 1):
        sets = itertools.combinations(pool, count)
        return min(((1, *rest, *half) for rest in sets), key=lambda jumps: (summary(n, jumps)[::-1], jumps))
    return _exchanged(n, pool, count, half)


def _exchanged(n: int, pool: list[int], count: int, half: tuple[int, ...]) -> tuple[int, ...]:
    """Return a set of jumps that no exchange of one improves."""
    chosen = list(geometric([1, *pool], count + 1, bidirectional=True)[1:])
    chosen += [jump for jump in pool if jump not in chosen][: count - len(chosen)]
    best = summary(n, (1, *chosen, *half))[::-1]
    improved = True
    while improved:
        improved = False
        for place in range(count):
            for jump in pool:
                tried = sorted([*chosen[:place], *chosen[place + 1 :], jump])
                value = summary(n, (1, *tried, *half))[::-1]
                if jump not in chosen and value < best:
                    best, chosen, improved = value, tried, True
                    break
    return (1, *sorted(chosen), *half)
