"""What is said of plans beside the answer: the fastest, what is proven of those that are not shown, and degrees asked for."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table

from meshwright.base.units import format_bytes, format_seconds
from meshwright.core import words
from meshwright.core.result import Result

__all__ = ["fastest", "fixed", "others", "why_not"]


def fastest(result: Result) -> list[str]:
    """Return which plan is the fastest where a simpler one is the answer; nothing elsewhere."""
    entry = result.answer.extra.get("fastest")
    if not isinstance(entry, Mapping):
        return []
    within = result.answer.extra.get("within_ratio")
    step, gap = format_seconds(entry["step_seconds"]), entry["gap_ratio"]
    lines = [
        f"the fastest plan found: {entry['plan']}; step {step}, {words.slower(-entry['quicker_ratio'])}, gap {gap:.2%}",
        f"the answer is the simplest plan found within {100.0 * within:.3g} % of it (--within 0 answers with the fastest)"
        if isinstance(within, float) else "",
    ]  # fmt: skip
    return [line for line in lines if line]


def others(result: Result) -> list[str]:
    """Return what is proven of degrees that are not among the runners-up; nothing where the search does not say."""
    entry, base = result.answer.extra.get("runners_up"), result.answer.objective
    if not isinstance(entry, Mapping) or base is None:
        return []
    least, n_left_out = entry["others_at_least_seconds"], entry["n_left_out"]
    apart = ""
    if n_left_out:
        sets = "set of degrees that is" if n_left_out == 1 else "sets of degrees that are"
        apart = f", apart from {n_left_out} {sets} quicker than the answer but less simple, or as quick as one shown"
    if least is None:
        none = words.no_others(given="fixed" in result.answer.extra, listed=bool(result.answer.alternatives))
        return [f"{none}{apart}", ""]
    text = f"all degrees searched and not shown take at least {format_seconds(least)} ({least / base.value - 1:+.2%}){apart}"
    if entry["proven"] or not result.answer.alternatives:
        return [f"proven: {text}", ""]
    return [f"not proven to be the next best: {text}", ""]


def fixed(result: Result) -> list[object]:
    """Return the comparison of a plan of which a part was given with the best of all; nothing where nothing was."""
    entry = result.answer.extra.get("fixed")
    if not isinstance(entry, Mapping):
        return []
    given = ", ".join(f"{key}={value}" for key, value in entry["values"].items())
    free = entry["free_optimum"]
    if free is None:
        return [f"with {given} given; with nothing given, nothing fits either", ""]
    best = f"{free['plan']}; step {format_seconds(free['step_seconds'])}"
    if free["slower_ratio"] is None:
        return [f"with {given} given there is no plan; with nothing given: {best}", ""]
    ratio = free["slower_ratio"]
    compared = "as quick as" if abs(ratio) < 5e-5 else f"{words.slower(ratio)} than"
    title = f"with {given} given: {compared} the best with nothing given: {best}"
    table = _causes_table("", "with nothing given", "this plan")
    for row in free["causes"]:
        _add_row(table, row["cause"], row["free_seconds"], row["seconds"], free["step_seconds"])
    return [title, table if table.row_count else ""]


def why_not(result: Result) -> list[object]:
    """Return the comparison with degrees that were asked for; nothing where none were."""
    entry = result.answer.extra.get("why_not")
    if not isinstance(entry, Mapping):
        return []
    asked = ", ".join(f"{key}={value}" for key, value in entry["fixed"].items())
    if not entry["feasible"]:
        return [_nothing(asked, entry), ""]
    title = f"why not {asked}: {entry['plan']}; step {format_seconds(entry['step_seconds'])}"
    if entry["slower_ratio"] is not None:
        title += f", {words.slower(entry['slower_ratio'])} than the answer"
    if entry["gap_ratio"] is not None:
        title += f" (gap {entry['gap_ratio']:.2%} with these fixed)"
    table = _causes_table(title, "answer", asked)
    for row in entry["causes"]:
        _add_row(table, row["cause"], row["answer_seconds"], row["seconds"], entry["step_seconds"])
    return [table]


def _causes_table(title: str, before: str, after: str) -> Table:
    """Return an empty table of two steps by cause."""
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(("cause", before, after, "difference")):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    return table


def _add_row(table: Table, cause: str, before: float, after: float, step: float) -> None:
    """Add a cause whose seconds differ by more than a two-thousandth of the step."""
    difference = after - before
    if abs(difference) >= 0.0005 * step:
        sign = "+" if difference > 0 else "-"
        table.add_row(cause, format_seconds(before), format_seconds(after), sign + format_seconds(abs(difference)))


def _nothing(asked: str, entry: Mapping[str, object]) -> str:
    """Return why there is no plan with the degrees asked for."""
    if entry.get("reason"):
        return f"why not {asked}: {entry['reason']}"
    missing = entry.get("missing_bytes")
    assert isinstance(missing, float)
    found = "nothing fits"
    if not entry.get("infeasible_proven"):
        found = "no plan that fits was found, which is no proof that there is none"
    nearest = f"; nearest: {entry['nearest']}" if entry.get("nearest") else ""
    return f"why not {asked}: {found}, the nearest plan needs {format_bytes(missing)} more on its fullest device{nearest}"
