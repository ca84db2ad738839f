"""A plan file as the runtime reads it: the plan, the names of its layers, the length of a sample; no model needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.strategy import RECOMPUTE
from meshwright.writers import plan_json

__all__ = ["PlanFile", "plan_file_of", "read_plan"]


@dataclass(frozen=True, slots=True, eq=False)
class PlanFile:
    """What a plan file says.

    `plan`: ids of layers are positions in `names`.
    `names`: layers in the order of the stages.
    `sequence_length`: tokens of a sample; 1 where samples are no sequences.
    `entry`: the whole file.
    """

    plan: Plan
    names: tuple[str, ...]
    sequence_length: int
    entry: Mapping[str, Any]

    def notes(self) -> tuple[str, ...]:
        """Return a sentence each where operators are split otherwise than a stage's degrees say, which is not what runs."""
        told = []
        if self.entry.get("shardings"):
            degrees = "; ".join(
                f"stage {i}: data {stage.strategy.data}, tensor {stage.strategy.tensor}, shard {stage.strategy.shard}"
                for i, stage in enumerate(self.plan.stages)
            )
            told.append(
                f"the plan shards operator by operator (field shardings); what runs are the nearest uniform degrees: {degrees}"
            )
        if self.entry.get("splits"):
            told.append(
                "the plan splits some operators otherwise than Megatron does (field splits, of costs sharded); what runs are "
                "Megatron's splits: products by columns and rows, tables and heads whole"
            )
        return tuple(told)


def read_plan(path: str) -> PlanFile:
    """Return the content of a plan file.

    Raises `InputError` when it cannot be read, is no plan, holds no answer, or names a layer twice.
    """
    return plan_file_of(files.read_json(path, "name a file written by 'meshwright plan --out'"), path)


def plan_file_of(entry: Any, path: str) -> PlanFile:
    """Return what the content of a plan file says.

    `path`: its name for messages.
    Raises `InputError` when it is no plan, holds no answer, or names a layer twice.
    """
    try:
        names = tuple(str(name) for stage in entry["stages"] for name in stage["ops"]) if entry.get("feasible") else ()
    except (KeyError, TypeError, AttributeError):
        names = ()
    plan = plan_json.plan_from_json(entry, {name: i for i, name in enumerate(names)}, path)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: the layer '{twice[0]}' is in two stages")
    if not names:
        raise InputError(f"{path}: its stages hold no layers")
    for i, stage in enumerate(plan.stages):
        if not stage.ops:
            raise InputError(f"{path}: stage {i} holds no layers")
        other = next((word for word in stage.recompute if word not in RECOMPUTE), "")
        if other:
            raise InputError(
                f"{path}: stage {i} recomputes '{other}', a setting of {entry.get('framework') or 'another framework'}; our "
                f"runtime has {', '.join(RECOMPUTE)}: plan without --for"
            )
        if stage.recompute and len(stage.recompute) != len(stage.ops):
            raise InputError(f"{path}: stage {i}: recompute has {len(stage.recompute)} entries for {len(stage.ops)} layers")
    return PlanFile(plan, names, entry.get("batch", {}).get("sequence_length", 1), MappingProxyType(entry))
