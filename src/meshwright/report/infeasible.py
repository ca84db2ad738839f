"""What is said where there is no plan: what is proven, how much is missing, and what comes nearest."""

from __future__ import annotations

from meshwright import sim
from meshwright.base.units import format_bytes
from meshwright.core.launch import fills_hosts
from meshwright.core.problem import Problem
from meshwright.core.result import Result

__all__ = ["nothing_fits"]


def nothing_fits(result: Result) -> str:
    """Return why there is no plan, what is proven of that, and the nearest that there is."""
    answer, asked = result.answer, result.asked or result.problem
    text = "\nNo plan that fits was found; that there is none is not proven."
    if answer.infeasible_proven:
        text = "\nNothing fits."
        passed_on = result.search == "best" and asked.costs not in ("analytic", "sharded")
        search = asked.model_spec.search if passed_on else result.search
        own = [] if search == "best" else [f"of search {search}"]
        if search == "best" and asked.cluster is not None and len(asked.cluster.kinds) > 1:
            own.append("whose ranks each have devices of one kind")
        limits = asked.framework.limits
        if search == "best" and asked.cluster is not None and not (limits.uneven_hosts or fills_hosts(asked.cluster).all()):
            own.append("that take equally many devices of every host")
        own += ["within the options given"] if result.settings else []
        if own:
            text += f" That is proven of the plans {' '.join(own)}."
    if answer.missing_bytes:
        text += f" The nearest plan needs {format_bytes(answer.missing_bytes)} more on its fullest device."
        text += _kept_free(asked, answer.missing_bytes)
    return text + (f"\nNearest: {answer.nearest}" if answer.nearest else "")


def _kept_free(problem: Problem, missing_bytes: float) -> str:
    """Return a sentence on the room that peaks have to leave, and whether the nearest plan lacks no more than that."""
    share = problem.memory_ratio
    if problem.cluster is None or share >= 1.0:
        return ""
    text = f" Predicted peaks may fill {share:.0%} of a device (--memory-risk {problem.memory_risk:g})"
    kinds = problem.cluster.kinds
    if len(kinds) == 1 and missing_bytes <= sim.free_bytes(kinds) - sim.free_bytes(kinds, share):
        text += ": as predicted, without that room, it would fit (--memory-risk 0.5)"
    return text + "."
