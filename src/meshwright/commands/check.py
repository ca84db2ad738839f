"""``meshwright check``: verifies a certificate of optimality, or a plan file whose search says how,
without running any solver.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.core.problem import Problem
    from meshwright.solvers.pairwise.certificate import Verdict

__all__ = ["register"]

_FIGURES = (
    "stages", "schedule", "step_seconds", "samples_per_second", "tokens_per_second", "model_flops_utilization_ratio",
    "model_flops_utilization_causal_ratio",
)  # fmt: skip


def posed_again(entry: dict[str, Any], place: str) -> Problem:
    """Return the question that a certificate of kind ``sharding`` answers.

    Raises `InputError` when a field is missing, or the model or the cluster cannot be found again.
    """
    from meshwright import api
    from meshwright.base.errors import InputError
    from meshwright.core.problem import Batch

    try:
        asked = entry["question"]
        batch = Batch(global_batch=int(asked["batch"]), sequence_length=int(asked["sequence_length"]))
        model, cluster, precision = (str(asked[name]) for name in ("model", "cluster", "precision"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    return api.make_problem(model, cluster, batch=batch, training=precision)


def _verdict(entry: Any, place: str, model: str) -> Verdict:
    """Return what is found of a certificate, or of a plan file."""
    from meshwright.api import plan_files
    from meshwright.base import registry
    from meshwright.base.errors import InputError
    from meshwright.writers import plan_json

    file_format = entry.get("format") if isinstance(entry, dict) else None
    if file_format == "meshwright/plan/1":
        if entry.get("feasible") is False:
            return _nothing_fits(entry, place, model)
        result = plan_files.load(place, model=model)
        check_plan = getattr(registry.load("search", result.search, "search"), "check_plan", None)
        if check_plan is None:
            known = ", ".join(name for name, module in registry.each("search", "search") if hasattr(module, "check_plan"))
            raise InputError(
                f"{place}: is a plan of --search {result.search}; plans are checked of --search {known}, and of pase by "
                "the file that --set certificate=FILE writes"
            )
        verdict: Verdict = check_plan(result, entry, place)
        if verdict.valid and not hasattr(verdict, "not_checked"):
            changed = _changed(plan_json.as_json(result), entry)
            return replace(verdict, valid=not changed, reason=changed)
        return verdict
    if model:
        raise InputError("--model is for plan files; a certificate holds its question")
    if file_format != "meshwright/certificate/1":
        raise InputError(
            f'{place}: is neither a certificate nor a plan of ours: its "format" must be "meshwright/certificate/1" or '
            '"meshwright/plan/1"'
        )
    problem = posed_again(entry, place) if entry.get("kind") == "sharding" else None
    found: Verdict = registry.load("search", "pase", "search").check_certificate(entry, place, problem)
    return found


def _changed(expected: Any, found: Any, place: str = "") -> str:
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
        same = expected == found or (len(numbers) == 2 and math.isclose(*numbers, rel_tol=1e-9))
        return "" if same else f"{place} is {found!r} in the file, and {expected!r} by the plan in it"
    return next((reason for part, one, other in parts if (reason := _changed(one, other, part))), "")


def _nothing_fits(entry: dict[str, Any], place: str, model: str) -> Verdict:
    """Return what is found of the answer that nothing fits."""
    from functools import partial

    from meshwright import api
    from meshwright.api.plan_files import problem_as_long
    from meshwright.base import registry
    from meshwright.base.errors import InputError
    from meshwright.core import plan_fields
    from meshwright.core.problem import Batch
    from meshwright.models.documents import masked
    from meshwright.writers import plan_json

    plan_fields.check({name: value for name, value in entry.items() if value is not None}, place)
    if not isinstance(entry.get("settings", {}), dict):
        raise InputError(f"{place}: settings: must be an object")
    try:
        search, costs = str(entry["search"]), str(entry["costs"])
        spec, file_format = (model, "") if model else (str(entry["model"]["spec"]), str(entry["model"]["format"]))
        check = getattr(registry.load("search", search, "search"), "check_infeasible", None)
        if check is None:
            raise InputError(f"{place}: that nothing fits cannot be checked of --search {search}; of --search best it can")
        length = int(entry["certificate"]["question"]["sequence_length"])
        framework, memory_risk = str(entry.get("for") or ""), float(entry.get("memory_risk", 0.5))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    cluster = plan_json.cluster_from_json(entry, place)
    freeze, lora, objective = plan_json.trained_part(entry)
    problem = problem_as_long(partial(
        api.make_problem, spec, cluster, file_format=file_format, freeze=freeze, lora=lora, costs=costs, framework=framework,
        memory_risk=memory_risk, objective=objective,
    ), Batch(sequence_length=length))  # fmt: skip
    pairs_ratio = float(entry["model"].get("pairs_ratio", 1.0))
    if pairs_ratio != 1.0:
        problem = replace(problem, model_spec=masked(problem.model_spec, pairs_ratio))
    found: Verdict = check(problem, entry, place)
    return found


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def check(
        certificate: str = typer.Argument(
            help="An answer of --search best (also that nothing fits), a plan file of --search piper, partition or "
            "stage_mapping, or a file written by --set certificate=FILE."
        ),
        model: str = typer.Option("", help="Where the model of a plan lies, if no longer where the plan says."),
        json_: _options.AsJson = False,
    ) -> int:
        """Verify that a plan costs what it says and that no plan costs less than its bound."""
        import json

        from meshwright.base.errors import InputError
        from meshwright.core.source import Source
        from meshwright.report.progress import progress

        source = Source(certificate)
        if source.path is None:
            raise InputError(f"{certificate}: no such file")
        with progress(f"checking {certificate}"):
            verdict = _verdict(source.json, certificate, model)
        if json_:
            found = {"value": verdict.value, "bound": verdict.bound_value}
            numbers = {name: None if math.isnan(number) else number for name, number in found.items()}
            listed = {name: list(getattr(verdict, name)) for name in ("checked", "not_checked") if hasattr(verdict, name)}
            head = {"format": "meshwright/check/1", "valid": verdict.valid, **numbers, "reason": verdict.reason}
            print(json.dumps({**head, **listed}))
            return 0 if verdict.valid else 2
        if verdict.valid and hasattr(verdict, "checked"):
            print(f"valid: {verdict.checked[0]}")
        elif verdict.valid:
            print(f"valid: the plan costs {verdict.value:.17g}, and no plan costs less than {verdict.bound_value:.17g}")
        else:
            print(f"refused: {verdict.reason}")
        for line in getattr(verdict, "checked", ())[1 if verdict.valid else 0 :]:
            print(f"  checked: {line}")
        for line in getattr(verdict, "not_checked", ()):
            print(f"  not checked: {line}")
        return 0 if verdict.valid else 2
