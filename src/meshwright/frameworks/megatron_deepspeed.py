"""Megatron-DeepSpeed: Megatron-LM's layers in DeepSpeed's pipeline engine."""

from __future__ import annotations

import re
from pathlib import Path

from meshwright.core import framework_file
from meshwright.core.plan import Plan
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import Problem

__all__ = ["FRAMEWORK", "VARIANTS", "recognises", "refusals"]

FRAMEWORK, VARIANTS = framework_file.read(Path(__file__).parent / "data" / "megatron_deepspeed.toml")


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits."""
    return exceeded(FRAMEWORK.limits, plan, problem.graph, problem.training.precision, problem.training.optimizer)


def recognises(text: str) -> bool:
    """Return whether a file's text is a command line of Megatron-DeepSpeed, which nothing here reads: ``pretrain_gpt.py`` with
    DeepSpeed's own option, which Megatron-LM's parser does not have.
    """
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return re.search(r"--deepspeed[_-]config\b", lines) is not None and re.search(r"\bpretrain_\w+\.py\b", lines) is not None
