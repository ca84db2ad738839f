"""``meshwright check``: verifies an answer by its search's own check, by judging it anew and asking again where there is
none, or a certificate of optimality.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.core.problem import Batch, Problem, Stop
    from meshwright.core.result import AnswerVerdict
    from meshwright.report.progress import Progress
    from meshwright.solvers.pairwise.certificate import Verdict

__all__ = ["register"]


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


def _verdict(entry: Any, place: str, model: str, told: Progress | None = None) -> Verdict | AnswerVerdict:
    """Return what is found of a certificate, or of a plan file; `told`: takes how far the check has come."""
    from meshwright.api import plan_files
    from meshwright.base import options, registry
    from meshwright.base.errors import InputError
    from meshwright.commands import _asking_again

    file_format = entry.get("format") if isinstance(entry, dict) else None
    if file_format == "meshwright/plan/1":
        if entry.get("feasible") is False:
            return _nothing_fits(entry, place, model, told)
        result = plan_files.load(place, model=model)
        module = registry.load("search", result.search, "search")
        options.parse(module.Params, dict(result.settings), f"search {result.search}")
        check_plan = getattr(module, "check_plan", None)
        verdict: Verdict | AnswerVerdict | None = (
            check_plan(result, entry, place, *_telling(module, told)) if check_plan else None
        )
        if verdict is None:
            return _asking_again.check_plan(result, entry)
        if verdict.valid and not hasattr(verdict, "not_checked"):
            return _asking_again.confirmed(result, entry, verdict, getattr(module, "CHECKED", ()))
        return verdict
    if file_format == "meshwright/codesign/1":
        return _design(entry, place, model)
    if model:
        raise InputError("--model is for plan files; a certificate holds its question")
    if file_format != "meshwright/certificate/1":
        raise InputError(
            f'{place}: is no answer of ours: its "format" must be "meshwright/plan/1", "meshwright/codesign/1" or '
            '"meshwright/certificate/1"'
        )
    problem = posed_again(entry, place) if entry.get("kind") == "sharding" else None
    found: Verdict = registry.load("search", "pase", "search").check_certificate(entry, place, problem)
    return found


def _design(entry: dict[str, Any], place: str, model: str) -> AnswerVerdict:
    """Return what is found of an answer of ``codesign``."""
    from meshwright.api import reading
    from meshwright.base.errors import InputError, MeshwrightError
    from meshwright.planners.topoopt.check.designs import check_design

    question = entry.get("question")
    if not isinstance(question, dict):
        raise InputError(
            f"{place}: does not hold its question, so it cannot be asked again; plan anew with 'meshwright codesign'"
        )
    if question.get("measure"):
        raise InputError(
            f"{place}: its operators were measured when it was made (--measure); to have it checked, write them with "
            "--measures-out FILE and design with --measures FILE"
        )
    try:
        spec = reading.model(model) if model else reading.model(str(question["model"]), file_format=str(question["format"]))
        return check_design(entry, spec)
    except MeshwrightError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error!r}") from None


def _telling(module: Any, told: Progress | None) -> list[Stop]:
    """Return what a search's check takes that says how far it has come; nothing of one that does not."""
    from meshwright.core.problem import Stop

    return [Stop(told=told.tell)] if told is not None and getattr(module, "CHECK_TELLS", False) else []


def _nothing_fits(entry: dict[str, Any], place: str, model: str, told: Progress | None = None) -> Verdict | AnswerVerdict:
    """Return what is found of the answer that nothing fits."""
    from functools import partial

    from meshwright import api
    from meshwright.api.plan_files import problem_as_long
    from meshwright.base import registry
    from meshwright.base.errors import InputError
    from meshwright.commands import _asking_again
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
        module = registry.load("search", search, "search")
        check = getattr(module, "check_infeasible", None)
        certified = entry["certificate"]["question"] if check is not None else {}
        batch = Batch(sequence_length=int(certified["sequence_length"])) if certified else _asked_batch(entry)
        framework, memory_risk = str(entry.get("for") or ""), float(entry.get("memory_risk", 0.5))
        cluster, (freeze, lora, objective) = plan_json.cluster_from_json(entry, place), plan_json.trained_part(entry)
        training, pairs_ratio = plan_json.training_from_json(entry), float(entry["model"].get("pairs_ratio", 1.0))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    problem = problem_as_long(partial(
        api.make_problem, spec, cluster or None, file_format=file_format, freeze=freeze, lora=lora, costs=costs,
        framework=framework, memory_risk=memory_risk, objective=objective, training=training,
    ), batch)  # fmt: skip
    if pairs_ratio != 1.0:
        problem = replace(problem, model_spec=masked(problem.model_spec, pairs_ratio))
    if check is None:
        return _asking_again.check_infeasible(problem, entry, place)
    found: Verdict = check(problem, entry, place, *_telling(module, told))
    return found


def _asked_batch(entry: dict[str, Any]) -> Batch:
    """Return the samples that an answer without a plan was asked for."""
    from meshwright.core.problem import Batch

    told = entry["batch"]
    return Batch(int(told["asked_global_batch"]), int(told["asked_micro_batch"]), int(told["sequence_length"]))


def _stopped(time_limit: str, as_json: bool) -> int:
    """Say that a check did not come to its end; return the exit status."""
    import json

    from meshwright.base.units import format_seconds
    from meshwright.commands._early import seconds_of

    reason = f"stopped after {format_seconds(seconds_of(time_limit))}, before its end: nothing is confirmed and nothing refuted"
    if as_json:
        head = {"format": "meshwright/check/1", "valid": False, "stopped": True, "value": None, "bound": None}
        print(json.dumps({**head, "reason": reason}))
    else:
        print(f"not checked: {reason}")
    return 2


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def check(
        certificate: str = typer.Argument(
            help="An answer of 'meshwright plan' or 'codesign' (--out), also that nothing fits, or a file written by --set "
            "certificate=FILE."
        ),
        model: str = typer.Option("", help="Where the model of a plan lies, if no longer where the plan says."),
        time_limit: str = typer.Option("", metavar="T", help="Stop then (30s); a check that was stopped confirms nothing."),
        json_: _options.AsJson = False,
    ) -> int:
        """Verify that an answer costs what it says and that none costs less than its bound; say what was not looked at."""
        import json

        from meshwright.base import files
        from meshwright.commands import _early
        from meshwright.core.source import Source
        from meshwright.report.progress import progress

        source = Source(certificate)
        files.read_bytes(source.path or certificate, hint="name a file written by 'meshwright plan --out'")  # or says why not
        with _early.limited(time_limit):
            try:
                with progress(f"checking {certificate}") as told:
                    verdict = _verdict(source.json, certificate, model, told)
            except _early.TimeUp:
                return _stopped(time_limit, json_)
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
