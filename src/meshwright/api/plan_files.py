"""A plan that is there already, judged: from a file, what its search said kept; or typed as a paper's table has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright import api, sim
from meshwright.api import answers, targets
from meshwright.api.evaluation import judged
from meshwright.base import fields, files, options, registry
from meshwright.base.errors import InputError
from meshwright.base.units import format_seconds
from meshwright.core import peaks, plan_fields
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Bound, Objective, Result
from meshwright.models.documents import masked
from meshwright.writers import plan_json

__all__ = ["given", "is_plan", "load", "missing_bytes", "problem_as_long", "read_plan", "resimulate"]

_NOT_SEARCHED = "the plan was given, not searched for: there may be better ones"
_ROUNDING = 1e-9  # of a step, by which a file's and the one played may differ
_FULL = ("lengths", None)  # as a plan for full samples says it


def is_plan(path: str) -> bool:
    """Return whether a file is an answer of ours; whoever reads it says what is wrong with one."""
    try:
        content = files.load_json(files.read_text(path))[0]
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == plan_json.FORMAT


def read_plan(path: str) -> dict[str, Any]:
    """Return the JSON object of a plan file.

    Raises
    ------
    InputError
        When the file cannot be read, is no JSON object of ours, or a field is of the wrong kind.
    """
    content = files.read_json(path, "name a file written by 'meshwright plan --out'")
    entry = fields.of_format(content, path, plan_json.FORMAT, "a plan of ours")
    plan_fields.check(entry, path)
    return entry


def load(path: str, cluster: str = "", model: str = "", *, framework: str = "") -> Result:
    """Return the question and the plan of a plan file: its model read, its cluster resolved, what its stages do recomputed.

    Parameters
    ----------
    path : str
        A file written by ``meshwright plan --out``.
    cluster : str
        Another cluster than the plan's; empty for its own.
    model : str
        Where the model lies now; empty for where it was.
    framework : str
        Another framework than the plan's, as after ``--for``; empty for its own.

    Returns
    -------
    Result
        With plan; with loads and timeline where the cost model can tell; with objective, bound and what else the search said
        where the question is the file's own.

    Raises
    ------
    InputError
        When the file, the model or the cluster is wrong, or they do not go together.
    """
    entry = read_plan(path)
    if not entry.get("feasible"):
        raise InputError(f"{path}: holds the answer that nothing fits, so there is no plan to work with")
    try:
        place = cluster or plan_json.cluster_from_json(entry, path)
        spec, file_format = (model, "") if model else (entry["model"]["spec"], entry["model"]["format"])
        length = entry.get("batch", {}).get("sequence_length", 0)
        batch = Batch(entry["schedule"]["global_batch"], entry["schedule"]["micro_batch"], length)
        training = plan_json.training_from_json(entry)
        memory_risk = peaks.risk(entry.get("memory_risk", peaks.PLAIN_RISK), f"{path}: memory_risk")
        search, seed, costs = str(entry["search"]), int(entry["seed"]), str(entry["costs"])
        planning_seconds, run_by = float(entry["planning_seconds"]), framework or str(entry.get("for") or "")
        settings = {str(key): str(value) for key, value in entry.get("settings", {}).items()}
        freeze, lora, objective = plan_json.trained_part(entry)
        pairs_ratio = float(entry["model"].get("pairs_ratio", 1.0))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: a field is missing or of the wrong kind: {error}") from None
    _as_asked(entry, batch, path)
    asked = problem_as_long(partial(
        api.make_problem, spec, place or None, file_format=file_format, freeze=freeze, lora=lora, costs=costs,
        training=training, framework=run_by, memory_risk=memory_risk, objective=objective,
    ), batch)  # fmt: skip
    asked = replace(asked, model_spec=masked(asked.model_spec, pairs_ratio)) if pairs_ratio != 1.0 else asked
    problem = api.completed(asked, search, settings)
    plan = plan_json.plan_from_json(entry, {op.name: i for i, op in enumerate(problem.graph.ops)}, path)
    try:
        sim.check_plan(problem, plan)
    except InputError as error:
        hint = f"; is this the plan of another model than {model}?" if model else ""
        raise InputError(f"{path}: {error}{hint}") from None
    for i, stage in enumerate(plan.stages):
        if len(stage.recompute) not in (0, len(stage.ops)):
            raise InputError(
                f"{path}: stage {i}: recompute has {len(stage.recompute)} words for {len(stage.ops)} layers; give one for "
                "each, or none"
            )
    targets.checked(Result(problem, search, seed, Answer(plan=plan)))
    answer = Answer(plan=plan) if cluster or model or framework else _answer(entry, Answer(plan=plan), path)
    return judged(Result(problem, search, seed, answer, (), None, planning_seconds, settings, asked))


def problem_as_long(make: Callable[..., Problem], batch: Batch) -> Problem:
    """Return the question of a file, its model read at the file's length.

    Parameters
    ----------
    make : callable
        `meshwright.api.make_problem` with all but ``batch``.
    batch : Batch
        With the file's `sequence_length`. One token is also what files of models without a length say: these are read as they
        are.

    Raises
    ------
    InputError
        As `meshwright.api.make_problem`.
    """
    if batch.sequence_length == 1:
        asked = make(batch=replace(batch, sequence_length=0))
        if asked.graph.sequence_length == 1:
            return asked
    return make(batch=batch)


def _as_asked(entry: dict[str, Any], batch: Batch, place: str) -> None:
    """Refuse a plan of another global batch than was asked for."""
    wanted = entry.get("batch", {}).get("asked_global_batch", 0)
    if wanted not in (0, batch.global_batch):
        raise InputError(
            f"{place}: batch.asked_global_batch is {wanted}, but schedule.global_batch is {batch.global_batch}; a plan has the "
            "batch that was asked for: make them the same, or the first one 0"
        )


def _answer(entry: dict[str, Any], answer: Answer, place: str) -> Answer:
    """Return the answer with what the search said of it."""
    try:
        objective, bound = entry.get("objective"), entry.get("bound")
        return replace(
            answer,
            objective=Objective(str(objective["name"]), float(objective["value"])) if objective else None,
            bound=Bound(float(bound["value"]), str(bound["method"])) if bound else None,
            extra={name: entry[name] for name in entry if name not in plan_fields.FIELDS and (name, entry[name]) != _FULL},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None


def resimulate(path: str, cluster: str = "", model: str = "", *, framework: str = "") -> Result:
    """Play a plan file again: as `load`, but refuses what it cannot, and keeps what a search said of this step only.

    Parameters
    ----------
    path, cluster, model, framework : str
        As of `load`.

    Returns
    -------
    Result
        With plan, loads and timeline.

    Raises
    ------
    InputError
        As `load`, and when the cost model cannot tell how long stages take.
    """
    result = load(path, cluster, model, framework=framework)
    if result.timeline is None:
        raise InputError(
            f"{path}: the cost model '{result.problem.costs}' cannot tell how long the stages of "
            f"{result.problem.model_spec.name} take"
        )
    return _as_played(result)


def _as_played(result: Result) -> Result:
    """Return a result without what its file says of the search where the plan was edited, or is priced otherwise since."""
    assert result.timeline is not None
    answer, step = result.answer, result.timeline.step_seconds
    said, bound = answer.objective, answer.bound
    if said is None or said.name != "step_seconds":
        return result
    if abs(said.value - step) <= _ROUNDING * step and (bound is None or bound.value <= step * (1.0 + _ROUNDING)):
        return result
    above = f" and a bound of {format_seconds(bound.value)}" if bound else ""
    note = (
        f"the file says {format_seconds(said.value)} a step{above}, its plan takes {format_seconds(step)}: it was edited, or "
        "is priced otherwise today; nothing that the file says of the search is repeated"
    )
    return replace(result, answer=Answer(plan=answer.plan, notes=(note,)))


def missing_bytes(result: Result) -> float:
    """Return how much more the fullest device needs than it has.

    Parameters
    ----------
    result : Result
        With plan.

    Returns
    -------
    float
        0 where the plan fits, or nothing is known of the devices.
    """
    timeline = result.timeline
    if timeline is None:
        return 0.0
    return max(0.0, sim.excess_bytes(result.problem, result.plan, timeline.peak_bytes))


def given(model: str, text: str, cluster: str = "", *, settings: Mapping[str, str] | None = None) -> Result:
    """Return a plan that was typed, with what it costs in the cost model of its paper, and the simulated step.

    Parameters
    ----------
    model : str
        A file or name whose search (`ModelSpec.search`) reads typed plans: a measured profile (``dapple``), a Piper file
        (``piper``), a PaSE graph (``pase``).
    text : str
        The plan: ``8:8@13:6``, ``4x2:4x2r@16:18``, ``*=b/8; fc*=n/8``.
    cluster : str
        Where it runs; empty for what the model or the options say.
    settings : mapping of str to str or None
        Options of that search that say something of a given plan, as after ``--set``.

    Returns
    -------
    Result
        With plan and objective, without a bound; its timeline is None where the cost model says nothing in seconds.

    Raises
    ------
    InputError
        When the text is no plan of the model, an option is wrong or of searching, or the model's search reads no typed plans.
    """
    model_spec = api.read(model)
    name, told = model_spec.search, dict(settings or {})
    module = registry.load("search", name, "search")
    if not hasattr(module, "given"):
        raise InputError(
            f"--fix: {model_spec.name} has no tables of a paper; give parts of its plan to 'meshwright plan {model} --fix "
            "tensor=8,pipeline=4', or a plan file to simulate"
        )
    asked = api.make_problem(model_spec, cluster or None)
    params = options.parse(module.Params, told, f"search {name}")
    for key in told:
        if key not in module.GIVEN:
            raise InputError(f"--set {key}: says how to search; with --fix only {', '.join(module.GIVEN)} can be set")
    answer: Answer = module.given(asked, params, text)
    answer = replace(answer, notes=(*asked.model_spec.notes, *answer.notes, _NOT_SEARCHED))
    problem = answers.same_question(asked, answer.problem or asked, name)
    assert answer.plan is not None
    answers.check_plan(problem, answer.plan, name)
    return judged(Result(problem=problem, search=name, seed=0, answer=answer, settings=told, asked=asked))
