"""From a plan to the best one of its framework: each change by itself, and one after another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.plan_forms import inner_words, layout_of
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.strategy import OFFLOAD

__all__ = ["NO_RUNNERS_UP", "Rung", "climb"]

NO_RUNNERS_UP: Mapping[str, str] = MappingProxyType({"alternatives": "1"})
_AXES = ("tensor", "context", "expert", "pipeline", "micro_batch", "shard", "recompute", "schedules")


@dataclass(frozen=True, slots=True, eq=False)
class Rung:
    """A change of one setting, and the plan under it.

    Parameters
    ----------
    axis : str
        What changes: a degree, ``shard``, ``recompute``, ``schedules``, ``micro_batch``; ``rest`` for all that is left.
    before, after : str
        Its values.
    result : Result or None
        The best plan with all else as before; None where there is none.
    reason : str
        Why there is none.
    also : tuple of str
        What else of the best plan is otherwise than before, in words: the cut into stages, virtual stages, exchanges.
    """

    axis: str
    before: str
    after: str
    result: Result | None
    reason: str = ""
    also: tuple[str, ...] = ()


def _values(plan: Plan, problem: Problem) -> dict[str, str]:
    """Return what a plan says of each axis, as the search's options have it."""
    one = plan.stages[0].strategy
    words = {
        word
        for stage in plan.stages
        for op, word in zip(stage.ops, stage.recompute or ("none",) * len(stage.ops), strict=True)
        if problem.graph.ops[op].kind not in ("embedding", "head")
    } - {OFFLOAD}
    return {
        "tensor": str(one.tensor), "context": str(one.context), "expert": str(one.expert), "pipeline": str(len(plan.ranks())),
        "micro_batch": str(plan.micro_batch), "shard": str(one.shard), "recompute": ",".join(sorted(words)) or "none",
        "schedules": plan.schedule,
    }  # fmt: skip


def _beside(before: Plan, after: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what differs between two plans beside the axes of `_values`, in words."""
    found, cuts = [], [_cut(plan, problem) for plan in (before, after)]
    chunks = [len(plan.stages) // len(plan.ranks()) for plan in (before, after)]
    if chunks[0] != chunks[1]:
        found.append(f"{chunks[1]} stages a rank")
    even = len(set(cuts[1])) == 1 and len(cuts[0]) != len(cuts[1])  # follows from the number of stages
    if cuts[0] != cuts[1] and len(cuts[1]) > 1 and not even:
        found.append(f"layers of stages {_runs(cuts[1])}")
    one, other = before.stages[0].strategy, after.stages[0].strategy
    if other.context > 1 and one.context_exchange != other.context_exchange:
        found.append(f"context exchange {other.context_exchange}")
    if other.tensor > 1 and one.sequence_parallel != other.sequence_parallel:
        overlapped = other.sequence_parallel and problem.framework.tensor_overlap_ratio > 0.0
        beside = " and tensor communication beside products" if overlapped else ""
        found.append(f"{'with' if other.sequence_parallel else 'without'} sequence parallelism{beside}")
    if one.shard_degree != other.shard_degree:
        found.append(f"sharded over {other.shard_degree or other.data} of {other.data} data ranks")
    if one.offload != other.offload:
        found.append(f"offload {other.offload}")
    if layout_of(before) != layout_of(after) and len(after.ranks()) > 1 < other.data:
        found.append(f"{layout_of(after) or 'another axis'} outermost over the devices")
    words = [[stage.recompute for stage in plan.stages] for plan in (before, after)]
    mixed = len({word for stage in inner_words(after, problem.graph) for word in stage}) > 1
    if mixed and (words[0] != words[1] or cuts[0] != cuts[1]):
        counts = [sum(word != "none" for word in stage) for stage in inner_words(after, problem.graph)]
        what = "have activations on the host" if after.n_offloaded else "recompute"
        found.append(f"layers of stages that {what} {_runs(counts)}")
    return tuple(found)


def _cut(plan: Plan, problem: Problem) -> list[int]:
    """Return how many layers each stage has, embedding and head not counted."""
    return [len(stage) for stage in inner_words(plan, problem.graph)]


def _runs(counts: list[int]) -> str:
    """Return numbers with those that repeat told once: ``21, 20 (twice), 19``."""
    runs = [(count, len(list(group))) for count, group in itertools.groupby(counts)]
    return ", ".join(f"{count}" if n == 1 else f"{count} ({n} times)" for count, n in runs)


def _with(problem: Problem, values: Mapping[str, str], data: int) -> Result | str:
    """Return the best plan with everything as said, or why there is none."""
    alone = {"schedules": values["schedules"] if values["pipeline"] != "1" else "1f1b"}
    shard = {"shard": values["shard"] if data * int(values["context"]) > 1 else "0"}
    settings = {**values, **alone, **shard, "recompute": values["recompute"].replace("+", ","), **NO_RUNNERS_UP}
    try:
        found = api.plan(problem, search="best", settings=settings)
    except InputError as error:
        return str(error)
    nearest = found.answer.nearest
    return found if found.feasible else f"no such plan fits; {nearest}" if nearest else "does not fit, or no such plan is legal"


def climb(
    own: Result, missing: float, best: Result, asked: Callable[[], bool] = bool
) -> tuple[tuple[Rung, ...], tuple[Rung, ...]]:
    """Return the single changes from a plan towards the best one, and a way up: at every rung the change that helps most.

    `missing`: bytes that the plan lacks; where it lacks any, every plan that fits is a step up.
    `asked`: whether to stop; what was not tried until then is one rung.
    """
    problem, plan = own.problem, own.plan
    here, goal, below = _values(plan, problem), _values(best.plan, problem), plan
    open_axes = [axis for axis in _AXES if here[axis] != goal[axis]]
    single: tuple[Rung, ...] = ()
    ladder: list[Rung] = []
    last_seconds = math.inf if missing or own.timeline is None else own.timeline.step_seconds
    while len(open_axes) > 1:
        tried: list[Rung] = []
        for axis in open_axes:
            values = here | {axis: goal[axis]}
            if axis == "schedules" and values["pipeline"] == "1":
                continue  # there is nothing to order
            if asked():
                tried.clear()  # of the changes that were tried the most helpful may not be the most helpful of all
                break
            width = int(values["tensor"]) * int(values["context"]) * int(values["pipeline"])
            found = _with(problem, values, plan.n_devices // width)
            tried.append(
                Rung(axis, here[axis], goal[axis], None, found) if isinstance(found, str) else
                Rung(axis, here[axis], goal[axis], found, also=_beside(below, found.plan, problem))
            )  # fmt: skip
        tried.sort(key=lambda rung: rung.result.timeline.step_seconds if rung.result and rung.result.timeline else math.inf)
        single = single or tuple(tried)
        quickest = tried[0].result if tried else None
        if quickest is None or quickest.timeline is None or quickest.timeline.step_seconds >= last_seconds:
            break  # what is left helps together only
        last_seconds, below = quickest.timeline.step_seconds, quickest.plan
        ladder.append(tried[0])
        here[tried[0].axis] = goal[tried[0].axis]
        open_axes.remove(tried[0].axis)
    if open_axes:
        one = open_axes[0] if len(open_axes) == 1 else "rest"
        before, after = (", ".join(f"{axis} {values[axis]}" for axis in open_axes) for values in (here, goal))
        ends = (here[one], goal[one]) if one != "rest" else (before, after)
        last = Rung(one, *ends, best, also=_beside(below, best.plan, problem))
        ladder.append(last)
        single = single or (last,)
    return single, tuple(ladder)
