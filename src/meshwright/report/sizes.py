"""What ``size`` answers, as text: a verdict, the front, where the money goes, what was left out."""

from __future__ import annotations

from collections import Counter

from rich import box
from rich.table import Table

from meshwright.base.amounts import duration_text, money_text
from meshwright.core.words import plural
from meshwright.report import text
from meshwright.sizing.answer import Sizing
from meshwright.sizing.points import CAUSES, SizePoint

__all__ = ["HEAD", "cells", "explain", "goodput_lines", "others", "verdict"]

_MOST_ROWS = 24
_MOST_REASONS = 8


def explain(answer: Sizing, *, columns: int = 0) -> str:
    """Return the answer as text for a terminal; `columns`: of the terminal, 0 for as many as tables need."""
    parts: list[object] = [_question(answer), verdict(answer)]
    rows = answer.front or (() if answer.nearest is None else (answer.nearest,))
    if rows:
        title = "worth having: nothing planned is better in time, money and energy at once" if answer.front else "the nearest"
        parts += [_table(title, rows[:_MOST_ROWS]), _where(rows[:_MOST_ROWS])]
        parts += [f"and {len(rows) - _MOST_ROWS} more: --json has all"] if len(rows) > _MOST_ROWS else []
    parts += _left_out(answer)
    parts += [f"note: {note}" for note in answer.notes]
    return text.render(*parts, columns=columns)


def verdict(answer: Sizing) -> str:
    """Return the answer in one or two sentences."""
    if not answer.front:
        if answer.nearest is None:
            return "No size has a plan." if answer.complete else "Stopped before a size was planned."
        near = answer.nearest
        nothing = "Nothing is within the limits" if answer.complete else "Stopped before anything within the limits was planned"
        money = "" if near.money is None else f" and {money_text(near.money)}"
        return f"{nothing}. Nearest of those planned: {near.cluster} in {_time(near.days)}{money}."
    quickest = answer.front[0]
    words = [f"Quickest: {_short(quickest)}."]
    priced = [point for point in answer.front if point.money is not None]
    if priced:
        cheapest = min(priced, key=lambda point: (point.money, point.outlay.seconds))
        known = " with a known price" if len(priced) < len(answer.front) else ""
        words.append(f"It is the cheapest{known} too." if cheapest is quickest else f"Cheapest{known}: {_short(cheapest)}.")
    return " ".join(words)


def _short(point: SizePoint) -> str:
    money = "" if point.money is None else f" for {money_text(point.money)}"
    return f"{point.cluster} in {_time(point.days)}{money}"


def _time(days: float) -> str:
    """Return a time in days, below one in what people say then."""
    return f"{days:.3g} days" if days >= 1.0 else duration_text(days * 86400.0)


def _question(answer: Sizing) -> str:
    limits = []
    if answer.within_seconds < float("inf"):
        limits.append(f"within {duration_text(answer.within_seconds)}")
    if answer.budget_value < float("inf"):
        limits.append(f"for at most {money_text(answer.budget_value)}")
    tokens = f"{answer.n_tokens / 1e9:,.6g} billion tokens" if answer.n_tokens >= 1e6 else plural(answer.n_tokens, "token")
    return (
        f"{answer.model}: {tokens}{', ' if limits else ''}{' and '.join(limits)}; {answer.n_steps:,} "
        f"{'step' if answer.n_steps == 1 else 'steps'} of {plural(answer.global_batch, 'sample')} of {answer.sample}"
    )


def _plain(title: str, *columns: str, left: int = 1) -> Table:
    found = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        is_plan = column == "plan"
        found.add_column(column, justify="left" if i < left or is_plan else "right", overflow="fold", no_wrap=not is_plan)
    return found


def cells(point: SizePoint) -> list[str]:
    """Return a point as cells: cluster, days, their interval, money, energy, MFU, goodput, plan."""
    interval, outlay = point.days_interval, point.outlay
    return [
        point.cluster + (f" + {point.goodput.spare_nodes} nodes" if point.goodput.spare_nodes else ""),
        f"{point.days:.3g}",
        "-" if interval is None else f"{interval[0]:.3g}-{interval[1]:.3g}",
        "-" if outlay.money is None else money_text(outlay.money),
        "-" if outlay.kilowatt_hours is None else f"{outlay.kilowatt_hours / 1000.0:.4g}",
        f"{point.utilization_ratio:.0%}" if point.utilization_ratio else "-",
        f"{point.goodput.effective_ratio:.1%}",
        point.description,
    ]


HEAD = ("cluster", "days", "80 %", "money", "MWh", "MFU", "goodput", "plan")
"""What `cells` are."""


def _table(title: str, rows: tuple[SizePoint, ...]) -> Table:
    found = _plain(title, *HEAD)
    for point in rows:
        found.add_row(*cells(point))
    return found


def _where(rows: tuple[SizePoint, ...]) -> Table:
    found = _plain("where the time of the devices and the money for them go", "cluster", *CAUSES, "checkpoint every")
    for point in rows:
        every = point.goodput.interval_seconds
        found.add_row(point.cluster, *(f"{share:.1%}" for _, share in point.causes), duration_text(every))
    return found


def others(answer: Sizing) -> tuple[SizePoint, ...]:
    """Return the sizes that were planned and are not shown."""
    shown = "" if answer.front or answer.nearest is None else answer.nearest.cluster
    return tuple(point for point in answer.others if point.cluster != shown)


def _left_out(answer: Sizing) -> list[str]:
    """Return how many sizes are not shown, and why, in few lines."""
    lines = []
    if n := len(others(answer)):
        were = "more size was" if n == 1 else "more sizes were"
        if answer.front:
            were += f" planned that {'is' if n == 1 else 'are'} dominated or beyond a limit"
        else:  # nothing is within the limits
            were += " planned, beyond a limit too"
        lines.append(f"{n} {were}: --json and --out have {'it' if n == 1 else 'them'}")
    reasons: Counter[str] = Counter()
    first: dict[str, str] = {}
    for entry in answer.left_out:
        kind = entry.cluster.partition(":")[0]
        known = " that is known" if entry.reason.endswith("that is known, whatever its plan") else ""
        better = f"a size that was planned is better in all{known}, whatever their plan"
        why = better if entry.reason.endswith("whatever its plan") else entry.reason
        key = f"{kind}: {_class(why)}"
        reasons[key] += 1
        first.setdefault(key, f"{entry.cluster}: {why}")
    for key, n in list(reasons.items())[:_MOST_REASONS]:
        lines.append(f"left out: {first[key]}" + (f" (and {n - 1} more of this kind, for the same reason)" if n > 1 else ""))
    if len(reasons) > _MOST_REASONS:
        lines.append(f"and {len(reasons) - _MOST_REASONS} more reasons: --json has them")
    return lines


def _class(why: str) -> str:
    """Return the words of a reason without its numbers."""
    return "".join(letter for letter in why if letter.isalpha() or letter == " ")[:60]


def goodput_lines(step_seconds: float, good: dict[str, object]) -> str:
    """Return the effective step and the share of time that trains, as ``plan --mtbf`` shows them.

    `step_seconds`: of one step, nothing failing.
    `good`: the field ``goodput`` of the plan's JSON.
    """
    from meshwright.base.units import format_bytes, format_seconds

    share = _number(good["effective_ratio"])
    if good["mtbf_seconds"] is None:
        return "nothing fails: the effective step is the step"
    lost = good["lost_ratio"]
    assert isinstance(lost, dict)
    words = ", ".join(f"{name.replace('_', ' ')} {_number(value):.2%}" for name, value in lost.items() if _number(value) > 0.0)
    effective = format_seconds(step_seconds / share) if share > 0.0 else "never"
    return (
        f"effective step {effective}: {share:.1%} of the time trains ({words})\n"
        f"interrupted every {duration_text(_number(good['mtbf_seconds']))}, restart "
        f"{format_seconds(_number(good['restart_seconds']))}; "
        f"a checkpoint of {format_bytes(_number(good['checkpoint_bytes']))} every "
        f"{duration_text(_number(good['checkpoint_interval_seconds']))} stops training for "
        f"{format_seconds(_number(good['checkpoint_seconds']))}"
    )


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
