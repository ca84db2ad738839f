"""Checks answers of searches that have no check of their own: the plan judged anew, and the search asked again."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from meshwright import sim
from meshwright.api.searching import searched
from meshwright.base.errors import InputError
from meshwright.commands import _fields
from meshwright.core.problem import Problem
from meshwright.core.result import AnswerVerdict, Result
from meshwright.solvers.pairwise.certificate import Verdict
from meshwright.writers import plan_json

__all__ = ["check_infeasible", "check_plan", "confirmed"]

_ROUNDING = 1e-9
_SIMULATED = ("step_seconds", "simulated_seconds_per_sample")
_NOT_CHECKED = ("the cost model itself, which both search and check go by",)


def check_plan(result: Result, entry: Mapping[str, Any]) -> AnswerVerdict:
    """Check a plan file of any search.

    Parameters
    ----------
    result : Result
        The file taken up again, its plan judged anew.
    entry : mapping
        The file as JSON.

    Returns
    -------
    AnswerVerdict
        Whether the plan's figures are those of the file, it fits as the search counts, and the search, asked again, claims the
        same objective and bound.

    Raises
    ------
    InputError
        When the question cannot be asked again.

    Notes
    -----
    An objective that is the simulator's needs no search. Of others, and of bounds, what is found again is the search's own
    word: the verdict says so.
    """
    timeline, objective, bound = result.timeline, result.objective, result.answer.bound
    value = math.nan if timeline is None else timeline.step_seconds
    checked, bound_value = ["the plan is legal, and its stages and its step are those of the file"], math.nan
    left: list[str] = []
    verified = ["objective", "bound.value", "bound.gap_ratio"]

    def refused(reason: str) -> AnswerVerdict:
        return AnswerVerdict(False, value, math.nan, reason, not_checked=_NOT_CHECKED)

    if reason := _fields.changed(plan_json.as_json(result), dict(entry)):
        return refused(reason)
    if timeline is not None:
        lacking = sim.excess_bytes(result.problem, result.plan, timeline.peak_bytes)
        if lacking > 0.0:
            left.append(f"that it fits: by the simulator {lacking!r} bytes are missing on the fullest device")
        else:
            checked.append("it fits by the simulator's count")
    simulated = False
    if objective is not None and objective.name in _SIMULATED and timeline is not None and result.plan is not None:
        expected = value / (1 if objective.name == "step_seconds" else result.plan.global_batch)
        simulated = math.isclose(objective.value, expected, rel_tol=_ROUNDING)
        if not simulated and objective.value < expected:  # a search may count more than the simulator, not less
            return refused(f"objective.value is {objective.value!r} in the file, and {expected!r} by the simulator")
        if simulated:
            checked.append(f"{objective.name} is {objective.value!r}, simulated anew")
    if objective is not None and (bound is not None or not simulated):
        again = _again(result, entry)
        if reason := _claims(entry, again, simulated=simulated) or _gap(result, entry):
            return refused(reason)
        bound_value = math.nan if bound is None else bound.value
        words = [] if simulated else [f"{objective.name} = {objective.value!r}"]
        words += [f"the bound {bound_value!r} ({bound.method})"] if bound is not None else []
        checked.append(f"asked again, --search {result.search} answers {' and '.join(words)}: its own word")
        left.append("objective and bound by other means than the search" if words[1:] else f"{words[0]} by other means")
    left += _fields.not_looked_at(result, entry, verified)
    return AnswerVerdict(True, value, bound_value, "", tuple(checked), (*left, *_NOT_CHECKED))


def confirmed(result: Result, entry: Mapping[str, Any], verdict: Verdict, verified: Collection[str]) -> AnswerVerdict:
    """Return what is found of a plan file whose search's own check holds: its figures too, and what was not looked at.

    Parameters
    ----------
    result, entry
        As of `check_plan`.
    verdict : Verdict
        Of the search's own check.
    verified : collection of str
        Fields that it verified beside objective and bound.
    """
    reason = _fields.changed(plan_json.as_json(result), entry) or _gap(result, entry)
    left = (
        *_fields.not_looked_at(result, entry, ("objective.value", "bound.value", "bound.gap_ratio", *verified)),
        *_NOT_CHECKED,
    )
    if reason:
        return AnswerVerdict(False, verdict.value, verdict.bound_value, reason, not_checked=left)
    own = (f"{', '.join(verified)} by the search's own check",) if verified else ()
    value, bound = verdict.value, verdict.bound_value
    checked = (
        f"the plan costs {value:.17g}, and no plan costs less than {bound:.17g}",
        "its stages and its step are those of the file", *own,
    )  # fmt: skip
    return AnswerVerdict(True, verdict.value, verdict.bound_value, "", checked, left)


def _gap(result: Result, entry: Mapping[str, Any]) -> str:
    """Return in a sentence that a file's gap is not that of its objective and bound; empty where it is."""
    if result.objective is None or result.answer.bound is None:
        return ""
    told, gap = entry["bound"].get("gap_ratio"), result.answer.bound.gap_ratio(result.objective)
    same = told == gap or (None not in (told, gap) and math.isclose(told, gap or 0.0, rel_tol=1e-6, abs_tol=_ROUNDING))
    return "" if same else f"bound.gap_ratio is {told!r} in the file, and {gap!r} by objective and bound"


def _again(result: Result, entry: Mapping[str, Any]) -> Result:
    """Return what the search answers to the question of a file."""
    asked, told = result.asked or result.problem, entry.get("batch", {})
    batch = replace(
        asked.batch, global_batch=told.get("asked_global_batch", asked.batch.global_batch),
        micro_batch=told.get("asked_micro_batch", asked.batch.micro_batch),
    )  # fmt: skip
    return searched(replace(asked, batch=batch), search=result.search, settings=result.settings, seed=result.seed)


def _claims(entry: Mapping[str, Any], again: Result, *, simulated: bool) -> str:
    """Return in a sentence where objective or bound of a file are not what the search answers again; empty where they are."""
    if not again.feasible:
        return f"asked again, --search {again.search} finds no plan"
    fresh = {"objective": again.objective, "bound": again.answer.bound}
    for key in ("bound",) if simulated else ("objective", "bound"):
        said, found = entry.get(key), fresh[key]
        if (said is None) != (found is None):
            return f"{key} is {said!r} in the file, and {found!r} where the search is asked again"
        if said is not None and found is not None and said.get("name") != getattr(found, "name", None):
            return (
                f"{key}.name is {said.get('name')!r} in the file, and {getattr(found, 'name', None)!r} where it is asked again"
            )
        if said is not None and found is not None and not math.isclose(said["value"], found.value, rel_tol=_ROUNDING):
            return f"{key}.value is {said['value']!r} in the file, and {found.value!r} where the search is asked again"
    return ""


def check_infeasible(problem: Problem, entry: Mapping[str, Any], place: str) -> AnswerVerdict:
    """Check an answer that nothing fits, of any search.

    Parameters
    ----------
    problem : Problem
        The question of the file.
    entry : mapping
        The file as JSON.
    place : str
        Its name, for messages.

    Returns
    -------
    AnswerVerdict
        Whether the search, asked again, finds nothing either, and misses as many bytes.

    Raises
    ------
    InputError
        When a field is of the wrong kind, or the question cannot be asked again.
    """
    settings = {str(key): str(value) for key, value in entry.get("settings", {}).items()}
    try:
        again = searched(problem, search=str(entry["search"]), settings=settings, seed=int(entry["seed"]))
        said = entry["missing_bytes"]
        same = said == again.answer.missing_bytes or math.isclose(said, again.answer.missing_bytes or 0.0, rel_tol=_ROUNDING)
    except (KeyError, TypeError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    left = ("whether no plan fits at all, by other means than the search", *_NOT_CHECKED)
    reason = ""
    if again.feasible:
        reason = f"asked again, --search {again.search} finds a plan"
    elif not same:
        reason = f"missing_bytes is {said!r} in the file, and {again.answer.missing_bytes!r} where the search is asked again"
    checked = () if reason else (f"asked again, --search {again.search} finds nothing that fits either: its own word",)
    return AnswerVerdict(not reason, math.nan, math.nan, reason, checked, left)
