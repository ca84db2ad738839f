"""What a search answers, looked at before it is taken over: the question that it answered, its fields, its claims."""

from __future__ import annotations

import math

import numpy as np

from meshwright.base import registry
from meshwright.base.errors import InputError, PluginError
from meshwright.core import plan_fields
from meshwright.core.cluster import Cluster
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.result import Answer, Result

__all__ = ["check_claims", "check_extra", "check_plan", "same_question"]

_SIMULATED = ("step_seconds", "simulated_seconds_per_sample")
_ROUNDING_RATIO = 1e-3
"""What a claim may be off: those of `parmesan` were seen to lie up to 1.3e-4 below what the simulator says."""


def same_question(asked: Problem, answered: Problem, search: str) -> Problem:
    """Return the question that a search answered, if it is the one that was asked with no more than its gaps filled.

    Parameters
    ----------
    asked : Problem
        Batch sizes of 0, and a cluster that is not there or is the model file's own, are the search's to fill.
    answered : Problem
        `Answer.problem`, or what ``completed`` of the search returned.
    search : str
        The search.

    Raises
    ------
    PluginError
        When it is another question.
    """
    if answered is asked:
        return asked
    registry.checked(answered, Problem, "search", search)
    changed = [] if answered.graph is asked.graph or answered.graph == asked.graph else ["model"]
    changed += [name for name in ("training", "framework", "memory_risk") if getattr(answered, name) != getattr(asked, name)]
    for name in asked.batch.__dataclass_fields__:
        wanted, found = getattr(asked.batch, name), getattr(answered.batch, name)
        if wanted and found != wanted:
            changed.append(f"{name} ({found} instead of {wanted})")
    own = asked.cluster is None or asked.cluster is asked.model_spec.cluster
    if not own and not _same(asked.cluster, answered.cluster):
        changed.append("cluster")
    if changed:
        raise _error(
            search, f"answered another question: it changed {', '.join(changed)}; it may only fill in what is left open"
        )
    return answered


def _same(one: Cluster | None, other: Cluster | None) -> bool:
    """Return whether two clusters are the same devices on the same links."""
    if one is other or one is None or other is None:
        return one is other
    for name in one.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        if name == "links":
            if not all(np.array_equal(getattr(a, column), getattr(b, column)) for column in a.__dataclass_fields__):
                return False
        elif not (np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b):
            return False
    return True


def check_extra(answer: Answer, search: str) -> None:
    """Refuse further fields of an answer (`Answer.extra`) that every answer has.

    Raises
    ------
    PluginError
        When one is.
    """
    for name in answer.extra:
        if name in plan_fields.FIELDS:
            raise _error(search, f"gives extra the field '{name}', which every answer has; call it otherwise")


def check_plan(problem: Problem, plan: Plan, search: str) -> None:
    """Refuse what a search answered unless every layer is in one stage, the devices are there, and the batch is the one asked
    for, whatever costs can tell.

    Raises
    ------
    InputError
        As `meshwright.sim.check_plan`, with the search.
    PluginError
        When the plan has another global batch than was asked for.
    """
    from meshwright import sim

    try:
        sim.check_plan(problem, plan)
    except InputError as error:
        raise InputError(f"search {search}: its answer is no plan: {error}") from None
    wanted = problem.batch.global_batch
    if wanted not in (0, plan.global_batch):
        raise _error(search, f"answered with a plan of global_batch {plan.global_batch}; {wanted} was asked for")


def check_claims(result: Result) -> tuple[str, ...]:
    """Refuse an objective or a bound that cannot be true.

    Parameters
    ----------
    result : Result
        Judged: an objective that is called as the simulator's may not be below it.

    Returns
    -------
    tuple of str
        Where a search of ours counts less than the simulator, a sentence on it.

    Raises
    ------
    PluginError
        When a value is not finite, the bound is beyond the objective, or the simulator says more than the objective
        of another package's search.
    """
    objective, bound, search = result.objective, result.bound, result.search
    if objective is None:
        if bound is not None:
            raise _error(search, f"claims the bound {bound.value} without an objective; a bound is on the objective")
        return ()
    if not (math.isfinite(objective.value) and objective.value >= 0.0):
        raise _error(search, f"claims the objective {objective.name} = {objective.value}; it must be finite and at least 0")
    if bound is not None:
        beyond = bound.value < objective.value if objective.name == "speedup" else bound.value > objective.value
        close = math.isclose(bound.value, objective.value, rel_tol=_ROUNDING_RATIO)
        if not math.isfinite(bound.value) or (beyond and not close):
            raise _error(
                search,
                f"claims the bound {bound.value} on {objective.name} = {objective.value}; it must be finite, and never beyond "
                "the objective",
            )
    if objective.name in _SIMULATED and result.timeline is not None:
        samples = 1 if objective.name == "step_seconds" else result.plan.global_batch
        seconds = result.timeline.step_seconds
        if objective.value * samples < seconds * (1.0 - _ROUNDING_RATIO):
            if registry.home("search", search) is None:
                raise _error(
                    search,
                    f"claims {objective.name} = {objective.value}, but the simulator says {seconds / samples}; an objective of "
                    "this name may not be below it",
                )
            return (
                f"search {search} counts {objective.name} = {objective.value:.6g}, the simulator {seconds / samples:.6g}: the "
                "step shown is the simulator's, and a bound is one on what the search counts",
            )
    return ()


def _error(search: str, what: str) -> PluginError:
    """Return the one sentence about an answer that is not taken over."""
    return PluginError(f"{registry.title('search', search)} {what}")
