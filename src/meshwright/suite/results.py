"""Attempts of planners set beside each other: against the proven bound and the best plan known, as a table or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.base.units import format_bytes
from meshwright.suite import ANSWERED, NOTHING, Attempt, BenchProblem

__all__ = [
    "ATTEMPT_HEAD",
    "FAMILY_HEAD",
    "PLANNER_HEAD",
    "BenchRun",
    "as_json",
    "attempt_rows",
    "family_rows",
    "planner_rows",
    "ratios",
    "table",
    "verdict",
]

_ROUNDING = 1e-9
_STATUSES = (ANSWERED, NOTHING, "refused", "declined", "failed", "timed out")


@dataclass(frozen=True, slots=True)
class BenchRun:
    """All attempts of one run of the bench.

    `version`, `digest`: of the suite.
    `limit_seconds`: wall time of each attempt.
    `n_asked`: problems that were to be asked; fewer are held where the run was interrupted.
    `questions`: problems asked.
    `planners`: names, in the order asked.
    `attempts`: in the order made.
    `begun`: when it began, in UTC, ``2026-11-24 02:00``; empty where that is not known.
    `machine`: processor, cores and system that it ran on.
    """

    version: int
    digest: str
    limit_seconds: float
    n_asked: int
    questions: tuple[BenchProblem, ...]
    planners: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    begun: str = ""
    machine: str = ""

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the problems asked, in their order."""
        return tuple(dict.fromkeys(question.family for question in self.questions))

    @property
    def complete(self) -> bool:
        """Whether no problem was left out by an interrupt."""
        return len(self.questions) == self.n_asked

    def of(self, question_id: str) -> tuple[Attempt, ...]:
        """Return the attempts at one problem."""
        return tuple(one for one in self.attempts if one.question_id == question_id)

    def bound_value(self, question_id: str) -> float | None:
        """Return the largest bound that a search of ours proved in this run; None where none did."""
        return max((one.bound_value for one in self.of(question_id) if one.bound_value is not None), default=None)

    def best_value(self, question_id: str) -> float | None:
        """Return the value of the best plan of this run; None where there is none."""
        return min((one.value for one in self.of(question_id) if one.value is not None), default=None)


def ratios(run: BenchRun, attempt: Attempt) -> tuple[float | None, float | None]:
    """Return value over bound and value over the best plan of the run; None where a side is missing.

    Parameters
    ----------
    run : BenchRun
        What came out.
    attempt : Attempt
        One of it.
    """
    bound, best = run.bound_value(attempt.question_id), run.best_value(attempt.question_id)
    if attempt.value is None:
        return None, None
    return attempt.value / bound if bound else None, attempt.value / best if best else None


def _note(run: BenchRun, attempt: Attempt) -> str:
    """Say what is odd about an attempt; empty for nothing."""
    to_bound, _ = ratios(run, attempt)
    if to_bound is not None and to_bound < 1.0 - _ROUNDING:
        return "below the bound: outside the space that it was proven over"
    if attempt.status == NOTHING and run.best_value(attempt.question_id) is not None:
        return "says that nothing fits, though a plan of this run does"
    return attempt.reason


def _mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _summary(run: BenchRun, planner: str, family: str = "") -> dict[str, Any]:
    """Return one planner's figures over all its attempts, or over those at one family."""
    mine = [one for one in run.attempts if one.planner == planner and family in ("", one.question_id.partition("/")[0])]
    found = [ratios(run, one) for one in mine]
    to_bound = [ratio for ratio, _ in found if ratio is not None]
    to_best = [ratio for _, ratio in found if ratio is not None]
    return {
        "planner": planner,
        **({"family": family} if family else {}),
        "n_attempts": len(mine),
        **{f"n_{status.replace(' ', '_')}": sum(one.status == status for one in mine) for status in _STATUSES},
        "to_bound_mean_ratio": _mean(to_bound), "to_bound_max_ratio": max(to_bound, default=None), "n_bounded": len(to_bound),
        "to_best_mean_ratio": _mean(to_best), "n_best": sum(ratio <= 1.0 + _ROUNDING for ratio in to_best),
        "cpu_seconds": sum(one.cpu_seconds for one in mine), "wall_seconds": sum(one.wall_seconds for one in mine),
        "peak_bytes": max((one.peak_bytes for one in mine), default=0),
    }  # fmt: skip


def as_json(run: BenchRun) -> dict[str, Any]:
    """Return a run as JSON-ready values; what is not known is null."""
    return {
        "format": "meshwright/bench/1",
        "suite": {"version": run.version, "digest": run.digest},
        "time_limit_seconds": run.limit_seconds,
        "begun": run.begun or None,
        "machine": run.machine or None,
        "complete": run.complete,
        "planners": [_summary(run, name) for name in run.planners],
        "families": [_summary(run, name, family) for family, name in _pairs(run)],
        "problems": [
            {
                "problem": question.id, "family": question.family, "objective": question.objective,
                "bound": run.bound_value(question.id), "best": run.best_value(question.id),
                "attempts": [_attempt_json(run, one) for one in run.of(question.id)],
            }
            for question in run.questions
        ],
    }  # fmt: skip


def _attempt_json(run: BenchRun, one: Attempt) -> dict[str, Any]:
    to_bound, to_best = ratios(run, one)
    return {
        "planner": one.planner, "status": one.status, "value": one.value, "bound": one.bound_value,
        "to_bound_ratio": to_bound, "to_best_ratio": to_best, "wall_seconds": one.wall_seconds, "cpu_seconds": one.cpu_seconds,
        "peak_bytes": one.peak_bytes or None, "note": _note(run, one) or None,
    }  # fmt: skip


def _pairs(run: BenchRun) -> list[tuple[str, str]]:
    """Return families with the planners that were asked one of their problems."""
    asked = {(one.question_id.partition("/")[0], one.planner) for one in run.attempts}
    return [(family, name) for family in run.families for name in run.planners if (family, name) in asked]


PLANNER_HEAD = ("planner", "asked", *_STATUSES, "value / bound", "worst", "value / best", "best plans", "CPU s", "peak memory")
FAMILY_HEAD = ("family", *PLANNER_HEAD)
ATTEMPT_HEAD = ("problem", "planner", "outcome", "value", "/ bound", "/ best", "CPU s", "memory", "")
"""Titles of the columns of `planner_rows`, `family_rows` and `attempt_rows`."""


def _number(value: float | None, digits: str = ".4g") -> str:
    return "-" if value is None else format(value, digits)


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    """Return a planner's figures as text."""
    counts = (str(one[f"n_{status.replace(' ', '_')}"] or "-") for status in _STATUSES)
    return (
        one["planner"], str(one["n_attempts"]), *counts, _number(one["to_bound_mean_ratio"]),
        _number(one["to_bound_max_ratio"]), _number(one["to_best_mean_ratio"]), str(one["n_best"]),
        _number(one["cpu_seconds"], ".1f"), format_bytes(one["peak_bytes"]) if one["peak_bytes"] else "-",
    )  # fmt: skip


def planner_rows(run: BenchRun) -> list[tuple[str, ...]]:
    """Return one row of text for each planner, under `PLANNER_HEAD`."""
    return [_cells(_summary(run, name)) for name in run.planners]


def family_rows(run: BenchRun) -> list[tuple[str, ...]]:
    """Return one row of text for each family and planner that it was asked of, under `FAMILY_HEAD`."""
    return [(family, *_cells(_summary(run, name, family))) for family, name in _pairs(run)]


def attempt_rows(run: BenchRun) -> list[tuple[str, ...]]:
    """Return one row of text for each attempt, under `ATTEMPT_HEAD`."""
    rows: list[tuple[str, ...]] = []
    for one in run.attempts:
        to_bound, to_best = ratios(run, one)
        rows.append((
            one.question_id, one.planner, one.status, _number(one.value, ".6g"), _number(to_bound, ".4f"),
            _number(to_best, ".4f"), f"{one.cpu_seconds:.1f}", format_bytes(one.peak_bytes) if one.peak_bytes else "-",
            _note(run, one),
        ))  # fmt: skip
    return rows


def _columns(rows: Sequence[tuple[str, ...]], n_left: int) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:{'<' if i < n_left or i == len(row) - 1 else '>'}{widths[i]}}" for i, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def verdict(run: BenchRun) -> str:
    """Return a sentence on what was run."""
    of = "" if run.complete else f"{len(run.questions)} of "
    asked = f"{of}{run.n_asked} problem{'' if run.n_asked == 1 else 's'}"
    return f"suite {run.version} ({run.digest}): {asked}, {run.limit_seconds:g} s each; seconds and memory of whole commands"


def table(run: BenchRun) -> str:
    """Return a run as text: every attempt, then one row for each planner."""
    lines = [verdict(run), ""]
    if run.attempts:
        lines += [*_columns([ATTEMPT_HEAD, *attempt_rows(run)], 3), ""]
    return "\n".join([*lines, *_columns([PLANNER_HEAD, *planner_rows(run)], 1)])
