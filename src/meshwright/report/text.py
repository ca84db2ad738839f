"""Answers that people read: the plan, seconds by cause, memory by stage, the runners-up, as text for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from meshwright.api.sensitivity import Change
from meshwright.base.units import format_bytes, format_count, format_seconds
from meshwright.core import words
from meshwright.core.formatting import (
    describe,
    fullest,
    no_interval,
    peak_margin,
    planning_time,
    seen_from,
    shown_risk,
    step_interval,
    utilization,
    utilization_causal,
)  # fmt: skip
from meshwright.core.interval import COVERAGE_RATIO
from meshwright.core.plan import Plan
from meshwright.core.result import Result
from meshwright.report import comparisons, screen, stages
from meshwright.report.infeasible import nothing_fits
from meshwright.report.operators import operators
from meshwright.report.progress import progress
from meshwright.writers import plan_json

__all__ = ["change_row", "compared", "explain", "progress", "render"]

_WIDTH = 118
_HELP = "what would help most (each planned again, near the plan: it gains at least this)"


def render(*parts: object, columns: int = 0) -> str:
    """Return rich tables and strings as plain text; `columns`: of the terminal, where it has fewer than tables need."""
    return _at_width(min(_WIDTH, columns or _WIDTH), parts)


def _at_width(width: int, parts: Sequence[object]) -> str:
    """Return the same in lines of so many characters."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def explain(result: Result, changes: Sequence[Change] = (), *, verbose: bool = True, columns: int = 0) -> str:
    """Return the answer as text.

    `changes`: what would help.
    `verbose`: every stage, rank and note; otherwise a screen (`meshwright.report.screen`).
    `columns`: of the terminal, where a screen has to do with fewer than usual; 0: as usual.
    Returns: sections: the verdict, the question, the answer, stages, seconds by cause, memory by cause, alternatives, notes.
    """
    if not verbose:
        besides = [*_operators(result), *comparisons.why_not(result), *comparisons.fixed(result)]
        width = min(screen.COLUMNS, columns or screen.COLUMNS)
        asked = _at_width(width, besides).splitlines() if besides else []
        return "\n".join(screen.narrowed(screen.lines(result, changes, asked), width))
    parts: list[object] = [f"{words.verdict(plan_json.as_json(result))}\n", _question(result)]
    if result.answer.plan is None:
        parts.append(nothing_fits(result))
    else:
        plan = result.answer.plan
        parts += [_answer(result), stages.every_stage(result, plan), *_operators(result)]
        if result.timeline is not None:
            parts += [_causes(result), _memory(result), _room(result, plan), *_margin(result)]
        if result.answer.alternatives:
            parts.append(_alternatives(result))
        parts += [*comparisons.others(result), *comparisons.why_not(result)]
    parts += comparisons.fixed(result)
    if changes:
        table = stages.table(_HELP, "change", "step", "samples/s, at least", "plan then", left=1)
        for change in changes:
            table.add_row(*change_row(change))
        table.columns[3].justify = "left"
        parts.append(table)
    parts += [f"note: {note}" for note in result.answer.notes]
    return render(*parts)


def _operators(result: Result) -> list[object]:
    """Return the table of operators, where it was asked for."""
    rows = result.answer.extra.get("operators")
    return [operators(rows)] if isinstance(rows, list) else []


def change_row(change: Change) -> list[str]:
    """Return one change as cells: what, the step then, the gain in samples per second, the plan then."""
    assert change.result.timeline is not None
    step = format_seconds(change.result.timeline.step_seconds)
    return [change.name, step, f"{change.speedup_ratio - 1:+.1%}", describe(change.result.plan)]


def _question(result: Result) -> str:
    problem = result.problem
    graph = problem.graph
    model = f"{problem.model_spec.name}: {words.size_of([op.kind for op in graph.ops])}"
    if graph.n_parameters:
        model += f", {words.parameters_of(graph)}"
    if graph.sequence_length > 1:
        model += f", {words.tokens_of(graph)} a sample"
    place = ""
    if problem.cluster is not None:
        kinds = ", ".join(dict.fromkeys(kind.name for kind in problem.cluster.kinds))
        place = f"\n{problem.cluster.name}: {words.plural(problem.cluster.n_devices, 'device')} ({kinds})"
        if problem.model_spec.instance is None:
            place += f", products in {problem.training.precision}"
        if problem.framework.name:
            assumed = "" if problem.framework_asked else " (assumed; say --for NAME)"
            place += f"\nframework {problem.framework.word}{assumed}"
    searched = f"search {result.search}, costs {problem.costs}, {planning_time(result)}"
    return f"{model}{place}\n{searched if result.planning_seconds else f'costs {problem.costs}'}"  # a plan may be given


def _expected(result: Result) -> str:
    """Return the interval of the step in brackets; empty where there is none."""
    found = step_interval(result)
    if found is None:
        why = no_interval(result)
        return f" ({why})" if why else ""
    return f" ({COVERAGE_RATIO:.0%}: {format_seconds(found.low_seconds)} to {format_seconds(found.high_seconds)})"


def _answer(result: Result) -> str:
    answer, plan, timeline = result.answer, result.plan, result.timeline
    lines = [""]
    if timeline is not None:
        rate = plan.global_batch / timeline.step_seconds
        line = f"step {format_seconds(timeline.step_seconds)}{_expected(result)}, {rate:.4g} samples/s"
        if result.problem.graph.sequence_length > 1:
            line += f", {format_count(rate * result.problem.graph.n_tokens)} tokens/s"
        share, causal = utilization(result), utilization_causal(result)
        line += f", {share:.1%} model FLOPs utilization" if share is not None else ""
        lines.append(line + words.used_of(plan.n_devices, _n_devices(result)))
        if share is not None and causal is not None and causal < share:
            lines.append(f"this counts the full square of causal attention; without its masked half {causal:.1%}")
        expected = step_interval(result)
        lines += [] if expected is None else [f"{COVERAGE_RATIO:.0%} interval: {expected.basis}"]
    if answer.objective is not None:
        line = f"objective {answer.objective.name} = {answer.objective.value:.6g}"
        if answer.bound is not None:
            gap = answer.bound.gap_ratio(answer.objective)
            line += f"; proven bound {answer.bound.value:.6g} ({answer.bound.method}), gap {gap:.2%}"
        lines += [line, *comparisons.fastest(result)]
    lines.append(f"plan: {describe(plan)}")
    return "\n".join(lines)


def _n_devices(result: Result) -> int:
    """Return how many devices the cluster has; 0 where there is none."""
    return result.problem.cluster.n_devices if result.problem.cluster is not None else 0


def _causes(result: Result) -> Table:
    assert result.timeline is not None
    table = stages.table(
        ", ".join(filter(None, ("where the time of a step goes", seen_from(result)))), "cause", "seconds", "share", ""
    )
    for cause, seconds in sorted(result.timeline.causes, key=lambda item: -item[1]):
        share = seconds / result.timeline.step_seconds
        if share >= 0.0005:
            table.add_row(cause, format_seconds(seconds), f"{share:.1%}", "█" * round(40 * share))
    table.columns[3].justify = "left"
    return table


def _memory(result: Result) -> Table:
    assert result.timeline is not None
    timeline = result.timeline
    causes = list(dict.fromkeys(cause for rank in timeline.memory_causes for cause, n_bytes in rank if n_bytes > 0.0))
    table = stages.table("memory of the fullest device of each pipeline rank at its peak", "rank", *causes)
    for i, parts in enumerate(timeline.memory_causes[:16]):
        table.add_row(str(i), *(format_bytes(dict(parts).get(cause, 0.0)) for cause in causes))
    return table


def _room(result: Result, plan: Plan) -> Table:
    from meshwright.sim import fits

    assert result.timeline is not None
    timeline, cluster = result.timeline, result.problem.cluster
    title = "the same: tensors, what the allocator reserves for them, and with the context the peak that has to fit"
    table = stages.table(title, "rank", "allocated", "reserved", "peak", "of", "free")
    ranks = plan.ranks()
    for i, peak in enumerate(timeline.peak_bytes[:16]):
        limit = fits.tightest(cluster, ranks[i]).memory_bytes if cluster is not None else 0.0
        totals = (timeline.allocated_bytes[i], timeline.reserved_bytes[i], peak)
        free = (format_bytes(limit), format_bytes(limit - peak)) if limit else ("-", "-")
        table.add_row(str(i), *map(format_bytes, totals), *free)
    return table


def _margin(result: Result) -> list[str]:
    """Return below what the measured peaks of such runs lie, and a warning where the fullest device may not have as much."""
    margin, found = peak_margin(result), fullest(result)
    if margin is None or found is None:
        return []
    (peak, limit), risk = found, shown_risk(result)
    most = margin.most_ratio(risk) * peak
    lines = [f"peak {format_bytes(peak)}, {margin.claim(risk)} {format_bytes(most)} of {format_bytes(limit)} ({margin.words})"]
    if most > limit * (1.0 + 1e-9):
        lines.append(f"may not fit: the device has {format_bytes(limit)}; --memory-risk {risk:g} of plan leaves room for it")
    return [*lines, ""]


def _alternatives(result: Result) -> Table:
    table = stages.table("runners-up", "plan", "objective", "slower by", "because of", left=1)
    base = result.answer.objective
    for other in result.answer.alternatives:
        slower = f"{other.objective.value / base.value - 1:+.2%}" if base is not None and base.value else "-"
        some = words.some_of(other.plan.n_devices, _n_devices(result))
        table.add_row(f"{describe(other.plan)}{some}", f"{other.objective.value:.5g}", slower, other.why or "-")
    return table


def compared(results: Sequence[tuple[str, Result | None, str]]) -> str:
    """Return several searches' answers to one problem as a table, the fastest simulated step first.

    `results`: search, its answer (None when it refused the problem), and why it refused.
    """
    table = stages.table("", "search", "step", "objective", "bound gap", "peak memory", "planning", "plan", left=1)
    table.columns[6].justify = "left"
    for name, result, why in sorted(results, key=_by_step):
        if result is None or not result.feasible:
            seconds = "-" if result is None else format_seconds(result.planning_seconds)
            table.add_row(name, "-", "-", "-", "-", seconds, why or _nothing(result))
            continue
        answer, timeline = result.answer, result.timeline
        gap = "-" if answer.bound is None or answer.objective is None else f"{answer.bound.gap_ratio(answer.objective):.2%}"
        table.add_row(
            name,
            format_seconds(timeline.step_seconds) if timeline else "-",
            f"{answer.objective.value:.5g}" if answer.objective else "-",
            gap,
            format_bytes(max(timeline.peak_bytes)) if timeline else "-",
            format_seconds(result.planning_seconds),
            describe(result.plan) + ("; stopped before its end" if _was_stopped(result) else ""),
        )
    return render(table)


def _was_stopped(result: Result) -> bool:
    """Return whether a search was stopped before its end."""
    return bool(result.answer.extra.get("stopped_early"))


def _nothing(result: Result | None) -> str:
    """Return a cell for an answer without a plan."""
    if result is not None and result.answer.infeasible_proven:
        return "nothing fits"
    stopped = result is not None and _was_stopped(result)
    return "no plan that fits was found" + (" until it was stopped" if stopped else "")


def _by_step(item: tuple[str, Result | None, str]) -> tuple[float, str]:
    result = item[1]
    if result is None or result.timeline is None:
        return float("inf"), item[0]
    return result.timeline.step_seconds, item[0]
