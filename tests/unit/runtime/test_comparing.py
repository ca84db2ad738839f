"""Measured beside predicted: communication told apart from bubbles, and calibration that brings the next prediction nearer."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from runtime_processes import plan_of

from meshwright.commands.run import order_of, predict
from meshwright.core.plan import Plan, Stage
from meshwright.runtime.profile import calibration, comparison, exposed, kineto
from meshwright.runtime.ranks.layout import layout
from meshwright.runtime.ranks.plan_file import read_plan

TWO = Plan((Stage((0,), (0,)), Stage((1,), (1,))), n_microbatches=1, global_batch=1)


def rank(device: int, spans: list[tuple[int, int, str, float, float]], began: float = 0.0) -> dict[str, Any]:
    """Return what one rank leaves of a step."""
    return {"device": device, "host": "here", "began_seconds": began, "spans": spans, "rank": device,
            "compute_seconds": {device: 1.0}, "cpu_seconds": {device: 1.0}, "peak_bytes": {device: 1.0}}  # fmt: skip


def test_waiting_for_a_sender_is_a_bubble_and_waiting_for_its_bytes_is_communication() -> None:
    ranks = [
        rank(
            0,
            [(0, 0, "forward", 0.0, 1.0), (0, 0, "wait", 1.0, 4.0), (0, 0, "backward", 4.0, 6.0), (0, -1, "reduce", 6.0, 6.25)],
        ),
        rank(1, [(1, 0, "wait", 0.0, 1.5), (1, 0, "forward", 1.5, 2.5), (1, 0, "backward", 2.5, 3.5)]),
    ]
    assert exposed.measured_seconds(TWO, ranks) == pytest.approx([0.5 + 0.25, 0.5])
    late = [ranks[0], {**ranks[1], "began_seconds": 0.25}]  # its clock reads a quarter less at the same moment
    assert exposed.measured_seconds(TWO, late) == pytest.approx([0.25 + 0.25, 0.75])


def test_memory_of_tensors_is_compared_with_what_was_predicted_of_tensors() -> None:
    times = SimpleNamespace(step_seconds=1.0, peak_bytes=(9.0, 8.0), allocated_bytes=(4.0, 2.0))
    costs = [SimpleNamespace(forward_total_seconds=0.1, backward_total_seconds=0.2)] * 2
    predicted: Any = SimpleNamespace(timeline=times, stage_costs=costs)
    ran: dict[str, Any] = {"ranks": [rank(0, []), rank(1, [])]}
    pairs = [comparison._stage(TWO, stage, ran, predicted)["peak_bytes"] for stage in range(2)]
    assert pairs == [{"measured": 1.0, "predicted": 4.0}, {"measured": 1.0, "predicted": 2.0}]
    times.allocated_bytes = ()  # by profiles, which know of nothing else
    assert comparison._stage(TWO, 0, ran, predicted)["peak_bytes"] == {"measured": 1.0, "predicted": 9.0}
    times.allocated_bytes = (4.0, 2.0)
    before = comparison._stage(TWO, 1, {"ranks": []}, predicted)["peak_bytes"]
    assert before == {"measured": None, "predicted": 8.0}, "where nothing has run, all that the device must hold is told"


def profile(folder: pathlib.Path, name: str, scale: dict[str, float]) -> str:
    """Write a profile of four layers on two processes whose link moves a megabyte in a millisecond."""
    names = ["embed", "layers.0", "layers.1", "head"]
    layers = [{"name": n, "like": n, "n_parameters": 10, "weight_bytes": 40.0, "output_bytes": 1e5} for n in names]
    measures = [
        {"layer": n, "rows": rows, "tensor": 1, "forward_seconds": 0.01 * rows * scale.get(n, 1.0), "saved_bytes": 1e3,
         "backward_input_seconds": 0.01 * rows * scale.get(n, 1.0), "backward_weight_seconds": 0.01 * rows * scale.get(n, 1.0)}
        for n in names for rows in (1, 8)
    ]  # fmt: skip
    pairs = [{"source": a, "target": 1 - a, "latency_seconds": 1e-5, "seconds_per_byte": 1e-9} for a in (0, 1)]
    entry = {"format": "meshwright/profile/1", "model": "m", "sequence_length": 1, "device": "CPU", "n_cores": 2,
             "memory_bytes": 1e9,
             "optimizer_seconds_per_byte": 0.0, "layers": layers, "measures": measures,
             "links": {"n_ranks": 2, "pairs": pairs, "collectives": []}}  # fmt: skip
    (folder / name).write_text(json.dumps(entry))
    return str(folder / name)


def test_communication_of_a_simulated_step_is_what_no_compute_hides(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_text(
        json.dumps(plan_of([(2, [0], {}), (2, [1], {})], n_microbatches=1, global_batch=1, sequence_length=1))
    )
    path = str(tmp_path / "plan.json")
    predicted, _ = predict(read_plan(path), path, profile(tmp_path, "profile.json", {}))
    assert predicted is not None and predicted.timeline is not None
    seconds = exposed.predicted_seconds(predicted.plan, predicted.timeline)
    assert seconds == pytest.approx([1e5 * 1e-9 + 1e-5] * 2)  # one message each way


def test_a_run_plays_the_order_that_was_predicted(tmp_path: pathlib.Path) -> None:
    """Zero-bubble schedules move weight gradients to where uneven stages would wait; the run must move them too."""
    path = str(tmp_path / "plan.json")
    in_a_v = [(1, [0], {}), (1, [1], {}), (1, [1], {}), (1, [0], {})]
    plan = plan_of(in_a_v, schedule="zb_v", global_batch=8, micro_batch=2, sequence_length=1)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    read = read_plan(path)
    predicted, _ = predict(read, path, profile(tmp_path, "profile.json", {"head": 3.0, "embed": 0.3}))
    assert predicted is not None and predicted.timeline is not None
    slots, own = layout(read.plan, order_of(predicted)).slots, layout(read.plan).slots
    timeline, moved = predicted.timeline, 0
    for r in range(2):
        mine = slice(int(slots.first[r]), int(slots.first[r + 1]))
        work = list(zip(slots.stage[mine].tolist(), slots.microbatch[mine].tolist(), slots.phase[mine].tolist(), strict=True))
        spans = [i for i in range(len(timeline.phase)) if int(timeline.rank[i]) == r and int(timeline.phase[i]) < 4]
        played = sorted(spans, key=lambda i: float(timeline.start_seconds[i]))
        assert work == [(int(timeline.stage[i]), int(timeline.microbatch[i]), int(timeline.phase[i])) for i in played]
        moved += work != list(
            zip(own.stage[mine].tolist(), own.microbatch[mine].tolist(), own.phase[mine].tolist(), strict=True)
        )
    assert moved, "the case must be one where the orders differ"
    assert order_of(None) == []


def test_after_calibration_the_next_prediction_is_nearer(tmp_path: pathlib.Path) -> None:
    """The machine's truth is a second profile, in which some layers take longer; the synthetic run measures it."""
    path = str(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text(
        json.dumps(plan_of([(1, [0], {}), (3, [1], {})], global_batch=8, micro_batch=2, sequence_length=1))
    )
    read = read_plan(path)
    stale, truth = (
        profile(tmp_path, "stale.json", {}),
        profile(tmp_path, "truth.json", {"layers.0": 1.6, "head": 2.0, "embed": 0.7}),
    )
    said, happened = predict(read, path, stale)[0], predict(read, path, truth)[0]
    assert said is not None and happened is not None and said.timeline is not None and happened.timeline is not None
    compute = [(load.forward_total_seconds + load.backward_total_seconds) * 4 for load in happened.stage_costs]
    measured = {"losses": [1.0, 1.0], "gradient_norms": [2.0, 2.0], "first_step": 0,
                "step_seconds": [9.9, happened.timeline.step_seconds],
                "ranks": [{**rank(i, []), "compute_seconds": {str(i): compute[i]}} for i in (0, 1)]}  # fmt: skip
    entry = comparison.as_json(read.plan, measured, said, None)
    better = str(tmp_path / "better.json")
    calibration.write(stale, better, said, entry)
    again = predict(read, path, better)[0]
    assert again is not None and again.timeline is not None
    off = abs(said.timeline.step_seconds - happened.timeline.step_seconds)
    assert off > 0.2 * happened.timeline.step_seconds
    assert abs(again.timeline.step_seconds - happened.timeline.step_seconds) < 0.02 * off
    text = comparison.lines(entry)
    for row in ("step", "stage 1: compute", "stage 1: communication", "stage 1: peak memory", "not computing"):
        assert row in text


def test_the_table_has_no_ratio_of_shares_no_messages_of_one_process_and_no_long_ratios() -> None:
    table = {
        "step_seconds": {"measured": 0.2, "predicted": 1e-4}, "losses": [2.0, 1.5], "n_ranks": 1,
        "bubble_ratio": {"measured": 0.035, "predicted": 0.001},
        "stages": [{"compute_seconds": {"measured": 0.1, "predicted": 0.05}, "peak_bytes": {"measured": None, "predicted": 9.0},
                    "communication_seconds": {"measured": 6e-5, "predicted": 0.0}}],
    }  # fmt: skip
    rows = [line.split("  ") for line in comparison.lines(table).splitlines()]
    assert {row[0]: row[-1].strip() for row in rows[1:-1]} == {
        "step": "2,000", "stage 0: compute": "2.00", "stage 0: peak memory": "-", "not computing": "-"
    }  # fmt: skip
    assert rows[-1] == ["loss: 2.0000 in the first step, 1.5000 in the last of 2; one process"]
    assert "stage 0: communication" in comparison.lines({**table, "n_ranks": 2})


def test_a_prediction_for_other_devices_is_told_where_processors_train() -> None:
    def told(backend: str, costs: str) -> list[str]:
        problem = SimpleNamespace(
            cluster=SimpleNamespace(kinds=(SimpleNamespace(name="H100"),)), model_spec=SimpleNamespace(costs=costs)
        )
        return comparison.for_other_devices(cast("Any", SimpleNamespace(problem=problem)), backend)

    assert told("gloo", "analytic") == [
        "predicted is for H100, measured on CPUs here; 'meshwright profile' measures them for --profile"
    ]
    assert told("nccl", "analytic") == told("gloo", "profiled") == comparison.for_other_devices(None, "gloo") == []


def test_without_a_prediction_only_the_measured_column_is_filled() -> None:
    measured = {"losses": [1.0], "gradient_norms": [float("inf")], "first_step": 0, "step_seconds": [0.5]}
    measured["ranks"] = [rank(0, []), rank(1, [])]
    entry = comparison.as_json(TWO, measured, None, None)
    assert entry["step_seconds"] == {"measured": 0.5, "predicted": None} and entry["gradient_norms"] == [None]
    assert entry["stages"][0]["communication_seconds"] == {"measured": 0.0, "predicted": None}


def test_the_trace_of_both_steps_follows_the_rules_of_its_format_and_has_one_clock(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(pathlib.Path(__file__).resolve().parents[1] / "writers"))
    from trace_event_rules import broken_rules

    path = str(tmp_path / "plan.json")
    pathlib.Path(path).write_text(json.dumps(plan_of([(2, [0], {}), (2, [1], {})], micro_batch=4, sequence_length=1)))
    read = read_plan(path)
    said, _ = predict(read, path, profile(tmp_path, "profile.json", {}))
    third = 1.0 / 3.0  # no whole number of nanoseconds
    spans = [
        (0, 0, "forward", 0.0, third),
        (0, 0, "wait", third, 2 * third),
        (0, 0, "backward", 2 * third, 1.0),
        (0, -1, "reduce", 1.0, 1.1),
    ]
    later = [(1, 0, "wait", 0.0, third), (1, 0, "forward", third, 2 * third)]
    measured = {"ranks": [rank(0, spans, 7.0), rank(1, later, 7.25)]}
    for predicted, n_processes in ((said, 4), (None, 2)):
        trace = tmp_path / "trace.json"
        comparison.write_trace(str(trace), measured, predicted)
        assert broken_rules(trace.read_text()) == []
        events = json.loads(trace.read_text())["traceEvents"]
        titles = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
        assert len(titles) == n_processes
        other = titles["measured: rank 1 (device 1)"]
        starts = [event["ts"] for event in events if event["ph"] == "X" and event["pid"] == other]
        assert starts == pytest.approx([0.25e6, 0.25e6 + third * 1e6])


def test_the_prediction_stands_beside_what_was_recorded_from_the_beginning_of_the_step(tmp_path: pathlib.Path) -> None:
    stages = [(2, [0], {}), (2, [1], {})]
    (tmp_path / "plan.json").write_text(json.dumps(plan_of(stages, n_microbatches=1, global_batch=1, sequence_length=1)))
    path = str(tmp_path / "plan.json")
    read = read_plan(path)
    predicted, _ = predict(read, path, profile(tmp_path, "p.json", {}))
    assert predicted is not None and predicted.timeline is not None
    for rank in (0, 1):
        step = {"ph": "X", "name": "ProfilerStep#0", "cat": "user_annotation", "ts": 5e6 + rank, "dur": 9.0, "pid": 1, "tid": 1}
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps({"traceEvents": [step]}))
    assert kineto.merge(str(tmp_path), layout(read.plan), None) == kineto.merge(str(tmp_path), layout(read.plan), predicted)
    for rank in (0, 1):
        events = json.loads((tmp_path / f"rank-{rank}.json").read_text())["traceEvents"]
        said = [event for event in events if event.get("cat") == "predicted"]
        assert {event["args"]["stage"] for event in said} == {rank} and not any("stream" in event["args"] for event in said)
        start = min(event["ts"] for event in said if event["name"] == "forward") - (5e6 + rank)
        waited = 0.0 if rank == 0 else predicted.timeline.step_seconds * 1e6 / 6
        assert (start == 0.0) if rank == 0 else start > waited, "stage 1 begins when stage 0 is through"
