"""Activations on the host as a space of plans of its own, for the check of answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.core.problem import Problem
from meshwright.core.strategy import OFFLOAD
from meshwright.planners.best.check.space import RecomputeSpace, recompute_spaces

__all__ = ["spaces_of"]


def spaces_of(problem: Problem, limits: Mapping[str, Any], *, pipeline: bool = False) -> list[RecomputeSpace]:
    """Return the spaces into which the plans fall by what their layers do with activations.

    Beside those of recomputation there is one more where activations may be on the host: those of the first layers are, of none to all
    but one. Where nothing else is asked for it is the only one. It has no pipeline.

    Parameters
    ----------
    problem : Problem
        The question.
    limits : mapping
        The options of the search.
    pipeline : bool
        Whether the plans have a pipeline.
    """
    asked = set(limits["offload"])
    away = [RecomputeSpace(("none", OFFLOAD), blocks=True)] if "activations" in asked and not pipeline else []
    return away if asked == {"activations"} else [*recompute_spaces(problem, limits), *away]
