"""The joint search as a whole: branch and bound, then layers moved, then the splits that are left, and what it says of them."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer
from meshwright.costs import sharded
from meshwright.planners.best import splits
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.incumbents import Incumbent, rank
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import pools

__all__ = ["answer"]


def answer(problem: Problem, params: Limits, stop: Stop, notes: tuple[str, ...] = ()) -> Answer:
    """Return the best plan of the joint space within limits, and a proven bound on every other.

    Parameters
    ----------
    problem : Problem
        A model of ours on a cluster, its batch decided (`with_batch`).
    params : Limits
        What may be fixed.
    stop : Stop
        When to stop.
    notes : tuple of str
        Sentences to pass on.

    Returns
    -------
    Answer
        ``objective`` is the simulated step. Without a plan, nothing missing and a last note that says why where none is legal.

    Raises
    ------
    InputError
        When more than all of the memory is asked for.
    """
    if params.memory_ratio > 1.0:
        raise InputError(f"--set memory_ratio={params.memory_ratio:g}: more than all of the memory; give a share up to 1")
    first: list[Incumbent] = []
    if problem.costs == "sharded":
        # its plans are the first ones known, so the answer is never slower than Megatron's split gives
        plain = _searched(replace(problem, costs="analytic"), params, stop, [])
        first = sorted(plain.found, key=rank)[: params.alternatives]
    state = _searched(problem, params, stop, first)
    state.runners_up()
    found = replace(state.answer(notes), certificate=state.certificate())
    return _with_splits(problem, found) if problem.costs == "sharded" and found.plan is not None else found


def _searched(problem: Problem, params: Limits, stop: Stop, first: list[Incumbent]) -> BestFirstSearch:
    """Return the search after it has run, with plans known before it starts."""
    state = BestFirstSearch(problem, params, stop)
    played = [state.play(known.pool, known.config, known.plan) for known in first]
    state.found += [known for known in played if known is not None]
    for pool in pools(problem.required_cluster):
        state.add(pool)
    state.run()
    splits.improve(state)
    splits.close(state)
    return state


def _with_splits(problem: Problem, found: Answer) -> Answer:
    """Say which layers are split otherwise than Megatron does."""
    assert found.plan is not None
    return replace(
        found,
        notes=(*found.notes, sharded.described(problem, found.plan)),
        extra={**found.extra, "splits": sharded.splits(problem, found.plan)},
    )
