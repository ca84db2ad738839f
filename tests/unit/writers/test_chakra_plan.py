"""Chakra traces of a plan: every message has its other half, every group all its members, bytes and seconds are the plan's."""

from __future__ import annotations

import json
import pathlib
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api
from meshwright.base import chakra_nodes
from meshwright.base.errors import ExportError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.writers import chakra_plan

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")
SLOTS = {7: int, 9: int, 13: int, 27: int, 29: bytes}


def played(strategy: Strategy, n_ranks: int = 2, schedule: str = "1f1b") -> Result:
    problem = api.make_problem(TINY, "dgx-a100:16", batch=Batch(8, 1, 128))
    cuts = {1: ((0, 1, 2, 3, 4, 5),), 2: ((0, 1, 2), (3, 4, 5))}[n_ranks]
    size = strategy.n_devices
    stages = tuple(
        Stage(ops, tuple(range(1 + r * size, 1 + (r + 1) * size)), strategy, tuple("none" for _ in ops))
        for r, ops in enumerate(cuts)
    )
    plan = Plan(stages, 4, 1, schedule, 4 * strategy.data)
    stage_costs, timeline = api.evaluate(problem, plan)
    return Result(problem, "test", 0, Answer(plan), stage_costs, timeline)


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def fields_of(message: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = number(message, at)
        value: Any
        value, at = number(message, at)
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        found[key >> 3].append(value)
    return found


def nodes(trace: bytes) -> list[dict[str, Any]]:
    """Return the nodes of a trace, attributes by name."""
    found, at, messages = [], 0, []
    while at < len(trace):
        size, at = number(trace, at)
        messages.append(trace[at : at + size])
        at += size
    for message in messages[1:]:
        fields, before, place = fields_of(message), [], 0
        packed = fields[5][0] if fields[5] else b""
        while place < len(packed):
            one, place = number(packed, place)
            before.append(one)
        own = {}
        for attribute in map(fields_of, fields[10]):
            ((slot, (value,)),) = [(slot, entry) for slot, entry in attribute.items() if slot != 1]
            assert slot in SLOTS
            own[attribute[1][0].decode()] = value
        found.append({"id": fields[1][0], "name": fields[2][0].decode(), "kind": fields[3][0], "before": before,
                      "micros": fields[7][0] if fields[7] else 0, **own})  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("strategy", "schedule"),
    [(Strategy(2, 2, sequence_parallel=True, shard=1), "1f1b"), (Strategy(4, shard=3), "gpipe"), (Strategy(2, 1, 2), "zb_h1")],
)
def test_messages_meet_groups_are_whole_and_the_bytes_are_the_plans(
    strategy: Strategy, schedule: str, tmp_path: pathlib.Path
) -> None:
    result = played(strategy, schedule=schedule)
    (note,) = chakra_plan.write(result, str(tmp_path / "t"))
    assert "8 traces" in note and "t.groups.json" in note
    groups = json.loads((tmp_path / "t.groups.json").read_text())
    assert list(groups) == [str(k) for k in range(len(groups))]
    traces = [nodes((tmp_path / f"t.{k}.et").read_bytes()) for k in range(8)]
    sends, receives, meet = {}, {}, defaultdict(list)
    for device, trace in enumerate(traces):
        assert [one["id"] for one in trace] == list(range(len(trace)))
        assert all(set(one["before"]) <= set(range(one["id"])) for one in trace), "a node waits for one that comes later"
        for one in trace:
            if one["kind"] in (chakra_nodes.SEND, chakra_nodes.RECEIVE):
                key = one["comm_src"], one["comm_dst"], one["comm_tag"]
                half = sends if one["kind"] == chakra_nodes.SEND else receives
                assert key not in half and device == key[half is receives]
                half[key] = one["comm_size"]
            elif one["kind"] == chakra_nodes.COLLECTIVE:
                assert device in groups[one["pg_name"].decode()]
                meet[one["name"], one["pg_name"].decode()].append((device, one["comm_type"], one["comm_size"]))
    assert sends == receives and len(sends) == 2 * 4 * strategy.n_devices
    assert set(sends.values()) == {round(result.stage_costs[0].output_bytes)}
    for (_, group), members in meet.items():
        assert [device for device, _, _ in members] == sorted(groups[group]) and len({what[1:] for what in members}) == 1
    for rank, cost in enumerate(result.stage_costs):
        trace = traces[rank * strategy.n_devices]
        forward = [one for one in trace if one["kind"] == chakra_nodes.COMPUTE and one["name"].startswith("forward.")]
        assert [one["micros"] for one in forward] == [round(cost.forward_seconds * 1e6)] * 4
        moved = sum(one["comm_size"] * (len(groups[one["pg_name"].decode()]) if one["comm_type"] == 2 else 1) for one in trace
                    if one["kind"] == chakra_nodes.COLLECTIVE)  # fmt: skip
        times = {"forward": 4, "backward": 4, "forward_beside": 4, "backward_beside": 4, "reduce": 1, "gather": 1}
        wanted = sum(times[one.part] * one.n_bytes * one.n_times for one in cost.collectives if one.size > 1)
        assert moved == pytest.approx(wanted, rel=1e-3) and wanted > 0


def test_what_traces_cannot_say_is_refused(tmp_path: pathlib.Path) -> None:
    result = played(Strategy(4, shard=1))
    wide = replace(result.plan.stages[0], devices=(1, 2), strategy=Strategy(2))
    uneven = replace(result, answer=Answer(replace(result.plan, stages=(wide, result.plan.stages[1]))))
    untold = replace(result, stage_costs=tuple(replace(cost, collectives=()) for cost in result.stage_costs))
    for one, said in (
        (uneven, "different numbers"),
        (untold, "which collectives"),
        (replace(result, timeline=None), "how long"),
    ):
        with pytest.raises(ExportError, match=said):
            chakra_plan.write(one, str(tmp_path / "t"))
        assert not list(tmp_path.iterdir())
