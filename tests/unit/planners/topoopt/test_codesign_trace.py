"""The trace of a co-design keeps the rules of the format, with everything that runs at the same time on threads of its own."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace

import pytest
import trace_event_rules

from meshwright.api import codesign
from meshwright.planners.topoopt import windows
from meshwright.planners.topoopt.windows import Changing
from meshwright.planners.topoopt.writers import codesign_trace


@pytest.mark.parametrize("topology", ["full-mesh", "switch", "topoopt"])
def test_the_trace_of_a_codesign_keeps_the_rules_of_the_format(topology: str, tmp_path: pathlib.Path) -> None:
    design = codesign(
        "topoopt:dlrm,tables=6,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64",
        servers=4,
        degree=2,
        link_bandwidth="10 Gbit/s",
        topologies=(topology,),
        budget=20,
    )
    codesign_trace.write(design, str(tmp_path / "step.json"))
    text = (tmp_path / "step.json").read_text()
    assert trace_event_rules.broken_rules(text) == []
    trace = json.loads(text)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    longest = max(event["ts"] + event["dur"] for event in spans)
    assert longest <= trace["otherData"]["step_seconds"] * 1e6 + 1e-3
    assert {event["cat"] for event in spans} >= {"compute", "all-reduce"}


def test_the_trace_shows_circuits_that_change_and_is_as_long_as_that_step(tmp_path: pathlib.Path) -> None:
    design = codesign(
        "topoopt:candle,tower=512x2,top=512x2-1,batch=4096", servers=6, degree=2, link_bandwidth="10 Gbit/s",
        topologies=("optical",), budget=5,
    )  # fmt: skip
    plan, traffic = design.entry.found.placement, design.step.traffic(design.entry.found.placement)
    fabrics = tuple(design.entry.found.fabric.refitted(traffic.pair_bytes, traffic.group_bytes) for _ in range(2))
    changing = Changing(0.0, 0.0, (0.0, design.entry.found.seconds / 2), fabrics, 1e-6)
    _, played = windows.again(design.step, plan, changing)
    changing = replace(changing, seconds=played.seconds)
    entry = replace(design.entry, found=replace(design.entry.found, changing=changing))
    codesign_trace.write(replace(design, entries=(("optical", entry),)), str(tmp_path / "step.json"))
    text = (tmp_path / "step.json").read_text()
    assert trace_event_rules.broken_rules(text) == []
    events = json.loads(text)["traceEvents"]
    circuits = [event for event in events if event["ph"] == "X" and event["cat"] == "circuits"]
    assert [event["name"] for event in circuits] == ["dark", "6 circuits"] * 2
    assert {event["pid"] for event in circuits} == {6}
    links = [event["args"]["links"] for event in circuits if "links" in event["args"]]
    assert links == [[list(pair) for pair in fabric.wires()] for fabric in fabrics]
    longest = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert longest == pytest.approx(changing.seconds * 1e6, rel=1e-6)
