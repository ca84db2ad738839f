"""Tables of stages and of memory: all of them, or folded so that what is alike takes one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from meshwright.base.units import format_bytes, format_seconds
from meshwright.core.formatting import axes_of, devices_of, layers_of, ranges_of
from meshwright.core.plan import Plan
from meshwright.core.result import Result
from meshwright.core.words import plural

__all__ = ["every_stage", "folded", "memory_line", "table"]

_MOST_ROWS = 12


@dataclass(frozen=True, slots=True)
class _Row:
    """A pipeline rank as it is shown: layers of all its virtual stages, and the stages.

    `numbers`: ids of ranks, several where they are alike; `layers`, `devices` of each; `cells`: what alike ranks share;
    `peaks_bytes`: of each.
    """

    numbers: tuple[int, ...]
    layers: str
    devices: tuple[int, ...]
    cells: tuple[str, ...]
    peaks_bytes: tuple[float, ...]


def table(title: str, *columns: str, left: int = 1) -> Table:
    """Return an empty table, the first `left` columns to the left."""
    made = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < left else "right", overflow="fold")
    return made


def every_stage(result: Result, plan: Plan) -> Table:
    """Return a row for every stage, virtual ones too."""
    axes = axes_of(plan)
    made = table("", "stage", "layers", "devices", *axes, "recompute", "forward", "backward", "peak memory", left=3)
    rank_of_stage = plan.rank_of_stage()
    for i, stage in enumerate(plan.stages):
        words = [word for word in stage.recompute if word != "none"]
        load = result.stage_costs[i] if result.stage_costs else None
        peak = format_bytes(result.timeline.peak_bytes[rank_of_stage[i]]) if result.timeline is not None else "-"
        made.add_row(
            str(i),
            layers_of(result.problem.graph, stage),
            devices_of(result.problem.cluster, stage),
            *(str(getattr(stage.strategy, axis)) for axis in axes),
            f"{len(words)} of {len(stage.ops)}" if words else "-",
            format_seconds(load.forward_total_seconds) if load else "-",
            format_seconds(load.backward_total_seconds) if load else "-",
            peak,
        )
    return made


def folded(result: Result, plan: Plan) -> list[object]:
    """Return a row for every pipeline rank, neighbours that are alike in one, and what is left out in a sentence."""
    axes = axes_of(plan)
    rows: list[_Row] = []
    for rank in range(len(plan.ranks())):
        row = _row(result, plan, rank, axes)
        if rows and rows[-1].cells == row.cells and rows[-1].layers == row.layers:
            before = rows[-1]
            rows[-1] = _Row(
                before.numbers + row.numbers, row.layers, before.devices + row.devices, row.cells,
                before.peaks_bytes + row.peaks_bytes,
            )  # fmt: skip
        else:
            rows.append(row)
    virtual = len(plan.stages) > len(plan.ranks())
    kind = "rank" if virtual else "stage"
    made = table("", kind, "layers", "devices", *axes, "recompute", "forward", "backward", "peak memory", left=3)
    shown = rows if len(rows) <= _MOST_ROWS else [*rows[: _MOST_ROWS - 2], rows[-1]]
    for i, row in enumerate(shown):
        if i == len(shown) - 1 and len(shown) < len(rows):
            made.add_row("...", f"and {plural(len(rows) - len(shown), 'row')} (-v shows all)", *[""] * (5 + len(axes)))
        devices = ranges_of(sorted(row.devices))
        if result.problem.cluster is not None and len(result.problem.cluster.kinds) > 1:
            cluster = result.problem.cluster
            devices = " ".join((devices, *dict.fromkeys(cluster.device(device).name for device in row.devices)))
        made.add_row(ranges_of(row.numbers), row.layers, devices, *row.cells, _span(row.peaks_bytes))
    n_folded = sum(len(row.numbers) - 1 for row in rows)
    said = f"each rank holds {len(plan.stages) // len(plan.ranks())} virtual stages" if virtual else ""
    said += ("; " if said and n_folded else "") + (f"{kind}s that are alike share a row" if n_folded else "")
    return [made, *([f"{said} (-v shows all)", ""] if said else [])]


def memory_line(result: Result) -> list[str]:
    """Return what fills the device with the least room, in one sentence; nothing where nothing was played."""
    from meshwright.sim import fits

    timeline, cluster = result.timeline, result.problem.cluster
    if timeline is None or not timeline.peak_bytes:
        return []
    ranks = result.plan.ranks()
    limits = [fits.tightest(cluster, devices).memory_bytes if cluster is not None else 0.0 for devices in ranks]
    at = min(range(len(ranks)), key=lambda i: (limits[i] - timeline.peak_bytes[i], i))
    parts = sorted(((n_bytes, cause) for cause, n_bytes in timeline.memory_causes[at] if n_bytes > 0.0), reverse=True)
    held = ", ".join(f"{cause} {format_bytes(n_bytes)}" for n_bytes, cause in parts)
    text = f"memory of the fullest device (rank {at}): {format_bytes(timeline.peak_bytes[at])}"
    if limits[at]:
        text += f" of {format_bytes(limits[at])}, {format_bytes(limits[at] - timeline.peak_bytes[at])} free"
    return [f"{text}: {held}", ""]


def _row(result: Result, plan: Plan, rank: int, axes: Sequence[str]) -> _Row:
    """Return one pipeline rank."""
    own = [i for i, of in enumerate(plan.rank_of_stage()) if of == rank]
    stages = [plan.stages[i] for i in own]
    graph, strategy = result.problem.graph, stages[0].strategy
    n_layers = sum(len(stage.ops) for stage in stages)
    n_words = sum(word != "none" for stage in stages for word in stage.recompute)
    loads = [result.stage_costs[i] for i in own] if result.stage_costs else []
    ends = [graph.ops[op].name for stage in stages for op in stage.ops if graph.ops[op].kind in ("embedding", "head")]
    layers = plural(n_layers - len(ends), "layer") + "".join(f" + {end}" for end in ends)
    return _Row(
        (rank,),
        layers if len(plan.ranks()) > 1 else layers_of(graph, stages[0]),
        stages[0].devices,
        (
            *(str(getattr(strategy, axis)) for axis in axes),
            f"{n_words} of {n_layers}" if n_words else "-",
            format_seconds(sum(load.forward_total_seconds for load in loads)) if loads else "-",
            format_seconds(sum(load.backward_total_seconds for load in loads)) if loads else "-",
        ),
        (result.timeline.peak_bytes[rank],) if result.timeline is not None else (),
    )


def _span(values: tuple[float, ...]) -> str:
    """Return bytes, the least and the most where they differ."""
    if not values:
        return "-"
    low, high = format_bytes(min(values)), format_bytes(max(values))
    if low == high:
        return high
    number, unit = low.split(" ")
    return f"{number} .. {high}" if high.endswith(f" {unit}") else f"{low} .. {high}"
