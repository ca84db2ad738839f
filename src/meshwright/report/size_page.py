"""What ``size`` answers as one HTML page: a chart of days and money, the front, where the money goes; no script, no network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from meshwright.base.amounts import money_text
from meshwright.core.words import plural
from meshwright.report import sizes
from meshwright.sizing.answer import Sizing
from meshwright.sizing.points import CAUSES, SizePoint

__all__ = ["page"]

_COLOURS = ("#4f8fd0", "#c7b12f", "#6aa84f", "#a86bc2", "#d18f3a", "#c25b6b")
_KIND_COLOURS = ("#2458a6", "#d1702a", "#3f8f4f", "#8a55b5", "#b8434f", "#2f8f8a", "#9a7b1f", "#6b7686", "#b04f8f", "#4f6fb0")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 420, 76, 52, 16


def page(answer: Sizing) -> str:
    """Return the page."""
    template = Path(__file__).with_name("size_page.html").read_text(encoding="utf-8")
    shown = answer.front or (() if answer.nearest is None else (answer.nearest,))
    others = sizes.others(answer)
    title = f"{answer.model}: how many devices, how long, how much"
    parts = {
        "TITLE": escape(title),
        "VERDICT": escape(sizes.verdict(answer)),
        "QUESTION": escape(
            f"{answer.n_tokens:,} tokens, {answer.n_steps:,} steps of {answer.global_batch} samples of {answer.sample}"
        ),
        "CHART": _chart(answer),
        "FRONT": _rows(sizes.HEAD, (sizes.cells(point) for point in shown)),
        "WHERE": _where(shown),
        "OTHERS": _rows(sizes.HEAD, (sizes.cells(point) for point in others)) if others else "<p>None.</p>",
        "LEFTOUT": _rows(("cluster", "why"), ((entry.cluster, entry.reason) for entry in answer.left_out), numbers=False)
        if answer.left_out
        else "<p>None.</p>",
        "FIGURES": _figures(answer),
        "NOTES": "".join(f"<li>{escape(note)}</li>" for note in answer.notes),
    }
    for name, text in parts.items():
        template = template.replace(f"__{name}__", text)
    return template


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """Return a table; all columns but the first and the last are numbers."""
    right = [numbers and 0 < i < len(head) - 1 for i in range(len(head))]
    names = "".join(
        f'<th scope="col"{" class=n" if n else ""}>{escape(name)}</th>' for name, n in zip(head, right, strict=True)
    )
    lines = [f"<table><thead><tr>{names}</tr></thead><tbody>"]
    for row in rows:
        cells = "".join(f"<td{' class=n' if n else ''}>{escape(cell)}</td>" for cell, n in zip(row, right, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _where(points: Sequence[SizePoint]) -> str:
    """Return a bar per point: where its time and money go."""
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in zip(CAUSES, _COLOURS, strict=True)
    )
    lines = [f'<div class="legend">{legend}</div><div class="bars">']
    for point in points:
        total = point.money
        said = ", ".join(
            f"{name} {share:.1%}" + ("" if total is None else f" ({money_text(share * total)})") for name, share in point.causes
        )
        parts = "".join(
            f'<div style="width:{100.0 * share:.3f}%;background:{colour}"></div>'
            for (_, share), colour in zip(point.causes, _COLOURS, strict=True)
        )
        bar = f'<div class="bar" role="img" aria-label="{escape(said)}" title="{escape(said)}">{parts}</div>'
        lines.append(f"<div>{escape(point.cluster)}</div>{bar}")
    return "\n".join([*lines, "</div>"])


def _figures(answer: Sizing) -> str:
    """Return what a device costs and draws, with sources."""
    rows = []
    for kind, tariff in zip(answer.kinds, answer.tariffs, strict=True):
        price = "not known" if tariff.dollars_per_hour is None else f"${tariff.dollars_per_hour:.3f}"
        watts = "not known" if tariff.watts is None else f"{tariff.watts:.0f} W"
        sources = "; ".join(filter(None, (tariff.price_source, tariff.power_source)))
        rows.append((kind.name, price, watts, sources or "-"))
    return _rows(("kind", "a device and hour", "a device with its node", "sources"), rows)


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers of a logarithmic axis between two ends, at least two."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    found = [step * 10.0**power for power in range(first, last + 1) for step in steps if low <= step * 10.0**power <= high]
    if len(found) > 1:
        return found
    # ends so near each other that hardly a 1, 2 or 5 lies between
    power = math.floor(math.log10((high - low) / 2.0))
    step = next(step * 10.0**power for step in (5, 2, 1) if (high - low) / (step * 10.0**power) >= 2.0)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _falling(pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the pairs, by their first values, whose second undercuts all before: what is worth its energy alone is above."""
    found: list[tuple[float, float]] = []
    for first, second in sorted(pairs):
        if not found or second < found[-1][1]:
            found.append((first, second))
    return found


def _chart(answer: Sizing) -> str:
    """Return days against money of every size planned, the front joined; against device-hours where no price is known."""
    points = [*answer.front, *answer.others] or ([] if answer.nearest is None else [answer.nearest])
    priced = [point for point in points if point.money is not None]
    shown = priced or points
    if not shown:
        return "<p>Nothing was planned, so there is nothing to draw.</p>"
    values = [(point.days, point.money if point.money is not None else point.outlay.device_hours) for point in shown]
    (left, right), (low, high) = ((min(column) / 1.25, max(column) * 1.25) for column in zip(*values, strict=True))

    def x(days: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * math.log(days / left) / math.log(right / left)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * math.log(value / low) / math.log(high / low)

    said = "money" if priced else "device-hours"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="days against {said}; the tables below hold the same">'
    ]
    for value in _ticks(low, high):
        name = money_text(value) if priced else f"{value:,.0f}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{name}</text>')
    for days in _ticks(left, right):
        parts.append(f'<line class="grid" x1="{x(days):.1f}" x2="{x(days):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x(days):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{days:g}</text>')
    limits = ((answer.within_seconds / 86400.0, True), (answer.budget_value if priced else math.inf, False))
    for limit, upright in limits:
        if (left if upright else low) < limit < (right if upright else high):
            ends = (
                f'x1="{x(limit):.1f}" x2="{x(limit):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"'
                if upright
                else f'x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"'
            )
            parts.append(f'<line class="limit" {ends}><title>limit</title></line>')
    best = {point.cluster for point in answer.front}
    on_front = [pair for point, pair in zip(shown, values, strict=True) if point.cluster in best]
    line = [(x(days), y(value)) for days, value in _falling(on_front)]
    if len(line) > 1:
        parts.append('<polyline class="front" points="' + " ".join(f"{a:.1f},{b:.1f}" for a, b in line) + '"/>')
    kinds = [kind.name for kind in answer.kinds]
    for point, (days, value) in zip(shown, values, strict=True):
        colour = _KIND_COLOURS[kinds.index(point.outlay.kind) % len(_KIND_COLOURS)]
        filled = colour if point.cluster in best else "none"
        label = f"{point.cluster}: {days:.3g} days, {money_text(value) if priced else f'{value:,.0f} device-hours'}"
        parts.append(
            f'<circle cx="{x(days):.1f}" cy="{y(value):.1f}" r="5" stroke="{colour}" stroke-width="2" fill="{filled}">'
            f"<title>{escape(label)}</title></circle>"
        )
        if point.cluster in best:
            parts.append(f'<text x="{x(days) + 8:.1f}" y="{y(value) - 7:.1f}">{escape(point.cluster)}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">days</text></svg>')
    missing = len(points) - len(shown)
    stand = "is" if missing == 1 else "are"
    more = f"<p class=soft>{plural(missing, 'size')} without a known price {stand} in the tables only.</p>" if missing else ""
    return "\n".join(parts) + more
