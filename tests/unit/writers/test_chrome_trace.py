"""The Chrome trace holds what the format asks for, and everything the timeline holds."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import trace_event_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import api, schedules, sim
from meshwright.base import trace_events
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, ModelSpec, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.core.timeline import PHASES
from meshwright.sim import engine
from meshwright.sim.transfers import fixed
from meshwright.writers import chrome_trace


def answered() -> Result:
    graph = Graph("tiny", tuple(Op(f"layers.{i}", "mlp") for i in range(4)))
    problem = Problem(ModelSpec("tiny", "test", "tiny", graph))
    stages = tuple(Stage((i,), ((0, 1), (2, 3), (2, 3), (0, 1))[i]) for i in range(4))
    plan = Plan(stages, 3, 1, "zb_v", 3)
    stage_costs = tuple(
        StageCost(1.0, 1.0, 1.0, activation_bytes=5.0, weight_bytes=7.0, reduce_seconds=1.0, optimizer_seconds=0.5,
        gather_seconds=0.25)
        for _ in stages
    )  # fmt: skip
    timeline = engine.play(plan, stage_costs, fixed(np.array(plan.rank_of_stage()), np.full(3, 0.125)))
    return Result(problem, "test", 0, Answer(plan), stage_costs, timeline)


def piped(schedule: str, n_ranks: int, n_chunks: int, transfer_seconds: float, n_microbatches: int = 8) -> Result:
    """Return a pipeline whose times are no round numbers."""
    n_stages = n_ranks * n_chunks
    graph = Graph("tiny", tuple(Op(f"layers.{i}", "mlp") for i in range(n_stages)))
    problem = Problem(ModelSpec("tiny", "test", "tiny", graph))
    place = schedules.load(schedule).placement(n_ranks, n_chunks)
    stages = tuple(Stage((i,), (int(place[i]),)) for i in range(n_stages))
    plan = Plan(stages, n_microbatches, 1, schedule, n_microbatches)
    stage_costs = tuple(
        StageCost(
            1 / 3 + i / 77, 1 / 7, 1 / 11, activation_bytes=5.0, reduce_seconds=0.1, overlap_ratio=0.3, optimizer_seconds=1e-3
        )
        for i in range(n_stages)
    )
    sends = fixed(np.array(plan.rank_of_stage()), np.full(n_stages - 1, transfer_seconds))
    return Result(problem, "test", 0, Answer(plan), stage_costs, engine.play(plan, stage_costs, sends))


def text_of(result: Result) -> str:
    return json.dumps(chrome_trace.as_json(result))


CASES = [
    ("gpipe", 3, 1),
    ("1f1b", 4, 1),
    ("interleaved_1f1b", 2, 3),
    ("interleaved_1f1b", 4, 2),
    ("zb_h1", 3, 1),
    ("zb_v", 4, 2),
]


@pytest.mark.parametrize("transfer_seconds", [0.0, 1e-10, 1 / 13], ids=["none", "below a nanosecond", "long"])
@pytest.mark.parametrize(("schedule", "n_ranks", "n_chunks"), CASES, ids=[f"{name} {p}x{v}" for name, p, v in CASES])
def test_traces_of_all_schedules_keep_the_rules_of_the_format(
    schedule: str, n_ranks: int, n_chunks: int, transfer_seconds: float
) -> None:
    result = piped(schedule, n_ranks, n_chunks, transfer_seconds)
    assert trace_event_rules.broken_rules(text_of(result)) == []


def test_a_trace_of_a_real_plan_on_shared_links_keeps_the_rules(tmp_path: pathlib.Path) -> None:
    """Stages of devices far apart reduce while others send: rates change at odd moments."""
    problem = api.make_problem("llama-3.1-8b", "pcie-a100:32", batch=Batch(global_batch=64))
    n = len(problem.graph.ops)
    spread = [tuple(range(i, 32, 4)) for i in range(4)]
    stages = tuple(
        Stage(tuple(range(i * n // 4, (i + 1) * n // 4)), devices, Strategy(data=8, shard=3))
        for i, devices in enumerate(spread)
    )
    plan = Plan(stages, 8, 1, "1f1b", 64)
    stage_costs, timeline = api.evaluate(problem, plan)
    assert timeline is not None
    assert timeline.step_seconds > 1.001 * sim.least_seconds(problem, plan, stage_costs)
    chrome_trace.write(Result(problem, "test", 0, Answer(plan), stage_costs, timeline), str(tmp_path / "trace.json"))
    text = (tmp_path / "trace.json").read_text()
    assert trace_event_rules.broken_rules(text) == []
    events = json.loads(text)["traceEvents"]
    longest = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert longest == pytest.approx(timeline.step_seconds * 1e6, abs=2e-3)


def test_every_handover_between_ranks_is_an_arrow() -> None:
    """Four stages, three micro-batches: three hand-overs each way of every micro-batch;
    with two ranks folded one stays at home.
    """
    straight, folded = piped("1f1b", 4, 1, 0.1, 3), answered()
    for result, n_hops in ((straight, 3), (folded, 2)):
        events = chrome_trace.as_json(result)["traceEvents"]
        assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) == 2 * 3 * n_hops
        assert all(event["tid"] > 1 for event in events if event["ph"] == "s")
        assert all(event["tid"] == 0 for event in events if event["ph"] == "f")


@settings(deadline=None)  # a busy machine is no failure
@given(ticks=st.lists(st.integers(0, 10**15), min_size=2, max_size=20))
def test_times_come_back_as_the_nanoseconds_they_are(ticks: list[int]) -> None:
    seconds = np.sort(np.array(ticks)) / 1e9
    starts = trace_events.microseconds(seconds)
    lengths = trace_events.durations(seconds[:-1], seconds[1:])
    back = [trace_event_rules._nanoseconds(start) for start in starts]
    assert back == np.rint(seconds * 1e9).astype(int).tolist()
    assert [trace_event_rules._nanoseconds(length) for length in lengths] == np.diff(back).tolist()


def broken(how: str) -> str:
    """Return the text of a trace with one thing wrong."""
    trace = chrome_trace.as_json(answered())
    events = trace["traceEvents"]
    first = {phase: next(i for i, event in enumerate(events) if event["ph"] == phase) for phase in "MXCsf"}
    if how == "cut off":
        return json.dumps(trace)[:-20]
    if how == "no list":
        return json.dumps({"events": events})
    if how == "not a number":
        events[first["X"]]["ts"] = float("nan")
    elif how == "a field is missing":
        del events[first["X"]]["dur"]
    elif how == "text for a number":
        events[first["X"]]["ts"] = "0"
    elif how == "a negative time":
        events[first["X"]]["ts"] = -1.0
    elif how == "an unknown phase":
        events[first["X"]]["ph"] = "Y"
    elif how == "an unnamed process":
        del events[first["M"]]
    elif how == "a counter of text":
        events[first["C"]]["args"] = {"bytes": "many"}
    elif how == "a span that overlaps the next":
        events[first["X"]]["dur"] += 1e7
    elif how == "an arrow without an end":
        del events[first["f"]]
    elif how == "an arrow without a start":
        del events[first["s"]]
    elif how == "an arrow bound to the next span":
        events[first["f"]]["bp"] = "x"
    elif how == "an arrow from nowhere":
        events[first["s"]]["tid"] = 1
    elif how == "time that goes back":
        events.append(events.pop(first["X"]))
    return json.dumps(trace)


@pytest.mark.parametrize(
    "how",
    [
        "cut off", "no list", "not a number", "a field is missing", "text for a number", "a negative time", "an unknown phase",
        "an unnamed process", "a counter of text", "a span that overlaps the next", "an arrow without an end",
        "an arrow without a start", "an arrow bound to the next span", "an arrow from nowhere", "time that goes back",
    ],
)  # fmt: skip
def test_the_rules_find(how: str) -> None:
    assert trace_event_rules.broken_rules(broken(how)) != []
    assert trace_event_rules.broken_rules(broken("nothing")) == []


def test_every_span_and_every_change_of_memory_is_in_the_trace() -> None:
    result = answered()
    timeline = result.timeline
    assert timeline is not None
    events = chrome_trace.as_json(result)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(timeline.stage)
    assert {event["cat"] for event in spans} == {PHASES[code] for code in timeline.phase}
    assert sum(event["ph"] == "C" for event in events) == sum(len(seconds) for seconds in timeline.memory_seconds)
    titles = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert titles == ["rank 0: devices 0, 1", "rank 1: devices 2, 3"]
    threads = [(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    assert threads == [
        (0, "compute"), (0, "reduce"), (0, "send to rank 1"), (1, "compute"), (1, "reduce"), (1, "send to rank 0"),
    ]  # fmt: skip


def test_an_answer_without_a_timeline_is_refused() -> None:
    problem = answered().problem
    with pytest.raises(InputError, match="no timeline"):
        chrome_trace.as_json(Result(problem, "test", 0, Answer(None)))
