"""The framework of a question: which one a word names, and which others run the plan that was found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from meshwright import frameworks
from meshwright.api.evaluation import evaluate
from meshwright.base import registry
from meshwright.base.errors import InputError, PluginError
from meshwright.base.units import format_count
from meshwright.core.cluster import Cluster
from meshwright.core.framework import Framework
from meshwright.core.graph import Graph
from meshwright.core.problem import ModelSpec
from meshwright.core.result import Result
from meshwright.core.timeline import Timeline

__all__ = ["Target", "as_json", "checked", "framework_of", "nearest", "runs_on", "whole_only", "with_targets"]

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
        found = frameworks.for_problem(word, spec.graph, cluster, precision)
        if word and not (found.limits.frozen_weights or spec.graph.fully_trained):
            raise InputError(
                f"--for {word}: {_frozen(spec.graph)}, and {found.word} trains all weights of a model; plan for another"
            )
        return found
    if word:
        raise InputError(f"--for {word}: costs {costs} know no frameworks; they are for models of ours ({', '.join(COSTS)})")
    return Framework()


def whole_only(graph: Graph, module: ModuleType, what: str) -> None:
    """Refuse a model with frozen weights where a cost model or search would count gradients and state for all of them.

    `what`: how it is called in the message. Modules that count only trained weights say so: ``FROZEN = True``.
    """
    if not graph.fully_trained and not getattr(module, "FROZEN", False):
        raise InputError(
            f"{what}: {_frozen(graph)}, and it would count gradients and optimizer state for all weights; leave the "
            "option out: search best with costs analytic counts what is trained"
        )


def _frozen(graph: Graph) -> str:
    frozen, whole = format_count(graph.n_frozen_parameters), format_count(graph.n_parameters)
    return f"{frozen} of the {whole} weights of {graph.name} are frozen"


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
    problem, plan, found = result.problem, result.plan, []
    precision = problem.training.precision
    for name in frameworks.names():
        try:
            own = frameworks.for_problem(name, problem.graph, problem.cluster, precision)
            reasons = frameworks.refusals(own, plan, problem)
        except PluginError as error:
            registry.warn(f"{error}; it is left out")
            continue
        seconds = 0.0
        if not reasons:
            _, timeline = evaluate(replace(problem, framework=own), plan)
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
    others = sorted((one for one in targets if one.word != problem.framework.word), key=lambda one: -one.step_seconds)
    run = ", ".join(f"{one.word} ({one.step_seconds:.4g} s)" for one in others if not one.refusals)
    cannot = "; ".join(f"{one.word}: {one.refusals[0]}" for one in others if one.refusals)
    notes, exactly = (
        [],
        f"others that run this plan exactly, the slowest first: {run}" if run else "no other one runs it exactly",
    )
    if not problem.framework_asked:
        notes.append(
            f"no --for given: {problem.framework.word}, our own runtime, is assumed, with the cost model's plain figures (none "
            f"are fitted to it); {exactly}"
        )
        if cannot:
            notes.append(f"frameworks that cannot run this plan ('--for NAME' plans for one): {cannot}")
    extra = {**result.answer.extra, **as_json(targets)}
    return replace(result, answer=replace(result.answer, notes=(*result.answer.notes, *notes), extra=extra))


def nearest(result: Result, name: str) -> tuple[str, Timeline] | None:
    """Return how all layers of a plan may recompute so that a framework runs it, and the step then: the quickest that fits.

    None where there is no such setting, or none fits: then stages, degrees or the schedule have to change too.
    """
    from meshwright import sim
    from meshwright.costs import analytic

    problem, plan = result.problem, result.plan
    if problem.costs not in COSTS or not plan.recomputes:
        return None
    own = frameworks.for_problem(name, problem.graph, problem.cluster, problem.training.precision)
    posed, found = replace(problem, framework=own), None
    for word in analytic.distinct_settings(problem.graph, own.limits.recompute):
        stages = tuple(
            replace(
                stage,
                recompute=tuple("none" if problem.graph.ops[op].kind in ("embedding", "head") else word for op in stage.ops),
            )
            for stage in plan.stages
        )
        near = replace(plan, stages=stages)
        if frameworks.refusals(own, near, posed):
            continue
        _, timeline = evaluate(posed, near)
        if timeline is None or sim.excess_bytes(posed, near, timeline.peak_bytes) > 0.0:
            continue
        if found is None or timeline.step_seconds < found[1].step_seconds:
            found = word, timeline
    return found
