"""PaSE's naive algorithm: one operator after another, a table of the last one's splits; for graphs that are a path."""

from __future__ import annotations

import numpy as np

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective
from meshwright.planners.pase import answer
from meshwright.planners.pase.question import PaseSettings as Params
from meshwright.planners.pase.question import one_stage, question_of
from meshwright.planners.pase.tables import tables
from meshwright.solvers.pairwise.problem import Pairwise, total_cost

__all__ = ["Params", "search"]


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the splits of least cost of a graph that is a path.

    `problem` is a PaSE graph in which every operator reads the one before only (``pase:alexnet``, ``pase:rnnlm``); `seed` and
    `stop` are not used: nothing is random, and it ends by itself. `Answer.extra` has the number of joint combinations costed.
    Raises `InputError` when the graph is not a path: where two branches meet the published algorithm counts costs twice.

    References
    ----------
    .. [1] V. Elango, "PaSE", IPDPS 2021, section III (the naive recurrence), which its section IV improves on.
    """
    question = question_of(problem, params, "pase_naive")
    edges = [(u, v) for u, v, _ in question.network.edges()]
    if edges != [(v, v + 1) for v in range(len(question.network.operators) - 1)]:
        raise InputError(
            f"search pase_naive: {problem.model_spec.spec} is not a path, and the naive algorithm counts operators where "
            "branches "
            f"meet twice; it serves pase:alexnet and pase:rnnlm, use --search pase for the others"
        )
    costs = tables(question.network, question.n_processors, question.word_flop)
    labels, n_costed, largest = _along_the_path(costs.problem)
    value = total_cost(costs.problem, labels)
    extra = answer.shardings(question, [costs.splits[v][x] for v, x in enumerate(labels.tolist())])
    extra |= {"joint_combinations_costed": n_costed, "max_table": largest}
    return Answer(
        one_stage(question), Objective("flops_equivalent", value), Bound(value, "exact"), notes=question.notes, extra=extra
    )  # fmt: skip


def _along_the_path(problem: Pairwise) -> tuple[np.ndarray, int, int]:
    """Return the best labels, how many pairs of labels were costed, and the largest table."""
    table = problem.costs_of(0)
    n_costed, largest = len(table), len(table)
    back = []
    for v in range(1, problem.n_nodes):
        e = v - 1
        joined = table[:, None] + problem.table(e)[np.ix_(problem.rows[e], problem.columns[e])]
        back.append(np.argmin(joined, axis=0))
        table = joined.min(axis=0) + problem.costs_of(v)
        n_costed += joined.size
        largest = max(largest, joined.size)
    labels = np.zeros(problem.n_nodes, dtype=np.int64)
    labels[-1] = np.argmin(table)
    for v in range(problem.n_nodes - 1, 0, -1):
        labels[v - 1] = back[v - 1][labels[v]]
    return labels, n_costed, largest
