"""What is said of plans beside the answer: the fastest, what is proven of those that are not shown, and degrees asked for."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table

from meshwright.base.units import format_bytes, format_seconds
from meshwright.core.result import Result

__all__ = ["fastest", "others", "why_not"]


def fastest(result: Result) -> list[str]:
    """Return which plan is the fastest where a simpler one is the answer; nothing elsewhere."""
    entry = result.answer.extra.get("fastest")
    if not isinstance(entry, Mapping):
        return []
    within = result.answer.extra.get("within_ratio")
    step, gap = format_seconds(entry["step_seconds"]), entry["gap_ratio"]
    lines = [
        f"the fastest plan found: {entry['plan']}; step {step}, {entry['quicker_ratio']:.2%} quicker, gap {gap:.2%}",
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
        return [f"no other degrees give a plan{apart}", ""]
    text = f"all degrees not shown take at least {format_seconds(least)} ({least / base.value - 1:+.2%}){apart}"
    if entry["proven"]:
        return [f"proven: {text}", ""]
    return [f"not proven to be the next best: {text}", ""]


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
        words = "slower" if entry["slower_ratio"] >= 0 else "quicker"
        title += f", {abs(entry['slower_ratio']):.2%} {words} than the answer"
    if entry["gap_ratio"] is not None:
        title += f" (gap {entry['gap_ratio']:.2%} with these fixed)"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(("cause", "answer", asked, "difference")):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in entry["causes"]:
        difference = row["difference_seconds"]
        if abs(difference) >= 0.0005 * entry["step_seconds"]:
            sign = "+" if difference > 0 else "-"
            ours, theirs = format_seconds(row["answer_seconds"]), format_seconds(row["seconds"])
            table.add_row(row["cause"], ours, theirs, sign + format_seconds(abs(difference)))
    return [table]


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
