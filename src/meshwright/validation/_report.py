"""Errors of predictions over a set: how far, in which direction, in which order, and what a wrong choice would have cost."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright import frameworks
from meshwright.base import files, registry
from meshwright.base.errors import InputError
from meshwright.validation import _sets, _table, own_runs
from meshwright.validation._coverage import coverage
from meshwright.validation._points import CellError, Point, Skipped, fitted

__all__ = ["Report", "as_json", "explain", "validate"]


@dataclass(frozen=True, slots=True)
class Report:
    """A file of measured runs with our predictions.

    Parameters
    ----------
    file : str
        Its path.
    kind : str
        The set it was recognised as.
    points : tuple of Point
        Rows predicted.
    skipped : tuple of Skipped
        Rows that were not, and why.
    held_out : frozenset of int
        Rows whose like no constant is fitted to.
    descriptions : tuple of str
        What each row of the file says, in short.
    unused : tuple of str
        Columns that say something but change no prediction.
    notes : tuple of str
        What is to be said of the file as a whole.
    """

    file: str
    kind: str
    points: tuple[Point, ...]
    skipped: tuple[Skipped, ...]
    held_out: frozenset[int] = frozenset()
    descriptions: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def validate(path: str | Path, *, framework: str = "") -> Report:
    """Predict every row of a file of measured runs.

    Parameters
    ----------
    path : str or Path
        A CSV file with the columns of one of the known sets, or the name of a built-in set.
    framework : str
        The framework that trained, as after ``--for``, of rows that do not name one; empty for the one that is assumed.

    Returns
    -------
    Report
        Measured and predicted, row by row.

    Raises
    ------
    InputError
        When the file cannot be read, its columns are those of no known set, a cell is not what its column asks for, no set
        has that name, or every row names a framework beside the one given.
    """
    path = _sets.set_file(path)
    measured = _table.read(path)
    kind, rows = measured.kind, measured.rows
    plugin = registry.load("validation", kind, "measured set")
    if framework and "framework" not in getattr(plugin, "OPTIONAL", ()):
        raise InputError(f"--for {framework}: the rows of {path} say which framework trained them; it is for runs of one's own")
    if framework:
        rows = _trained_by(rows, framework, path)
    try:
        found = plugin.points(_table.located(path, rows, getattr(plugin, "PATHS", ())))
    except CellError as error:
        raise InputError(f"{path}: row {error.row}, column {error.column}: {error}") from None
    seen = {row for row, fields in enumerate(rows, 1) if kind == "own_runs" and _calibrated_to(fields, path)}
    held = {row for row, fields in enumerate(rows, 1) if not fitted(kind, row, fields, built_in=_sets.is_built_in(path))}
    return Report(
        str(path),
        kind,
        tuple(point for point in found if isinstance(point, Point)),
        tuple(point for point in found if isinstance(point, Skipped)),
        frozenset(held - seen),
        tuple(_table.describe(row, (*plugin.COLUMNS, *getattr(plugin, "OPTIONAL", ()))) for row in rows),
        _unused(rows, plugin.COLUMNS, getattr(plugin, "OPTIONAL", None)),
        (f"{len(seen)} rows are among those that their framework file was calibrated to: not held out",) if seen else (),
    )


def _calibrated_to(fields: Mapping[str, str], path: Path) -> bool:
    """Tell whether a row, or its log, is among the runs that the framework file it names was calibrated to."""
    word = own_runs.named(fields)
    if not word.endswith(".toml"):
        return False
    try:
        title = str(files.read_toml(Path(word)).get("title", ""))
    except InputError:
        return False  # whoever reads the framework says so
    names = re.search(r"calibrated to \d+ runs? of (.+?): mean error", title)
    return bool(names) and bool({path.name, Path(fields.get("log", "")).name} & set(names[1].split(", ") if names else ()))


def _trained_by(rows: Sequence[Mapping[str, str]], word: str, path: Path) -> tuple[Mapping[str, str], ...]:
    """Return the rows with a framework where they name none, and a file of one's own also where they name its base."""
    base = frameworks.base_of(word)
    meant = [own_runs.named(row) in ("", *({base, base.partition(":")[0]} if base else ())) for row in rows]
    if not any(meant):
        raise InputError(
            f"--for {word}: every row of {path} names {'another' if base else 'its'} framework, so it changes nothing; leave "
            "it out, or empty the columns 'framework' and 'program' of the rows that it is meant for"
        )
    return tuple({**row, "framework": word} if own else row for row, own in zip(rows, meant, strict=True))


def _unused(rows: Sequence[Mapping[str, str]], columns: Sequence[str], optional: Sequence[str] | None) -> tuple[str, ...]:
    """Return the filled columns that no prediction uses, of files whose columns the user chooses."""
    if optional is None:
        return ()
    return tuple(
        name or "(without a name)"
        for name in rows[0]
        if name not in (*columns, *optional) and any(row[name].strip() for row in rows)
    )


def as_json(reports: Sequence[Report]) -> dict[str, object]:
    """Return the errors as the JSON that ``validate --json`` prints."""
    return {"format": "meshwright/validation/1", "sets": [_set(report) for report in reports]}


def _set(report: Report) -> dict[str, object]:
    """Return one file's part of the JSON."""
    return {
        "file": Path(report.file).name,
        "kind": report.kind,
        "n_rows": len(report.points) + len(report.skipped),
        "n_predicted": len(report.points),
        "skipped": [{"row": skipped.row, "reason": skipped.reason} for skipped in report.skipped],
        "time": _time(report.points),
        "memory": _memory(report.points),
        "verdicts": _verdicts(report.points),
        "regret": _regret(report.points),
        "interval": coverage(report.points, report.held_out),
        "unused_columns": list(report.unused),
        "notes": [*report.notes, *(f"{note} ({n_rows} rows)" for note, n_rows in _notes(report).items())],
    }


def _time(points: Sequence[Point]) -> dict[str, float | None] | None:
    """Errors of predicted seconds; None where nothing was measured."""
    timed = [point for point in points if point.measured_seconds > 0.0 and point.ran]
    if not timed:
        return None
    measured = np.array([point.measured_seconds for point in timed])
    predicted = np.array([point.predicted_seconds for point in timed])
    error = predicted / measured - 1.0
    size = np.abs(error)
    planned = np.array([point.planned_seconds / point.measured_seconds - 1.0 for point in timed if point.kind])
    return {
        "mape_ratio": float(size.mean()),
        "median_ratio": float(np.median(size)),
        "p90_ratio": float(np.quantile(size, 0.9)),
        "bias_ratio": float(error.mean()),
        "spearman": _spearman(measured, predicted),
        "planned_mape_ratio": float(np.abs(planned).mean()) if len(planned) else None,
        "planned_bias_ratio": float(planned.mean()) if len(planned) else None,
    }


def _spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Return the correlation of ranks (ties share their mean rank); None where it is not defined."""
    if len(a) < 2:
        return None
    ranks = [_ranks(values) for values in (a, b)]
    if any(np.ptp(rank) == 0.0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], dtype=np.float64)


def _memory(points: Sequence[Point]) -> dict[str, float | int | None] | None:
    """Errors of predicted memory; None where the set tells nothing about it."""
    held = [point for point in points if point.measured_bytes > 0.0]
    failed = [point for point in points if not point.ran]
    if not held and not failed:
        return None
    size = np.array([abs(point.predicted_bytes / point.measured_bytes - 1.0) for point in held])
    planned = [abs(point.planned_bytes / point.measured_bytes - 1.0) for point in held if point.kind]
    return {
        "mape_ratio": float(size.mean()) if held else None,
        "max_ratio": float(size.max()) if held else None,
        "planned_mape_ratio": float(np.mean(planned)) if planned else None,
        "false_fits": sum(point.fits for point in failed),
        "false_refusals": sum(not point.fits for point in points if point.ran),
    }


def _verdicts(points: Sequence[Point]) -> dict[str, int]:
    """Count runs that failed for memory and those of them that fit by the prediction, runs that ran and those that do not."""
    failed = [point for point in points if not point.ran]
    return {
        "n_failed": len(failed),
        "false_fits": sum(point.fits for point in failed),
        "n_ran": len(points) - len(failed),
        "false_refusals": sum(not point.fits for point in points if point.ran),
        "planned_false_fits": sum(point.planned_fits for point in failed),
        "planned_false_refusals": sum(not point.planned_fits for point in points if point.ran),
    }


def _regret(points: Sequence[Point]) -> dict[str, float | int] | None:
    """Return what choosing by our prediction costs: measured time of our first choice over the best measured, less one.

    Runs of one plan, which are predicted alike, are one choice and take their mean: which of them to start is no question.
    """
    groups: dict[str, dict[tuple[object, ...], list[Point]]] = {}
    for point in points:
        if point.group and point.measured_seconds > 0.0:
            plan = (point.predicted_seconds, point.memory_causes)
            groups.setdefault(point.group, {}).setdefault(plan, []).append(point)
    regrets = []
    for plans in groups.values():
        runs = sorted(plans.values(), key=lambda same: (not same[0].fits, same[0].predicted_seconds, same[0].row))
        taken = [float(np.mean([run.measured_seconds for run in same])) for same in runs]
        if len(runs) > 1 and math.isfinite(min(taken)):
            regrets.append(taken[0] / min(taken) - 1.0)
    if not regrets:
        return None
    finite = [regret for regret in regrets if math.isfinite(regret)]
    return {
        "mean_ratio": float(np.mean(finite)) if finite else 0.0,
        "max_ratio": float(np.max(finite)) if finite else 0.0,
        "n_groups": len(regrets),
        "n_failed_choices": len(regrets) - len(finite),
    }


def explain(reports: Sequence[Report]) -> str:
    """Return the errors as a table for people."""
    lines = [
        f"{'set':<24}{'rows':>6}{'predicted':>11}{'error':>8}{'median':>8}{'p90':>8}{'bias':>8}{'planned':>9}{'rank':>7}{'memory':>9}{'regret':>9}"
        f"{'held out':>10}{'in 80 %':>9}"
    ]
    for report in reports:
        time, memory, regret = _time(report.points), _memory(report.points), _regret(report.points)
        cells = [time[key] if time else None for key in ("mape_ratio", "median_ratio", "p90_ratio", "bias_ratio")]
        line = f"{Path(report.file).name[:23]:<24}{len(report.points) + len(report.skipped):>6}{len(report.points):>11}"
        line += "".join(f" {_percent(cell):>7}" for cell in cells)
        line += f" {_percent(time['planned_mape_ratio'] if time else None):>8}"
        line += f"{time['spearman']:>7.3f}" if time and time["spearman"] is not None else f"{'-':>7}"
        line += (
            f" {_percent(memory['mape_ratio'] if memory else None):>8} {_percent(regret['mean_ratio'] if regret else None):>8}"
        )
        covered = coverage(report.points, report.held_out)
        held = covered["held_out"] if covered else None
        for key, width in (("mape_ratio", 10), ("coverage_ratio", 9)):
            line += f" {_percent(held[key] if isinstance(held, dict) else None):>{width - 1}}"
        lines.append(line)
        if report.unused:
            lines.append(f"  columns that no prediction uses: {', '.join(map(_unused_column, report.unused))}")
        lines += [f"  {note}" for note in report.notes]
        lines += [f"  {note} ({n_rows} rows)" for note, n_rows in _notes(report).items()]
        if regret and regret["max_ratio"] > 0.0:
            lines.append(
                f"  regret: worst {_percent(regret['max_ratio'])} of {regret['n_groups']} group{'s' * (regret['n_groups'] > 1)}"
            )
        lines += _of_memory(report, memory)
        reasons: dict[str, list[int]] = {}
        for skipped in report.skipped:
            reasons.setdefault(skipped.reason, []).append(skipped.row)
        for reason, rows in reasons.items():
            shown = ", ".join(map(str, rows[:6])) + (", ..." if len(rows) > 6 else "")
            lines.append(f"  not predicted: {reason} ({len(rows)} rows: {shown})")
    return "\n".join(lines)


def _notes(report: Report) -> dict[str, int]:
    """Return what is said of single rows, and of how many."""
    return dict(Counter(point.note for point in report.points if point.note))


def _unused_column(name: str) -> str:
    """Return a column of one's own, and which one it may be a slip for."""
    close = difflib.get_close_matches(name.strip().lower(), (*own_runs.COLUMNS, *own_runs.OPTIONAL), n=1, cutoff=0.75)
    return f"{name} (is '{close[0]}' meant?)" if close else name


def _of_memory(report: Report, memory: Mapping[str, float | int | None] | None) -> list[str]:
    """Return what there is to say about memory beyond its mean error: the worst row, and verdicts that were wrong."""
    lines, counts = [], _verdicts(report.points)
    if memory and memory["max_ratio"] is not None:
        lines.append(f"  memory: worst {_percent(memory['max_ratio'])}")
    if counts["n_failed"]:
        lines.append(
            f"  failed for memory: {counts['n_failed']} runs; {counts['false_fits']} of them fit by the prediction, "
            f"{counts['planned_false_fits']} with the room that plan leaves"
        )
    if counts["false_refusals"] or counts["planned_false_refusals"] or counts["n_failed"]:
        lines.append(
            f"  ran: {counts['n_ran']} runs; {counts['false_refusals']} of them do not fit by the prediction, "
            f"{counts['planned_false_refusals']} with the room that plan leaves"
        )
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.1f} %"
