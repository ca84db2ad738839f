"""One weird trick: convolutions split along the batch, fully connected layers along their outputs."""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Objective
from meshwright.planners.pase import answer
from meshwright.planners.pase.question import PaseSettings as Params
from meshwright.planners.pase.question import one_stage, question_of
from meshwright.planners.pase.tables import splits_cost

__all__ = ["Params", "search"]


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return data parallelism with fully connected layers and their loss split by outputs.

    `problem` is a PaSE graph; `seed` and `stop` are not used: there is nothing to choose. No bound: no better plan was looked
    for.
    Raises `InputError` when the model is not a PaSE graph, or the processors do not divide the batch.

    References
    ----------
    .. [1] A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997, 2014.

    Notes
    -----
    A layer whose outputs cannot be split into as many parts as there are processors runs whole.
    """
    question = question_of(problem, params, "one_weird_trick")
    chosen = answer.one_weird_trick(question)
    wrong = answer.impossible(question.network, chosen)
    if wrong:
        raise InputError(f"search one_weird_trick: {wrong}; give --set n_processors or batch so that it does")
    value = splits_cost(question.network, chosen, question.word_flop)
    notes = question.notes
    if not any(operator.kind == "FC" for operator in question.network.operators):
        notes += (f"{question.network.name} has no fully connected layer: this is data parallelism",)
    extra = answer.shardings(question, chosen)
    return Answer(one_stage(question), Objective("flops_equivalent", value), notes=notes, extra=extra)
