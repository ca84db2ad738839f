"""Checks answers of searches that have no check of their own: the plan judged anew, and the search asked again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright import sim
from meshwright.api.searching import searched
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem
from meshwright.core.result import AnswerVerdict, Result
from meshwright.writers import plan_json

__all__ = ["changed", "check_infeasible", "check_plan"]

_FIGURES = (
    "stages", "schedule", "step_seconds", "samples_per_second", "tokens_per_second", "model_flops_utilization_ratio",
    "model_flops_utilization_causal_ratio",
)  # fmt: skip
_ROUNDING = 1e-9
_SIMULATED = ("step_seconds", "simulated_seconds_per_sample")
_NOT_CHECKED = (
    "the runners-up, the notes, causes, and what else is said beside the plan",
    "the cost model itself, which both search and check go by",
)


def changed(expected: Any, found: Any, place: str = "") -> str:
    """Return which field of a plan file is not what the plan gives, in a sentence; empty for none.

    `expected`: the same plan as JSON, judged anew; figures of stages and of the step are compared, and what is not in the file
    is not missed.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = _FIGURES if not place else tuple(expected)
        parts = [(f"{place}.{key}".lstrip("."), expected.get(key), found[key]) for key in keys if key in found]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = [(f"{place}[{i}]", *both) for i, both in enumerate(zip(expected, found, strict=True))]
    else:
        numbers = [one for one in (expected, found) if isinstance(one, (int, float)) and not isinstance(one, bool)]
        same = expected == found or (len(numbers) == 2 and math.isclose(*numbers, rel_tol=_ROUNDING))
        return "" if same else f"{place} is {found!r} in the file, and {expected!r} by the plan in it"
    return next((reason for part, one, other in parts if (reason := changed(one, other, part))), "")


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

    def refused(reason: str) -> AnswerVerdict:
        return AnswerVerdict(False, value, math.nan, reason, not_checked=_NOT_CHECKED)

    if reason := changed(plan_json.as_json(result), dict(entry)):
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
    return AnswerVerdict(True, value, bound_value, "", tuple(checked), (*left, *_NOT_CHECKED))


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
