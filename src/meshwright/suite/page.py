"""A run of the bench as one HTML page: quality against planning seconds as a picture, then tables by planner and family."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType

from meshwright.suite import results
from meshwright.suite.results import BenchRun

__all__ = ["page"]

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:80em;padding:0 1em;background:#fff;color:#222}"
    "table{border-collapse:collapse;margin:1em 0;display:block;overflow-x:auto}caption{text-align:left;font-weight:600}"
    "td,th{padding:.2em .7em;border-bottom:1px solid #ccc;text-align:right;white-space:nowrap}td:first-child,th:first-child,"
    "td:last-child{text-align:left}svg{max-width:100%;height:auto}svg text{font-size:12px;fill:currentColor}"
    ".axis{stroke:currentColor;stroke-opacity:.35}.grid{stroke:currentColor;stroke-opacity:.12}"
    "@media(prefers-color-scheme:dark){body{background:#181a1c;color:#ddd}}"
)
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f", "#a6761d", "#b2182b")
_SHAPES = MappingProxyType({
    "circle": '<circle cx="0" cy="0" r="5"/>', "square": '<rect x="-4.5" y="-4.5" width="9" height="9"/>',
    "triangle": '<path d="M0-6 5.5 4.5H-5.5Z"/>', "diamond": '<path d="M0-6.5 6.5 0 0 6.5-6.5 0Z"/>',
    "cross": '<path d="M-5-2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z"/>', "flag": '<path d="M-5-5H5L0 0 5 5H-5Z"/>',
})  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 900, 380, 60, 44, 14, 190


def page(run: BenchRun, words: Mapping[str, str]) -> str:
    """Return a run as one HTML page, without script or network.

    Parameters
    ----------
    run : BenchRun
        What came out.
    words : mapping
        What is said of the run besides, by title: the release, the commands of outside planners.
    """
    told = {"begun": f"{run.begun} UTC" if run.begun else "", "machine": run.machine} | dict(words)
    facts = "".join(f"<dt>{escape(title)}</dt><dd>{escape(text)}</dd>" for title, text in told.items() if text)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>meshwright bench</title><style>{_STYLE}</style>\n"
        f"<h1>Planners compared</h1><p>{escape(results.verdict(run))}</p><dl>{facts}</dl>\n"
        + _picture(run)
        + _html_table("By planner", results.PLANNER_HEAD, results.planner_rows(run))
        + _html_table("By family of problems", results.FAMILY_HEAD, results.family_rows(run))
        + _html_table("Every attempt", results.ATTEMPT_HEAD, results.attempt_rows(run))
        + "</html>\n"
    )


def _html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>\n{lines}</tbody></table>\n"


def _picture(run: BenchRun) -> str:
    """Return value over bound against CPU seconds, one mark for each attempt that has both; empty where none has."""
    points = [
        (one.cpu_seconds, ratio, one)
        for one in run.attempts
        if (ratio := results.ratios(run, one)[0]) is not None and ratio > 0.0 and one.cpu_seconds > 0.0
    ]
    if not points:
        return ""
    across = _decades([seconds for seconds, _, _ in points])
    up = _decades([ratio for _, ratio, _ in points])
    shapes = dict(zip(run.families, (*_SHAPES,) * len(run.families), strict=False))
    colours = dict(zip(run.planners, _COLOURS * len(run.planners), strict=False))
    parts = [_axes(across, up)]
    for seconds, ratio, one in points:
        x, y = _place(seconds, across, _LEFT, _WIDTH - _RIGHT), _place(ratio, up, _HEIGHT - _BOTTOM, _TOP)
        title = f"{one.question_id}: {one.planner}, {ratio:.4g} of the bound, {seconds:.2g} CPU s"
        parts.append(_mark(shapes[one.question_id.partition("/")[0]], colours[one.planner], x, y, title))
    parts += _legend(colours, shapes)
    label = "value over proven bound against CPU seconds of the whole command, for every attempt that has a bound"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f"<figcaption>{label.capitalize()}; both axes are logarithmic, the tables hold the figures.</figcaption></figure>\n"
    )


def _decades(values: Sequence[float]) -> tuple[float, ...]:
    """Return marks of a logarithmic axis that holds the values: 1, 2 and 5 of every power of ten that is needed."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    steps = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    first = max((i for i, step in enumerate(steps) if step <= min(values) * (1.0 + 1e-9)), default=0)
    last = next((i for i, step in enumerate(steps) if step >= max(values) * (1.0 - 1e-9)), len(steps) - 1)
    return tuple(steps[first : max(last, first + 1) + 1])


def _place(value: float, steps: Sequence[float], start: float, end: float) -> float:
    """Return where a value lies between two ends of a logarithmic axis."""
    whole = math.log(steps[-1] / steps[0])
    return start + (end - start) * math.log(value / steps[0]) / whole


def _axes(across: Sequence[float], up: Sequence[float]) -> str:
    """Return grid, marks and titles of both axes."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    lines = []
    for step in across:
        x = _place(step, across, _LEFT, right)
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{step:g}</text>')
    for step in up:
        y = _place(step, up, bottom, _TOP)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{step:g}</text>')
    lines.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none"/>')
    lines.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">CPU seconds</text>')
    middle = (_TOP + bottom) / 2
    lines.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">value / bound</text>')
    return "".join(lines)


def _mark(shape: str, colour: str, x: float, y: float, title: str) -> str:
    """Return one mark with what it stands for."""
    drawn = f'<g transform="translate({x:.1f} {y:.1f})" fill="{colour}" fill-opacity=".75">{_SHAPES[shape]}'
    return f"{drawn}<title>{escape(title)}</title></g>"


def _legend(colours: Mapping[str, str], shapes: Mapping[str, str]) -> list[str]:
    """Return what colours (planners) and shapes (families) mean."""
    entries = [("circle", colour, name) for name, colour in colours.items()]
    entries += [(shape, "currentColor", family) for family, shape in shapes.items()]
    x, gap = _WIDTH - _RIGHT + 22, min(20.0, (_HEIGHT - 2 * _TOP) / max(len(entries), 1))
    lines = []
    for i, (shape, colour, name) in enumerate(entries):
        y = _TOP + 6 + i * gap
        lines.append(_mark(shape, colour, x, y, name) + f'<text x="{x + 12}" y="{y + 4:.1f}">{escape(name[:24])}</text>')
    return lines
