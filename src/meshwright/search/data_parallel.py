"""Data parallelism: every device a replica, the batch split over all; the baseline of every paper."""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Objective
from meshwright.planners.best import answer as joint
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.question import with_batch, within_limits
from meshwright.planners.pase import answer
from meshwright.planners.pase.question import PaseSettings as Params
from meshwright.planners.pase.question import one_stage, question_of
from meshwright.planners.pase.readers.pase_graph import PaseInstance
from meshwright.planners.pase.tables import splits_cost

__all__ = ["Params", "search"]


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the plan that splits only the batch, over all devices.

    Parameters
    ----------
    problem : Problem
        A PaSE graph, or a model of ours on a cluster.
    params : PaseSettings
        Options of PaSE graphs.
    seed : int
        Not used: deterministic.
    stop : Stop
        As in search best; not used for PaSE graphs, where there is nothing to choose.

    Returns
    -------
    Answer
        The plan and its cost, without a bound: no plan of another kind was looked for.

    Raises
    ------
    InputError
        When the devices do not divide the batch.
    """
    if isinstance(problem.model_spec.instance, PaseInstance):
        return _on_pase_graph(problem, params)
    if params != Params():
        raise InputError(
            "search data_parallel: its --set options belong to PaSE graphs; for other models there is nothing to set"
        )
    return _on_layers(problem, stop)


def _on_layers(problem: Problem, stop: Stop) -> Answer:
    """Every device a replica of the whole model; sharding of its state, micro-batch and recomputation as memory asks for."""
    notes: list[str] = []
    problem = with_batch(problem, "data_parallel", notes)
    n = problem.required_cluster.n_devices
    if problem.batch.global_batch % n:
        raise InputError(
            f"search data_parallel: {n} devices do not divide the global batch of {problem.batch.global_batch} samples; "
            f"give --global-batch a multiple of {n}"
        )
    one = (1,)
    limits = Limits(tensor=one, context=one, expert=one, pipeline=one, data=(n,), schedules=("1f1b",))
    return within_limits(joint.answer(problem, limits, stop, tuple(notes)), "data_parallel")


def _on_pase_graph(problem: Problem, params: Params) -> Answer:
    """Every operator of a PaSE graph split along the batch, whether or not the published space contains that."""
    question = question_of(problem, params, "data_parallel")
    chosen = answer.data_parallel(question)
    value = splits_cost(question.network, chosen, question.word_flop)
    extra = answer.shardings(question, chosen)
    return Answer(one_stage(question), Objective("flops_equivalent", value), notes=question.notes, extra=extra)
