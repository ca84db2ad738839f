"""A plan evaluated: what its stages do and hold, and the step simulated."""

from __future__ import annotations

import json
from dataclasses import replace

from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Answer, Result
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import Timeline

__all__ = ["evaluate", "json_ready", "judged", "simulate", "stage_costs_of"]


def evaluate(problem: Problem, plan: Plan) -> tuple[tuple[StageCost, ...], Timeline | None]:
    """Return what each stage of a plan does and holds, and the simulated step.

    Parameters
    ----------
    problem : Problem
        The question the plan answers.
    plan : Plan
        The plan.

    Returns
    -------
    stage_costs : tuple of StageCost
        Empty where the cost model cannot tell.
    timeline : Timeline or None
        None where the cost model cannot tell.
    """
    stage_costs = stage_costs_of(problem, plan)
    return stage_costs, simulate(problem, plan, stage_costs) if stage_costs else None


def stage_costs_of(problem: Problem, plan: Plan) -> tuple[StageCost, ...]:
    """Return what the problem's cost model says of each stage; refuse what is none of its room's kind."""
    from meshwright.sim import tasks

    made: tuple[StageCost, ...] = registry.load("costs", problem.costs, "cost model").stage_costs(problem, plan)
    registry.checked(made, tuple, "costs", problem.costs)
    for one in made:
        registry.checked(one, StageCost, "costs", problem.costs)
    with registry.blamed("costs", problem.costs):
        if made:
            tasks.check_loads(plan, made)
    return made


def judged(result: Result) -> Result:
    """Return a result with what the stages of its plan do and the simulated step; one without a plan as it is.

    Parameters
    ----------
    result : Result
        A question and its answer.

    Returns
    -------
    Result
        With `stage_costs` and `timeline` as `evaluate` gives them.
    """
    if result.answer.plan is None:
        return result
    stage_costs, timeline = evaluate(result.problem, result.answer.plan)
    return replace(result, stage_costs=stage_costs, timeline=timeline)


def simulate(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...] | None = None) -> Timeline:
    """Play one step of a plan.

    Parameters
    ----------
    problem : Problem
        What is trained where.
    plan : Plan
        The plan.
    stage_costs : tuple of StageCost or None
        What each stage does and holds; None for what the problem's cost model says.

    Returns
    -------
    Timeline
        What would happen.

    Raises
    ------
    InputError
        When the plan is none of this problem, or the cost model cannot say how long a stage takes.
    """
    from meshwright import sim

    if stage_costs is None:
        stage_costs = stage_costs_of(problem, plan)
        if not stage_costs:
            raise InputError(
                f"costs {problem.costs}: cannot say how long the stages of this plan take, so there is nothing to play"
            )
    return sim.simulate(problem, plan, stage_costs)


def json_ready(answer: Answer, search: str) -> None:
    """Refuse what a search of another package answers in further fields that no file can hold.

    Raises
    ------
    InputError
        When `extra` or `certificate` holds anything but JSON-ready values.
    """
    if not registry.package("search", search):
        return
    for place, held in (("extra", answer.extra), ("certificate", answer.certificate or {})):
        try:
            json.dumps(dict(held))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"its answer's {place} is not JSON-ready: {error}") from error
