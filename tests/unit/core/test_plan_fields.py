"""Fields of a plan file that people edit: what each may be, and where a wrong one stands."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from meshwright.base.errors import InputError, InputWarning
from meshwright.core import plan_fields

GOOD: dict[str, Any] = {
    "model": {"spec": "gpt2", "format": "huggingface"}, "costs": "analytic", "search": "best", "seed": -1,
    "schedule": {"name": "1f1b", "n_microbatches": 1, "micro_batch": 1, "global_batch": 1},
    "batch": {"sequence_length": 1, "asked_global_batch": 0, "asked_micro_batch": 0},
    "training": {"precision": "bf16", "activation_bytes": 1, "weight_bytes": 1, "gradient_bytes": 1, "optimizer_bytes": 0,
                 "loss_bytes": 0, "fragmentation_ratio": 0.0},
    "planning_seconds": 0.0, "memory_risk": 0,
    "stages": [{"data": 1, "tensor": 1, "context": 1, "expert": 1, "sequence_parallel": False, "shard": 3, "shard_degree": 0,
                "ops": ["a"], "devices": [0], "ring": [0], "recompute": ["none"]}],
}  # fmt: skip


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the file with one field changed."""
    entry = copy.deepcopy(GOOD)
    *keys, last = path.split(".")
    at: Any = entry
    for key in keys:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = value
    return entry


def test_the_least_values_pass_and_so_does_a_file_without_fields() -> None:
    plan_fields.check(GOOD, "plan.json")
    plan_fields.check({}, "plan.json")
    plan_fields.check(changed("schedule.n_microbatches", 10**9), "plan.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((f"schedule.{key}", 0) for key in ("n_microbatches", "micro_batch", "global_batch")),
        *((f"batch.{key}", -1) for key in ("asked_global_batch", "asked_micro_batch")),
        *((f"training.{key}", 0) for key in ("activation_bytes", "weight_bytes", "gradient_bytes")),
        *((f"training.{key}", -1) for key in ("optimizer_bytes", "loss_bytes", "fragmentation_ratio")),
        *((f"stages.0.{key}", 0) for key in ("data", "tensor", "context", "expert")),
        ("batch.sequence_length", 0), ("planning_seconds", -0.1), ("memory_risk", -0.1), ("seed", "one"), ("costs", 1),
        ("search", None), ("model.spec", 3), ("model.format", 3), ("schedule.name", 3), ("training.precision", 16),
        ("schedule.n_microbatches", 10**9 + 1), ("schedule.n_microbatches", 1.5), ("stages.0.sequence_parallel", 1),
        ("stages.0.shard", 4), ("stages.0.shard", -1), ("stages.0.shard_degree", -1), ("stages.0.ops", [1]),
        ("stages.0.devices", [-1]), ("stages.0.devices", ["0"]), ("stages.0.ring", [-1]), ("stages.0.ring", ["0"]),
        ("stages.0.recompute", [0]), ("stages.0.recompute", ["nothing"]), ("stages", {}), ("model", []),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_where_it_stands(path: str, value: object) -> None:
    place = path.replace("stages.0.", "stage 0: ") if path.startswith("stages.") else path
    with pytest.raises(InputError, match=f"plan.json: {place}"):
        plan_fields.check(changed(path, value), "plan.json")


@pytest.mark.parametrize(
    ("path", "right", "place"),
    [
        ("memory_rsk", "memory_risk", "plan.json"), ("training.loss_byte", "loss_bytes", "plan.json: training"),
        ("schedule.global_bach", "global_batch", "plan.json: schedule"), ("stages.0.tensr", "tensor", "plan.json: stage 0"),
        ("batch.asked_micro_bacth", "asked_micro_batch", "plan.json: batch"), ("model.specs", "spec", "plan.json: model"),
        ("cluster.nam", "name", "plan.json: cluster"), ("bound.valu", "value", "plan.json: bound"),
        ("objective.valu", "value", "plan.json: objective"),
    ],
)  # fmt: skip
def test_a_misspelt_field_is_refused_with_its_place_and_the_right_name(path: str, right: str, place: str) -> None:
    entry = {**copy.deepcopy(GOOD), "cluster": {}, "bound": {}, "objective": {}}
    *keys, last = path.split(".")
    at: Any = entry
    for key in keys:
        at = at[int(key)] if key.isdigit() else at[key]
    at.pop(right, None)
    at[last] = 1
    with pytest.raises(InputError) as caught:
        plan_fields.check(entry, "plan.json")
    assert str(caught.value) == f"{place}: the field '{last}' is not known; did you mean '{right}'?"


@pytest.mark.parametrize(
    ("path", "place"), [("weather", "plan.json"), ("stages.0.zone", "plan.json: stage 0"), ("model.colour", "plan.json: model")]
)
def test_a_field_of_a_newer_release_is_passed_over_with_a_warning(path: str, place: str) -> None:
    with pytest.warns(InputWarning) as told:
        plan_fields.check(changed(path, 1), "plan.json")
    assert [str(one.message) for one in told] == [
        f"{place}: the field '{path.rpartition('.')[2]}' is not known and is passed over"
    ]


def test_fields_of_searches_pass_and_so_do_those_of_searches_of_other_packages() -> None:
    plan_fields.check({**GOOD, "within_ratio": 0.01, "recompute": {}, "searches": {}}, "plan.json")  # warnings are errors here
    plan_fields.check({**GOOD, "search": "somebody_elses", "weather": 1}, "plan.json")
    with pytest.raises(InputError, match="did you mean 'seed'"):
        plan_fields.check({**{key: GOOD[key] for key in GOOD if key != "seed"}, "search": "theirs", "sed": 1}, "plan.json")
