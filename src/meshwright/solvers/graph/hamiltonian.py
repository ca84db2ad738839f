"""Rings through all nodes of a graph, drawn one after the other so that edges are used evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["draw"]

MOST_TURNS = 20


def draw(neighbours: Mapping[int, Sequence[int]], n_rings: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Return different rings through all nodes, as many as were found.

    Parameters
    ----------
    neighbours : mapping of int to sequence of int
        For every node, those it has an edge to; edges go both ways.
    n_rings : int
        How many to draw.
    rng : numpy.random.Generator
        All draws.

    Returns
    -------
    list of tuple of int
        Nodes in order, the smallest first and the smaller of its two neighbours second.

    References
    ----------
    .. [1] L. Pósa, "Hamiltonian circuits in random graphs", Discrete Mathematics 14, 1976 (rotation and extension).
    """
    nodes = sorted(neighbours)
    used = {(a, b): 0 for a in nodes for b in neighbours[a]}
    found: dict[tuple[int, ...], None] = {}
    for _ in range(n_rings if len(nodes) > 2 else 0):
        path = _ring(nodes, neighbours, used, rng)
        if not path:
            continue
        at = path.index(nodes[0])
        turned = path[at:] + path[:at]
        ring = tuple(turned if turned[1] <= turned[-1] else [turned[0], *turned[:0:-1]])
        found[ring] = None
        for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
            used[a, b] += 1
            used[b, a] += 1
    return list(found)


def _ring(
    nodes: Sequence[int], neighbours: Mapping[int, Sequence[int]], used: Mapping[tuple[int, int], int], rng: np.random.Generator
) -> list[int]:
    """Return one ring as a list of nodes; empty where none was found."""
    path = [nodes[int(rng.integers(len(nodes)))]]
    inside = set(path)
    for _ in range(MOST_TURNS * len(nodes)):
        end = path[-1]
        free = [node for node in neighbours[end] if node not in inside]
        if free:
            node = min(free, key=lambda node: (used[end, node], rng.random()))
            path.append(node)
            inside.add(node)
        elif len(path) == len(nodes) and path[0] in neighbours[end]:
            return path
        else:
            turns = [node for node in neighbours[end] if node in inside and node != path[-2:][0]]
            if not turns:
                return []
            at = path.index(turns[int(rng.integers(len(turns)))])
            path[at + 1 :] = path[:at:-1]
    return []
