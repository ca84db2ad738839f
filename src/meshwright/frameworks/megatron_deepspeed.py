"""Megatron-DeepSpeed: Megatron-LM's layers in DeepSpeed's pipeline engine."""

from __future__ import annotations

from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.plan import Plan
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import Problem

__all__ = ["FRAMEWORK", "VARIANTS", "refusals"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parent / "data" / "megatron_deepspeed.toml")


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits."""
    return exceeded(FRAMEWORK.limits, plan, problem.graph, problem.training.precision, problem.training.optimizer)
