"""The Chrome trace holds what the format asks for, and everything the timeline holds."""

from __future__ import annotations

import itertools
import json
import pathlib

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.graph import Graph, Op
from meshwright.plan import Plan, Stage
from meshwright.problem import Problem, Reading
from meshwright.result import Answer, Result
from meshwright.sim import engine
from meshwright.sim.transfers import fixed
from meshwright.table import StageLoad
from meshwright.timeline import PHASES
from meshwright.writers import chrome_trace

FIELDS = {
    "X": {"ph": str, "name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "C": {"ph": str, "name": str, "pid": int, "ts": float, "args": dict},
    "M": {"ph": str, "name": str, "pid": int, "args": dict},
}


def answered() -> Result:
    graph = Graph("tiny", tuple(Op(f"layers.{i}", "mlp") for i in range(4)))
    problem = Problem(Reading("tiny", "test", "tiny", graph))
    stages = tuple(Stage((i,), ((0, 1), (2, 3), (2, 3), (0, 1))[i]) for i in range(4))
    plan = Plan(stages, 3, 1, "zb_v", 3)
    loads = tuple(
        StageLoad(1.0, 1.0, 1.0, activation_bytes=5.0, weight_bytes=7.0, reduce_seconds=1.0, optimizer_seconds=0.5, gather_seconds=0.25)
        for _ in stages
    )  # fmt: skip
    timeline = engine.play(plan, loads, fixed(np.array(plan.rank_of_stage()), np.full(3, 0.125)))
    return Result(problem, "test", 0, Answer(plan), loads, timeline)


def test_every_event_has_the_fields_of_its_phase_in_microseconds(tmp_path: pathlib.Path) -> None:
    chrome_trace.write(answered(), str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        wanted = FIELDS[event["ph"]]
        assert set(wanted) - {"tid"} <= set(event) <= set(wanted) | {"tid"}
        for name, value in event.items():
            assert isinstance(value, wanted.get(name, int)), (name, value)
        assert event.get("ts", 0.0) >= 0.0 and event.get("dur", 0.0) >= 0.0
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
    longest = max(event["ts"] + event["dur"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert longest == pytest.approx(trace["otherData"]["step_seconds"] * 1e6)


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


def test_no_two_spans_of_one_thread_overlap_so_that_viewers_draw_them_side_by_side() -> None:
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in chrome_trace.as_json(answered())["traceEvents"]:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        assert all(b[0] >= a[1] - 1e-6 for a, b in itertools.pairwise(row))


def test_an_answer_without_a_timeline_is_refused() -> None:
    problem = answered().problem
    with pytest.raises(InputError, match="no timeline"):
        chrome_trace.as_json(Result(problem, "test", 0, Answer(None)))
