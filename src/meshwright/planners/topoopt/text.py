"""The answer of ``codesign`` as text a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from meshwright.base.units import format_bytes, format_seconds
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.writers import codesign_json, wiring_csv

__all__ = ["explain"]

MOST_SERVERS = 64
"""Of larger networks the cables are not printed, only written."""


def explain(design: Design, answer: Mapping[str, Any] | None = None) -> str:
    """Return plan, topologies and bound in words.

    `answer`: from `codesign_json.as_json`, where it is there already.
    """
    wires = design.wires
    what = f"{design.workload.global_batch} samples per step" if design.workload.global_batch else "the step of a task graph"
    lines = [
        f"{design.workload.name}: {what} on {wires.n_servers} servers, "
        f"{wires.degree} interfaces of {wires.bytes_per_second * 8e-9:g} Gbit/s each"
    ]
    if not design.entries:
        nothing = "nothing fits (proven)" if design.infeasible_proven else "no plan that fits was found (not proven)"
        lines.append(
            f"{nothing}: the fullest server lacks {format_bytes(design.missing_bytes)} of memory; take more servers or a "
            "smaller batch"
        )
        return "\n".join(lines)
    found = design.entry.found
    lines.append(f"step {format_seconds(found.seconds)} on {design.best}{codesign_json.proof(design)}")
    lines.append(
        f"{'topology':24s} {'step':>10s} {'fair':>10s} {'compute':>10s} {'cut':>10s} {'rings':>10s} {'gap':>7s} "
        f"{'hops':>6s} {'links':>6s} {'cost':>10s}"
    )
    answer = codesign_json.as_json(design) if answer is None else answer
    for name, row in answer["topologies"].items():
        fair = row["seconds_by_traffic"]["fair"]
        bounds = [format_seconds(row[key]) for key in ("compute_seconds", "cut_seconds", "collective_seconds")]
        seconds = [format_seconds(row["iteration_seconds"]), format_seconds(fair) if fair is not None else "-", *bounds]
        lines.append(
            f"{name:24s} {' '.join(f'{one:>10s}' for one in seconds)} {codesign_json.gap_text(row):>7s} "
            f"{row['mean_hops']:6.2f} "
            f"{len(row['links']):6d} {row['cost']:10.0f}"
        )
        if row["changing"]:
            lines.append(
                f"  {name}: circuits chosen anew {len(row['changing']['windows'])} times a step make it "
                f"{format_seconds(row['changing']['iteration_seconds'])} instead of "
                f"{format_seconds(row['changing']['staying_seconds'])} (fair shares of links)"
            )
    splits = Counter((op["key"], op["samples"], op["columns"], op["rows"]) for op in answer["plan"]["operators"])
    lines.append("operators (samples x columns x rows):")
    for (key, samples, columns, rows), count in sorted(splits.items()):
        lines.append(f"  {count:3d} x {key}: {samples} x {columns} x {rows}")
    busy = {server for op in answer["plan"]["operators"] for server in op["servers"]}
    if idle := [str(server) for server in range(wires.n_servers) if server not in busy]:
        few = "" if len(idle) > MOST_SERVERS else f": {', '.join(idle)}"
        lines.append(f"{len(idle)} of {wires.n_servers} servers compute{'s' * (len(idle) == 1)} nothing{few}")
    lines += _wiring(design.entry.found.fabric, wires.degree)
    if answer["plan"]["peak_bytes"]:
        peak = max(answer["plan"]["peak_bytes"])
        lines.append(f"fullest server: {format_bytes(peak)} of {format_bytes(design.step.space.servers.memory_bytes)}")
    lines += [f"note: {note}" for note in design.notes]
    return "\n".join(lines)


def _wiring(fabric: Fabric, degree: int) -> list[str]:
    """Return what to plug where, a line for each server; nothing where switches or too many servers are wired."""
    if fabric.n_nodes > fabric.n_servers or fabric.n_servers > MOST_SERVERS:
        return []
    ports: list[list[str]] = [[] for _ in range(fabric.n_servers)]
    for cable in wiring_csv.cables(fabric, degree):
        for (node, port), (other, there) in (
            ((cable.ends[0], cable.ports[0]), (cable.ends[1], cable.ports[1])),
            ((cable.ends[1], cable.ports[1]), (cable.ends[0], cable.ports[0])),
        ):
            ports[node].append(f"{port}: {other}/{there}")
    return ["cables (own port: server/port):"] + [f"  server {i:<3d} {'  '.join(row)}" for i, row in enumerate(ports)]
