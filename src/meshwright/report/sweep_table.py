"""A sweep over batch sizes as a table for people, a CSV file, and a plot of speed-ups."""

from __future__ import annotations

import csv as csv_module
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich import box
from rich.table import Table

__all__ = ["csv", "svg", "table"]

LINES = (
    ("data_parallel_ratio", "data parallel", "#888888"),
    ("data_parallel_overlap_ratio", "data parallel, overlapped", "#d08020"),
    ("hybrid_ratio", "hybrid", "#2060c0"),
)
"""Columns drawn, their names and colours."""

SPEED = (("samples_per_second", "samples a second", "#2060c0"),)
"""What is drawn where a search knows no speed-up over one device."""


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table: batch, speed-ups over one device where a search tells them (else samples/s), step, plan."""
    lines = _lines(rows)
    told = lines == LINES
    found = Table(title=_title(title, rows), title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("batch", *(("DP", "DP + overlap", "hybrid") if told else ("samples/s",)), "step", "micro-batches"):
        found.add_column(column, justify="right")
    found.add_column("plan: layers@devices" if told else "plan", overflow="fold")
    for row in rows:
        figures = ["-" if row[name] is None else f"{row[name]:.3f}" if told else f"{row[name]:.4g}" for name, _, _ in lines]
        step = "-" if row["step_seconds"] is None else f"{row['step_seconds']:.4g} s"
        plan = row["plan"] if told else row["description"]
        found.add_row(
            str(row["global_batch"]),
            *figures,
            step,
            str(row["n_microbatches"] or "-"),
            "; ".join(filter(None, (plan, row["note"]))),
        )
    return found


def _lines(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    """Return the columns that hold something: speed-ups where one is known, samples a second where none is."""
    return LINES if any(row[name] is not None for row in rows for name, _, _ in LINES) else SPEED


def _title(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{title}: speed-up over one device" if _lines(rows) == LINES else f"{title}: samples a second by global batch"


def csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV, numbers at full precision."""
    names = (
        "global_batch", *(name for name, _, _ in LINES), "step_seconds", "n_microbatches", "schedule", "plan", "note",
        "samples_per_second", "description",
    )  # fmt: skip
    buffer = io.StringIO()
    writer = csv_module.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([["" if row[name] is None else row[name] for name in names] for row in rows])
    return buffer.getvalue()


def svg(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a plot of the speed-ups (or samples a second) over the batch size, logarithmic from left to right."""
    lines = _lines(rows)
    width, height, left, bottom = 760, 420, 60, 50
    sizes = [row["global_batch"] for row in rows]
    low, high = math.log2(min(sizes)), math.log2(max(sizes))
    top = max([row[name] for name, _, _ in lines for row in rows if row[name] is not None] or [1.0]) * 1.08

    def x(size: int) -> float:
        return left + (width - left - 20) * ((math.log2(size) - low) / (high - low) if high > low else 0.5)

    def y(ratio: float) -> float:
        return float(height - bottom - (height - bottom - 40) * ratio / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">{escape(_title(title, rows))}</text>',
        f'<text x="{width / 2:.0f}" y="{height - 12}" text-anchor="middle">global batch (samples)</text>',
    ]
    step = 10 ** math.floor(math.log10(top)) / (2 if top / 10 ** math.floor(math.log10(top)) < 4 else 1)
    for i in range(int(top / step) + 1):
        level = y(i * step)
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{level:.1f}" y2="{level:.1f}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{left - 6}" y="{level + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1):
        parts.append(f'<text x="{x(2**power):.1f}" y="{height - bottom + 18}" text-anchor="middle">{2**power}</text>')
    for i, (name, label, colour) in enumerate(lines):
        points = " ".join(f"{x(row['global_batch']):.1f},{y(row[name]):.1f}" for row in rows if row[name] is not None)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 20 + 190 * i}" y="38" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])
