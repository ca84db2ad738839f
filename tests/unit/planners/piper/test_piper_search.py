"""Searches `piper` and `piper_equal_split` as users meet them: options, notes, what is missing, curves, other models."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch
from meshwright.costs import analytic
from meshwright.network import Network
from meshwright.planners.piper import menu, solve
from meshwright.planners.piper.costs import piper as costs
from meshwright.planners.piper.problem import PiperChoice
from meshwright.planners.piper.writers import piper_json as writer


def chain(n_layers: int = 4, **limits: Any) -> dict[str, Any]:
    """A chain of equal layers: 3 s and 4 bytes of weights each, 2 bytes per micro-batch; recomputing takes 1 s more, 1 byte
    less.

    By hand, 4 devices and no communication: with room for all, 4 replicas of one stage take 12 / 4 = 3 s per micro-batch.
    """

    def choice(name: str, seconds: float, activation: float, v: int) -> dict[str, Any]:
        forward = {} if v == 0 else {str(v - 1): 0}
        backward = {} if v == n_layers - 1 else {str(v + 1): 0}
        return {
            "id": name, "timePerSample": seconds, "parameterSize": 0.0, "memoryUsageA": activation, "memoryUsageB": 4.0,
            "syncTimeFw": forward, "syncTimeBw": backward,
        }  # fmt: skip

    nodes = [
        {
            "id": v,
            "name": "ParallelTransformerLayer",
            "TMPCs": {"1": [choice("vanilla", 3.0, 2.0, v), choice("activation recomp", 4.0, 1.0, v)]},
        }
        for v in range(n_layers)
    ]
    edges = [{"sourceId": v, "destId": v + 1, "communicationCost": 0.0} for v in range(n_layers - 1)]
    content = {"maxMemoryPerDevice": 1000.0, "maxDevices": 4, "mbsInBatch": 8, "bandwidth": 1.0, "nodes": nodes, "edges": edges}
    return content | limits


def plan(folder: pathlib.Path, content: dict[str, Any], search: str = "piper", **settings: str) -> Any:
    path = folder / "chain.json"
    path.write_text(json.dumps(content))
    return api.plan(str(path), search=search, settings=settings)


def test_of_plans_those_that_fit_are_kept_and_all_where_none_does() -> None:
    """A device has 1000 bytes; a rounding of them is forgiven."""
    one, two, three = ((None,) * n for n in (1, 2, 3))
    device: Any = SimpleNamespace(memory_bytes=1000.0)
    cost = [SimpleNamespace(missing_bytes=missing) for missing in (-5.0, 1000.0 * solve.ROUNDING, 1.0)]
    every: Any = {one: cost[0], two: cost[1], three: cost[2]}
    assert solve._fitting(device, every) == {one: cost[0], two: cost[1]}
    assert solve._fitting(device, {three: cost[2]}) == {three: cost[2]}


def test_with_room_for_all_one_stage_with_all_replicas_is_best(tmp_path: pathlib.Path) -> None:
    result = plan(tmp_path, chain())
    assert result.answer.objective.name == "seconds_per_microbatch"
    assert result.answer.objective.value == pytest.approx(3.0, rel=1e-15)
    assert [(stage.ops, stage.devices, stage.strategy.data) for stage in result.plan.stages] == [
        ((0, 1, 2, 3), (0, 1, 2, 3), 4)
    ]
    assert result.answer.bound.method == "exact"
    assert 0.0 <= result.answer.bound.gap_ratio(result.answer.objective) <= 1e-11
    assert result.timeline.step_seconds == pytest.approx(8 * 3.0, rel=1e-9)
    assert result.timeline.peak_bytes == (24.0,)


def test_memory_splits_the_model_and_recomputation_fits_it_further(tmp_path: pathlib.Path) -> None:
    """23 bytes hold no four layers (4 x 6 = 24) but all four with one recomputed: 13 / 4 = 3.25 s per micro-batch.

    Two stages of two replicas each take 6 / 2 = 3 s; the first needs 2 x (2 x 2 + 4) = 16 bytes, so they are better.
    """
    result = plan(tmp_path, chain(maxMemoryPerDevice=23.0))
    assert result.answer.objective.value == pytest.approx(3.0)
    assert [len(stage.ops) for stage in result.plan.stages] == [2, 2]
    alone = plan(tmp_path, chain(maxMemoryPerDevice=23.0, maxDevices=1))
    assert alone.answer.objective.value == pytest.approx(13.0)
    assert sorted(alone.plan.stages[0].recompute) == ["full", "none", "none", "none"]
    assert sorted(alone.answer.extra["choices"][0]["TMPCids"].values()) == ["activation recomp"] + ["vanilla"] * 3


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"max_devices": "2"}, 6.0),
        ({"max_devices": "2", "data_parallel": "false"}, 6.0),
        ({"data_parallel": "false", "max_devices": "3"}, 6.0),
        ({"n_microbatches": "9", "max_devices": "3"}, 4.0),
        ({"recompute": "always"}, 4.0),
        ({"recompute": "never", "knapsack": "greedy"}, 3.0),
        ({"n_microbatches": "7", "max_devices": "3"}, 6.0),
        ({"n_microbatches": "7", "max_devices": "3", "any_replicas": "true"}, 12.0 * 3 / 7),
    ],
)
def test_options_replace_what_the_file_says(settings: dict[str, str], seconds: float, tmp_path: pathlib.Path) -> None:
    result = plan(tmp_path, chain(), **settings)
    assert result.answer.objective.value == pytest.approx(seconds)
    if "max_devices" in settings:
        assert result.problem.cluster.n_devices == int(settings["max_devices"])


def test_fill_and_drain_make_a_pipeline_cost_more_than_its_steady_state(tmp_path: pathlib.Path) -> None:
    """One replica, four stages: 3 s steady; 8 micro-batches take 8 x 3 and the first one's 3 x 3 more: 33 / 8."""
    content = chain(mbsInBatch=8)
    plain = plan(tmp_path, content, data_parallel="false")
    filled = plan(tmp_path, content, data_parallel="false", fill_drain="true")
    assert plain.answer.objective.value == pytest.approx(3.0)
    assert filled.answer.objective.value == pytest.approx(33.0 / 8)
    assert 4.1 < filled.answer.bound.value <= filled.answer.objective.value


def test_a_buffer_for_recomputation_counted_once_leaves_room(tmp_path: pathlib.Path) -> None:
    """Recomputing layers hold 1 byte of activation and 1 of buffer beside 4 of weights: 4 x 6 = 24 summed,
    4 x 5 + 1 = 21 once.
    """
    content = chain(maxDevices=1, maxMemoryPerDevice=21.0)
    for node in content["nodes"]:
        node["TMPCs"]["1"][1]["memoryUsageB"] = 5.0
    assert not plan(tmp_path, content).feasible
    result = plan(tmp_path, content, layer_buffers="true")
    assert result.answer.objective.value == pytest.approx(16.0)


def test_optimizer_sharding_takes_the_second_copy_of_weights_off_replicas(tmp_path: pathlib.Path) -> None:
    """Weights of 4 bytes held once and four replicas: each keeps 4 x (2 + 4 / 4) = 12 of 24 bytes."""
    content = chain(maxMemoryPerDevice=12.0, bandwidth=1e30)
    for node in content["nodes"]:
        for choice in node["TMPCs"]["1"]:
            choice["parameterSize"] = 4.0
    result = plan(tmp_path, content, shard_optimizer="true")
    assert result.answer.objective.value == pytest.approx(3.0)
    assert result.answer.extra["stage_bytes"] == [12.0]


def test_what_does_not_fit_says_what_is_missing_and_what_would(tmp_path: pathlib.Path) -> None:
    result = plan(tmp_path, chain(maxDevices=1, maxMemoryPerDevice=19.0))
    assert not result.feasible
    assert result.answer.missing_bytes == pytest.approx(1.0, rel=1e-4)
    assert "2 devices of the same memory" in result.answer.nearest


def test_a_plan_nearly_as_good_is_offered_with_what_it_saves(tmp_path: pathlib.Path) -> None:
    content = chain()
    content["nodes"][0]["TMPCs"]["1"][0]["timePerSample"] = 3.01
    result = plan(tmp_path, content, data_parallel="false", n_microbatches="8")
    assert result.answer.notes
    for other in result.answer.alternatives:
        assert other.objective.value <= result.answer.objective.value * 1.01
        assert "instead of" in other.why


def test_a_curve_is_the_answers_for_every_number_of_devices(tmp_path: pathlib.Path) -> None:
    content = chain(maxMemoryPerDevice=30.0)
    points = plan(tmp_path, content, curve="devices").answer.extra["curve"]["points"]
    values = {}
    for k in range(1, 5):
        single = plan(tmp_path, content, max_devices=str(k))
        values[k] = single.answer.objective.value if single.feasible else None
    for k, value in values.items():
        reached = [point["seconds_per_microbatch"] for point in points if point["devices"] <= k]
        assert (min(reached) if reached else None) == pytest.approx(value)


def test_more_than_two_choices_are_shown_by_their_names(tmp_path: pathlib.Path) -> None:
    content = chain(maxDevices=1, maxMemoryPerDevice=22.5)
    for node in content["nodes"]:
        other = dict(node["TMPCs"]["1"][0], id="half", timePerSample=3.2, memoryUsageA=1.5)
        node["TMPCs"]["1"].append(other)
    result = plan(tmp_path, content)
    assert result.answer.objective.value == pytest.approx(12.0 + 3 * 0.2)
    assert sorted(result.answer.extra["choices"][0]["TMPCids"].values()) == ["half", "half", "half", "vanilla"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_device": "3"}, "did you mean 'max_devices'"),
        ({"max_devices": "10001"}, "10001; it must be at least 1 and at most 10000"),
        ({"max_devices": "0"}, "out of range"),
        ({"knapsack": "fast"}, "choose one of greedy, exact"),
        ({"bandwidth": "0"}, "out of range"),
        ({"memory": "3 apples"}, "unknown unit"),
        ({"all_or_none": "true"}, "knapsack=greedy"),
        ({"node_size": "8"}, "go together"),
        ({"curve": "devices", "fill_drain": "true"}, "none of layer_buffers, fill_drain and node_size"),
    ],
)
def test_wrong_options_are_told_in_one_message(settings: dict[str, str], message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=message):
        plan(tmp_path, chain(), **settings)


def test_an_equal_split_is_evaluated_as_fixed_or_searched(tmp_path: pathlib.Path) -> None:
    fixed = plan(tmp_path, chain(), "piper_equal_split", stages="2", data="2", tensor="1", separate="false")
    assert [len(stage.ops) for stage in fixed.plan.stages] == [2, 2]
    assert fixed.answer.objective.value == pytest.approx(3.0)
    searched = plan(tmp_path, chain(), "piper_equal_split")
    assert searched.answer.objective.value == pytest.approx(3.0)
    assert len(searched.plan.stages) == 1
    with pytest.raises(InputError, match="must divide the 8"):
        plan(tmp_path, chain(), "piper_equal_split", data="3")


def test_an_instance_written_reads_back_the_same(tmp_path: pathlib.Path) -> None:
    result = plan(tmp_path, chain(), max_devices="3")
    path = tmp_path / "again.json"
    writer.write(result, str(path))
    again = api.read(str(path))
    assert again.instance == result.problem.model_spec.instance


def test_a_model_of_ours_is_planned_and_written_for_the_original(tmp_path: pathlib.Path) -> None:
    result = api.plan("llama-3.1-8b", "dgx-h100:8", search="piper", batch=Batch(global_batch=32, micro_batch=1))
    assert result.feasible and result.timeline is not None
    assert sorted(op for stage in result.plan.stages for op in stage.ops) == list(range(len(result.problem.graph.ops)))
    assert result.answer.bound.value <= result.answer.objective.value
    memory = result.problem.cluster.device(0).memory_bytes
    assert max(result.timeline.peak_bytes) <= memory
    path = tmp_path / "llama.json"
    writer.write(result, str(path))
    again = api.plan(str(path), search="piper", settings={"knapsack": "greedy"})
    assert again.feasible
    with pytest.raises(InputError, match="is for piper_json files"):
        api.plan("llama-3.1-8b", "dgx-h100:8", search="piper", settings={"max_devices": "4"})


def test_a_plan_names_its_question_so_that_it_can_be_played_again(tmp_path: pathlib.Path) -> None:
    result = plan(tmp_path, chain(), max_devices="3", n_microbatches="7", any_replicas="true")
    again = api.read(result.problem.model_spec.spec)
    assert again.instance == result.problem.model_spec.instance
    assert again.spec.endswith("chain.json#max_devices=3,n_microbatches=7,any_replicas=true")
    problem = api.make_problem(again)
    stage_costs, timeline = api.evaluate(problem, result.plan)
    assert stage_costs == result.stage_costs
    assert timeline is not None and timeline.step_seconds == result.timeline.step_seconds
    for wrong, message in (
        ("max_device=3", "did you mean 'max_devices'"),
        ("memory=x", "must be a number"),
        ("layers=0", "at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            api.read(f"{tmp_path / 'chain.json'}#{wrong}")


def test_on_a_model_of_ours_tensors_take_the_links_between_the_stages_own_devices() -> None:
    """Stages of one device, nodes of 8: what crosses from the eighth to the ninth goes over the network cards."""
    settings = {"fill_drain": "false", "data_parallel": "false", "tensor_parallel": "false"}
    result = api.plan(
        "gpt2-xl",
        "dgx-a100:16",
        search="piper",
        batch=Batch(global_batch=32, micro_batch=1),
        settings=settings,
        memory_risk=0.5,
    )
    problem, stages = result.problem, result.plan.stages
    stage_costs = analytic.stage_costs(problem, result.plan)
    seconds = []
    for load in stage_costs:
        once = load.reduce_seconds * (1.0 - load.overlap_ratio) + load.gather_seconds + load.optimizer_seconds
        seconds.append(load.forward_total_seconds + load.backward_total_seconds + once / result.plan.n_microbatches)
    crossed = set()
    for i in range(len(stages) - 1):
        pair = (stages[i].devices[0], stages[i + 1].devices[0])
        latency, per_byte = Network.of(problem.cluster).transfer([pair])
        crossed.add(per_byte)
        for end in (i, i + 1):
            seconds[end] += 2.0 * (latency + stage_costs[i].output_bytes * per_byte)
    assert len(stages) > 8 and len(crossed) == 2, "some stages are neighbours in a node, two are not"
    assert result.answer.objective.value == pytest.approx(max(seconds) * result.plan.n_microbatches, rel=1e-9)
    assert result.answer.bound.value <= result.answer.objective.value


@pytest.mark.parametrize(
    ("name", "word"),
    [("vanilla", "none"), ("activation recomp", "full"), ("Selective recompute", "selective"),
     ("attention SELECTIVE", "selective"),
     ("full recompute", "full"), ("Checkpointed", "full"), ("fused", "none")],
)  # fmt: skip
def test_what_a_choice_recomputes_is_read_from_its_name(name: str, word: str) -> None:
    assert costs.recompute_word(name) == word


def test_the_buffer_of_a_choice_is_what_it_saves_as_far_as_it_holds_so_much_more() -> None:
    """Against the choice that recomputes nothing, wherever it stands; without one nothing is known."""
    plain = PiperChoice("vanilla", 3.0, 0.0, 10.0, 4.0, {}, {})
    for saves, more, buffer in ((6.0, 6.0, 6.0), (6.0, 2.0, 2.0), (6.0, 9.0, 6.0), (6.0, -1.0, 0.0), (-2.0, 3.0, 0.0)):
        other = PiperChoice("activation recomp", 4.0, 0.0, 10.0 - saves, 4.0 + more, {}, {})
        for choices in ((plain, other), (other, plain)):
            node: Any = SimpleNamespace(at=lambda degree, choices=choices: choices)
            assert menu.buffer_bytes(node, 1, other) == buffer and menu.buffer_bytes(node, 1, plain) == 0.0
        assert menu.buffer_bytes(SimpleNamespace(at=lambda degree, other=other: (other,)), 1, other) == 0.0  # type: ignore[arg-type]
