"""What the fields of a plan file must be, where they are given: people edit these files."""

from __future__ import annotations

import math
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.strategy import RECOMPUTE

__all__ = ["check"]

_LARGEST = 10**9

_OF_THE_PLAN = (
    ("model.spec", str, None), ("model.format", str, None), ("costs", str, None), ("search", str, None),
    ("schedule.name", str, None),
    ("schedule.n_microbatches", int, 1), ("schedule.micro_batch", int, 1), ("schedule.global_batch", int, 1),
    ("batch.sequence_length", int, 1), ("batch.asked_global_batch", int, 0), ("batch.asked_micro_batch", int, 0),
    ("training.precision", str, None), ("training.activation_bytes", int, 1),
    ("training.weight_bytes", int, 1), ("training.gradient_bytes", int, 1), ("training.optimizer_bytes", int, 0),
    ("training.loss_bytes", int, 0), ("training.fragmentation_ratio", float, 0), ("seed", int, None),
    ("planning_seconds", float, 0),
)  # fmt: skip
_OF_A_STAGE = (
    ("data", int, 1), ("tensor", int, 1), ("context", int, 1), ("expert", int, 1), ("sequence_parallel", bool, None),
    ("shard", int, 0),
    ("shard_degree", int, 0),
)  # fmt: skip


def check(entry: dict[str, Any], where: str) -> None:
    """Refuse a field of the wrong kind; fields that are missing are left to whoever needs them.

    Parameters
    ----------
    entry : dict
        The parsed file.
    where : str
        The file, for messages.

    Raises
    ------
    InputError
        When a field is of the wrong kind or out of range.
    """
    for path, kind, minimum in _OF_THE_PLAN:
        value: Any = entry
        for key in path.split("."):
            if not isinstance(value, dict):
                raise InputError(f"{where}: {path.split('.')[0]} is {value!r:.60}; it must be a JSON object")
            if key not in value:
                break
            value = value[key]
        else:
            _one(value, kind, minimum, f"{where}: {path}")
    stages = entry.get("stages", [])
    if not isinstance(stages, list):
        raise InputError(f"{where}: stages is {stages!r:.60}; it must be a list of JSON objects")
    for i, stage in enumerate(stages):
        _stage(stage, f"{where}: stage {i}")


def _stage(stage: Any, where: str) -> None:
    """Refuse a stage with a field of the wrong kind."""
    if not isinstance(stage, dict):
        raise InputError(f"{where}: is {stage!r:.60}; it must be a JSON object")
    for key, kind, minimum in _OF_A_STAGE:
        if key in stage:
            _one(stage[key], kind, minimum, f"{where}: {key}")
    if stage.get("shard", 0) > 3:
        raise InputError(f"{where}: shard is {stage['shard']}; it must be between 0 and 3")
    for key in ("ops", "recompute", "devices", "ring"):
        held = stage.get(key, [])
        if not isinstance(held, list):
            raise InputError(f"{where}: {key} is {held!r:.60}; it must be a list")
        words = key in ("ops", "recompute")
        for value in held:
            _one(value, str if words else int, None if words else 0, f"{where}: {key}")
    wrong = [word for word in stage.get("recompute", []) if word not in RECOMPUTE]
    if wrong:
        raise InputError(f"{where}: recompute holds '{wrong[0]}'; there are: {', '.join(RECOMPUTE)}")


def _one(value: Any, kind: type, minimum: int | None, where: str) -> None:
    """Refuse a value of another kind, or out of range."""
    allowed = (int, float) if kind is float else (kind,)
    right = isinstance(value, allowed) and (kind is bool or not isinstance(value, bool))
    if right and minimum is not None:
        right = math.isfinite(value) and minimum <= value <= _LARGEST
    if not right:
        name = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
        limits = "" if minimum is None else f" between {minimum} and {_LARGEST}"
        raise InputError(f"{where} is {value!r:.60}; it must be {name}{limits}")
