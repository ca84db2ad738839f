"""Plans for a framework: inside what it runs, never quicker than the free optimum as it prices, each setting searched."""

from __future__ import annotations

import json
import pathlib
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from meshwright import api, frameworks
from meshwright.api import targets
from meshwright.base.errors import ExportError, InputError
from meshwright.core.framework import FrameworkLimits
from meshwright.core.launch import fills_hosts, hosts_of
from meshwright.core.plan import Plan
from meshwright.core.plan_forms import inner_words
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Result
from meshwright.planners.best import limits
from meshwright.planners.best.check import answers, member, space
from meshwright.planners.best.check.device_pools import host_fillings
from meshwright.planners.best.search.best import Params
from meshwright.writers import plan_json

TINY = str(pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json")
TIGHT = {"memory_ratio": "0.08"}
"""Of 80 GiB: so little that layers must recompute."""


def posed(name: str, **changes: Any) -> Problem:
    problem = api.make_problem(TINY, "dgx-h100:4", batch=Batch(16, 0, 65536), framework=name)
    if changes:
        limits = replace(problem.framework.limits, **changes)
        problem = replace(problem, framework=replace(problem.framework, limits=limits))
    return problem


def solved(problem: Problem, **options: str) -> Result:
    return api.plan(problem, settings={"alternatives": "1", **options})


def seconds(result: Result) -> float:
    assert result.answer.objective is not None and result.answer.bound is not None
    assert result.answer.bound.gap_ratio(result.answer.objective) <= 1e-9
    return result.answer.objective.value


@pytest.mark.parametrize("name", frameworks.names())
def test_the_plan_for_a_framework_is_one_that_it_runs_and_no_quicker_than_without_its_limits(name: str) -> None:
    problem = posed(name)
    result = solved(problem)
    assert exceeded(problem.framework.limits, result.plan, problem.graph) == ()
    assert frameworks.refusals(problem.framework, result.plan, problem) == ()
    free = replace(problem, framework=replace(problem.framework, limits=FrameworkLimits()), framework_asked="")
    assert seconds(result) >= seconds(solved(free)) * (1 - 1e-9)


def test_the_answer_is_the_best_of_all_settings_searched_one_by_one() -> None:
    """Where memory is short; blocks of layers are the setting of none and full together."""
    problem = posed("megatron")
    one_by_one = []
    for words in ("none,full", "core_attn", "mlp"):
        result = solved(problem, recompute=words, **TIGHT)
        if result.feasible:
            one_by_one.append(seconds(result))
            used = {word for stage in result.plan.stages for word in stage.recompute}
            assert used <= {*words.split(","), "none"}
    assert seconds(solved(problem, **TIGHT)) == pytest.approx(min(one_by_one), rel=1e-9)


def test_blocks_recompute_as_few_first_layers_of_every_stage_as_fit() -> None:
    problem = posed("megatron", recompute=("none", "full"))
    result = solved(problem, pipeline="2", data="2", tensor="1", context="1", shard="1", schedules="1f1b", memory_ratio="0.21")
    assert any(word == "full" for stage in inner_words(result.plan, problem.graph) for word in stage)
    assert exceeded(problem.framework.limits, result.plan, problem.graph) == ()
    whole = posed("megatron", recompute=("none", "full"), block_recompute=False)
    alike = solved(whole, pipeline="2", data="2", tensor="1", context="1", shard="1", schedules="1f1b", memory_ratio="0.21")
    assert seconds(result) <= seconds(alike)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schedules": "zb_h1"}, "zb_h1: not in framework megatron_deepspeed, which has schedules 1f1b"),
        ({"shard": "3"}, "sharding levels"), ({"context": "2"}, "no context parallelism"),
        ({"recompute": "selective"}, "recompute selective: not in framework megatron_deepspeed, which has none, full"),
    ],
)  # fmt: skip
def test_an_option_outside_the_framework_is_refused_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        solved(posed("megatron_deepspeed"), **options)


@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "transformers:deepspeed"])
@pytest.mark.parametrize("given", ["2", "1,2"])
def test_a_tensor_degree_is_refused_where_norms_are_not_split_and_never_dropped(name: str, given: str) -> None:
    with pytest.raises(InputError, match=f"tensor degree 2: not in framework {name}, which has no sequence parallelism"):
        solved(posed(name), tensor=given)
    assert solved(posed(name), tensor="1").plan.stages[0].strategy.tensor == 1


@pytest.mark.parametrize("listed", ["1,2", "2"])
def test_a_pipeline_degree_beside_one_is_refused_too(listed: str) -> None:
    with pytest.raises(InputError, match="pipeline degree 2: not in framework fsdp2, which has no pipeline parallelism"):
        solved(posed("fsdp2"), pipeline=listed)


@pytest.mark.parametrize("name", ["torchtitan", "maxtext", "nanotron", "megatron"])
def test_ranks_run_over_unlike_devices_in_order_and_the_answer_is_confirmed(name: str, tmp_path: pathlib.Path) -> None:
    """One quick device and three slow ones: ranks of two would leave the quick one out, and a framework takes them in order."""
    spec = tmp_path / "unlike.yaml"
    spec.write_text(
        "format: meshwright/cluster/1\nname: unlike\nkinds:\n"
        "  a: {flops: {bf16: 100 TFLOP/s, fp32: 15 TFLOP/s}, memory: 16 GiB, memory_bandwidth: 900 GB/s}\n"
        "  b: {flops: {bf16: 250 TFLOP/s, fp32: 15 TFLOP/s}, memory: 12 GiB, memory_bandwidth: 400 GB/s}\n"
        "nodes:\n  - {name: first, devices: [a], switch: {bandwidth: 300 GB/s, latency: 2 us}}\n"
        "  - {name: second, devices: [b, b, b], switch: {bandwidth: 20 GB/s, latency: 2 us}}\n"
        'switches: [core]\nlinks:\n  - {from: "*/*", to: core, bandwidth: 25 GB/s, latency: 5 us}\n'
    )
    result = api.plan(TINY, str(spec), batch=Batch(4, 0, 4096), framework=name, search="best")
    devices = [device for stage in result.plan.stages for device in stage.devices]
    assert devices == list(range(len(devices)))
    entry = json.loads(json.dumps(plan_json.as_json(result)))
    assert answers.check_plan(result, entry, "a.json", asdict(Params())).reason == ""


def test_what_no_plan_of_a_framework_trains_is_said_before_the_search() -> None:
    problem = posed("torchtitan")
    problem = replace(problem, training=replace(problem.training, precision="fp16"))
    with pytest.raises(InputError, match="--for torchtitan: cannot train this: products in fp16; it has bf16"):
        solved(problem)


def test_the_largest_micro_batch_searched_is_said_to_be_that() -> None:
    problem = replace(api.make_problem(TINY, "dgx-h100:1", batch=Batch(1024, 0, 128)))
    said = "micro-batches above 512 are searched only if asked for; --micro-batch 1024 may be quicker"
    result = solved(problem)
    assert (result.plan.micro_batch, said in result.answer.notes) == (512, True)
    assert said not in solved(problem, micro_batch="512").answer.notes


@pytest.mark.parametrize(
    ("n_tokens", "batch", "sizes"),
    [
        (8192, 64, (1, 2, 4, 8)),
        (131_072, 64, (1, 2, 4, 8)),
        (1024, 96, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)),
        (197, 1006, (1, 2, 503)),  # nothing near: twice a prime
        (128, 997, (1, 997)),
        (16, 8192, tuple(2**i for i in range(13))),
        (1, 12, (1, 2, 3, 4, 6, 12)),
    ],
)
def test_short_samples_are_searched_in_larger_micro_batches(n_tokens: int, batch: int, sizes: tuple[int, ...]) -> None:
    graph = replace(posed("torchtitan").graph, sequence_length=n_tokens)
    assert limits.usual_micro_batches(graph, batch) == sizes
    assert tuple(space._usual_sizes(batch, n_tokens)) == sizes


def unequal(word: str, framework: str) -> Problem:
    """Return a question of 12 samples on devices of which the last host has fewer than the others."""
    return api.make_problem(TINY, word, batch=Batch(12, 0, 4096), framework=framework)


@pytest.mark.parametrize(("word", "most"), [("gb200-nvl72:6", 4), ("dgx-h100:12", 8)])
@pytest.mark.parametrize("name", ["megatron", "fsdp2"])
def test_every_host_takes_part_with_equally_many_devices_and_the_answer_is_confirmed(word: str, most: int, name: str) -> None:
    problem = unequal(word, name)
    result = solved(problem)
    assert result.plan.n_devices <= most
    assert hosts_of(result.plan, problem.required_cluster).per_host
    entry = json.loads(json.dumps(plan_json.as_json(result)))
    asked = asdict(Params()) | {"alternatives": 1}
    assert answers.check_plan(result, entry, "a.json", asked).reason == ""
    free = replace(problem, framework=replace(problem.framework, limits=replace(problem.framework.limits, uneven_hosts=True)))
    quicker = solved(free)
    assert quicker.plan.n_devices == problem.required_cluster.n_devices and seconds(quicker) < seconds(result)
    assert member.outside(free, quicker.plan, asked) == ""
    assert "those of any mesh" in member.outside(problem, quicker.plan, asked)
    old = json.loads(json.dumps(plan_json.as_json(quicker)))
    limited = replace(quicker, problem=problem)
    assert "uneven_hosts" in answers.check_plan(limited, old, "a.json", asked).reason
    del old["certificate"]["question"]["framework"]["limits"]["uneven_hosts"]  # as files had it before it was looked at
    assert answers.check_plan(limited, old, "a.json", asked).reason == ""


def test_what_unlike_hosts_run_is_none_of_what_starts_equally_many_on_each() -> None:
    result = solved(unequal("dgx-h100:12", ""), data="12")
    refused = {one["name"]: one["refusals"] for one in targets.as_json(targets.runs_on(result))["frameworks"]}
    assert any("4 and 8 devices" in why for why in refused["megatron"])
    assert refused["meshwright"] == []
    with pytest.raises(InputError, match=r"\(megatron is started with equally many of every host\)"):
        solved(unequal("dgx-h100:12", "megatron"), data="12")


@pytest.mark.parametrize("word", ["gb200-nvl72:78", "dgx-h100:13", "flat:5", "mesh:3x1", "two-level:9,per_node=3"])
def test_how_many_of_the_first_devices_are_equally_many_of_every_host(word: str) -> None:
    """Of the search, of its check, and by the hosts of a plan on each number of devices."""
    problem = unequal(word, "megatron")
    cluster, stage = problem.required_cluster, solved(unequal("flat:1", "")).plan.stages[0]
    even = []
    for n in range(1, cluster.n_devices + 1):
        try:
            hosts_of(Plan((replace(stage, devices=tuple(range(n))),), 1, 1, "1f1b", 1), cluster)
        except ExportError:
            continue
        even.append(n)
    assert np.flatnonzero(fills_hosts(cluster)).tolist() == [0, *even]
    assert host_fillings(problem) == {0, *even}
