"""Antichains of a graph: every down-set that a pipeline can be cut at, as the states of a new graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["AntichainGraph", "antichain_graph", "bit_matrix", "members"]


@dataclass(frozen=True, slots=True)
class AntichainGraph:
    """States (augmented antichains) in a topological order; sets of nodes and of states are bits of whole numbers.

    Parameters
    ----------
    first_node : tuple of int, length n_states
        First node of each state's antichain: its name is the state's name.
    frontier : tuple of int, length n_states
        Bits of the augmented antichain: nodes whose tensors cross a cut placed after the state.
    down_set : tuple of int, length n_states
        Bits of all nodes up to and including the state.
    predecessors : tuple of int, length n_states
        Bits of the states that lead to the state, transitively; all have smaller ids.
    """

    first_node: tuple[int, ...]
    frontier: tuple[int, ...]
    down_set: tuple[int, ...]
    predecessors: tuple[int, ...]


def members(bits: int) -> list[int]:
    """Return the positions of the set bits, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def _closures(n_nodes: int, edges: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[int], list[int]]:
    """Return direct successors, and bits of all predecessors and of all successors, of each node."""
    successors: list[list[int]] = [[] for _ in range(n_nodes)]
    n_open = [0] * n_nodes
    for source, target in edges:
        if target not in successors[source]:
            successors[source].append(target)
            n_open[target] += 1
    order = [i for i in range(n_nodes) if not n_open[i]]
    before, after = [0] * n_nodes, [0] * n_nodes
    for node in order:
        for target in successors[node]:
            before[target] |= before[node] | (1 << node)
            n_open[target] -= 1
            if not n_open[target]:
                order.append(target)
    for node in reversed(order):
        for target in successors[node]:
            after[node] |= after[target] | (1 << target)
    return successors, before, after


def _crossing(successors: list[list[int]], before: list[int]) -> list[int]:
    """Return, for each node, bits of the predecessors that also feed something which is neither it nor before it."""
    extra = []
    for node, bits in enumerate(before):
        outside = ~(bits | (1 << node))
        extra.append(sum(1 << p for p in members(bits) if any(outside >> target & 1 for target in successors[p])))
    return extra


def antichain_graph(
    n_nodes: int, edges: Sequence[tuple[int, int]], names: Sequence[str], *, max_states: int = 0
) -> AntichainGraph | None:
    """Return the graph of antichains that is reached from the first source.

    Parameters
    ----------
    n_nodes : int
        Number of nodes, at least one of them without an edge into it.
    edges : sequence of (int, int)
        Source and target of each edge; no cycles.
    names : sequence of str, length n_nodes
        Names by which states are ordered where the edges leave a choice (ties: order of discovery).
    max_states : int
        Give up beyond so many states; 0 is no limit.

    Returns
    -------
    AntichainGraph or None
        None when there are more than `max_states` states.

    Notes
    -----
    A node can stand in for its direct successor only once no other member of the augmented antichain leads to that successor's
    own successors, as in PipeDream [1]_. Sets are bits of whole numbers, so each step is a few word operations per member; the
    original keeps hash sets, whose order changes from run to run, where we take ascending ids. What PipeDream's walk adds to an
    antichain depends on each member alone, so it is computed once per node.

    References
    ----------
    .. [1] Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP 2019, and its optimizer's graph
       code.
    """
    successors, before, after = _closures(n_nodes, edges)
    crossing = _crossing(successors, before)
    start: tuple[int, ...] = (min(i for i in range(n_nodes) if not before[i]),)
    position: dict[tuple[int, ...], int] = {start: 0}
    found, frontiers, children = [start], [], []
    at = 0
    while at < len(found):
        frontier = sum({1 << a for a in found[at]})
        for a in found[at]:
            frontier |= crossing[a]
        frontiers.append(frontier)
        mine = []
        for after_step in _steps(found[at], frontier, successors, after):
            if after_step not in position:
                position[after_step] = len(found)
                found.append(after_step)
                if max_states and len(found) > max_states:
                    return None
            if position[after_step] not in mine:
                mine.append(position[after_step])
        children.append(mine)
        at += 1
    order = _name_order(children, [names[antichain[0]] for antichain in found])
    return _ordered(order, found, frontiers, children, before)


def _steps(antichain: tuple[int, ...], frontier: int, successors: list[list[int]], after: list[int]) -> list[tuple[int, ...]]:
    """Return the antichains one step further."""
    inside = set(antichain)
    steps = []
    for u in members(frontier):
        for v in successors[u]:
            if v in inside or after[v] & frontier:
                continue
            bits = frontier & ~(1 << u) | (1 << v)
            steps.append(tuple(b for b in members(bits) if not after[b] & bits))
    return steps


def _name_order(children: list[list[int]], names: list[str]) -> list[int]:
    """Return a topological order: reverse postorder of a depth-first walk that takes states by name."""
    ranked = [sorted(mine, key=lambda state: names[state]) for mine in children]
    seen = [False] * len(names)
    postorder: list[int] = []
    for root in sorted(range(len(names)), key=lambda state: names[state]):
        if seen[root]:
            continue
        seen[root] = True
        stack = [(root, iter(ranked[root]))]
        while stack:
            state, rest = stack[-1]
            following = next((child for child in rest if not seen[child]), -1)
            if following < 0:
                postorder.append(state)
                stack.pop()
            else:
                seen[following] = True
                stack.append((following, iter(ranked[following])))
    return postorder[::-1]


def _ordered(
    order: list[int], found: list[tuple[int, ...]], frontiers: list[int], children: list[list[int]], before: list[int]
) -> AntichainGraph:
    """Return the states renumbered by `order`, with their down-sets and transitive predecessors."""
    rank = {state: i for i, state in enumerate(order)}
    down_sets, leading = [], [0] * len(order)
    for i, state in enumerate(order):
        bits = frontiers[state]
        for node in members(frontiers[state]):
            bits |= before[node]
        down_sets.append(bits)
        for child in children[state]:
            leading[rank[child]] |= leading[i] | (1 << i)
    return AntichainGraph(
        tuple(found[state][0] for state in order), tuple(frontiers[state] for state in order), tuple(down_sets), tuple(leading)
    )


def bit_matrix(sets: Sequence[int], n_columns: int) -> NDArray[np.bool_]:
    """Return sets kept as bits as a matrix, shape (len(sets), n_columns), bool."""
    n_words = (n_columns + 7) // 8
    data = b"".join(bits.to_bytes(n_words, "little") for bits in sets)
    rows = np.frombuffer(data, dtype=np.uint8).reshape(len(sets), n_words)
    return np.unpackbits(rows, axis=1, count=n_columns, bitorder="little").astype(bool)
