"""An answer on one screen: the verdict, the plan, its stages folded, time, memory and the next best in a line each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from meshwright.api.sensitivity import Change
from meshwright.base.units import format_bytes, format_seconds
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
)
from meshwright.core.interval import COVERAGE_RATIO
from meshwright.core.plan import Plan
from meshwright.core.result import Alternative, Result
from meshwright.report import stages
from meshwright.report.infeasible import nothing_fits
from meshwright.sim import fits
from meshwright.writers import plan_json

__all__ = ["COLUMNS", "LINES", "lines", "narrowed"]

COLUMNS = 100
LINES = 24
_STOPPED = "stopped before its end"  # how the note begins that a search was stopped
_WHOLE = (_STOPPED, "export --to ")  # notes that are never cut off
_LEAST_ROWS = 3
_MOST_CAUSES = 4
_LEAST_SHARE = 0.01  # of a step: causes below it are added up
_ALL = "-v shows all"


def lines(result: Result, changes: Sequence[Change] = (), besides: Sequence[str] = ()) -> list[str]:
    """Return an answer as lines, at most `LINES` of `COLUMNS` characters but for what was asked besides.

    Parameters
    ----------
    result : Result
        The answer.
    changes : sequence of Change
        What would help.
    besides : sequence of str
        Lines on what was asked besides, shown in full.

    Returns
    -------
    list of str
        Verdict, question, plan, stages, time, memory, runners-up, what would help, notes.
    """
    head = _wrapped(words.verdict(plan_json.as_json(result)), 3)
    plan = result.answer.plan
    if plan is None:
        body = [*_question(result), "", *_nothing_fits(result)]
        return [*head, "", *body, *besides, *_notes(result, LINES - len(head) - len(body) - 1)]
    above = ["", *_question(result), *_plan(result, plan)]
    room = LINES - len(head) - len(above) - 1
    below = [*_time(result, 2), *_memory(result), *_next_best(result), *_help(changes, 2)]
    if room - len(below) < _LEAST_ROWS + 2:  # sentences give way to stages
        below = [*_time(result, 1), *_memory(result), *_next_best(result), *_help(changes, 1)]
    left = room - len(below) + 1 - (len(_always(result)) or min(len(result.answer.notes), 1))
    rows = stages.folded(result, plan, max(_LEAST_ROWS + 1, left - 1), COLUMNS)
    left -= len(rows)
    return [*head, *above, *rows, *below, *besides, *_notes(result, max(left, 0) + 1)]


def narrowed(rows: Sequence[str], columns: int) -> list[str]:
    """Return lines for a narrower terminal: what is too long goes on in the next line, between words.

    Parameters
    ----------
    rows : sequence of str
        Lines of at most `COLUMNS` characters.
    columns : int
        Characters of a line of the terminal.
    """
    found: list[str] = []
    for row in rows:
        indent = row[: len(row) - len(row.lstrip())]
        more = textwrap.wrap(row, columns, subsequent_indent=indent + "  ", break_on_hyphens=False, drop_whitespace=True)
        found += [row] if len(row) <= columns else more
    return found


def _wrapped(text: str, most: int, *, hang: str = "  ") -> list[str]:
    """Return a sentence in at most so many lines, what is too long cut with a word."""
    return textwrap.wrap(
        text, COLUMNS, subsequent_indent=hang, max_lines=most, placeholder=" ... (-v)", break_on_hyphens=False
    )  # fmt: skip


def _cut(text: str, width: int = COLUMNS) -> str:
    """Return a text in one line, with three dots where it is too long."""
    return text if len(text) <= width else text[: width - 4].rpartition(" ")[0].rstrip(",") + " ..."


def _question(result: Result) -> list[str]:
    """Return what was asked: model, batch, cluster, precision, framework, search."""
    problem = result.problem
    graph = problem.graph
    text = f"{problem.model_spec.name}: {words.size_of([op.kind for op in graph.ops])}"
    if graph.n_parameters:
        text += f", {words.parameters_of(graph)}"
    if graph.sequence_length > 1:
        text += f", {words.tokens_of(graph)} a sample"
    if result.answer.plan is not None:
        text += f", {words.plural(result.plan.global_batch, 'sample')} a step"
    found = _wrapped(text, 2)
    if problem.cluster is not None:
        kinds = ", ".join(dict.fromkeys(kind.name for kind in problem.cluster.kinds))
        place = f"{problem.cluster.name}: {words.plural(problem.cluster.n_devices, 'device')} ({kinds})"
        if problem.model_spec.instance is None:
            place += f", products in {problem.training.precision}"
        if problem.framework.name:
            place += f"; for {problem.framework.word}"
            place += "" if problem.framework_asked else " (assumed; say --for NAME)"
        found += _wrapped(place, 2)
    return found


def _plan(result: Result, plan: Plan) -> list[str]:
    """Return the plan, how sure its step is, and the fastest where a simpler one is the answer."""
    found = _wrapped(f"plan: {describe(plan)}", 2)
    answer, timeline, interval = result.answer, result.timeline, step_interval(result)
    parts = []
    if timeline is not None:
        text = f"step: {format_seconds(timeline.step_seconds)}"
        if interval is not None:
            low, high = format_seconds(interval.low_seconds), format_seconds(interval.high_seconds)
            on = f"on {interval.unmeasured}" if interval.unmeasured else "like this"
            said = f"; no run {on} was measured" if interval.unmeasured or interval.unlike else ""
            text += f" ({COVERAGE_RATIO:.0%}: {low} to {high}{said})"
        elif why := no_interval(result):
            text += f" ({why})"
        parts.append(f"{text}, {plan.global_batch / timeline.step_seconds:.4g} samples/s")
    objective = answer.objective
    if objective is not None and not (objective.name == "step_seconds" and timeline is not None):
        parts.append(f"objective {objective.name} = {objective.value:.6g}")
    fastest = answer.extra.get("fastest")
    if isinstance(fastest, Mapping) and fastest["quicker_ratio"] >= words.NOTHING_RATIO:
        parts.append(f"--within 0 finds {words.slower(-fastest['quicker_ratio'])}")
    return found + _wrapped("; ".join(parts), 2)


def _time(result: Result, most: int) -> list[str]:
    """Return where the time of a step goes, in one sentence."""
    timeline = result.timeline
    if timeline is None or not timeline.step_seconds:
        return []
    shares = sorted(((seconds / timeline.step_seconds, cause) for cause, seconds in timeline.causes), reverse=True)
    parts = [f"{cause} {share:.1%}" for share, cause in shares if share >= _LEAST_SHARE]
    rest = sum(share for share, _ in shares if share < _LEAST_SHARE)
    parts += [f"other {rest:.1%}"] if rest >= _LEAST_SHARE / 20 else []
    seen = seen_from(result)
    return _wrapped(f"time: {', '.join(parts)}" + (f" ({seen})" if seen else ""), most)


def _memory(result: Result) -> list[str]:
    """Return what fills the fullest device, by share, and how far measured runs went beyond such a prediction."""
    timeline, cluster = result.timeline, result.problem.cluster
    if timeline is None or not timeline.peak_bytes:
        return []
    ranks, peaks = result.plan.ranks(), timeline.peak_bytes
    limits = [fits.tightest(cluster, devices).memory_bytes if cluster is not None else 0.0 for devices in ranks]
    at = min(range(len(ranks)), key=lambda i: (-peaks[i] / (limits[i] or 1.0), i))
    parts = sorted(((n_bytes, cause) for cause, n_bytes in timeline.memory_causes[at] if n_bytes > 0.0), reverse=True)
    held = [f"{cause} {format_bytes(n_bytes)}" for n_bytes, cause in parts[:_MOST_CAUSES]]
    rest = sum(n_bytes for n_bytes, _ in parts[_MOST_CAUSES:])
    held += [f"other {format_bytes(rest)}"] if rest else []
    text = f"memory: {format_bytes(peaks[at])}" + (f" of {format_bytes(limits[at])}" if limits[at] else "")
    text += f" on rank {at}" if len(ranks) > 1 else ""
    margin, most_full, warning = peak_margin(result), fullest(result), ""
    if margin is not None and most_full is not None:
        (peak, limit), risk = most_full, shown_risk(result)
        most = margin.most_ratio(risk) * peak
        text += f" (measured: {margin.claim(risk)} {format_bytes(most)})"
        if most > limit * (1.0 + 1e-9):
            warning = f"may not fit: the device has {format_bytes(limit)}; --memory-risk {risk:g} of plan leaves room for it"
    return _wrapped(f"{text}: {', '.join(held)}", 2) + ([warning] if warning else [])


def _next_best(result: Result) -> list[str]:
    """Return the runners-up, one a line, and what is proven of all others."""
    base = result.answer.objective
    cluster = result.problem.cluster
    n = cluster.n_devices if cluster is not None else 0
    found = [_runner_up(other, base.value if base is not None else 0.0, n) for other in result.answer.alternatives]
    entry = result.answer.extra.get("runners_up")
    if not isinstance(entry, Mapping) or base is None:
        return ["runners-up:", *found] if found else []
    least, n_left_out = entry["others_at_least_seconds"], entry["n_left_out"]
    apart = f", but for {n_left_out} left out, see -v" if n_left_out else ""
    if least is None or not base.value:
        none = words.no_others(given="fixed" in result.answer.extra, listed=bool(found)) + apart
        return [f"runners-up ({none}):", *found] if found else [none]
    slower = least / base.value - 1
    least_slower = f"searched {slower:+.2%} at least" if slower >= 0.0 else f"may be up to {words.slower(slower)}"
    text = f"others {least_slower}{apart}"
    if not found:
        return [f"no runners-up are shown (proven: {text})"]
    text = f"proven: {text}" if entry["proven"] else f"{text}; not proven to be the next best"
    return [f"runners-up ({text}):", *found]


def _runner_up(other: Alternative, base: float, n_devices: int) -> str:
    """Return one runner-up in a line: how much slower, the plan, how many of the devices where not all, why."""
    slower = f"{other.objective.value / base - 1:+.2%}" if base else f"{other.objective.value:.5g}"
    line = f"{slower:>9}  {describe(other.plan, brief=True)}{words.some_of(other.plan.n_devices, n_devices)}"
    why = f" ({other.why})" if other.why else ""
    return line + why if len(line) + len(why) <= COLUMNS else _cut(line)


def _help(changes: Sequence[Change], most: int) -> list[str]:
    """Return what would help, and by how much at least, in one sentence."""
    if not changes:
        return []
    parts = [f"{change.name} {change.speedup_ratio - 1:+.1%}" for change in changes]
    return _wrapped(f"samples/s at least, with: {', '.join(parts)}", most)


def _nothing_fits(result: Result) -> list[str]:
    """Return why there is no plan, and the nearest that there is."""
    return [line for part in nothing_fits(result).strip().splitlines() for line in _wrapped(part, 5)]


def _always(result: Result) -> list[str]:
    """Return the lines that are always shown, and whole: that the search was stopped, that no export of the plan is written."""
    told = [note for note in result.answer.notes if note.startswith(_WHOLE)]
    return [line for note in told for line in _wrapped(f"note: {note}", 2 if note.startswith(_STOPPED) else 12)]


def _notes(result: Result, room: int) -> list[str]:
    """Return notes in a line each as far as there is room, and how many there are besides."""
    notes = result.answer.notes
    searched = f"search {result.search}, costs {result.problem.costs}"
    searched += f", {planning_time(result)}" if result.planning_seconds else ""
    others, first = [note for note in notes if not note.startswith(_WHOLE)], _always(result)
    n_shown = min(len(others), max(room - 1 - len(first), 0))
    found = first + [_cut(f"note: {note}") for note in others[:n_shown]]
    left = len(others) - n_shown
    more = f" and {left} more {'note' if left == 1 else 'notes'}" if left else ""
    return [*found, _cut(f"{searched}; {_ALL}{more}")]
