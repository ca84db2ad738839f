"""torchtitan and PyTorch pipelining."""

from __future__ import annotations

from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.framework import exceeded
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem

__all__ = ["FRAMEWORK", "VARIANTS", "refusals"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parents[1] / "data" / "torchtitan.toml")


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits, and a model that is none of a Hugging Face configuration."""
    found = exceeded(FRAMEWORK.limits, plan, problem.graph, problem.training.precision)
    form = problem.model_spec.format
    return (
        found
        if form in FRAMEWORK.limits.formats
        else (*found, f"a model of format {form}; it trains models of its own registry")
    )
