"""What the comparisons with a published flow share: runs in slices, a summary in Markdown and a plot of ratios,
one line for each case.
"""

from __future__ import annotations

import csv
import math
import os
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Row", "add_options", "collect", "summary", "svg"]

Row = Mapping[str, object]


def add_options(parser: ArgumentParser) -> None:
    """Add the options that both comparisons have."""
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one seed of the smallest cases")
    parser.add_argument(
        "--csv", default="", help="append rows to this file as they come; rows it already has are not run again"
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no row after so long; call again with the same --csv"
    )
    parser.add_argument("--svg", default="", help="write a plot of all rows to this file")


def collect(asked: Iterable[tuple[str, int, Callable[[], Row]]], path: str, seconds: float) -> list[Row]:
    """Return the rows of all cases and seeds, those in a file without running them again; print and append the others."""
    begun = time.monotonic()
    rows = _read(path)
    known = {(row["case"], row["seed"]) for row in rows}
    n_left = 0
    for case, seed, run in asked:
        if (case, seed) in known:
            continue
        if time.monotonic() - begun > seconds:
            n_left += 1
            continue
        row = run()
        rows.append(row)
        if len(rows) == 1:
            print("columns:", ", ".join(row))
        print("  ".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
        if path:
            fresh = not os.path.exists(path)
            with open(path, "a", newline="") as file:
                writer = csv.DictWriter(file, list(row))
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
    if n_left:
        print(f"{n_left} rows are left: call again with the same --csv")
    return rows


def _read(path: str) -> list[Row]:
    """Return the rows of a file that `collect` has written; none where there is no file."""
    if not path or not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(name: str, text: str) -> object:
    """Return a field as it was before it was written."""
    if name == "case":
        return text
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdigit() else float(text)


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, (int, float))
    return float(value)


def _cases(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each case, which differ by seed only."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["case"]), []).append(row)
    return found


def _mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def summary(rows: Sequence[Row]) -> str:
    """Return a table: published / ours (mean, least, most), proofs, ours / bound, and CPU seconds of both."""
    lines = [
        "| case | rows | published / ours | least | most | proved | ours / bound | CPU s, ours | CPU s, published |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case, own in _cases(rows).items():
        ratio = [_number(row, "published") / _number(row, "ours") for row in own]
        gap = [_number(row, "ours") / _number(row, "bound") for row in own]
        ours, theirs = (sum(_number(row, f"{who}_cpu_seconds") for row in own) / len(own) for who in ("ours", "published"))
        lines.append(
            f"| {case} | {len(own)} | {_mean(ratio):.3f} | {min(ratio):.3f} | {max(ratio):.3f} "
            f"| {sum(bool(row['exact']) for row in own)} | {_mean(gap):.3f} | {ours:.2f} | {theirs:.2f} |"
        )
    return "\n".join(lines)


def svg(title: str, rows: Sequence[Row]) -> str:
    """Return a plot: for each row, published / ours (blue) and bound / ours (orange) on a logarithmic axis; ours is 1."""
    cases = _cases(rows)
    left, width, step, top = 250, 520, 22, 50
    points = [(_number(row, name) / _number(row, "ours")) for row in rows for name in ("published", "bound")]
    low, high = min(0.5, *points), max(2.0, *points)

    def x(ratio: float) -> float:
        return left + width * math.log(ratio / low) / math.log(high / low)

    height = top + step * len(cases) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 30} {height}" font-family="sans-serif" '
        'font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="18" font-size="13">{title}</text>',
        '<text x="10" y="36"><tspan fill="#1f77b4">published / ours</tspan>, <tspan fill="#ff7f0e">bound / ours</tspan></text>',
    ]
    for tick in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0):
        if low <= tick <= high:
            stroke = "#888" if tick == 1.0 else "#ddd"
            parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{height - 25}" stroke="{stroke}"/>')
            parts.append(f'<text x="{x(tick):.1f}" y="{height - 10}" text-anchor="middle">{tick:g}</text>')
    for k, (case, own) in enumerate(cases.items()):
        y = top + step * (k + 0.5)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{case}</text>')
        for name, colour in (("bound", "#ff7f0e"), ("published", "#1f77b4")):
            parts += [
                f'<circle cx="{x(_number(row, name) / _number(row, "ours")):.1f}" cy="{y:.1f}" r="4" fill="{colour}" '
                'fill-opacity="0.6"/>'
                for row in own
            ]
    return "\n".join([*parts, "</svg>", ""])
