"""The framework of a question: which one a word names, and which others run the plan that was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from meshwright import frameworks
from meshwright.api.evaluation import evaluate, simulate, stage_costs_of
from meshwright.base import files, registry
from meshwright.base.errors import ExportError, InputError, PluginError
from meshwright.base.units import format_count
from meshwright.core.cluster import Cluster
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.plan_forms.exceeded import exceeded, exceeded_by_any
from meshwright.core.problem import MixedPrecision, ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.costs import knows_frameworks

__all__ = [
    "Near",
    "Target",
    "as_json",
    "checked",
    "framework_of",
    "nearest",
    "runnable_at_all",
    "runs_on",
    "states_known",
    "trainable",
    "untold",
    "whole_only",
    "with_targets",
]


@dataclass(frozen=True, slots=True)
class Target:
    """A framework and a plan.

    Parameters
    ----------
    word : str
        The framework, with the variant that suits the question.
    step_seconds : float
        What a step takes as it runs the plan; 0 where it cannot.
    refusals : tuple of str
        Why it cannot; empty where it runs the plan exactly.
    near : Near or None
        Where it cannot: the quickest plan with the same stages and degrees that it runs and that fits; None for none.
    """

    word: str
    step_seconds: float
    refusals: tuple[str, ...]
    near: Near | None = None


@dataclass(frozen=True, slots=True)
class Near:
    """A plan with the same stages and degrees that a framework runs: what is changed, in words, and what a step takes then."""

    plan: Plan
    changed: str
    step_seconds: float


def framework_of(word: str, spec: ModelSpec, cluster: Cluster | None, costs: str, training: MixedPrecision) -> Framework:
    """Return the framework that a word after ``--for`` names, in the variant that suits the question.

    `word`: empty for the one that is assumed where costs know frameworks at all.

    Raises
    ------
    InputError
        When there is none of this name, or the cost model knows no frameworks.
    """
    if knows_frameworks(costs) and any(op.body for op in spec.graph.ops):
        found = frameworks.for_problem(word, spec.graph, cluster, training.precision)
        found = frameworks.suited(found, spec, training.optimizer)
        if word and (elsewhere := frameworks.not_there(found, cluster)):
            raise InputError(f"--for {word}: {elsewhere[0]}; plan for one of them, or on another cluster")
        if word and spec.graph.n_sequences > 1 and not found.limits.preference_pairs:
            raise InputError(
                f"--for {word}: {found.word} trains on single sequences, not on pairs (--objective {spec.objective}); plan for "
                "transformers, whose TRL does, or leave --for out"
            )
        if word and not (found.limits.frozen_weights or spec.graph.fully_trained):
            raise InputError(
                f"--for {word}: {_frozen(spec.graph)}, and {found.word} trains all weights of a model; plan for another"
            )
        return found
    if word:
        why = (
            "the model's layers do not say what they compute"
            if knows_frameworks(costs)
            else f"costs {costs} know no frameworks"
        )
        raise InputError(f"--for {word}: {why}; leave it out")
    return Framework()


def whole_only(
    graph: Graph,
    module: ModuleType,
    what: str,
    instead: str = "leave the option out: search best with costs analytic counts what is trained",
) -> None:
    """Refuse a model with frozen weights where a cost model or search would count gradients and state for all of them.

    `what`: how it is called in the message; `instead`: what to do. Modules that count only trained weights say so:
    ``FROZEN = True``.
    """
    if not graph.fully_trained and not getattr(module, "FROZEN", False):
        raise InputError(
            f"{what}: {_frozen(graph)}, and it counts gradients and optimizer state of all of them (a plug-in says by FROZEN "
            f"= True that it does not); {instead}"
        )


def states_known(
    training: MixedPrecision,
    module: ModuleType,
    what: str,
    says: str = "STATES",
    instead: str = "leave the option out: search best with costs analytic counts it",
) -> None:
    """Refuse another optimizer than mixed-precision Adam where a cost model, search or writer would count Adam's state.

    `what`: how it is called in the message; `instead`: what to do. Modules that count what is told say so: ``STATES = True``,
    writers by ``FROZEN``.
    """
    usual = training.usual_optimizer and training.state_bytes == MixedPrecision().state_bytes
    if not usual and not getattr(module, says, False):
        raise InputError(
            f"{what}: the optimizer is {training.optimizer} with numbers of {training.state_bytes} bytes, and it counts only "
            f"Adam's state in fp32 (a plug-in says by {says} = True that it counts others); {instead}"
        )


def trainable(problem: Problem) -> Problem:
    """Return a problem whose optimizer its costs know, its framework has, and its model's weights suit.

    Raises
    ------
    InputError
        When one of them does not hold.
    """
    module, training = registry.load("costs", problem.costs, "cost model"), problem.training
    states_known(training, module, f"costs {problem.costs}")
    reason = module.unknown_state(problem) if hasattr(module, "unknown_state") else ""
    known = problem.framework.limits.optimizers
    if not reason and problem.framework_asked and known and training.optimizer not in known:
        reason = f"--for {problem.framework_asked}: it has no optimizer {training.optimizer}; it has {', '.join(known)}"
    if not reason and problem.framework_asked and problem.graph.quantised and not problem.framework.limits.quantised_base:
        reason = (
            f"--for {problem.framework_asked}: it holds no frozen weights in four bits; plan without base=4bit, or for another"
        )
    if reason:
        raise InputError(reason)
    return problem


def _frozen(graph: Graph) -> str:
    frozen, whole = format_count(graph.n_frozen_parameters), format_count(graph.n_parameters)
    return f"{frozen} of the {whole} weights of {graph.name} are frozen"


def runnable_at_all(problem: Problem) -> None:
    """Refuse a model and a training that no plan of the framework asked for runs.

    Raises
    ------
    InputError
        With all that is outside of it.
    """
    if not problem.framework_asked:
        return
    training, limits = problem.training, problem.framework.limits
    reasons = exceeded_by_any(limits, problem.graph, training.precision, training.optimizer)
    if reasons:
        raise InputError(
            f"--for {problem.framework_asked}: cannot train this: {'; '.join(reasons)}. Ask for what it has (--precision, "
            "--optimizer, ...), or plan for another framework ('meshwright list frameworks')"
        )


def checked(result: Result, *, searched: bool = False) -> Result:
    """Return a result whose plan the framework asked for runs exactly.

    `searched`: whether the plan was searched within the framework's limits, and not given.

    Raises
    ------
    InputError
        When it does not: all that is outside of it.
    """
    problem = result.problem
    if not problem.framework_asked or result.answer.plan is None:
        return result
    reasons = frameworks.refusals(problem.framework, result.plan, problem)
    if reasons and searched:
        raise InputError(
            f"--for {problem.framework_asked}: the best plan by its limits is one that it cannot run: {'; '.join(reasons)}. "
            "Where that is of degrees, give others with --fix; else plan for another framework ('meshwright list frameworks')"
        )
    if reasons:
        raise InputError(
            f"--for {problem.framework_asked}: cannot run this plan: {'; '.join(reasons)}. 'meshwright plan ... --for "
            f"{problem.framework_asked}' finds the best plan that it can run"
        )
    return result


def untold(result: Result) -> tuple[str, ...]:
    """Return, in one sentence, why the configuration of the framework asked for cannot say a plan; empty where it can."""
    problem = result.problem
    name = problem.framework.name if problem.framework_asked and knows_frameworks(problem.costs) else ""
    reason = _unwritten(result, frameworks.load(name)) if name in frameworks.names() else ""
    if not reason:
        return ()
    reason = reason.partition(f". {frameworks.searched(name)}")[0]  # which is what found it
    return (f"export --to {name} refuses this plan: {reason}; the plan is what {name} would run if it could be told it",)


def _unwritten(result: Result, module: ModuleType) -> str:
    """Return why a framework of ours cannot be told a plan, or that it has no such model; empty where it can."""
    name = module.FRAMEWORK.name
    if not hasattr(module, "write") or registry.package("frameworks", name):
        return ""
    with files.drafts():  # nothing is kept, and no disk is needed
        try:
            module.write(result, "plan.py")
        except ExportError as error:
            return str(error).removeprefix(f"{name}: ")
    return ""


def _lacking(result: Result, own: Framework, plan: Plan) -> str:
    """Return why a framework that trains only its own models does not have a result's, with some plan; empty where it does."""
    module = frameworks.load(own.name)
    if not getattr(module, "OWN_MODELS", False):
        return ""
    posed = replace(result.problem, framework=own)
    return _unwritten(replace(result, problem=posed, answer=replace(result.answer, plan=plan)), module)


def runs_on(result: Result) -> tuple[Target, ...]:
    """Return, for every framework there is, what a step takes as it runs the plan, or why it cannot."""
    problem, plan, found = result.problem, result.plan, []
    precision = problem.training.precision
    for name in frameworks.names():
        try:
            own = frameworks.for_problem(name, problem.graph, problem.cluster, precision)
            reasons = (*frameworks.refusals(own, plan, problem), *frameworks.unstarted(own, plan, problem.cluster))
        except PluginError as error:  # nobody named it
            registry.warn(f"{error}; it is left out")
            continue
        seconds, near = 0.0, nearest(result, own.word) if reasons else None
        if not reasons and (lacking := _lacking(result, own, plan)):
            reasons = (lacking,)
        if not reasons:
            known = result.timeline if own == problem.framework else None
            timeline = known or evaluate(replace(problem, framework=own), plan)[1]
            seconds = 0.0 if timeline is None else timeline.step_seconds
        found.append(Target(own.word, seconds, reasons, near))
    return tuple(found)


def as_json(targets: tuple[Target, ...]) -> dict[str, Any]:
    """Return the fields on frameworks: ``runs_on`` (those that run the plan exactly) and ``frameworks`` (all, with reasons)."""
    return {
        "runs_on": [one.word for one in targets if not one.refusals],
        "frameworks": [
            {
                "name": one.word,
                "step_seconds": one.step_seconds or None,
                "refusals": list(one.refusals),
                "nearest": None
                if one.near is None
                else {
                    "changed": one.near.changed,
                    "step_seconds": one.near.step_seconds,
                },
            }
            for one in targets
        ],
    }


def with_targets(result: Result) -> Result:
    """Return a result that says which frameworks run its plan, in its fields and in notes."""
    problem = result.problem
    if not problem.framework.name or result.answer.plan is None:
        return result
    targets = runs_on(result)
    others = sorted((one for one in targets if one.word != problem.framework.word), key=lambda one: -one.step_seconds)
    run = ", ".join(f"{one.word} ({one.step_seconds:.4g} s)" for one in others if not one.refusals)
    cannot = "; ".join(f"{one.word}: {one.refusals[0]}{_instead(one)}" for one in others if one.refusals)
    notes, exactly = (
        [],
        f"others that run this plan exactly, the slowest first: {run}" if run else "no other one runs it exactly",
    )
    if not problem.framework_asked:
        notes.append(
            f"no --for given: {problem.framework.word}, our own runtime, is assumed: eager PyTorch, with figures measured "
            f"under other eager frameworks, none of them on this one; {exactly}"
        )
        notes += [
            f"{problem.framework.word}: {reason}; the step is what it would take if it did"
            for reason in frameworks.not_there(problem.framework, problem.cluster)
        ]
        if cannot:
            notes.append(f"frameworks that cannot run this plan ('--for NAME' plans for one): {cannot}")
    if problem.framework_asked and not problem.framework.limits.sequence_parallel:
        notes.append(
            f"{problem.framework.word} has no sequence parallelism, which the search puts beside every tensor degree: "
            "plans with one are left out"
        )
    extra = {**result.answer.extra, **as_json(targets)}
    return replace(result, answer=replace(result.answer, notes=(*result.answer.notes, *notes), extra=extra))


def _instead(target: Target) -> str:
    return f" (with {target.near.changed}: {target.near.step_seconds:.4g} s)" if target.near else ""


def nearest(result: Result, name: str) -> Near | None:
    """Return the quickest plan that a framework runs and that fits, of those with the stages and degrees of a plan.

    What all layers recompute, what the data axis shards, the schedule and the order of gradient rings may be others where the
    framework does not have the plan's; nothing is searched. None where degrees or stages have to change too.
    """
    from meshwright import sim

    problem, plan = result.problem, result.plan
    if not knows_frameworks(problem.costs):
        return None
    own = frameworks.for_problem(name, problem.graph, problem.cluster, problem.training.precision)
    posed, found = replace(problem, framework=own), None
    for near, changed in _neighbours(own, plan, problem):
        if frameworks.refusals(own, near, posed) or frameworks.unstarted(own, near, problem.cluster):
            continue
        stage_costs = stage_costs_of(posed, near)
        if not stage_costs:
            continue
        if found is not None and sim.least_seconds(posed, near, stage_costs) >= found.step_seconds:
            continue
        timeline = simulate(posed, near, stage_costs)
        if sim.excess_bytes(posed, near, timeline.peak_bytes) > 0.0:
            continue
        if found is None or timeline.step_seconds < found.step_seconds:
            found = Near(near, ", ".join(changed), timeline.step_seconds)
    return None if found is not None and _lacking(result, own, found.plan) else found


def _neighbours(own: Framework, plan: Plan, problem: Problem) -> Iterator[tuple[Plan, list[str]]]:
    """Yield a plan with every setting that a framework has in place of one that it has not, and what was changed, in words."""
    from meshwright.costs import analytic

    limits, strategy = own.limits, plan.stages[0].strategy
    bare = replace(plan, stages=tuple(replace(stage, ring=()) for stage in plan.stages)) if not limits.gradient_rings else plan
    dropped = ["gradient rings of the library's own"] if bare != plan else []
    split = strategy.data * strategy.context > 1
    levels = limits.shards if split and strategy.shard not in limits.shards else (strategy.shard,)
    piped = len(plan.stages) > 1 and limits.schedules and plan.schedule not in limits.schedules
    alone = replace(FrameworkLimits(), recompute=limits.recompute, recompute_scope=limits.recompute_scope,
                    block_recompute=limits.block_recompute)  # fmt: skip
    inside = not exceeded(alone, bare, problem.graph)
    words = ("",) if inside else analytic.distinct_settings(problem.graph, limits.recompute)
    for level in levels:
        for schedule in limits.schedules if piped else (plan.schedule,):
            for word in words:
                near = _alike(bare, problem, word) if word else bare
                at = [replace(stage.strategy, shard=level, shard_degree=0 if level != stage.strategy.shard else
                              stage.strategy.shard_degree) for stage in near.stages]  # fmt: skip
                stages = tuple(replace(stage, strategy=one) for stage, one in zip(near.stages, at, strict=True))
                changed = [f"all layers recompute '{word}'"] if word else []
                changed += [f"sharding level {level}"] if level != strategy.shard else []
                changed += [f"schedule {schedule}"] if schedule != plan.schedule else []
                yield replace(near, stages=stages, schedule=schedule), [*changed, *dropped]


def _alike(plan: Plan, problem: Problem, word: str) -> Plan:
    """Return a plan whose layers between embedding and head all recompute alike."""
    ends = ("embedding", "head")
    return replace(plan, stages=tuple(
        replace(stage, recompute=tuple("none" if problem.graph.ops[op].kind in ends else word for op in stage.ops))
        for stage in plan.stages
    ))  # fmt: skip
