"""The framework of a question: which one a word names, and which others run the plan that was found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.framework import Framework
from meshwright.core.problem import ModelSpec
from meshwright.core.result import Result

__all__ = ["Target", "as_json", "checked", "framework_of", "runs_on", "with_targets"]

COSTS = ("analytic", "sharded")
"""Cost models that know frameworks; others reproduce published figures or measured times."""


@dataclass(frozen=True, slots=True)
class Target:
    """A framework and a plan.

    Parameters
    ----------
    word : str
        The framework, with the variant that suits the question.
    step_seconds : float
        What a step takes as it runs the plan; 0 where it cannot.
    refusals : tuple of str
        Why it cannot; empty where it runs the plan exactly.
    """

    word: str
    step_seconds: float
    refusals: tuple[str, ...]


def framework_of(word: str, spec: ModelSpec, cluster: Cluster | None, costs: str, precision: str) -> Framework:
    """Return the framework that a word after ``--for`` names, in the variant that suits the question.

    `word`: empty for the one that is assumed where costs know frameworks at all.

    Raises
    ------
    InputError
        When there is none of this name, or the cost model knows no frameworks.
    """
    if costs in COSTS and any(op.body for op in spec.graph.ops):
        return frameworks.for_problem(word, spec.graph, cluster, precision)
    if word:
        raise InputError(f"--for {word}: costs {costs} know no frameworks; they are for models of ours ({', '.join(COSTS)})")
    return Framework()


def checked(result: Result) -> Result:
    """Return a result whose plan the framework asked for runs exactly.

    Raises
    ------
    InputError
        When it does not: all that is outside of it.
    """
    problem = result.problem
    if not problem.framework_asked or result.answer.plan is None:
        return result
    reasons = frameworks.refusals(problem.framework, result.plan, problem)
    if reasons:
        raise InputError(
            f"--for {problem.framework_asked}: cannot run this plan: {'; '.join(reasons)}. 'meshwright plan ... --for "
            f"{problem.framework_asked}' finds the best plan that it can run"
        )
    return result


def runs_on(result: Result) -> tuple[Target, ...]:
    """Return, for every framework there is, what a step takes as it runs the plan, or why it cannot."""
    from meshwright import api

    problem, plan, found = result.problem, result.plan, []
    precision = problem.training.precision
    for name in frameworks.names():
        own = frameworks.for_problem(name, problem.graph, problem.cluster, precision)
        reasons = frameworks.refusals(own, plan, problem)
        seconds = 0.0
        if not reasons:
            _, timeline = api.evaluate(replace(problem, framework=own), plan)
            seconds = 0.0 if timeline is None else timeline.step_seconds
        found.append(Target(own.word, seconds, reasons))
    return tuple(found)


def as_json(targets: tuple[Target, ...]) -> dict[str, Any]:
    """Return the fields on frameworks: ``runs_on`` (those that run the plan exactly) and ``frameworks`` (all, with reasons)."""
    return {
        "runs_on": [one.word for one in targets if not one.refusals],
        "frameworks": [
            {"name": one.word, "step_seconds": one.step_seconds or None, "refusals": list(one.refusals)} for one in targets
        ],
    }


def with_targets(result: Result) -> Result:
    """Return a result that says which frameworks run its plan, in its fields and in notes."""
    problem = result.problem
    if not problem.framework.name or result.answer.plan is None:
        return result
    targets = runs_on(result)
    others = [one for one in targets if one.word != problem.framework.word]
    run = ", ".join(f"{one.word} ({one.step_seconds:.4g} s)" for one in others if not one.refusals)
    cannot = "; ".join(f"{one.word}: {one.refusals[0]}" for one in others if one.refusals)
    notes = []
    if not problem.framework_asked:
        notes.append(
            f"no --for given: {problem.framework.word} is assumed, which runs every plan"
            + (f"; as others that run this plan exactly: {run}" if run else "; no other framework runs this plan exactly")
        )
        if cannot:
            notes.append(f"frameworks that cannot run this plan ('--for NAME' plans for one): {cannot}")
    extra = {**result.answer.extra, **as_json(targets)}
    return replace(result, answer=replace(result.answer, notes=(*result.answer.notes, *notes), extra=extra))
