"""Which fields of a plan file a check has verified, has taken as the question, or has not looked at."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.core.result import Result

__all__ = ["FIGURES", "changed", "not_looked_at"]

FIGURES = (
    "format", "feasible", "model.format", "model.n_parameters", "model.n_trained_parameters", "cluster.n_devices", "stages",
    "schedule", "step_seconds", "samples_per_second", "tokens_per_second", "model_flops_utilization_ratio",
    "model_flops_utilization_causal_ratio", "causes", "step_interval", "step_seconds_interval", "peak_bytes_interval",
)  # fmt: skip
"""What follows from question and plan, so that a file's is compared with what they give."""

_QUESTION = (
    "model",
    "cluster",
    "search",
    "settings",
    "costs",
    "memory_risk",
    "for",
    "framework",
    "seed",
    "batch",
    "training",
    "lengths",
)
_PLAIN: tuple[tuple[str, Any], ...] = (
    ("context", 1), ("expert", 1), ("sequence_parallel", False), ("shard", 0), ("shard_degree", 0),
)  # fmt: skip
_ROUNDING = 1e-9


def changed(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return which field of a plan file is not what the plan gives, in a sentence; empty for none.

    `expected`: the same plan as JSON, judged anew; `FIGURES` are compared, and what is not in the file is not missed.
    """
    for name in FIGURES:
        key, _, part = name.partition(".")
        if key not in found or (part and not (isinstance(found[key], dict) and part in found[key])):
            continue
        one, other = expected.get(key), found[key]
        reason = _differs((one or {}).get(part), other[part], name) if part else _differs(one, other, name)
        if reason:
            return reason
    return ""


def _differs(expected: Any, found: Any, place: str) -> str:
    """Return where two values differ, in a sentence."""
    if isinstance(expected, dict) and isinstance(found, dict):
        parts = [(f"{place}.{key}", expected[key], found[key]) for key in expected if key in found]
        parts += [(f"{place}.{key}", None, found[key]) for key in found if key not in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = [(f"{place}[{i}]", *both) for i, both in enumerate(zip(expected, found, strict=True))]
    else:
        numbers = [one for one in (expected, found) if isinstance(one, (int, float)) and not isinstance(one, bool)]
        same = expected == found or (len(numbers) == 2 and math.isclose(*numbers, rel_tol=_ROUNDING))
        return "" if same else f"{place} is {found!r} in the file, and {expected!r} by the plan in it"
    return next((reason for part, one, other in parts if (reason := _differs(one, other, part))), "")


def not_looked_at(result: Result, entry: Mapping[str, Any], verified: Collection[str]) -> tuple[str, ...]:
    """Return in sentences what of a plan file was not verified, by the names of its fields.

    `result`: the file taken up again.
    `verified`: fields that were, beside `FIGURES`, parts of them with a point: ``bound.value``.
    """
    known = {*FIGURES, *verified} - ({"schedule"} if result.timeline is None else set())
    left: list[str] = []
    asked: list[str] = []
    for key, value in entry.items():
        if key in known:
            continue
        held = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
        inside = [f"{key}.{part}" for part in held] if isinstance(held, dict) else []
        names = [name for name in inside if name not in known] if any(name in known for name in inside) else [key]
        (asked if key in _QUESTION else left).extend(names)
    return (
        *_uncounted(result),
        *([f"these fields, which are the question as the file has it: {', '.join(asked)}"] if asked else []),
        *([f"these fields, which are said beside the plan: {', '.join(left)}"] if left else []),
    )


def _uncounted(result: Result) -> Iterator[str]:
    """Give what the plan's stages have of which its figures do not depend."""
    from meshwright.api.evaluation import evaluate
    from meshwright.base.errors import MeshwrightError

    plan = result.plan
    for name, plain in _PLAIN:
        if plan is None or all(getattr(stage.strategy, name) == plain for stage in plan.stages):
            continue
        stages = tuple(replace(stage, strategy=replace(stage.strategy, **{name: plain})) for stage in plan.stages)
        try:
            _, timeline = evaluate(result.problem, replace(plan, stages=stages))
        except MeshwrightError:  # what is told of a stage belongs together
            continue
        if (timeline and timeline.step_seconds, timeline and timeline.peak_bytes) == (
            result.timeline and result.timeline.step_seconds, result.timeline and result.timeline.peak_bytes
        ):  # fmt: skip
            yield f"stages.{name}: costs {result.problem.costs} do not depend on it"
