"""A plan in another shape: the same degrees with given virtual stages, or given numbers of layers in each stage."""

from __future__ import annotations

from dataclasses import replace

from meshwright import sim
from meshwright.api import answers, targets
from meshwright.api.evaluation import judged
from meshwright.base import registry
from meshwright.core.plan import Plan
from meshwright.core.result import Objective, Result
from meshwright.core.strategy import RECOMPUTE

__all__ = ["shaped"]


def shaped(result: Result, virtual: int, split: tuple[int, ...]) -> Result:
    """Return the quickest plan of a given shape among those with the degrees of an answer and of its runners-up.

    Parameters
    ----------
    result : Result
        What search `best` answered with everything else that is given.
    virtual : int
        Stages of each pipeline rank.
    split : tuple of int
        Layers of each stage; empty for an even spread.

    Returns
    -------
    Result
        Without a bound: shapes were tried for the degrees that the search kept, with one recomputation for all layers where
        they are made anew. Without a plan where none of them fits.
    """
    if result.answer.plan is None:
        return result
    base = result.answer.plan
    tried: dict[Plan, Result] = {}
    plans = (base, *(other.plan for other in result.answer.alternatives))
    allowed = tuple(result.settings.get("recompute", ",".join(RECOMPUTE)).split(","))
    in_shape = registry.load("search", "best", "search").in_shape
    for plan in plans:
        for candidate in in_shape(result.problem.graph, plan, virtual, split, allowed):
            if candidate in tried:
                continue
            tried[candidate] = judged(replace(result, answer=replace(result.answer, plan=candidate)))
            if _excess(tried[candidate]) <= 0.0:
                break  # what recomputes more is slower
    best = min(tried.values(), key=lambda one: (max(_excess(one), 0.0), one.step_seconds or 0.0), default=None)
    shape = f"split {','.join(map(str, split))}" if split else f"{virtual} virtual stages"
    note = (
        f"{shape} given: made of the degrees of the {len(plans)} best plans found without that, the quickest of {len(tried)} "
        "that were simulated; no bound is proven for it, and what would help it is not searched"
    )
    notes, extra = (*result.answer.notes, note), dict(result.answer.extra)
    for field in ("certificate", "runners_up", "fastest", "within_ratio"):
        extra.pop(field, None)
    empty = replace(result.answer, bound=None, certificate=None, alternatives=(), notes=notes, extra=extra)
    if best is None:
        reason = f"{note}; none of them has a pipeline that takes this shape"
        gone = replace(empty, plan=None, objective=None, notes=(*result.answer.notes, reason))
        return replace(result, answer=gone, timeline=None, stage_costs=())
    if (missing := _excess(best)) > 0.0:
        answer = replace(empty, plan=None, objective=None, missing_bytes=missing, infeasible_proven=False)
        return replace(result, answer=answer, timeline=None, stage_costs=())
    assert best.step_seconds is not None
    answer = replace(empty, plan=best.plan, objective=Objective("step_seconds", best.step_seconds))
    found = replace(best, answer=answer)
    answers.check_plan(found.problem, found.plan, "best")
    targets.checked(found)
    return found


def _excess(result: Result) -> float:
    """Return the bytes that are missing on the fullest device."""
    assert result.timeline is not None
    return sim.excess_bytes(result.problem, result.plan, result.timeline.peak_bytes)
