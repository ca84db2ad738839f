"""What a step takes at least: below every plan that is played, whatever its degrees, devices, framework and precision."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch
from meshwright.sizing.lower_bounds import device_seconds, least_state_bytes

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")
CASES = [
    (TINY, "dgx-h100:8", 64, "bf16", "", {}),
    (TINY, "dgx-h100:16", 64, "fp8", "", {"tensor": "2", "pipeline": "2"}),
    (TINY, "g6-l4:8", 16, "bf16", "torchtitan", {}),
    (TINY, "dgx-v100:8", 32, "fp16", "", {"tensor": "8"}),
    (TINY, "dgx-a100:4", 32, "bf16", "deepspeed", {"data": "4"}),
    ("bert-large", "dgx-h100:8", 256, "bf16", "", {}),
    ("bert-large", "dgx-a100:8", 64, "fp32", "", {"tensor": "4"}),
    ("gpt2", "dgx-b200:1", 1024, "bf16", "", {}),
    ("mixtral-8x7b", "dgx-h200:8", 64, "bf16", "megatron", {}),
]


@pytest.mark.parametrize(("model", "cluster", "batch", "precision", "framework", "settings"), CASES)
def test_no_plan_is_below_the_bound(
    model: str, cluster: str, batch: int, precision: str, framework: str, settings: dict[str, str]
) -> None:
    training = api.training(precision)
    problem = api.make_problem(model, cluster, batch=Batch(batch), training=training, framework=framework)
    result = api.plan(problem, settings={"alternatives": "1", "evaluations": "8", "splits": "0"} | settings)
    assert result.step_seconds is not None
    least = device_seconds(problem.graph, problem.required_cluster.kinds[0], training, problem.framework)
    bound = least * batch / problem.required_cluster.n_devices
    assert 0.2 * result.step_seconds < bound <= result.step_seconds * (1 + 1e-9)


def test_a_precision_that_a_device_has_not() -> None:
    problem = api.make_problem(TINY, "dgx-a100:8", batch=Batch(8))
    with pytest.raises(InputError, match="fp8"):
        device_seconds(problem.graph, problem.required_cluster.kinds[0], api.training("fp8"), problem.framework)


def test_the_least_state_is_below_what_any_plan_holds() -> None:
    result = api.plan(api.make_problem(TINY, "dgx-h100:8", batch=Batch(64)), settings={"alternatives": "1"})
    assert result.timeline is not None
    assert least_state_bytes(result.problem.graph, result.problem.training) < 8 * max(result.timeline.peak_bytes)
