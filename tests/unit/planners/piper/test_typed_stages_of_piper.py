"""Plans typed as Piper's figures have them cost what its evaluator says of the same plans."""

from __future__ import annotations

import pytest

from meshwright import api, published
from meshwright.api import plan_files
from meshwright.base.errors import InputError
from meshwright.planners.piper.answer import check_plan
from meshwright.planners.piper.problem import PiperInstance
from meshwright.writers import plan_json

BERT = published.path("piper/bert32a100.json")
LIMITS = {"max_devices": "16", "memory": "100GB"}


def test_equal_stages_cost_what_the_equal_split_says() -> None:
    fixed = {"stages": "2", "data": "2", "tensor": "4", "layers": "true", "recompute": "always"}
    split = api.plan(BERT, search="piper_equal_split", settings=LIMITS | fixed)
    counts = ":".join(str(len(stage.ops)) for stage in split.plan.stages)
    found = plan_files.given(BERT, f"2x4r:2x4r@{counts}", settings=LIMITS)
    assert found.objective == split.objective
    assert found.step_seconds == split.step_seconds
    assert found.bound is None


def test_stages_differ_in_degrees_and_recomputation() -> None:
    plan = plan_files.given(BERT, "1x4:3x1r@20:17", settings=LIMITS).plan
    assert [(stage.strategy.data, stage.strategy.tensor) for stage in plan.stages] == [(1, 4), (3, 1)]
    assert [set(stage.recompute) for stage in plan.stages] == [{"none"}, {"full"}]
    assert [len(stage.ops) for stage in plan.stages] == [20, 17]


def test_layers_are_shared_out_by_what_each_stage_takes() -> None:
    result = plan_files.given(BERT, "1x1:4x2", settings=LIMITS)
    instance = result.problem.model_spec.instance
    assert isinstance(instance, PiperInstance)
    seconds = result.answer.extra["stage_seconds"]
    assert isinstance(seconds, list)
    counts = [len(stage.ops) for stage in result.plan.stages]
    assert counts[0] < counts[1]  # one device against eight
    assert any(f"split @{counts[0]}:{counts[1]}" in note for note in result.answer.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2x4z", "'2x4z' must be replicas x tensor degree"),
        ("4x8", "uses 32 devices, but there are 16"),
        ("7x1", "7 replicas, which do not divide"),
        ("2x3", "no choice that recomputes 'none' at tensor degree 3"),
        ("2x4,n_microbatches=8", "nothing may follow"),
    ],
)
def test_what_is_wrong_with_typed_stages_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_files.given(BERT, text, settings=LIMITS)


def test_a_typed_plan_has_no_bound_to_check() -> None:
    result = plan_files.given(BERT, "2x4:2x4r", settings=LIMITS)
    assert check_plan(result, plan_json.as_json(result), "plan.json") is None
