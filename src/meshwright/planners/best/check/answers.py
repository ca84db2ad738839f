"""Checks what an answer of search best claims: its plan, its bound and its gap, or that nothing fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from meshwright import sim
from meshwright.base.errors import InputError
from meshwright.core.framework import FrameworkLimits
from meshwright.core.problem import Batch, Framework, MixedPrecision, Problem, Stop
from meshwright.core.result import AnswerVerdict, Result
from meshwright.planners.best.check.member import outside
from meshwright.planners.best.check.proof import MOST_OPEN, ROUNDING, BoundProof, MeshShape
from meshwright.planners.best.check.space import Form, inside

__all__ = ["AnswerVerdict", "check_infeasible", "check_plan", "posed"]

_FORMAT = "meshwright/certificate/best/1"
_WEAKER = (0.999, 0.99, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5, 0.25, 0.1)
_NOT_CHECKED = (
    "the runners-up",
    "the notes, lengths and the word that the cluster came by",
    "what the search says of itself: seed, iterations, plans simulated and refused, whether it was stopped, within, the bound's method",
    "the fields that are said beside the plan: causes, memory by stage, throughput, intervals, the fastest plan, frameworks",
    "the cost model itself, which both search and check go by",
)
_UNTOLD = Stop()
_NO_SPACE = ("within_ratio", "alternatives")  # which plans are shown, not which there are


class _Refused(Exception):
    """The answer is refused, with the reason."""


def posed(problem: Problem, entry: Mapping[str, Any], place: str) -> Problem:
    """Return the question that an answer's certificate names, on the model and cluster of a problem.

    Parameters
    ----------
    problem : Problem
        Model and cluster.
    entry : mapping
        The answer as JSON.
    place : str
        Its file, for messages.

    Raises
    ------
    InputError
        When the certificate's question is missing or of the wrong kind.
    """
    try:
        asked = entry["certificate"]["question"]
        numbers = {name: int(asked[name]) for name in ("global_batch", "micro_batch", "sequence_length")}
        training, framework = MixedPrecision(**asked["training"]), _framework(asked["framework"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{place}: certificate.question: a field is missing or of the wrong kind: {error}") from None
    return replace(problem, batch=Batch(**numbers), training=training, framework=framework)


def _framework(asked: Mapping[str, Any]) -> Framework:
    """Return the framework of a question, whose limits are lists in JSON; `TypeError` where one is of the wrong kind."""
    if not isinstance(asked, Mapping):
        raise TypeError(f"framework is {asked!r}")
    told: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in asked.get("limits", {}).items()
    }
    limits, usual = FrameworkLimits(**told), FrameworkLimits()
    for one in fields(limits):
        if type(getattr(limits, one.name)) is not type(getattr(usual, one.name)):
            raise TypeError(f"framework.limits.{one.name} is {told[one.name]!r}")
    return Framework(**{**asked, "limits": limits})


def check_plan(
    result: Result, entry: Mapping[str, Any], place: str, limits: Mapping[str, Any], stop: Stop = _UNTOLD
) -> AnswerVerdict:
    """Check a plan of search best and its bound.

    Parameters
    ----------
    result : Result
        The answer's file taken up again: its plan was simulated anew.
    entry : mapping
        The file.
    place : str
        Its name, for messages.
    limits : mapping
        The options of the search as the file's settings give them.
    stop : Stop
        Is told how far the check has come.

    Returns
    -------
    AnswerVerdict
        Whether all of it holds.

    Raises
    ------
    InputError
        When a field is missing or of the wrong kind.
    """
    if result.timeline is None:
        return AnswerVerdict(False, math.nan, math.nan, "the plan cannot be simulated")
    value = result.timeline.step_seconds
    try:
        problem = _same_question(result.problem, entry, place, limits)
        limits = inside(problem, limits)
        bound = _claims(result, entry, place, problem, limits, value)
        proof = BoundProof(problem, limits, bound)
        stop.tell(lambda: proof.so_far(entry["certificate"]["sets"]))
        proof.run()
        _compare(proof, entry["certificate"].get("sets"), place)
    except _Refused as error:
        return AnswerVerdict(False, value, math.nan, str(error), not_checked=_NOT_CHECKED)
    if proof.open:
        proven = _weaker(proof)
        weaker = "nothing less is proven here" if math.isnan(proven) else f"what is proven here is {proven!r} seconds"
        return AnswerVerdict(
            False, value, proven,
            f"the plan holds, but the bound claimed, {bound!r} seconds, is not confirmed: {_open(proof)}; {weaker}",
            ("the plan: its step, its memory, its place in the space",), ("the bound claimed", *_NOT_CHECKED),
        )  # fmt: skip
    gap = value / bound - 1.0
    checked = (
        f"the plan takes {value!r} seconds, fits, and is one of the space",
        _asked(problem),
        *_before_exchanges(entry),
        f"no plan of the space takes less than {bound!r} seconds: gap {gap:.4%}",
        _sets(proof),
    )
    return AnswerVerdict(True, value, bound, "", checked, _NOT_CHECKED)


def check_infeasible(
    problem: Problem, entry: Mapping[str, Any], place: str, limits: Mapping[str, Any], stop: Stop = _UNTOLD
) -> AnswerVerdict:
    """Check the answer of search best that nothing fits.

    Parameters
    ----------
    problem : Problem
        The question (`posed`).
    entry, place, limits, stop
        As of `check_plan`.

    Returns
    -------
    AnswerVerdict
        Valid where every plan of the space is shown not to fit.

    Raises
    ------
    InputError
        When a field is missing or of the wrong kind.
    """
    nothing = (math.nan, math.nan)
    if entry.get("stages") or any(entry.get(name) is not None for name in ("objective", "bound", "step_seconds")):
        return AnswerVerdict(False, *nothing, "says that nothing fits, and holds an objective, a bound, a step or stages")
    if entry.get("infeasible_proven") is not True:
        return AnswerVerdict(
            False, *nothing, "says itself that it is not proven that nothing fits, so there is nothing to confirm",
            not_checked=("whether anything fits",),
        )  # fmt: skip
    try:
        problem = _same_question(problem, entry, place, limits)
        limits = inside(problem, limits)
        if entry["certificate"].get("bound_seconds") is not None:
            raise _Refused("certificate.bound_seconds: there is no bound where nothing fits")
        proof = BoundProof(problem, limits, math.inf)
        stop.tell(lambda: proof.so_far(entry["certificate"]["sets"]))
        proof.run()
        _compare(proof, entry["certificate"].get("sets"), place)
    except _Refused as error:
        return AnswerVerdict(False, *nothing, str(error))
    rest = ("how much memory is missing, and what would fit", *_NOT_CHECKED[1:])
    if proof.open:
        why = f"that nothing fits is not confirmed: {_open(proof)}"
        return AnswerVerdict(False, *nothing, why, (), ("whether these fit", *rest))
    checked = ("no plan of the space fits its devices", _asked(problem), *_before_exchanges(entry), _sets(proof))
    return AnswerVerdict(True, *nothing, "", checked, rest)


def _same_question(problem: Problem, entry: Mapping[str, Any], place: str, limits: Mapping[str, Any]) -> Problem:
    """Return the question of the certificate; refuse where the rest of the file says another one."""
    held = entry.get("certificate")
    if not isinstance(held, dict):
        raise _Refused("certificate: there is none, so neither the bound nor that nothing fits can be checked; plan again")
    if held.get("format") != _FORMAT:
        raise _Refused(f"certificate.format is {held.get('format')!r}, not {_FORMAT!r}")
    found = posed(problem, entry, place)
    asked = held["question"]
    if not isinstance(asked.get("limits"), dict):
        raise _Refused("certificate.question.limits: must be an object")
    if "uneven_hosts" not in asked["framework"].get("limits", {"uneven_hosts": True}):  # from before hosts were looked at
        limited = replace(problem.framework.limits, uneven_hosts=True)
        problem = replace(problem, framework=replace(problem.framework, limits=limited))
    if "context_exchange" not in asked["limits"]:  # from before there was a choice: all plans passed keys and values round
        found, problem = _by_rings(found), _by_rings(problem)
        asked = {**asked, "limits": {**asked["limits"], "context_exchange": list(limits["context_exchange"])}}
    if "offload" not in asked["limits"]:  # nothing of any plan lay on the host
        found, problem = _on_devices(found), _on_devices(problem)
        asked = {**asked, "limits": {**asked["limits"], "offload": ["none"]}}
    if "activations" not in asked["limits"]["offload"]:  # whether the framework has them on the host does not matter
        found, problem = _without_activations(found), _without_activations(problem)
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in inside(found, limits).items()}
    told = asked["limits"]
    for name in sorted({*given, *told} - {*_NO_SPACE}):
        if told.get(name) != given.get(name):
            raise _Refused(
                f"certificate.question.limits.{name} is {told.get(name)!r}, by the settings it is {given.get(name)!r}"
            )
    schedule, batch = entry.get("schedule") or {}, entry.get("batch", {})
    same = [
        ("schedule.global_batch", schedule.get("global_batch", asked["global_batch"]), (asked["global_batch"],)),
        ("batch.asked_global_batch", batch.get("asked_global_batch", 0), (0, asked["global_batch"])),
        ("batch.asked_micro_batch", batch.get("asked_micro_batch", asked["micro_batch"]), (asked["micro_batch"],)),
        ("batch.sequence_length", batch.get("sequence_length", asked["sequence_length"]), (asked["sequence_length"],)),
        ("tokens of a sample of the model", problem.graph.sequence_length, (asked["sequence_length"],)),
    ]
    same += [(f"training.{name}", value, (asked["training"].get(name),)) for name, value in entry.get("training", {}).items()]
    graph, cluster, word = problem.graph, problem.required_cluster, problem.framework.word
    weights = {"n_parameters": graph.n_parameters, "n_trained_parameters": graph.n_trained_parameters}
    said = {"model": {"name": problem.model_spec.name, **weights},
            "cluster": {"name": cluster.name, "n_devices": cluster.n_devices}}  # fmt: skip
    same += [(f"{part}.{of}", (entry.get(part) or {}).get(of, v), (v,)) for part, one in said.items() for of, v in one.items()]
    same.append(("framework", entry.get("framework") or word, (word,)))
    beside = any(Form(word, 2).is_paired for word in told.get("schedules", ()))  # else who runs pairs does not matter
    same += [own for own in _figures(problem.framework, found.framework) if beside or not own[0].endswith("paired_tasks")]
    for field, value, allowed in same:
        if value not in allowed:
            raise _Refused(f"{field} is {value!r}; the certificate is of a question where it is {allowed[-1]!r}")
    return found


def _on_devices(problem: Problem) -> Problem:
    """Return a question without what its framework says of hosts, where no plan of the space puts anything there."""
    usual = FrameworkLimits()
    alike = replace(problem.framework.limits, offloads=usual.offloads, offload_shards=usual.offload_shards)
    return replace(problem, framework=replace(problem.framework, limits=alike))


def _without_activations(problem: Problem) -> Problem:
    """Return a question whose framework does not have activations on the host: from before there was a choice, or not asked for."""
    limits = problem.framework.limits
    fewer = replace(limits, offloads=tuple(word for word in limits.offloads if word != "activations"))
    return replace(problem, framework=replace(problem.framework, limits=fewer))


def _figures(mine: Framework, told: Framework) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """Return every figure and limit of the framework of a question, and what a certificate says of it."""
    return [
        (f"the framework of the question: {start}{one.name}", getattr(own, one.name), (getattr(other, one.name),))
        for start, own, other in (("", mine, told), ("limits.", mine.limits, told.limits))
        for one in fields(own) if one.name != "limits"
    ]  # fmt: skip


def _by_rings(problem: Problem) -> Problem:
    """Return a question whose framework exchanges keys and values over a context axis by rings only."""
    rings = replace(
        problem.framework.limits, context_exchanges=("ring",), latent_exchanges=("ring",), window_exchanges=("ring",)
    )
    return replace(problem, framework=replace(problem.framework, limits=rings, overlaps_gather=False))


def _claims(
    result: Result, entry: Mapping[str, Any], place: str, problem: Problem, limits: Mapping[str, Any], value: float
) -> float:
    """Return the bound that an answer claims, after its objective, its gap, and its plan were compared with what they are."""
    try:
        objective, name = float(entry["objective"]["value"]), entry["objective"]["name"]
        bound, gap = float(entry["bound"]["value"]), float(entry["bound"]["gap_ratio"])
        held = float(entry["certificate"]["bound_seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    if name != "step_seconds" or not abs(objective - value) <= ROUNDING * value:
        raise _Refused(f"objective: the plan takes {value!r} seconds, not {objective!r}")
    stated = entry.get("step_seconds")
    if not isinstance(stated, float) or not abs(stated - value) <= ROUNDING * value:
        raise _Refused(f"step_seconds: the plan takes {value!r} seconds, not {stated!r}")
    if not 0.0 < bound < math.inf or bound != held:
        raise _Refused(f"bound.value is {bound!r}, and certificate.bound_seconds {held!r}")
    if bound > value * (1.0 + ROUNDING):
        raise _Refused(f"bound.value, {bound!r}, is above the {value!r} seconds that the plan takes")
    if not abs(gap - (objective / bound - 1.0)) <= ROUNDING:
        raise _Refused(f"bound.gap_ratio is {gap!r}; of this objective and bound it is {objective / bound - 1.0!r}")
    assert result.timeline is not None
    over = sim.excess_bytes(problem, result.plan, result.timeline.peak_bytes, float(limits["memory_ratio"]))
    if over > 0.0:
        raise _Refused(f"the plan does not fit: its fullest device lacks {over:.0f} bytes")
    why = outside(problem, result.plan, limits)
    if why:
        raise _Refused(f"the plan is none of the space: {why}")
    return bound


def _compare(proof: BoundProof, sets: Any, place: str) -> None:
    """Refuse a certificate whose sets are not those that the space falls into, member by member and value by value."""
    if sets is None:
        raise _Refused("certificate.sets: there are none; plan again")
    claimed: dict[MeshShape, dict[str, Any]] = {}
    try:
        for i, one in enumerate(sets):
            pool, tensor, context, expert, micro_batch = (int(one[name]) for name in MeshShape._fields[:-1])
            shape = MeshShape(pool, tensor, context, expert, micro_batch, str(one["by"]))
            if shape in claimed:
                raise _Refused(f"certificate.sets[{i}]: {_words(shape)} are there twice")
            claimed[shape] = one
            found = proof.sets.get(shape)
            if found is None:
                raise _Refused(f"certificate.sets[{i}]: no mesh is closed so here: {_words(shape)}")
            if one["n_meshes"] != found.n_meshes or one.get("n_configurations", 0) != found.n_configurations:
                raise _Refused(
                    f"certificate.sets[{i}]: {_words(shape)}: {one['n_meshes']} meshes of {one.get('n_configurations', 0)} configurations, "
                    f"not {found.n_meshes} of {found.n_configurations}"
                )
            seconds = float(one.get("seconds", math.inf))
            if seconds != found.seconds and not abs(seconds - found.seconds) <= ROUNDING * found.seconds:
                raise _Refused(
                    f"certificate.sets[{i}]: {_words(shape)}: the least is {found.seconds!r} seconds, not {seconds!r}"
                )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{place}: certificate.sets: a field is missing or of the wrong kind: {error}") from None
    missing = [shape for shape in proof.sets if shape not in claimed]
    if missing:
        raise _Refused(f"certificate.sets: {len(missing)} sets of the space are missing, the first: {_words(missing[0])}")


def _asked(problem: Problem) -> str:
    """Say what was asked, as far as only the certificate holds it."""
    batch, training = problem.batch, problem.training
    held = ", ".join(f"{name[:-6]} {getattr(training, name)}" for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes"))
    space = "" if problem.framework.limits == FrameworkLimits() else f"what {problem.framework.word} runs, "
    return (
        f"asked: {space}{batch.global_batch} samples of {batch.sequence_length} tokens a step, products in {training.precision}, bytes of each "
        f"parameter: {held}"
    )


def _before_exchanges(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Say that a certificate is of a space without a choice of context exchanges; nothing where it is not."""
    if "context_exchange" in entry["certificate"]["question"]["limits"]:
        return ()
    return ("in that space, which is older than other exchanges over a context axis, keys and values go round",)


def _words(shape: MeshShape) -> str:
    return (
        f"pool {shape.pool}, tensor {shape.tensor}, context {shape.context}, expert {shape.expert}, micro-batch {shape.micro_batch}, by "
        f"{shape.by}"
    )


def _open(proof: BoundProof) -> str:
    """Say which configurations the check cannot close."""
    mesh, form, strategy = proof.open[0].mesh, proof.open[0].form, proof.open[0].strategy
    degrees = ", ".join(f"{name} {getattr(mesh, name)}" for name in ("pipeline", "data", "context", "tensor", "expert"))
    return (
        f"{len(proof.open)}{' or more' if len(proof.open) >= MOST_OPEN else ''} configurations are left, the first: {degrees}, micro-batch {mesh.micro_batch}, sharding level {strategy.shard}, "
        f"{form.schedule} with {form.n_chunks} stages per rank"
    )


def _weaker(proof: BoundProof) -> float:
    """Return a smaller bound that holds for the configurations left open too; nan where none of those tried does."""
    left = list(proof.open)
    if len(left) >= MOST_OPEN:
        return math.nan
    for share in _WEAKER:
        left = [one for one in left if not proof.refuted(one, proof.limit * share)]
        if not left:
            return proof.limit * share
    return math.nan


def _sets(proof: BoundProof) -> str:
    """Say by what the members of the space are closed."""
    by: dict[str, int] = {}
    n_configurations = 0
    for shape, own in proof.sets.items():
        by[shape.by] = by.get(shape.by, 0) + own.n_meshes
        n_configurations += own.n_configurations
    words = {
        "illegal": "illegal for the model", "peak": "by the devices' peak", "compute": "by the compute of their layers",
        "communication": "by compute and communication", "configurations": "by each of their configurations",
        "memory": "by the memory of each of their configurations",
    }  # fmt: skip
    listed = ", ".join(f"{by[name]} {words[name]}" for name in words if name in by)
    return (
        f"every one of {sum(by.values())} meshes: {listed} ({n_configurations} configurations; {proof.n_played} splits of the layers were "
        "played)"
    )
