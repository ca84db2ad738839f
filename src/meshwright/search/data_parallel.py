"""Data parallelism: every device a replica, the batch split over all; the baseline of every paper."""

from __future__ import annotations

from meshwright.costs._pase_tables import splits_cost
from meshwright.errors import InputError
from meshwright.problem import Problem, Stop
from meshwright.readers.pase_graph import PaseInstance
from meshwright.result import Answer, Objective
from meshwright.search import _pase_answer
from meshwright.search._pase_question import PaseSettings as Params
from meshwright.search._pase_question import one_stage, question_of

__all__ = ["Params", "search"]


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the plan that splits only the batch, over all devices.

    Parameters
    ----------
    problem : Problem
        A PaSE graph.
    params : PaseSettings
        Options.
    seed, stop
        Not used: there is nothing to choose.

    Returns
    -------
    Answer
        The plan and its cost, without a bound: no better plan was looked for.

    Raises
    ------
    InputError
        When the model is of a kind this search does not serve.
    """
    if isinstance(problem.reading.instance, PaseInstance):
        return _on_pase_graph(problem, params)
    raise InputError(f"search data_parallel: does not serve {problem.reading.format} models yet; use pase:GRAPH")


def _on_pase_graph(problem: Problem, params: Params) -> Answer:
    """Every operator of a PaSE graph split along the batch, whether or not the published space contains that."""
    question = question_of(problem, params, "data_parallel")
    chosen = _pase_answer.data_parallel(question)
    value = splits_cost(question.network, chosen, question.word_flop)
    extra = _pase_answer.shardings(question, chosen)
    return Answer(one_stage(question), Objective("flops_equivalent", value), notes=question.notes, extra=extra)
