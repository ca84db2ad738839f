"""What the fields of a plan file must be, where they are given: people edit these files."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base import fields, registry
from meshwright.base.errors import InputError, InputWarning
from meshwright.core.optimizers import OPTIMIZERS
from meshwright.core.strategy import CONTEXT_EXCHANGES, OFFLOADS, RECOMPUTE, is_recompute

__all__ = ["FIELDS", "OF_SEARCHES", "check"]

FIELDS = (
    "format", "model", "cluster", "search", "settings", "costs", "seed", "feasible", "objective", "bound", "step_seconds",
    "step_interval", "step_seconds_interval", "peak_bytes_interval", "samples_per_second", "tokens_per_second",
    "model_flops_utilization_ratio", "model_flops_utilization_causal_ratio", "stages", "schedule", "planning_seconds",
    "iterations", "notes", "for", "framework", "memory_risk",
    "missing_bytes", "nearest", "infeasible_proven", "batch", "training", "causes", "alternatives",
)  # fmt: skip
"""Fields that every search's answer has; others are the search's own (`Answer.extra`)."""

OF_SEARCHES = (
    "axes", "baselines", "candidates", "certificate", "choices", "curve", "device_mesh", "effective_step_seconds", "fastest",
    "fixed", "frameworks", "goodput", "held_bytes", "host_stages", "joint_combinations_costed", "lengths", "loads",
    "mapping_searches", "mappings", "max_table",
    "n_configurations", "n_configurations_left", "n_ideals", "n_plans_simulated", "n_units", "on_cluster", "one_device_seconds",
    "operators", "phases_seconds", "placements", "published", "recompute", "refused", "runners_up", "runs_on", "searches",
    "shardings", "splits", "stage_bytes", "stage_seconds", "stopped_early", "unfinished", "why_not", "within_ratio",
)  # fmt: skip
"""Fields that the searches of this package and the command ``plan`` add; those of other packages may add any."""

_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "model": ("name", "spec", "format", "n_parameters", "n_trained_parameters", "freeze", "lora", "pairs_ratio", "objective"),
    "cluster": ("name", "n_devices", "origin", "content"),
    "objective": ("name", "value"),
    "bound": ("value", "gap_ratio", "method"),
    "schedule": ("name", "n_microbatches", "micro_batch", "global_batch"),
    "batch": ("sequence_length", "asked_global_batch", "asked_micro_batch"),
    "training": (
        "precision", "activation_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes", "loss_bytes",
        "fragmentation_ratio", "optimizer", "state_bytes",
    ),
})  # fmt: skip
_STAGE = (
    "ops", "devices", "data", "tensor", "context", "expert", "sequence_parallel", "shard", "shard_degree", "recompute", "ring",
    "choices", "context_exchange", "offload", "peak_bytes", "allocated_bytes", "reserved_bytes", "free_bytes",
)  # fmt: skip
_SPELLING_RATIO = 0.8  # how alike two names are that one may be taken for the other

_LARGEST = 10**9

_OF_THE_PLAN = (
    ("model.spec", str, None), ("model.format", str, None), ("model.lora", str, None), ("model.pairs_ratio", float, 0),
    ("model.objective", str, None), ("costs", str, None), ("search", str, None),
    ("schedule.name", str, None),
    ("schedule.n_microbatches", int, 1), ("schedule.micro_batch", int, 1), ("schedule.global_batch", int, 1),
    ("batch.sequence_length", int, 1), ("batch.asked_global_batch", int, 0), ("batch.asked_micro_batch", int, 0),
    ("training.precision", str, None), ("training.activation_bytes", int, 1),
    ("training.weight_bytes", int, 1), ("training.gradient_bytes", int, 1), ("training.optimizer_bytes", int, 0),
    ("training.optimizer", str, None), ("training.state_bytes", int, 1),
    ("training.loss_bytes", int, 0), ("training.fragmentation_ratio", float, 0), ("seed", int, None),
    ("planning_seconds", float, 0), ("memory_risk", float, 0),
)  # fmt: skip
_OF_A_STAGE = (
    ("data", int, 1), ("tensor", int, 1), ("context", int, 1), ("expert", int, 1), ("sequence_parallel", bool, None),
    ("shard", int, 0),
    ("shard_degree", int, 0),
)  # fmt: skip


def check(entry: dict[str, Any], place: str) -> None:
    """Refuse a field of the wrong kind or a misspelt one, warn of one that is not known; fields that are missing are left to
    whoever needs them.

    Parameters
    ----------
    entry : dict
        The parsed file.
    place : str
        The file, for messages.

    Raises
    ------
    InputError
        When a field is of the wrong kind or out of range, or is not known and looks like one that is not there.
    """
    ours = registry.home("search", str(entry.get("search")).replace("-", "_")) is not None
    _unknown(entry, FIELDS, place, passed_over=OF_SEARCHES if ours else entry)
    for name, known in _PARTS.items():
        _unknown(entry.get(name), known, f"{place}: {name}")
    for path, kind, minimum in _OF_THE_PLAN:
        if entry.get("feasible") is False and entry.get(path.split(".")[0]) is None:
            continue  # an answer that nothing fits has no plan
        value: Any = entry
        for key in path.split("."):
            if key not in fields.entry(value, f"{place}: {path.split('.')[0]}"):
                break
            value = value[key]
        else:
            _one(value, kind, minimum, f"{place}: {path}")
    _optimizer(entry.get("training", {}), place)
    held = entry.get("model")
    for word in fields.items(held.get("freeze", []), f"{place}: model.freeze") if isinstance(held, dict) else ():
        fields.text(word, f"{place}: model.freeze")
    for i, stage in enumerate(fields.items(entry.get("stages", []), f"{place}: stages", of="objects")):
        _stage(stage, f"{place}: stage {i}")


def _optimizer(training: dict[str, Any], place: str) -> None:
    """Refuse an optimizer that is not known, or that keeps no numbers of so many bytes."""
    name = training.get("optimizer", "adamw")
    if name not in OPTIMIZERS:
        raise InputError(f"{place}: training.optimizer is '{name}'; there are {', '.join(OPTIMIZERS)}")
    held = training.get("state_bytes", 4)
    if held not in OPTIMIZERS[name].number_bytes:
        allowed = " or ".join(map(str, OPTIMIZERS[name].number_bytes))
        raise InputError(f"{place}: training.state_bytes is {held}; numbers of the state of {name} have {allowed}")


def _stage(stage: Any, place: str) -> None:
    """Refuse a stage with a field of the wrong kind."""
    _unknown(stage, _STAGE, place)
    for key, kind, minimum in _OF_A_STAGE:
        if key in fields.entry(stage, place):
            _one(stage[key], kind, minimum, f"{place}: {key}")
    if stage.get("shard", 0) > 3:
        raise InputError(f"{place}: shard is {stage['shard']}; it must be between 0 and 3")
    if "context_exchange" in stage and stage["context_exchange"] not in CONTEXT_EXCHANGES:
        said = fields.show(stage["context_exchange"])
        raise InputError(f"{place}: context_exchange is {said}; it must be one of {', '.join(CONTEXT_EXCHANGES)}")
    if "offload" in stage and stage["offload"] not in OFFLOADS:
        raise InputError(f"{place}: offload is {fields.show(stage['offload'])}; it must be one of {', '.join(OFFLOADS)}")
    for key in ("ops", "recompute", "devices", "ring", "choices"):
        words = key in ("ops", "recompute", "choices")
        for value in fields.items(stage.get(key, []), f"{place}: {key}"):
            _one(value, str if words else int, None if words else 0, f"{place}: {key}")
    wrong = [word for word in stage.get("recompute", []) if not is_recompute(word)]
    if wrong:
        raise InputError(f"{place}: recompute holds '{wrong[0]}'; there are: {', '.join(RECOMPUTE)}, settings of frameworks")


def _unknown(entry: Any, known: Collection[str], place: str, *, passed_over: Collection[str] = ()) -> None:
    """Refuse a field that seems to be a misspelt one, and warn of others that are not known: newer releases may write more."""
    for key in entry if isinstance(entry, dict) else ():
        if key in known:
            continue
        close = difflib.get_close_matches(str(key), [name for name in known if name not in entry], 1, _SPELLING_RATIO)
        if close and key not in OF_SEARCHES:
            raise InputError(f"{place}: the field '{key}' is not known; did you mean '{close[0]}'?")
        if key not in passed_over:
            warnings.warn(f"{place}: the field '{key}' is not known and is passed over", InputWarning, stacklevel=1)


def _one(value: Any, kind: type, minimum: int | None, place: str) -> None:
    """Refuse a value of another kind, or out of range."""
    if kind in (str, bool):
        (fields.text if kind is str else fields.flag)(value, place)
    else:
        (fields.whole if kind is int else fields.number)(
            value, place, minimum=minimum, maximum=None if minimum is None else _LARGEST
        )
