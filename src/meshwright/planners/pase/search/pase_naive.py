"""PaSE's naive algorithm: operators in order, a table of the splits of all that later ones still read."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective
from meshwright.planners.pase import answer
from meshwright.planners.pase.question import PaseSettings as Params
from meshwright.planners.pase.question import one_stage, question_of
from meshwright.planners.pase.tables import tables
from meshwright.solvers.pairwise.problem import Pairwise, total_cost

__all__ = ["Params", "search"]

LARGEST_TABLE = 100_000_000
"""Entries: less than a gigabyte."""


class _Dropped(NamedTuple):
    """An operator all of whose neighbours are in the table's past: its best label for each entry of the rest.

    Attributes
    ----------
    node : int
        The operator.
    open : tuple of int
        Operators on the axes of `best`.
    best : ndarray, int64
        Its label, by theirs.
    """

    node: int
    open: tuple[int, ...]
    best: NDArray[np.int64]


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the splits of least cost, by the naive recurrence of the paper.

    `problem` is a PaSE graph; `seed` and `stop` are not used: nothing is random, and it ends by itself. `Answer.extra` has the
    number of joint combinations costed.
    Raises `InputError` when a table would be too large: many operators are then open at once (``pase:inception3`` and
    ``pase:transformer`` on many processors).

    References
    ----------
    .. [1] V. Elango, "PaSE", IPDPS 2021, section III: ``B(i, f) = min_C H(i, f') + B(i - 1, f'')`` over the splits of the
       operators that later ones read. Its section IV improves on it by the order of operators.

    Notes
    -----
    The released program counts operators twice where branches meet, so that its cost is no cost of the splits it prints; here
    every operator and every edge is counted once, and the optimum is that of the other searches.
    """
    question = question_of(problem, params, "pase_naive")
    costs = tables(question.network, question.n_processors, question.word_flop)
    labels, n_costed, largest = _in_order(costs.problem, problem.model_spec.spec)
    value = total_cost(costs.problem, labels)
    extra = answer.shardings(question, [costs.splits[v][x] for v, x in enumerate(labels.tolist())])
    extra |= {"joint_combinations_costed": n_costed, "max_table": largest}
    return Answer(
        one_stage(question), Objective("flops_equivalent", value), Bound(value, "exact"), notes=question.notes, extra=extra
    )  # fmt: skip


def _in_order(problem: Pairwise, spec: str) -> tuple[NDArray[np.int64], int, int]:
    """Return the best labels, how many combinations of labels were costed, and the largest table."""
    n_labels = np.diff(problem.first).tolist()
    edges: list[list[tuple[int, int]]] = [[] for _ in n_labels]
    last = list(range(len(n_labels)))
    for e, (u, v) in enumerate(zip(problem.source.tolist(), problem.target.tolist(), strict=True)):
        edges[max(u, v)].append((min(u, v), e))
        last[min(u, v)] = max(last[min(u, v)], max(u, v))
    table, open_ = np.zeros(()), list[int]()
    dropped: list[_Dropped] = []
    n_costed = largest = 0
    for v, n in enumerate(n_labels):
        size = math.prod(n_labels[u] for u in open_) * n
        if size > LARGEST_TABLE:
            raise InputError(
                f"search pase_naive: {spec} has {len(open_)} operators open at operator {v}, a table of {size:.3g} entries "
                f"(at most {LARGEST_TABLE:.0e}); use --search pase"
            )
        n_costed, largest = n_costed + size, max(largest, size)
        table = table[..., None] + problem.costs_of(v)
        open_.append(v)
        for u, e in edges[v]:
            joined = problem.table(e)[np.ix_(problem.rows[e], problem.columns[e])]
            pair = joined if int(problem.source[e]) == u else joined.T
            shape = [1] * len(open_)
            shape[open_.index(u)], shape[-1] = pair.shape
            table = table + pair.reshape(shape)
        for u in [u for u in open_ if last[u] <= v]:
            axis = open_.index(u)
            open_.remove(u)
            dropped.append(_Dropped(u, tuple(open_), np.argmin(table, axis=axis)))
            table = table.min(axis=axis)
    labels = np.zeros(len(n_labels), dtype=np.int64)
    for node, others, best in reversed(dropped):
        labels[node] = best[tuple(labels[list(others)])]
    return labels, n_costed, largest
