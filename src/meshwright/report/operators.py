"""Operators, how each is split and what it costs, as a table in which what repeats stands once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from meshwright.base.units import format_seconds

__all__ = ["operators"]


def operators(rows: Sequence[dict[str, Any]], n_lines: int = 60) -> Table:
    """Return operators as a table.

    `rows`: ``operator``, ``split`` and costs, each named with its unit: ``compute_seconds``, or without for FLOP
    equivalents.
    `n_lines`: most lines; the rest is counted.
    Returns: operators of one name (numbers aside), split and cost stand on one line with their number.
    """
    costs = [name for name in rows[0] if name not in ("operator", "split")] if rows else []
    table = Table(title="operators", title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("operator", overflow="fold")
    table.add_column("times", justify="right")
    table.add_column("split", overflow="fold")
    for name in costs:
        table.add_column(name.removesuffix("_seconds").replace("_", " "), justify="right")
    counts: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = (re.sub(r"\d+", "*", row["operator"]), row["split"], *(f"{row[name]:.6g}" for name in costs))
        counts[key] = counts.get(key, 0) + 1
    for key, count in list(counts.items())[:n_lines]:
        shown = [_amount(name, float(value)) for name, value in zip(costs, key[2:], strict=True)]
        table.add_row(str(key[0]), str(count), str(key[1]), *shown)
    if len(counts) > n_lines:
        table.add_row(f"and {len(counts) - n_lines} more", "", "", *[""] * len(costs))
    return table


def _amount(name: str, value: float) -> str:
    if value == 0.0:
        return "-"
    return format_seconds(value) if name.endswith("_seconds") else f"{value:.4g}"
