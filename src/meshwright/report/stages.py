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

__all__ = ["every_stage", "folded", "table"]


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
    made = table("", "stage", "layers", "devices", *axes, _what(plan), "forward", "backward", "peak memory", left=3)
    rank_of_stage = plan.rank_of_stage()
    for i, stage in enumerate(plan.stages):
        words = [word for word in stage.recompute if word != "none"]  # all alike where activations are on the host
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


def folded(result: Result, plan: Plan, n_lines: int, n_columns: int) -> list[str]:
    """Return a table with a row for every pipeline rank, neighbours that are alike in one, in at most so many lines.

    Degrees have a column where stages differ in them; elsewhere the line of the plan says them.
    """
    axes = [axis for axis in axes_of(plan) if len({getattr(stage.strategy, axis) for stage in plan.stages}) > 1]
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
    virtual = len(plan.stages) // len(plan.ranks())
    kind = "rank" if virtual > 1 else "stage"
    cells = [(kind, "layers", "devices", *axes, _what(plan), "forward", "backward", "peak memory")]
    n_rows = max(n_lines - 1, 1)
    cut = len(rows) > n_rows
    shown = rows[: max(n_rows - 2, 1)] if cut else rows
    cells += [_cells(result, row) for row in shown]
    if cut:
        last = [_cells(result, rows[-1])] if n_rows >= 3 else []
        n_left = len(rows) - len(shown) - len(last)
        cells += [("...", f"{plural(n_left, 'row')} more (-v)", *[""] * (len(cells[0]) - 2)), *last]
    if virtual > 1:
        cells[0] = (cells[0][0], f"layers (in {virtual} virtual stages)", *cells[0][2:])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for column in (1, 2):  # long names of layers, then of devices, give way
        too_wide = max(0, sum(widths) + 2 * (len(widths) - 1) - n_columns)
        widths[column] = max(min(widths[column], 9), widths[column] - too_wide)
    return ["  ".join(_padded(row, widths)).rstrip() for row in cells]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return cells padded to their columns, the first three to the left and cut where they are too long."""
    cut = [text if len(text) <= width else f"{text[: width - 3]}..." for text, width in zip(row, widths, strict=True)]
    return [
        f"{text:<{width}}" if i < 3 else f"{text:>{width}}" for i, (text, width) in enumerate(zip(cut, widths, strict=True))
    ]


def _cells(result: Result, row: _Row) -> tuple[str, ...]:
    """Return a row as it is shown."""
    devices, cluster = ranges_of(sorted(row.devices)), result.problem.cluster
    if cluster is not None and len(cluster.kinds) > 1:
        devices = " ".join((devices, *dict.fromkeys(cluster.device(device).name for device in row.devices)))
    return ranges_of(row.numbers), row.layers, devices, *row.cells, _span(row.peaks_bytes)


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


def _what(plan: Plan) -> str:
    """Return the head of the column that counts layers which do not keep all activations on the device."""
    return "on the host" if plan.n_offloaded else "recompute"
