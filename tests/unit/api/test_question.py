"""What is asked twice, or of a question that is posed already, is refused: nothing that was said is left out without a word."""

from __future__ import annotations

import copy
import pathlib
import pickle
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, Stop

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


@pytest.mark.parametrize(
    "said",
    [{"cluster": "flat:2"}, {"costs": "analytic"}, {"batch": Batch(8)}, {"framework": "megatron"}, {"memory_risk": 0.5}],
    ids=lambda said: next(iter(said)),
)
def test_a_posed_problem_has_its_own(said: dict[str, Any]) -> None:
    problem = api.make_problem(TINY, "flat:4", batch=Batch(16))
    with pytest.raises(InputError, match=f"{next(iter(said))}: a Problem that is posed already has its own"):
        api.plan(problem, search="data_parallel", **said)


def test_a_model_that_was_read_keeps_its_sequence_length() -> None:
    model = api.read(TINY, sequence_length=64)
    with pytest.raises(InputError, match=r"sequence length 32: model .* was read at 64 tokens"):
        api.make_problem(model, "flat:4", batch=Batch(sequence_length=32))
    assert api.make_problem(model, "flat:4", batch=Batch(sequence_length=64)).graph.sequence_length == 64


def test_a_simpler_answer_is_refused_by_searches_that_look_for_the_quickest_only() -> None:
    problem = api.make_problem(TINY, "flat:4", batch=Batch(16))
    with pytest.raises(InputError, match="search data_parallel looks for the quickest plan only"):
        api.plan(problem, search="data_parallel", within=0.01)


def test_room_for_errors_of_memory_is_kept_only_where_they_were_measured() -> None:
    profile = str(pathlib.Path(__file__).resolve().parents[2] / "reference" / "dapple" / "bert-48-pbs-2.txt")
    assert api.make_problem(profile, "dgx-v100:16", batch=Batch(64)).memory_risk == 0.5
    assert api.make_problem(profile, "dgx-v100:16", batch=Batch(64), memory_risk="50%").memory_risk == 0.5
    with pytest.raises(InputError, match="--memory-risk 5%: how far peaks of dapple costs may be off was not measured"):
        api.make_problem(profile, "dgx-v100:16", batch=Batch(64), memory_risk="5%")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"within": float("nan")}, "within nan: must be a share"), ({"within": 500.0}, "within 500.0"),
        ({"seed": 1.5}, "--seed 1.5"), ({"stop": 5}, "stop 5: must be a Stop"),
        ({"batch": 8}, "batch 8: must be a Batch; samples of a step are given as in global_batch=8"),
    ],
    ids=["not a number", "too much", "half a seed", "a stop", "a batch"],
)  # fmt: skip
def test_arguments_of_another_kind_are_refused_with_the_right_one(said: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        api.plan(TINY, "flat:2", **said)


@pytest.mark.parametrize("limit", [{"seconds": -1.0}, {"seconds": float("nan")}, {"n_iterations": -2}], ids=str)
def test_a_limit_that_is_none_is_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be numbers of at least 0"):
        Stop(**limit)


def test_a_problem_replaced_is_one_built_anew() -> None:
    problem = api.make_problem(TINY, "flat:4", batch=Batch(16), memory_risk=0.01)
    assert replace(problem, memory_risk=0.5).memory_ratio == 1.0 > problem.memory_ratio
    with pytest.raises(InputError, match=r"memory_risk 2\.0: must be a chance"):
        replace(problem, memory_risk=2.0)


def test_answers_survive_pickles_and_copies_and_stay_closed() -> None:
    result = api.plan(TINY, "flat:2", batch=Batch(4), search="best")
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert again.plan == result.plan and dict(again.answer.extra) == dict(result.answer.extra)
        assert again.timeline.step_seconds == result.timeline.step_seconds
        with pytest.raises(ValueError, match="read-only"):
            again.timeline.start_seconds[0] = 1.0
        with pytest.raises(TypeError):
            again.answer.extra["new"] = 1


def test_kinds_of_device_that_leave_fp32_alone_are_named(tmp_path: pathlib.Path) -> None:
    spec = tmp_path / "odd.yaml"
    spec.write_text(
        "format: meshwright/cluster/1\nname: odd\nkinds:\n"
        "  a: {flops: {bf16: 300 TFLOP/s, fp32: 20 TFLOP/s}, memory: 80 GiB, memory_bandwidth: 2000 GB/s}\n"
        "  b: {flops: {fp16: 100 TFLOP/s, fp32: 15 TFLOP/s}, memory: 24 GiB, memory_bandwidth: 900 GB/s}\n"
        "nodes:\n  - {name: n, devices: [a, b, h100-sxm-80gb], switch: {bandwidth: 100 GB/s, latency: 2 us}}\n"
    )
    problem = api.make_problem("gpt2", str(spec))
    assert problem.training.precision == "fp32"
    (note,) = (note for note in problem.model_spec.notes if "products" in note)
    assert note.startswith("products in fp32, all that every device has: a has no fp16, b has no bf16; ")
    for cluster, precision in ((str(spec), "fp32"), ("flat:2", ""), ("flat:2,device=gtx-1080-ti-11gb", "")):
        asked = api.make_problem("gpt2", cluster, training=precision or None)
        assert not [note for note in asked.model_spec.notes if "products" in note]
