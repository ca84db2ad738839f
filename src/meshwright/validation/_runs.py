"""From the words of a measured run (model, degrees, batch, cluster) to its prediction."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from meshwright import schedules, sim
from meshwright.base.errors import InputError
from meshwright.base.identity import ById
from meshwright.core import peaks
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.interval.run_kind import Kind, kind_of
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Framework, MixedPrecision, ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.models.readers import huggingface
from meshwright.validation._domains import Clusters, clusters
from meshwright.validation._points import Point

__all__ = [
    "Clusters", "Predicted", "Run", "as_planned", "built_in", "clusters", "fits", "gpt", "laid_out",
    "layers_of_stages", "point", "predict",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One training run as a set describes it.

    Parameters
    ----------
    graph : Graph
        The model.
    cluster : Cluster
        Where it ran.
    strategies : tuple of Strategy
        Of each pipeline rank; one for all of them alike.
    pipeline, virtual : int
        Pipeline ranks, and stages of each.
    layers_per_stage : tuple of int
        Layers between embedding and head of each stage, where uneven; empty for even.
    micro_batch, global_batch : int
        Samples.
    recompute : str
        What layers recompute; the embedding and the head never do.
    schedule : str
        Empty: 1F1B, or interleaved with virtual stages.
    training : MixedPrecision
        Precision and optimizer.
    overlap : bool
        Whether gradient reduction runs beside the backward pass.
    used_of_domain : tuple of (int, int)
        Devices used of each domain and its size, where a run leaves some out (64 of the 72 of an NVL72 rack); (1, 1) for all.
    framework : Framework
        How the program that trained carried it out.
    recompute_of_stage : tuple of tuple of str
        What each layer between embedding and head recomputes, by stage, where `recompute` does not say it all; empty otherwise.
    graph_as_read : Graph or None
        The model as ``plan`` would read it, where `graph` says more of the set's program; None where it is `graph`.
    plan : Plan or None
        Its plan, where that is told whole (by a configuration); None to lay it out as the rest says.
    """

    graph: Graph
    cluster: Cluster
    strategies: tuple[Strategy, ...]
    pipeline: int = 1
    virtual: int = 1
    layers_per_stage: tuple[int, ...] = ()
    micro_batch: int = 1
    global_batch: int = 1
    recompute: str = "none"
    schedule: str = ""
    training: MixedPrecision = MixedPrecision()
    overlap: bool = False
    used_of_domain: tuple[int, int] = (1, 1)
    framework: Framework = Framework()
    recompute_of_stage: tuple[tuple[str, ...], ...] = ()
    graph_as_read: Graph | None = None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """What we predict of a run.

    Parameters
    ----------
    seconds : float
        Of a step.
    peak_bytes, reserved_bytes, allocated_bytes : float
        Of the fullest device: all it must hold, what the caching allocator holds of it, and what tensors hold.
    fits : bool
        Whether every device can hold its peak.
    causes, memory_causes : tuple of (str, float)
        What the step and the peak consist of, as in `meshwright.core.timeline.Timeline`.
    kind : Kind
        What intervals go by.
    framework : str
        What ran it, by its name.
    safe : bool
        Whether every device can hold what 99 % of the framework's measured runs stay below, as ``plan`` asks.
    room_ratio : float
        Memory of the fullest device over its peak.
    recompute_told : bool
        Whether it is known what the run recomputed.
    planned : Predicted or None
        What ``plan`` would predict of the same plan; None where that is this.
    """

    seconds: float
    peak_bytes: float
    reserved_bytes: float
    allocated_bytes: float
    fits: bool
    causes: tuple[tuple[str, float], ...]
    memory_causes: tuple[tuple[str, float], ...]
    kind: Kind
    framework: str = ""
    safe: bool = True
    room_ratio: float = math.inf
    recompute_told: bool = True
    planned: Predicted | None = None


def point(
    row: int, measured_seconds: float, predicted: Predicted, *, held_bytes: float = 0.0, memory: str = "peak", group: str = "",
    note: str = "", ran: bool = True, fits: bool | None = None,
) -> Point:  # fmt: skip
    """Return a measured row beside its prediction.

    Parameters
    ----------
    row : int
        Row of the file, from 1.
    measured_seconds : float
        Of a step; infinite where the run failed for memory.
    predicted : Predicted
        What we predict of it.
    held_bytes : float
        Measured memory; 0 for none.
    memory : str
        What was measured: ``peak``, ``reserved`` or ``allocated``.
    group, note, ran, fits
        As in `Point`; `fits` as predicted unless given.
    """
    planned, which = predicted.planned or predicted, f"{memory}_bytes"
    return Point(
        row, measured_seconds, predicted.seconds, held_bytes, getattr(predicted, which), group=group,
        fits=predicted.fits if fits is None else fits, ran=ran, device="+".join(planned.kind.devices), note=note,
        causes=predicted.causes, memory_causes=predicted.memory_causes, planned_seconds=planned.seconds,
        planned_bytes=getattr(planned, which), planned_fits=planned.safe and fits is not False, kind=planned.kind,
        framework=planned.framework,
        room_ratio=planned.room_ratio, recompute_told=planned.recompute_told,
    )  # fmt: skip


def gpt(name: str, *, hidden: int, layers: int, heads: int, sequence: int, vocabulary: int, **fields: Any) -> Graph:
    """Return a GPT as Megatron-LM trained it: learned positions, biases, drop-out, attention not fused, tied embeddings.

    Parameters
    ----------
    name : str
        For messages and groups.
    hidden, layers, heads, sequence, vocabulary : int
        Sizes.
    fields
        Further fields of a ``config.json``.
    """
    config: dict[str, Any] = {
        "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": sequence, "vocab_size":
        vocabulary, "_attn_implementation": "eager", **fields,
    }  # fmt: skip
    return _graph(json.dumps(config), name, sequence)


def built_in(name: str, sequence: int, **changes: Any) -> Graph:
    """Return a built-in model at another sequence length.

    Parameters
    ----------
    name : str
        ``"llama-3.1-8b"``.
    sequence : int
        Tokens per sample.
    changes
        Fields of its configuration to replace: a model cut to fewer layers.
    """
    return _graph(json.dumps({**huggingface.configuration(name), **changes}), name, sequence)


@lru_cache(maxsize=256)
def _graph(config: str, name: str, sequence: int) -> Graph:
    """Return the model of a configuration: rows of one model share it, and so what its layers were found to cost."""
    return huggingface.graph_of(json.loads(config), name, sequence_length=sequence)


def predict(run: Run, change: Callable[[StageCost], StageCost] | None = None) -> Predicted:
    """Return what we predict of a run.

    Parameters
    ----------
    run : Run
        The run.
    change : callable or None
        What the training program does otherwise than our cost model says, on the load of every stage.

    Raises
    ------
    InputError
        When the run's numbers contradict each other, or its strategy is illegal.
    """
    plan = laid_out(run)
    predicted = _predicted(run, plan, change)
    if change is None and run.graph_as_read is None and run.overlap and run.training == _told(run.training):
        return predicted
    return replace(predicted, planned=as_planned(run, plan))


def fits(run: Run) -> bool:
    """Tell whether every device can hold its peak, as `predict` does but quicker.

    What collectives put on links is left out: it moves when tasks begin, not their order on a rank, and so no peak.

    Parameters
    ----------
    run : Run
        The run.

    Raises
    ------
    InputError
        As `predict`.
    """
    plan, problem = laid_out(run), _problem(run.graph, run.cluster, run.training, run.framework)
    timeline = sim.simulate(problem, plan, analytic.stage_costs(problem, plan, ledger=False))
    return sim.excess_bytes(problem, plan, timeline.peak_bytes) <= 0.0


def _told(training: MixedPrecision) -> MixedPrecision:
    """Return what a user can tell of a training: precision, optimizer, bytes of gradients and of optimizer state."""
    return replace(
        MixedPrecision.of(training.precision), gradient_bytes=training.gradient_bytes,
        optimizer_bytes=training.optimizer_bytes, optimizer=training.optimizer, state_bytes=training.state_bytes,
    )  # fmt: skip


def as_planned(run: Run, plan: Plan) -> Predicted | None:
    """Return what ``plan --for`` the run's framework would predict of a run's plan.

    Parameters
    ----------
    run : Run
        The run; of its training only what a user can tell counts.
    plan : Plan
        Its plan.
    """
    default = replace(run, graph=run.graph_as_read or run.graph, training=_told(run.training), overlap=True)
    return _predicted(default, plan, None)


def _predicted(run: Run, plan: Plan, change: Callable[[StageCost], StageCost] | None) -> Predicted:
    """Play a plan by the run's program."""
    problem = _problem(run.graph, run.cluster, run.training, run.framework)
    stage_costs = _stage_costs(ById(run.graph), ById(run.cluster), run.training, run.framework, plan)
    if change is not None:
        stage_costs = tuple(change(load) for load in stage_costs)
    if not run.overlap:
        stage_costs = tuple(replace(load, overlap_ratio=0.0) for load in stage_costs)
    timeline = sim.simulate(problem, plan, stage_costs)
    ranks = plan.ranks()
    fits = sim.excess_bytes(problem, plan, timeline.peak_bytes) <= 0.0
    share = peaks.peaks(run.framework.holds_as).share(peaks.RISK)
    safe = sim.excess_bytes(problem, plan, timeline.peak_bytes, share) <= 0.0
    fullest = max(range(len(ranks)), key=lambda rank: timeline.peak_bytes[rank])
    kind = kind_of(run.graph, run.cluster, plan, stage_costs, run.framework.word, run.training.precision)
    return Predicted(
        timeline.step_seconds, timeline.peak_bytes[fullest], timeline.reserved_bytes[fullest],
        timeline.allocated_bytes[fullest], fits, timeline.causes, timeline.memory_causes[fullest], kind, run.framework.name,
        safe, room_ratio=_room_ratio(problem, plan, timeline.peak_bytes),
    )  # fmt: skip


def _problem(graph: Graph, cluster: Cluster, training: MixedPrecision, framework: Framework) -> Problem:
    """Return the question that a run's plan answers."""
    return Problem(ModelSpec(graph.name, "validation", graph.name, graph), cluster, training=training, framework=framework)


@lru_cache(maxsize=1)
def _stage_costs(
    graph: ById[Graph], cluster: ById[Cluster], training: MixedPrecision, framework: Framework, plan: Plan
) -> tuple[StageCost, ...]:
    """Return what the stages of a plan do; the last is remembered, since a run and what ``plan`` makes of it ask alike."""
    return analytic.stage_costs(_problem(graph.of, cluster.of, training, framework), plan)


def _room_ratio(problem: Problem, plan: Plan, peak_bytes: Sequence[float]) -> float:
    """Return how many times its peak the fullest device has."""
    cluster = problem.required_cluster
    limits = [sim.tightest(cluster, devices).memory_bytes for devices in plan.ranks()]
    return min(limit / peak for limit, peak in zip(limits, peak_bytes, strict=True))


def laid_out(run: Run) -> Plan:
    """Lay the run's stages on its devices, in the order of Megatron: tensor fastest, then context, data, pipeline.

    Parameters
    ----------
    run : Run
        The run.

    Raises
    ------
    InputError
        When its numbers contradict each other.
    """
    if run.plan is not None:
        return run.plan
    strategies = run.strategies if len(run.strategies) > 1 else run.strategies * run.pipeline
    if len(strategies) != run.pipeline:
        raise InputError(f"{len(strategies)} strategies are given for {run.pipeline} pipeline ranks")
    needed = _device(run, sum(strategy.n_devices for strategy in strategies) - 1) + 1
    if needed > run.cluster.n_devices:
        raise InputError(f"the plan needs {needed} devices; {run.cluster.name} has {run.cluster.n_devices}")
    replicas = strategies[0].data
    if any(strategy.data != replicas for strategy in strategies):
        raise InputError("stages of different data degrees are not modelled")
    if run.global_batch % (run.micro_batch * replicas):
        raise InputError(
            f"the global batch {run.global_batch} does not divide by micro-batch {run.micro_batch} times data degree {replicas}"
        )
    devices, first = [], 0
    for strategy in strategies:
        devices.append(tuple(_device(run, i) for i in range(first, first + strategy.n_devices)))
        first += strategy.n_devices
    schedule = run.schedule or ("interleaved_1f1b" if run.virtual > 1 else "1f1b")
    placement = schedules.load(schedule).placement(run.pipeline, run.virtual).tolist()
    stages = []
    for stage, ops in enumerate(_cut(run.graph, layers_of_stages(run))):
        rank = placement[stage]
        inner = iter(run.recompute_of_stage[stage] if run.recompute_of_stage else (run.recompute,) * len(ops))
        recompute = tuple("none" if run.graph.ops[op].kind in ("embedding", "head") else next(inner) for op in ops)
        stages.append(Stage(ops, devices[rank], strategies[rank], recompute))
    n_microbatches = run.global_batch // (run.micro_batch * replicas)
    return Plan(tuple(stages), n_microbatches, run.micro_batch, schedule, run.global_batch)


def _device(run: Run, i: int) -> int:
    """Return the id of the device that the run's rank `i` sits on."""
    used, size = run.used_of_domain
    return i // used * size + i % used


def layers_of_stages(run: Run) -> list[int]:
    """Return how many layers between embedding and head each stage of a run has.

    Parameters
    ----------
    run : Run
        Uneven where it says so; else as even as can be, a layer less for the last and first stages, which hold head and
        embedding.

    Raises
    ------
    InputError
        When there are too few layers, or what the run says does not make them.
    """
    n_layers = sum(op.kind not in ("embedding", "head") for op in run.graph.ops)
    n_stages, sizes = run.pipeline * run.virtual, list(run.layers_per_stage)
    if not sizes:
        if n_stages > n_layers + 2:
            raise InputError(f"{n_stages} stages for {n_layers} layers")
        even, rest = divmod(n_layers, n_stages)
        order = [n_stages - 1, 0, *range(n_stages - 2, 0, -1)]
        fewer = set(order[: n_stages - rest] if rest else ())
        sizes = [even + (1 if rest and stage not in fewer else 0) for stage in range(n_stages)]
    if sum(sizes) != n_layers or len(sizes) != n_stages:
        told = "|".join(map(str, sizes))
        raise InputError(f"stages of {told} layers do not make the model's {n_layers} in {n_stages} stages")
    return sizes


def _cut(graph: Graph, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Cut the layers; the embedding goes with the first stage, the head with the last."""
    inner = [i for i, op in enumerate(graph.ops) if op.kind not in ("embedding", "head")]
    ends = list(itertools.accumulate(sizes))
    cuts = [inner[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    cuts[0] = [*range(inner[0]), *cuts[0]]
    cuts[-1] = [*cuts[-1], *range(inner[-1] + 1, len(graph.ops))]
    return [tuple(cut) for cut in cuts]
