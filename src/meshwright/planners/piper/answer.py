"""The question a Piper recipe answers: the file's instance with the user's options, and plans turned back into ours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from meshwright import sim
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy
from meshwright.planners.piper.check.plans import ClaimedStage, check, stage_costs
from meshwright.planners.piper.costs.piper import PiperStage, fastest_choice, first_devices, recompute_word, stages_of
from meshwright.planners.piper.menu import Options
from meshwright.planners.piper.problem import Counting, PiperInstance
from meshwright.planners.piper.readers.piper_json import flat_cluster, with_limits
from meshwright.solvers.pairwise.certificate import Verdict

__all__ = ["check_plan", "choices_json", "instance_of", "plan_of", "problem_of"]


def instance_of(
    problem: Problem,
    recipe: str,
    max_devices: int | None,
    n_microbatches: int | None,
    bandwidth: float | None,
    memory: float | None,
) -> PiperInstance:
    """Return the instance of a problem, with what the user set in place of the file's numbers.

    `problem`: a problem read from a Piper file.
    `recipe`: the search, for messages.
    `max_devices`, `n_microbatches`: none for the cluster's, where the user named one, else the file's.
    `bandwidth`, `memory`: in bytes per second and bytes; None likewise.
    Raises `InputError` when the problem is no Piper file, or a number is out of the format's range.

    Notes
    -----
    Piper's published memory rule: every device holds the file's ``maxMemoryPerDevice``, and a stage fits as its evaluator adds
    it up. A named cluster puts its tightest device's `meshwright.sim.free_bytes` in the place of the file's limit.
    """
    instance = problem.model_spec.instance
    if not isinstance(instance, PiperInstance):
        raise InputError(
            f"search {recipe}: needs the choices of a piper_json file; {problem.model_spec.spec} is of the format "
            f"{problem.model_spec.format}"
        )
    batch = problem.batch
    if batch.global_batch or batch.micro_batch or batch.sequence_length:
        raise InputError(
            f"search {recipe}: a piper_json file counts micro-batches only; instead of --global-batch, --micro-batch and "
            "--sequence-length give --set n_microbatches=N"
        )
    cluster = problem.cluster
    if cluster is not None and cluster is not problem.model_spec.cluster:
        max_devices = max_devices or cluster.n_devices
        memory = memory or sim.free_bytes(cluster.kinds, problem.memory_ratio)
        if bandwidth is None and len(cluster.links):
            bandwidth = float(cluster.links.bytes_per_second.min())
    for name, value in (("bandwidth", bandwidth), ("memory", memory)):
        if value is not None and value < 1e-9:
            raise InputError(f"--set {name} (of search {recipe}): {value:g} is out of range; it must be at least 1e-9")
    return with_limits(
        instance,
        n_devices=max_devices or 0,
        n_microbatches=n_microbatches or 0,
        bandwidth=bandwidth or 0.0,
        memory_bytes=memory or 0.0,
    )


def problem_of(problem: Problem, instance: PiperInstance) -> Problem:
    """Return the problem with the instance as the options changed it, and the flat cluster it then describes."""
    cluster = problem.cluster
    limits = ("n_devices", "bandwidth", "memory_bytes")
    same = all(getattr(instance, name) == getattr(problem.model_spec.instance, name) for name in limits)
    if cluster is None or (cluster is problem.model_spec.cluster and not same):
        cluster = flat_cluster(instance)
    model_spec = replace(problem.model_spec, instance=instance, cluster=cluster, spec=_spec(problem, instance))
    return replace(problem, model_spec=model_spec, cluster=cluster)


def _spec(problem: Problem, instance: PiperInstance) -> str:
    """Return the file's name with what the options changed, so that reading it gives this instance."""
    before = problem.model_spec.instance
    assert isinstance(before, PiperInstance)
    file, _, fragment = problem.model_spec.spec.partition("#")
    changes = dict(part.split("=", 1) for part in fragment.split(",") if "=" in part)
    limits = {
        "max_devices": "n_devices",
        "n_microbatches": "n_microbatches",
        "bandwidth": "bandwidth",
        "memory": "memory_bytes",
    }
    for key, name in limits.items():
        if getattr(instance, name) != getattr(before, name):
            changes[key] = repr(getattr(instance, name))
    for flag in fields(Counting):
        value = getattr(instance.counting, flag.name)
        if value != getattr(before.counting, flag.name):
            changes[flag.name] = repr(value).lower()
    return file + ("#" + ",".join(f"{key}={value}" for key, value in changes.items()) if changes else "")


def plan_of(instance: PiperInstance, stages: Sequence[PiperStage]) -> Plan:
    """Return a plan with each stage on consecutive devices; nodes of a stage in topological order."""
    order = _topological(instance)
    result = []
    for stage, device in zip(stages, first_devices(instance, stages), strict=True):
        choice = dict(zip(stage.nodes, stage.choices, strict=True))
        ops = tuple(sorted(stage.nodes, key=lambda v: order[v]))
        n = stage.data * stage.tensor
        words = tuple(recompute_word(choice[v]) for v in ops)
        told = tuple(fastest_choice(instance, v, stage.tensor, word) for v, word in zip(ops, words, strict=True))
        names = tuple(choice[v] for v in ops)
        strategy = Strategy(data=stage.data, tensor=stage.tensor)
        result.append(Stage(ops, tuple(range(device, device + n)), strategy, words, choices=() if names == told else names))
    n = instance.n_microbatches
    return Plan(tuple(result), n_microbatches=n, micro_batch=1, schedule="1f1b", global_batch=n)


def _topological(instance: PiperInstance) -> list[int]:
    """Return the place of each node in a topological order."""
    heads: list[list[int]] = [[] for _ in instance.nodes]
    waiting = [0] * len(instance.nodes)
    for edge in instance.edges:
        heads[edge.source].append(edge.target)
        waiting[edge.target] += 1
    ready = [v for v, n in enumerate(waiting) if n == 0]
    place = [0] * len(waiting)
    for at, v in enumerate(ready):
        place[v] = at
        for x in heads[v]:
            waiting[x] -= 1
            if waiting[x] == 0:
                ready.append(x)
    return place


def choices_json(instance: PiperInstance, stages: Sequence[PiperStage]) -> list[dict[str, object]]:
    """Return the stages in the original's terms: node ids, degrees, and the id of each node's choice."""
    return [
        {
            "nodes": [instance.nodes[v].id for v in stage.nodes],
            "dataParallelDegree": stage.data,
            "tensorParallelDegree": stage.tensor,
            "TMPCids": {str(instance.nodes[v].id): name for v, name in zip(stage.nodes, stage.choices, strict=True)},
        }
        for stage in stages
    ]


def check_plan(result: Result, entry: dict[str, Any], place: str) -> Verdict | None:
    """Check what a plan file of the search piper claims, without its solver.

    Returns: whether the plan takes what it says, and no plan takes less than its bound; None of what is on no Piper file, or
    claims no bound.
    Raises `InputError` when a field is missing or of the wrong kind.
    """
    instance = result.problem.model_spec.instance
    if result.search != "piper" or not isinstance(instance, PiperInstance) or entry.get("bound") is None:
        return None
    position = {str(node.id): v for v, node in enumerate(instance.nodes)}
    told: dict[str, list[float]]
    try:
        stages = []
        for stage in entry["choices"]:
            nodes = tuple(position[str(node)] for node in stage["nodes"])
            names = tuple(str(stage["TMPCids"][str(node)]) for node in stage["nodes"])
            stages.append(ClaimedStage(nodes, int(stage["dataParallelDegree"]), int(stage["tensorParallelDegree"]), names))
        value, bound = float(entry["objective"]["value"]), float(entry["bound"]["value"])
        told = {name: [float(one) for one in entry[name]] for name in ("stage_seconds", "stage_bytes") if name in entry}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{place}: a field is missing or of the wrong kind: {error}") from None
    assert result.plan is not None
    for claimed, stage in itertools.zip_longest(stages, result.plan.stages):
        if claimed is None or stage is None or set(claimed.nodes) != set(stage.ops):
            return Verdict(False, math.nan, math.nan, "its stages and its choices are of different plans")
    chosen = result.settings.get
    options = Options(
        chosen("knapsack", "exact") == "exact",
        all_or_none=_yes(chosen("all_or_none", "false")),
        data_parallel=_yes(chosen("data_parallel", "true")),
        tensor_parallel=_yes(chosen("tensor_parallel", "true")),
        recompute=chosen("recompute", "choose"),
    )
    verdict = check(instance, options, stages, value, bound)
    if verdict.valid and list(map(_told, stages)) != list(map(_told, stages_of(instance, result.plan))):
        return Verdict(False, math.nan, math.nan, "its stages and its choices are of different plans")
    if verdict.valid:
        seconds, held = stage_costs(instance, stages)
        for name, expected in {"stage_seconds": seconds, "stage_bytes": held}.items():
            said = told.get(name, expected)
            if len(said) != len(expected):
                return Verdict(False, verdict.value, math.nan, f"{name} has {len(said)} values for {len(expected)} stages")
            for i, (one, other) in enumerate(zip(said, expected, strict=True)):
                if not math.isclose(one, other, rel_tol=1e-9):
                    return Verdict(
                        False, verdict.value, math.nan, f"{name}[{i}] is {one!r} in the file, and {other!r} by its plan"
                    )
    return verdict


def _told(stage: ClaimedStage | PiperStage) -> tuple[int, int, dict[int, str]]:
    """Return what a stage is, whatever the order of its nodes."""
    return stage.data, stage.tensor, dict(zip(stage.nodes, stage.choices, strict=True))


def _yes(text: str) -> bool:
    """Return a setting that the search has accepted as true or false."""
    return text.lower() in ("true", "yes", "1")
