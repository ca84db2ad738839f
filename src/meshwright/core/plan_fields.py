"""What the fields of a plan file must be, where they are given: people edit these files."""

from __future__ import annotations

from typing import Any

from meshwright.base import fields
from meshwright.base.errors import InputError
from meshwright.core.strategy import RECOMPUTE, is_recompute

__all__ = ["check"]

_LARGEST = 10**9

_OF_THE_PLAN = (
    ("model.spec", str, None), ("model.format", str, None), ("model.lora", str, None),
    ("costs", str, None), ("search", str, None),
    ("schedule.name", str, None),
    ("schedule.n_microbatches", int, 1), ("schedule.micro_batch", int, 1), ("schedule.global_batch", int, 1),
    ("batch.sequence_length", int, 1), ("batch.asked_global_batch", int, 0), ("batch.asked_micro_batch", int, 0),
    ("training.precision", str, None), ("training.activation_bytes", int, 1),
    ("training.weight_bytes", int, 1), ("training.gradient_bytes", int, 1), ("training.optimizer_bytes", int, 0),
    ("training.loss_bytes", int, 0), ("training.fragmentation_ratio", float, 0), ("seed", int, None),
    ("planning_seconds", float, 0), ("memory_risk", float, 0),
)  # fmt: skip
_OF_A_STAGE = (
    ("data", int, 1), ("tensor", int, 1), ("context", int, 1), ("expert", int, 1), ("sequence_parallel", bool, None),
    ("shard", int, 0),
    ("shard_degree", int, 0),
)  # fmt: skip


def check(entry: dict[str, Any], place: str) -> None:
    """Refuse a field of the wrong kind; fields that are missing are left to whoever needs them.

    Parameters
    ----------
    entry : dict
        The parsed file.
    place : str
        The file, for messages.

    Raises
    ------
    InputError
        When a field is of the wrong kind or out of range.
    """
    for path, kind, minimum in _OF_THE_PLAN:
        value: Any = entry
        for key in path.split("."):
            if key not in fields.entry(value, f"{place}: {path.split('.')[0]}"):
                break
            value = value[key]
        else:
            _one(value, kind, minimum, f"{place}: {path}")
    held = entry.get("model")
    for word in fields.items(held.get("freeze", []), f"{place}: model.freeze") if isinstance(held, dict) else ():
        fields.text(word, f"{place}: model.freeze")
    for i, stage in enumerate(fields.items(entry.get("stages", []), f"{place}: stages", of="objects")):
        _stage(stage, f"{place}: stage {i}")


def _stage(stage: Any, place: str) -> None:
    """Refuse a stage with a field of the wrong kind."""
    for key, kind, minimum in _OF_A_STAGE:
        if key in fields.entry(stage, place):
            _one(stage[key], kind, minimum, f"{place}: {key}")
    if stage.get("shard", 0) > 3:
        raise InputError(f"{place}: shard is {stage['shard']}; it must be between 0 and 3")
    for key in ("ops", "recompute", "devices", "ring"):
        words = key in ("ops", "recompute")
        for value in fields.items(stage.get(key, []), f"{place}: {key}"):
            _one(value, str if words else int, None if words else 0, f"{place}: {key}")
    wrong = [word for word in stage.get("recompute", []) if not is_recompute(word)]
    if wrong:
        raise InputError(f"{place}: recompute holds '{wrong[0]}'; there are: {', '.join(RECOMPUTE)}, settings of frameworks")


def _one(value: Any, kind: type, minimum: int | None, place: str) -> None:
    """Refuse a value of another kind, or out of range."""
    if kind in (str, bool):
        (fields.text if kind is str else fields.flag)(value, place)
    else:
        (fields.whole if kind is int else fields.number)(
            value, place, minimum=minimum, maximum=None if minimum is None else _LARGEST
        )
