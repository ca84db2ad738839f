"""The answer of ``codesign`` as JSON: times, bound, links and cost of every topology, and the plan."""

from __future__ import annotations

import json
from typing import Any

from meshwright.base import files
from meshwright.base.units import format_seconds
from meshwright.planners.topoopt import bounds
from meshwright.planners.topoopt.alternate import PlanOnNetwork
from meshwright.planners.topoopt.choices import in_parts
from meshwright.planners.topoopt.design import Design, Entry
from meshwright.planners.topoopt.given.task_graph import GivenStep
from meshwright.planners.topoopt.step import TRAFFIC, Step

__all__ = ["FORMAT", "as_json", "gap_text", "proof", "write"]

FORMAT = "meshwright/codesign/1"
MOST_FAIR_FLOWS = 5000


def as_json(design: Design) -> dict[str, Any]:
    """Return the answer as the JSON object of ``codesign --json``.

    Returns: JSON-ready values in base units. ``plan.operators[i]``: ``samples``, ``columns`` and ``rows`` are parts; part p
    is sample index times ``columns * rows`` plus the inner index, on ``servers[p]``. ``plan.rings``: for every all-reduce
    group, the routes from member to member and the part of the traffic each carries. ``topologies.NAME``:
    ``compute_seconds``, ``cut_seconds`` (busiest server's interfaces, on any topology) and ``collective_seconds`` (worst
    cut for all-reduces, on this topology, 0 where it is not looked for) are bounds of this plan, and ``gap_ratio`` is
    against the largest of them; ``seconds_by_traffic`` is the same step under every model of traffic, null where there are
    too many flows to share fairly.
    """
    wires = design.wires
    entry: dict[str, Any] = {
        "format": FORMAT,
        "model": {
            "name": design.workload.name,
            "n_parameters": design.workload.n_parameters,
            "global_batch": design.workload.global_batch or None,
        },
        "question": dict(design.question) or None,
        "servers": wires.n_servers,
        "degree": wires.degree,
        "link_bytes_per_second": wires.bytes_per_second,
        "link_latency_seconds": wires.latency_seconds,
        "feasible": bool(design.entries),
        "iteration_seconds": None,
        "samples_per_second": None,
        "bound": None,
        "topologies": {},
        "plan": None,
        "seed": design.seed,
        "planning_seconds": design.planning_seconds,
        "notes": list(design.notes),
    }
    if not design.entries:
        return entry | {"missing_bytes": design.missing_bytes, "nearest": None, "infeasible_proven": design.infeasible_proven}
    found = design.entry.found
    entry |= {
        "iteration_seconds": found.seconds,
        "samples_per_second": design.workload.global_batch / found.seconds if design.workload.global_batch else None,
        "topology": design.best,
        "bound": None if design.gap_ratio is None else _bound(design),
        "topologies": {name: _topology(design, one) for name, one in design.entries},
        "plan": plan_json(design, design.entry),
    }
    return entry


def _bound(design: Design) -> dict[str, Any]:
    closed = design.step.model_of_traffic == "closed"
    if isinstance(design.step, GivenStep):
        method = "the plan of the file on any topology: " + (
            "the busiest server's compute, then what the busiest sends"
            if closed
            else "the busiest server's compute, the longest chain of tasks, or what the busiest server sends"
        )
    else:
        kind = "work of all servers, then" if closed else "work of all servers, paths, tables, transfers and"
        method = f"relaxation: {kind} all-reduced bytes over all interfaces"
    return {
        "value": design.bound_seconds,
        "gap_ratio": design.gap_ratio,
        "method": method,
        "injection_bytes_per_second": design.injection_bytes_per_second,
    }


def proof(design: Design) -> str:
    """Return the bound, and of what it is one, as the end of a sentence; empty where none is known."""
    if design.gap_ratio is None:
        return ""
    if isinstance(design.step, GivenStep):
        return (
            f"; on any topology whose servers send at most {design.injection_bytes_per_second * 8e-9:g} Gbit/s each this plan "
            f"takes {format_seconds(design.bound_seconds)} at least (gap {design.gap_ratio:.1%})"
        )
    parts, least = in_parts(design.step.space.parts), format_seconds(design.bound_seconds)
    return (
        f"; no plan with operators in {parts} beats {least} on any topology whose servers send at most "
        f"{design.injection_bytes_per_second * 8e-9:g} Gbit/s each (gap {design.gap_ratio:.1%})"
    )


def gap_text(row: dict[str, Any]) -> str:
    """Return the gap of a topology in per cent; a dash where none of its bounds is above zero."""
    return "-" if row["gap_ratio"] is None else f"{row['gap_ratio']:.1%}"


def _topology(design: Design, entry: Entry) -> dict[str, Any]:
    found, step = entry.found, design.step
    fabric = found.fabric
    traffic = step.traffic(found.placement)
    compute = step.compute_seconds(found.placement)
    cut = bounds.cut_seconds(traffic, fabric.injection_bytes_per_second())
    collective = bounds.collective_seconds(step.space, traffic, fabric)
    largest = max(compute, cut, collective) * (1 - bounds.ROUNDING)
    return {
        "iteration_seconds": found.seconds,
        "start_seconds": found.start_seconds,
        "seconds_by_traffic": {name: _seconds(step, found, name) for name in TRAFFIC},
        "links": [list(pair) for pair in fabric.wires()],
        "n_switches": fabric.n_nodes - fabric.n_servers,
        "cost": entry.cost,
        "link_bytes_per_second": entry.link_bytes_per_second,
        "mean_hops": fabric.mean_hops(),
        "diameter": int(fabric.hops[:, : fabric.n_servers].max()),
        "compute_seconds": compute,
        "cut_seconds": cut,
        "collective_seconds": collective,
        "busiest_seconds": step.busy_seconds(found.placement, fabric),
        "gap_ratio": found.seconds / largest - 1.0 if largest > 0 else None,
        "point_to_point_bytes": float(traffic.pair_bytes.sum()),
        "all_reduce_bytes": float(sum(2.0 * (len(members) - 1) * n_bytes for members, n_bytes in traffic.group_bytes)),
        "proposals": found.n_proposals,
        "changing": _changing(found),
    }


def _changing(found: PlanOnNetwork) -> dict[str, Any] | None:
    """Return what the plan's step gains from circuits that change while it runs; None where they do not."""
    if found.changing is None:
        return None
    windows = [
        {"from_seconds": start, "links": [list(pair) for pair in fabric.wires()]}
        for start, fabric in zip(found.changing.from_seconds, found.changing.fabrics, strict=True)
    ]
    return {
        "iteration_seconds": found.changing.seconds,
        "staying_seconds": found.changing.staying_seconds,
        "windows": windows,
    }


def _seconds(step: Step, found: PlanOnNetwork, traffic: str) -> float | None:
    """Return the step under a model of traffic; None where fair shares would take longer than the search."""
    if traffic == step.model_of_traffic:
        return found.seconds
    n_flows = int((step.tasks(found.placement, found.fabric)[1].edge_bytes > 0).sum())
    if traffic == "fair" and n_flows > MOST_FAIR_FLOWS:
        return None
    return step.seconds(found.placement, found.fabric, traffic=traffic)


def plan_json(design: Design, entry: Entry) -> dict[str, Any]:
    """Return plan, routes and rings on one topology as JSON-ready values."""
    found, step = entry.found, design.step
    fabric, n = found.fabric, found.fabric.n_servers
    operators = []
    for i, (choice, servers) in enumerate(zip(step.chosen(found.placement), found.placement.servers, strict=True)):
        operators.append(
            {
                "name": design.workload.operations[i].name,
                "key": design.workload.operations[i].key,
                "samples": choice.samples,
                "columns": choice.columns,
                "rows": choice.rows,
                "servers": list(servers),
                "forward_seconds": choice.forward_seconds,
                "backward_seconds": choice.backward_seconds,
                "measured": choice.measured,
                "backward_last": i in found.placement.last,
            }
        )
    traffic = step.traffic(found.placement)
    ends = list(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True))
    sends = traffic.pair_bytes > 0
    routes = [
        {
            "source": a,
            "target": b,
            "ways": [[a] + [ends[link][1] for link in links] for links in fabric.ways(a, b)],
            "share_ratios": fabric.way_shares(a, b),
            "bytes": float(traffic.pair_bytes[a, b]),
        }
        for a in range(n)
        for b in range(n)
        if sends[a, b]
    ]
    rings = [
        {
            "members": list(members),
            "bytes": n_bytes,
            "flows": [
                {"nodes": [ends[links[0]][0]] + [ends[link][1] for link in links], "share_ratio": share}
                for links, share in fabric.flows(members)
                if links
            ],
        }
        for members, n_bytes in traffic.group_bytes
    ]
    peak = None if isinstance(step, GivenStep) else step.memory_bytes(found.placement).tolist()
    return {
        "operators": operators,
        "peak_bytes": peak,
        "link_bytes_per_second": fabric.bytes_per_second,
        "link_latency_seconds": fabric.latency_seconds,
        "links": [[a, b, width] for (a, b), width in zip(ends, fabric.count.tolist(), strict=True)],
        "routes": routes,
        "rings": rings,
    }


def write(design: Design, path: str, answer: dict[str, Any] | None = None) -> None:
    """Write the answer to a file, whole or not at all.

    `answer`: from `as_json`, where it is there already.
    """
    files.write(path, json.dumps(as_json(design) if answer is None else answer, indent=1) + "\n")
