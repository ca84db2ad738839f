"""Why degrees that somebody names are not the answer: optimised, and compared with the answer by cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.api import searching
from meshwright.base.errors import InputError
from meshwright.core.formatting import describe
from meshwright.core.problem import Stop
from meshwright.core.result import Result
from meshwright.core.timeline import Timeline

__all__ = ["by_cause", "with_why_not"]


_NO_DEGREES = ("alternatives", "evaluations", "memory_ratio", "splits", "within_ratio")


def with_why_not(result: Result, fixed: Mapping[str, str], *, stop: Stop | None = None) -> Result:
    """Return an answer with the field ``why_not``: the best plan under further options of its search, beside the answer.

    Parameters
    ----------
    result : Result
        The answer of a search that has options for degrees (`best`).
    fixed : mapping of str to str
        Options as after ``--set``: ``{"tensor": "8", "pipeline": "8"}``; they replace those of the answer.
    stop : Stop or None
        When to stop.

    Returns
    -------
    Result
        With ``extra["why_not"]``: ``fixed`` and ``feasible``. Of a plan: ``step_seconds``, ``slower_ratio`` (to the answer),
        ``gap_ratio`` (to the bound under these options), ``plan`` in words, and ``causes`` with the seconds of the answer, of
        this plan, and the difference. Where nothing fits: ``missing_bytes``, ``nearest``, ``infeasible_proven``; where no plan
        is legal: ``reason``.

    Raises
    ------
    InputError
        When the search has no such option, or a value is wrong in itself.
    """
    for name in fixed:
        if name in _NO_DEGREES:
            raise InputError(f"--why-not {name}: says how the search goes, not what a plan is like; name degrees, as tensor=8")
    entry: dict[str, object] = {"fixed": dict(fixed), "feasible": False}
    try:
        other = searching.searched(
            result.asked or result.problem, search=result.search, seed=result.seed, stop=stop,
            settings={**result.settings, "alternatives": "1", **fixed},
        )  # fmt: skip
    except InputError as error:
        if not str(error).startswith(f"search {result.search}, with these options:"):
            raise
        entry["reason"] = str(error).partition(": ")[2]
        return _with(result, entry)
    if other.answer.plan is None:
        answer = other.answer
        entry |= {"missing_bytes": answer.missing_bytes, "nearest": answer.nearest or None}
        entry["infeasible_proven"] = answer.infeasible_proven
        entry["reason"] = answer.notes[-1] if not answer.missing_bytes and answer.notes else None
        return _with(result, entry)
    return _with(result, entry | _compared(result, other))


def _with(result: Result, entry: dict[str, object]) -> Result:
    """Return the answer with the field."""
    return replace(result, answer=replace(result.answer, extra={**result.answer.extra, "why_not": entry}))


def _compared(result: Result, other: Result) -> dict[str, object]:
    """Return a plan beside the answer, causes by how much they differ."""
    assert other.timeline is not None
    entry: dict[str, object] = {"feasible": True, "step_seconds": other.timeline.step_seconds, "plan": describe(other.plan)}
    bound, objective = other.answer.bound, other.answer.objective
    entry["gap_ratio"] = None if bound is None or objective is None else bound.gap_ratio(objective)
    entry |= {"slower_ratio": None, "causes": []}
    if result.timeline is None:
        return entry
    entry["slower_ratio"] = other.timeline.step_seconds / result.timeline.step_seconds - 1.0
    entry["causes"] = [
        {"cause": row["cause"], "answer_seconds": row["free_seconds"], "seconds": row["seconds"],
         "difference_seconds": row["difference_seconds"]}
        for row in by_cause(other.timeline, result.timeline)
    ]  # fmt: skip
    return entry


def by_cause(one: Timeline, other: Timeline) -> list[dict[str, object]]:
    """Return where the steps of two plans differ, the causes that cost the first one most before the others.

    Parameters
    ----------
    one, other : Timeline
        Both steps.

    Returns
    -------
    list of dict
        ``cause``, ``seconds`` of the first, ``free_seconds`` of the second, ``difference_seconds``.
    """
    theirs, ours = dict(one.causes), dict(other.causes)
    rows = [(cause, ours.get(cause, 0.0), theirs.get(cause, 0.0)) for cause in dict.fromkeys((*theirs, *ours))]
    return [
        {"cause": cause, "seconds": seconds, "free_seconds": own, "difference_seconds": seconds - own}
        for cause, own, seconds in sorted(rows, key=lambda row: row[1] - row[2])
    ]
