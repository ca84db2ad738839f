"""A PaSE graph as a pairwise problem: configurations as labels, layer costs on nodes, re-sharding costs on edges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.pase.layer_costs import configurations, edge_cost, layer_cost, tensor_splits
from meshwright.planners.pase.operators import PaseGraph, PaseOperator
from meshwright.solvers.pairwise.problem import Pairwise

__all__ = ["PaseTables", "flop_per_word", "splits_cost", "tables"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PaseTables:
    """A PaSE graph ready to solve.

    `network`: the operators.
    `splits` (tuple of ndarray, length n_operators, each shape (n_configurations, n_axes), int64): configurations of each
    operator: the labels of its node.
    `problem`: the costs.
    """

    network: PaseGraph
    splits: tuple[Ints, ...]
    problem: Pairwise


def flop_per_word(flops_per_second: float, bytes_per_second: float) -> float:
    """Return the FLOP a device does while it moves one word of 8 bytes."""
    return flops_per_second / 1e9 / (bytes_per_second / 1e9 / 8)


def tables(network: PaseGraph, n_processors: int, word_flop: float) -> PaseTables:
    """Return a PaSE graph as a pairwise problem.

    `word_flop`: FLOP a device does while it moves one word.
    Returns: labels and costs. Operators that repeat share their arrays, and edges that repeat their tables.

    Notes
    -----
    The cost of an edge depends on how the two operators lay out the tensor, not on their whole configurations: tables are kept
    per pair of layouts, which is what makes 1024 devices fit in memory.
    """
    shared: dict[PaseOperator, tuple[Ints, NDArray[np.float64]]] = {}
    layouts: dict[tuple[int, tuple[tuple[int, ...], ...]], tuple[Ints, Ints]] = {}
    splits, costs = [], []
    for operator in network.operators:
        like = replace(operator, name="", uses=())
        if like not in shared:
            rows = configurations(like, n_processors)
            shared[like] = rows, layer_cost(like, rows, word_flop)
        splits.append(shared[like][0])
        costs.append(shared[like][1])

    def layout(node: int, axes: tuple[tuple[int, ...], ...]) -> tuple[Ints, Ints]:
        key = (id(splits[node]), axes)
        if key not in layouts:
            layouts[key] = _distinct(tensor_splits(splits[node], axes))
        return layouts[key]

    source, target, rows_of, columns_of, table_of = [], [], [], [], []
    pool: list[NDArray[np.float64]] = []
    known: dict[tuple[tuple[int, ...], int, int], int] = {}
    for u, v, use in network.edges():
        produced, row = layout(u, network.operators[u].output_axes)
        consumed, column = layout(v, use.axes)
        key = (use.shape, id(produced), id(consumed))
        if key not in known:
            known[key] = len(pool)
            pool.append(edge_cost(use.shape, produced, consumed, word_flop))
        source.append(u)
        target.append(v)
        rows_of.append(row)
        columns_of.append(column)
        table_of.append(known[key])
    first = np.concatenate(([0], np.cumsum([len(rows) for rows in splits]))).astype(np.int64)
    problem = Pairwise(
        first, np.concatenate(costs), np.array(source, dtype=np.int64), np.array(target, dtype=np.int64), tuple(rows_of),
        tuple(columns_of), np.array(table_of, dtype=np.int64), tuple(pool),
    )  # fmt: skip
    return PaseTables(network, tuple(splits), problem)


def _distinct(splits: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows, and for each row which of them it is."""
    code = np.zeros(len(splits), dtype=np.int64)
    for column in splits.T:
        values, digit = np.unique(column, return_inverse=True)
        _, code = np.unique(code * len(values) + digit, return_inverse=True)
    _, example, code = np.unique(code, return_index=True, return_inverse=True)
    return splits[example], code.astype(np.int64)


def splits_cost(network: PaseGraph, chosen: tuple[Ints, ...], word_flop: float) -> float:
    """Return the cost of one configuration per operator, whether or not it is among those enumerated.

    `chosen`, each shape (n_axes,), int64: splits of each operator.
    `word_flop`: FLOP a device does while it moves one word.
    Returns: in FLOP equivalents.
    """
    rows = [np.asarray(row, dtype=np.int64)[None, :] for row in chosen]
    known: dict[tuple[PaseOperator, bytes], float] = {}
    total = 0.0
    for operator, row in zip(network.operators, rows, strict=True):
        key = replace(operator, name="", uses=()), row.tobytes()
        if key not in known:
            known[key] = float(layer_cost(operator, row, word_flop)[0])
        total += known[key]
    for u, v, use in network.edges():
        produced, consumed = tensor_splits(rows[u], network.operators[u].output_axes), tensor_splits(rows[v], use.axes)
        total += float(edge_cost(use.shape, produced, consumed, word_flop)[0, 0])
    return total
