"""Advice on a run as its framework's own configuration says it: is it legal, does it fit, how fast, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, ModuleType
from typing import Any

from meshwright import api, frameworks, models, sim, validation
from meshwright.api import plan_files
from meshwright.api.advise import climbing
from meshwright.api.advise.climbing import Rung
from meshwright.api.evaluation import evaluate
from meshwright.base import files, registry
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Batch, MixedPrecision, ModelSpec, Problem, Stop
from meshwright.core.result import Answer, Objective, Result
from meshwright.core.run_config import RunConfig
from meshwright.validation import MeasuredRun, TraceCauses

__all__ = ["Advice", "Rung", "advise", "as_json", "framework_of_file"]


_OPTIONS: Mapping[str, str] = MappingProxyType({
    "tensor": "--tensor-model-parallel-size", "pipeline": "--pipeline-model-parallel-size",
    "context": "--context-parallel-size", "expert": "--expert-model-parallel-size",
    "micro_batch": "--micro-batch-size",
})  # fmt: skip
"""Where a log of Megatron-LM's options has what a plan says."""


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """What is said of a configuration.

    Parameters
    ----------
    said : RunConfig
        The configuration.
    result : Result
        Its plan, priced.
    refusals : tuple of str
        Why the framework does not run the plan as it stands; empty where it is legal.
    missing_bytes : float
        How much memory its fullest device lacks; 0 where it fits.
    changes : tuple of Rung
        Each difference to the best plan as a change by itself, the most helpful first.
    ladder : tuple of Rung
        One change after another, each on top of those before, up to the best plan.
    best : Result or None
        The best plan of the framework; None where nothing fits.
    measured : TraceCauses or MeasuredRun or None
        What a trace or a log of the run says; None where none was given.
    measured_seconds : float
        Of a step, by it; 0 where none was given.
    """

    said: RunConfig
    result: Result
    refusals: tuple[str, ...]
    missing_bytes: float
    changes: tuple[Rung, ...]
    ladder: tuple[Rung, ...]
    best: Result | None
    measured: TraceCauses | MeasuredRun | None = None
    measured_seconds: float = 0.0


def framework_of_file(path: str) -> str:
    """Return the framework whose configuration a file is.

    Raises
    ------
    InputError
        When it cannot be read, or is that of none or of several.
    """
    found = frameworks.recognised(files.read_text(path))
    if len(found) != 1:
        modules = registry.asked("frameworks", "framework", lambda module: hasattr(module, "read"))
        known = ", ".join(sorted(name for name, _, readable in modules if readable))
        which = f"could be of {' and '.join(found)}" if found else f"is no configuration of {known}"
        raise InputError(f"{path}: {which}; say whose it is: --for NAME")
    return found[0]


def advise(
    path: str, cluster: str, model: str = "", *, framework: str = "", sequence_length: int = 0, against: str = "",
    stop: Stop | None = None,
) -> Advice:  # fmt: skip
    """Read a configuration and say what can be said of it.

    Parameters
    ----------
    path : str
        The file: a framework's, or a plan of ours.
    cluster : str
        As on the command line.
    model : str
        As on the command line; empty for the one that the file names (torchtitan's flavor, our script) or describes
        (Megatron-LM's options).
    framework : str
        Whose file it is, as after ``--for``; empty to recognise it.
    sequence_length : int
        Tokens of a sample, where the file does not say; 0 for the model's own.
    against : str
        A trace of PyTorch's profiler or a log of the run, to be put beside the prediction; empty for none.
    stop : Stop or None
        When to stop the search for the best plan.

    Returns
    -------
    Advice
        Legality, memory, time, changes.

    Raises
    ------
    InputError
        When the file, the model, the cluster or what was measured is wrong, or they contradict each other, or the file does
        not say the model.
    """
    if plan_files.is_plan(path):
        said, problem = _of_plan(path, cluster, model, framework)
        module = None
    else:
        word = framework or framework_of_file(path)
        frameworks.find(word)
        module = frameworks.load(frameworks.writer(word))
        if not hasattr(module, "read"):
            raise InputError(f"{path}: --for {word}: there is no reader of its configuration")
        said, problem = _of_configuration(module, word, path, (cluster, model, sequence_length))
    plan = said.plan
    refusals = frameworks.refusals(problem.framework, plan, problem)
    if module is not None and hasattr(module, "on_devices"):
        stops, notes = module.on_devices(said, problem, path)
        refusals, said = (*refusals, *stops), replace(said, warnings=(*said.warnings, *notes))
    result = _priced(problem, plan)
    assert result.timeline is not None
    missing = max(0.0, sim.excess_bytes(problem, plan, result.timeline.peak_bytes))
    measured, seconds = _measured(against, result) if against else (None, 0.0)
    best = api.plan(problem, search="best", settings=climbing.NO_RUNNERS_UP, stop=stop)
    if best.answer.extra.get("stopped_early") is True:
        what = "a quicker plan may exist" if best.feasible else "no plan was found until then; that there is none is not proven"
        said = replace(said, warnings=(*said.warnings, f"stopped before its end, as asked: {what}"))
    if best.feasible and not (missing or refusals) and not _quicker(best, result):
        best = result  # a search that was stopped early may not have come as far
    changes: tuple[Rung, ...] = ()
    ladder: tuple[Rung, ...] = ()
    if best.feasible and best is not result:
        changes, ladder = climbing.climb(result, missing, best, bool if stop is None else stop.is_asked)
    return Advice(said, result, refusals, missing, changes, ladder, best if best.feasible else None, measured, seconds)


def _of_plan(path: str, cluster: str, model: str, framework: str) -> tuple[RunConfig, Problem]:
    """Return what a plan file of ours says and asks, on a cluster."""
    found = plan_files.load(path, cluster, model, framework=framework)
    return RunConfig(found.plan, found.problem.training.precision), found.problem


def _of_configuration(module: ModuleType, word: str, path: str, asked: tuple[str, str, int]) -> tuple[RunConfig, Problem]:
    """Return what a configuration of a framework says, and the question that it answers.

    `asked`: cluster, model (empty: the file's own), tokens of a sample (0: the file's, or the model's).
    """
    from meshwright import clusters
    from meshwright.clusters import left

    cluster, model, sequence_length = asked
    place = clusters.cluster(cluster)
    spec = api.read(model) if model else _model_of(module, path, 0)
    said: RunConfig = module.read(path, spec.graph, place.n_devices)
    named: str | ModelSpec = model or spec
    word = f"{word}:{said.variant}" if said.variant and (word in frameworks.names() or word.endswith(".toml")) else word
    plan, length = said.plan, said.sequence_length or sequence_length
    if plan.n_devices > place.n_devices:
        raise InputError(f"{path}: runs on {plan.n_devices} devices; cluster {cluster} has {place.n_devices}")
    if plan.n_devices < place.n_devices:
        what = f"runs on {plan.n_devices} of the {place.n_devices} devices of {cluster}; so do the changes below"
        said = replace(said, warnings=(*said.warnings, f"{path}: {what}"))
    if not model and length not in (0, spec.graph.sequence_length):
        named = spec = _model_of(module, path, length)
    if said.attention and model:
        named = models.read(model, sequence_length=length, attention=said.attention)
    if said.lora or said.objective:
        named = _adapted(named, said, length)
    place = left.first(place, cluster, plan.n_devices)
    problem = api.make_problem(
        named, place, batch=Batch(plan.global_batch, 0, length), framework=word,
        training=said.training or (MixedPrecision.of(said.precision) if said.precision else None),
    )  # fmt: skip
    try:
        sim.check_plan(problem, plan)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return said, problem


def _measured(path: str, result: Result) -> tuple[TraceCauses | MeasuredRun, float]:
    """Return what a trace or a log says, and the seconds of a step by it."""
    if validation.is_trace(path):
        trace = validation.trace_causes(path)
        return trace, trace.step_seconds
    run, plan, problem = validation.measured_run(path), result.plan, result.problem
    validation.check_log(run, problem.graph, problem.required_cluster)
    name, _, which = run.framework.partition(":")
    own, precision = problem.framework, run.settings.get("precision", "")
    notes = list(run.notes)
    if (which and which != own.variant) if name == own.holds_as else not validation.alike(name, own.holds_as):
        notes.append(f"{path}: lines of {run.framework}, for a configuration of {own.word if which else own.name}")
    if precision not in ("", problem.training.precision):
        notes.append(f"{path}: products in {precision}, for a configuration with {problem.training.precision}")
    degrees = {name: getattr(plan.stages[0].strategy, name) for name in ("data", "tensor", "context", "expert")}
    degrees |= {"pipeline": len(plan.ranks()), "devices": plan.n_devices, "global batch": plan.global_batch}
    degrees["micro_batch"] = plan.micro_batch
    own_options = {name: " ".join(run.options[option]) for name, option in _OPTIONS.items() if option in run.options}
    told = {**own_options, **run.settings, "global batch": str(run.global_batch or plan.global_batch)}
    notes += [
        f"{path}: {name.replace('_', '-')} {told[name]}, for a configuration with {degree}"
        for name, degree in degrees.items()
        if told.get(name, str(degree)) != str(degree)
    ]
    return replace(run, notes=tuple(notes)), run.seconds_of(plan.global_batch, problem.graph.sequence_length, plan.n_devices)


def _quicker(one: Result, other: Result) -> bool:
    """Return whether a plan's step takes less time than another's."""
    assert one.timeline is not None and other.timeline is not None
    return one.timeline.step_seconds < other.timeline.step_seconds


def _model_of(module: ModuleType, path: str, sequence_length: int) -> ModelSpec:
    """Return the model that a file names or describes."""
    if not hasattr(module, "model_of"):
        raise InputError(f"{path}: a configuration of {module.FRAMEWORK.name} does not say the model; give --model")
    spec: ModelSpec = module.model_of(path, sequence_length)
    return spec


def _adapted(named: str | ModelSpec, said: RunConfig, sequence_length: int) -> ModelSpec:
    """Return a model of which only adapters are trained, or that is trained on pairs."""
    from meshwright.models import fine_tuning, preference_pairs

    spec = named if isinstance(named, ModelSpec) else api.read(named, sequence_length=sequence_length)
    spec = fine_tuning.fine_tuned(spec, (), said.lora) if said.lora else spec
    return preference_pairs.with_objective(spec, said.objective)


def _priced(problem: Problem, plan: Plan) -> Result:
    """Return a plan with what its stages do and the step."""
    stage_costs, timeline = evaluate(problem, plan)
    if timeline is None:
        raise InputError(f"costs {problem.costs}: cannot say how long the stages of this plan take")
    answer = Answer(plan=plan, objective=Objective("step_seconds", timeline.step_seconds))
    return Result(problem, "advise", 0, answer, stage_costs, timeline)


def as_json(advice: Advice, path: str) -> dict[str, Any]:
    """Return the advice as the JSON object of ``advise --json``: the fields of ``plan --json`` for the plan read, and more."""
    from meshwright.writers import plan_json

    own = advice.result.timeline
    assert own is not None

    def row(rung: Rung) -> dict[str, Any]:
        timeline = None if rung.result is None else rung.result.timeline
        seconds = None if timeline is None else timeline.step_seconds
        return {
            "axis": rung.axis, "before": rung.before, "after": rung.after, "step_seconds": seconds,
            "difference_ratio": None if seconds is None else seconds / own.step_seconds - 1.0,
            "peak_bytes": None if timeline is None else max(timeline.peak_bytes), "reason": rung.reason or None,
            "also": list(rung.also),
        }  # fmt: skip

    best = advice.best
    return plan_json.as_json(advice.result) | {
        "file": path, "legal": not advice.refusals, "refusals": list(advice.refusals), "warnings": list(advice.said.warnings),
        "fits": advice.missing_bytes == 0.0, "missing_bytes": advice.missing_bytes,
        "changes": [row(rung) for rung in advice.changes], "ladder": [row(rung) for rung in advice.ladder],
        "best": None if best is None else plan_json.as_json(replace(best, answer=replace(best.answer, extra={}))),
        "against": None if advice.measured is None else _against(advice),
    }  # fmt: skip


def _against(advice: Advice) -> dict[str, Any]:
    """Return what was measured beside what is predicted."""
    measured, timeline = advice.measured, advice.result.timeline
    assert measured is not None and timeline is not None
    by_trace = isinstance(measured, TraceCauses)
    rows = validation.beside(measured, timeline.causes) if isinstance(measured, TraceCauses) else ()
    return {
        "file": measured.file, "kind": "trace" if by_trace else "log",
        "step_seconds": {"measured": advice.measured_seconds, "predicted": timeline.step_seconds},
        "peak_bytes": {
            "measured": (measured.allocated_bytes or None) if isinstance(measured, MeasuredRun) else None,
            "predicted": max(timeline.allocated_bytes, default=None),
        },
        "causes": {name: {"measured": seconds, "predicted": said} for name, seconds, said in rows},
        "notes": list(measured.notes),
    }  # fmt: skip
