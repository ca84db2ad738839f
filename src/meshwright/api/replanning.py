"""A plan made anew for the devices that are left of its cluster: the same question, search and settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from meshwright.api import plan_files, searching
from meshwright.api.evaluation import judged
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.clusters import left
from meshwright.core.result import Answer, Result

__all__ = ["candidates", "on_what_is_left", "question_of"]


def question_of(path: str) -> Result:
    """Return a plan file with its question, which can be posed again.

    Parameters
    ----------
    path : str
        A file written by ``meshwright plan --out``.

    Returns
    -------
    Result
        As `meshwright.api.plan_files.load`.

    Raises
    ------
    InputError
        When the file does not say its model, its cluster, or a search that there is.
    """
    result = plan_files.load(path)
    registry.load("search", result.search, "search")
    if result.problem.cluster is None:
        raise InputError(f"{path}: names no cluster, so it cannot be planned again for fewer devices; plan with --cluster")
    return result


def on_what_is_left(result: Result, lost: Collection[int]) -> Result:
    """Return the best plan for the same question without some of the devices; global batch and settings stay.

    Parameters
    ----------
    result : Result
        A plan with its question, see `question_of`, or an earlier answer of this function.
    lost : collection of int
        Devices of its cluster that are gone.

    Returns
    -------
    Result
        The answer, on devices numbered from 0 on; `Result.feasible` says whether anything fits.

    Raises
    ------
    InputError
        When no devices are left, or the settings suit them no more.
    """
    cluster = result.problem.cluster
    assert cluster is not None
    asked = result.asked or result.problem
    global_batch = result.answer.plan.global_batch if result.answer.plan is not None else asked.batch.global_batch
    batch = replace(asked.batch, global_batch=global_batch, micro_batch=0)
    problem = replace(asked, cluster=left.without(cluster, lost), batch=batch)
    return searching.searched(problem, search=result.search, settings=result.settings, seed=result.seed)


def candidates(result: Result) -> Iterator[Result]:
    """Yield the plans of an answer, best first, each as an answer of its own.

    Parameters
    ----------
    result : Result
        An answer with a plan.

    Yields
    ------
    Result
        The answer itself, then its alternatives, judged by the simulator.
    """
    yield result
    for other in result.answer.alternatives:
        yield judged(replace(result, answer=Answer(plan=other.plan)))
