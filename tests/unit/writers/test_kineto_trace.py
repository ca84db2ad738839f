"""Kineto's traces hold every span once and communication under NCCL's names, and add up to the step."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace

import pytest
import trace_event_rules

from meshwright import api
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.writers import chrome_trace, kineto_trace

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")


def piped(strategy: Strategy | None = None) -> Result:
    """Return a plan of two stages on eight devices, played."""
    strategy = strategy or Strategy(2, 2, sequence_parallel=True)
    problem = api.make_problem(TINY, "dgx-a100:8", batch=Batch(8, 1, 128))
    ops = (0, 1, 2), (3, 4, 5)
    stages = tuple(
        Stage(ops[r], tuple(range(4 * r, 4 * r + 4)), strategy, tuple("none" if op in (0, 5) else "full" for op in ops[r]))
        for r in range(2)
    )
    plan = Plan(stages, 4, 1, "1f1b", 4 * strategy.data)
    stage_costs, timeline = api.evaluate(problem, plan)
    return Result(problem, "test", 0, Answer(plan), stage_costs, timeline)


def test_every_rank_has_a_trace_that_keeps_the_rules_and_adds_up_to_the_step(tmp_path: pathlib.Path) -> None:
    result = piped()
    timeline = result.timeline
    assert timeline is not None
    assert kineto_trace.write(result, str(tmp_path / "trace.json")) == (
        "one trace for each pipeline rank: trace.0.json to trace.1.json",
    )
    for rank in range(2):
        text = (tmp_path / f"trace.{rank}.json").read_text()
        assert [rule for rule in trace_event_rules.broken_rules(text) if "ProfilerStep" not in rule] == []
        trace = json.loads(text)
        assert trace["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 2}
        assert f'"rank": {rank}' in text, "Holistic Trace Analysis looks for it in these very words"
        kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        launches = {e["args"]["correlation"]: e for e in trace["traceEvents"] if e.get("cat") == "cuda_runtime"}
        assert sorted(launches) == sorted(event["args"]["correlation"] for event in kernels)
        assert all(launches[event["args"]["correlation"]]["ts"] <= event["ts"] for event in kernels)
        mine = [i for i, stage in enumerate(timeline.stage.tolist()) if result.plan.rank_of_stage()[stage] == rank]
        spans = sum(float(timeline.end_seconds[i] - timeline.start_seconds[i]) for i in mine)
        assert sum(event["dur"] for event in kernels) / 1e6 == pytest.approx(spans, abs=1e-6)
        tensor = sum(event["dur"] for event in kernels if event["name"].endswith(": tensor")) / 1e6
        cost = result.stage_costs[rank]
        said = 4 * (dict(cost.forward_communication)["tensor"] + dict(cost.backward_communication)["tensor"])
        assert tensor == pytest.approx(said, rel=1e-3) and said > 0
        named = {event["name"].partition(":")[0] for event in kernels if ":" in event["name"]}
        assert named <= {"ncclDevKernel_AllGather", "ncclDevKernel_SendRecv", "ncclDevKernel_AllReduce"}
        (step,) = [event for event in trace["traceEvents"] if event["name"] == "ProfilerStep#0"]
        assert step["dur"] == pytest.approx(timeline.step_seconds * 1e6, abs=1e-2)


@pytest.mark.parametrize(("shard", "kernel"), [(0, "AllReduce"), (1, "ReduceScatter")])
def test_reductions_are_called_what_nccl_runs(shard: int, kernel: str) -> None:
    result = piped(Strategy(4, shard=shard))
    names = {event["name"] for trace in kineto_trace.as_json(result) for event in trace["traceEvents"]}
    assert f"ncclDevKernel_{kernel}: reduce" in names
    plain = chrome_trace.as_json(result)["traceEvents"]
    assert f"ncclDevKernel_{kernel}: reduce" in {event["name"] for event in plain}
    streams = [
        event["args"].get("stream", -1) == (event["tid"] if event["pid"] == 0 else -1) for event in plain if event["ph"] == "X"
    ]
    assert all(streams), "a reader of profiles takes the first rank's"


def test_without_loads_tasks_are_whole(tmp_path: pathlib.Path) -> None:
    traces = kineto_trace.as_json(replace(piped(), stage_costs=()))
    assert {event["name"] for event in traces[0]["traceEvents"] if event.get("cat") == "kernel" and event["tid"] == 7} == {
        "forward", "backward", "optimizer",
    }  # fmt: skip
