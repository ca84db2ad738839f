"""Design network and plan together: pose the question, search on every topology asked for,
and keep the proofs beside the answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from meshwright.base.errors import InputError, MissingExtraError, UnknownNameError
from meshwright.clusters import wires as _wires
from meshwright.core.problem import ModelSpec, Stop
from meshwright.planners.topoopt import alternate, bounds, components, networks
from meshwright.planners.topoopt.alternate import NetworkParts, PlanOnNetwork
from meshwright.planners.topoopt.choices import Servers, SplitSpace, space
from meshwright.planners.topoopt.given import strategy as strategy_file
from meshwright.planners.topoopt.given.task_graph import GivenStep
from meshwright.planners.topoopt.params import Params, Sources, parse
from meshwright.planners.topoopt.readers import flexflow_measures
from meshwright.planners.topoopt.step import Step
from meshwright.planners.topoopt.task_graphs.graph import TaskGraph
from meshwright.planners.topoopt.windows import NEVER
from meshwright.planners.topoopt.workloads.workload import Workload

__all__ = ["Design", "Entry", "Params", "design", "missing_bytes", "parse", "segments_of", "step_of"]

MOST_SERVERS = 1024
MOST_GPUS = 64
NOWHERE = Sources()
"""Times are estimated, and plans searched."""

PROBES = (1e6, 256e6)
"""All-reduces of these sizes say what latency and which bandwidth a server's inner network has."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What was found on one topology.

    Parameters
    ----------
    found : PlanOnNetwork
        Plan and network.
    cost : float
        Of the network's parts, in dollars.
    link_bytes_per_second : float
        Speed of one interface.
    """

    found: PlanOnNetwork
    cost: float
    link_bytes_per_second: float


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """The answer of ``codesign``.

    Parameters
    ----------
    workload : Workload
        What is trained.
    step : Step
        Simulates it.
    wires : NetworkParts
        The network's parts.
    entries : tuple of (str, Entry)
        What was found on each topology, in the order asked for; empty when nothing fits.
    best : str
        The fastest of them.
    injection_bytes_per_second : float
        The most that the interfaces of one server send together on any topology here: those asked for, or the faster ones of a
        full mesh, or of a topology that may cost as much as the first.
    bound_seconds : float
        What no plan beats on any topology whose servers send no more than that.
    missing_bytes : float
        When nothing fits: how much the fullest server lacks in the plan that needs least of those found, at least.
    infeasible_proven : bool
        When nothing fits: whether no plan does, rather than none that was found.
    seed : int
        Of everything random.
    planning_seconds : float
        Wall time.
    notes : tuple of str
        Sentences the user should read.
    question : mapping of str to object
        What was asked, as typed, for `meshwright check`; empty where it cannot be asked again from a file.
    """

    workload: Workload
    step: Step
    wires: NetworkParts
    entries: tuple[tuple[str, Entry], ...]
    best: str
    injection_bytes_per_second: float
    bound_seconds: float
    missing_bytes: float
    infeasible_proven: bool
    seed: int
    planning_seconds: float
    notes: tuple[str, ...]
    question: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def entry(self) -> Entry:
        """What was found on the fastest topology."""
        return dict(self.entries)[self.best]

    @property
    def gap_ratio(self) -> float | None:
        """How far the fastest step is above the bound; None where no bound above zero is known."""
        return self.entry.found.seconds / self.bound_seconds - 1.0 if self.bound_seconds > 0 else None


def design(
    model_spec: ModelSpec,
    wires: NetworkParts,
    params: Params,
    sources: Sources = NOWHERE,
    *,
    names: tuple[str, ...] = ("topoopt",),
    budget: int = 1000,
    seed: int = 0,
    stop: Stop = NEVER,
) -> Design:
    """Return plan and network for a model, or the network for the plan that is given.

    `model_spec`: what is trained; of a task graph the plan is given with it.
    `sources`: of times and the plan, where these are not estimated and searched.
    `names`: topologies, of `networks.NAMES`.
    `budget`: plans to simulate on each.
    `stop`: when to end before that, with the best so far; topologies that are not begun then are left out, and named.
    Raises `InputError` when the numbers do not fit each other, a name is unknown, or a file is wrong.
    """
    started = time.perf_counter()
    _check(wires, names)
    step = step_of(model_spec, wires, params, sources)
    workload, choices = step.space.workload, step.space
    known = components.prices(params.components)
    notes = [note for note in model_spec.notes if "codesign" not in note] + list(choices.notes)
    notes += _given(step)
    missing = missing_bytes(choices)
    proven = missing > 0
    entries, left_out = list[tuple[str, Entry]](), list[str]()
    asked = _injection(wires)
    bound = _bound(step, asked)  # before the search, whose time limit it counts in

    def until(share: float) -> Stop:
        """Return when to end what may take a share of the time, whatever was not used before included."""
        return Stop(asked=lambda: stop.is_asked() or 0.0 < share * stop.seconds < time.perf_counter() - started)

    if missing <= 0:
        for i, name in enumerate(names):
            if entries and stop.is_asked():
                left_out.append(name)
            else:
                step.ends_at_seconds = started + (i + 1) / len(names) * stop.seconds if stop.seconds else math.inf
                entries += _entries(name, step, wires, params, known, entries, budget, seed, until((i + 1) / len(names)))
        if missing_plan := _unfit(step, entries):
            missing, entries = missing_plan, []
    if until(1.0).is_asked():
        rest = f"; not begun: {', '.join(left_out)}" if left_out else ""
        notes.append(f"stopped before its end, as asked: these are the best plans so far{rest}")
    injection = max([asked, *(entry.found.fabric.injection_bytes_per_second() for _, entry in entries)])
    if injection > asked:
        bound = _bound(step, injection)
    if any(entry.found.changing for _, entry in entries):
        notes.append("circuits that change are shown by --trace; a task graph has one list of links and shows those that stay")
    notes += segments_of(step, entries)
    if params.server:
        notes.append(f"all-reduces inside a server take turns on the network of {params.server}")
    best = (
        min(entries, key=lambda pair: (pair[1].found.seconds, names.index(pair[0].removesuffix("-equal-cost"))))[0]
        if entries
        else ""
    )
    if "published" in params.search and any(name != "topoopt" for name in names):
        notes.append("search=published applies to topoopt; other topologies are searched by ours")
    seconds = time.perf_counter() - started
    return Design(
        workload, step, wires, tuple(entries), best, injection, bound, max(missing, 0.0), proven, seed, seconds, tuple(notes)
    )


def _given(step: Step) -> list[str]:
    """Return what is to be said of a plan that is given."""
    notes = []
    if step.given is not None:
        notes.append("the plan is given: only networks are searched, and --budget is not used")
    if isinstance(step, GivenStep):
        notes.append("times are those of the file, which does not say what servers hold or how many samples a step has")
    return notes


def step_of(model_spec: ModelSpec, wires: NetworkParts, params: Params, sources: Sources) -> Step:
    """Return what is asked again and again: how long a step of a plan, or of the one plan that is given, takes on a network."""
    if isinstance(model_spec.instance, TaskGraph):
        if sources.measures or sources.measure or sources.strategy:
            raise InputError(f"{model_spec.spec}: a task graph holds the whole plan and its times; leave the rest out")
        if model_spec.instance.n_servers != wires.n_servers:
            raise InputError(
                f"--servers {wires.n_servers}: the task graph {model_spec.spec} is of {model_spec.instance.n_servers} "
                "servers; give their number"
            )
        return GivenStep(model_spec.instance, model_spec.name, _wires.device(params.gpu), params.traffic)
    servers = _servers(wires.n_servers, params)
    workload = _workload(model_spec, params.global_batch, wires.n_servers * servers.n_gpus)
    measured = flexflow_measures.load(sources.measures) if sources.measures else None
    if sources.measure:
        measured = _measured_here(workload, servers, sources)
    shard = params.shard_weights == "yes" or (params.shard_weights == "auto" and measured is None)
    choices = space(workload, servers, measured, shard=shard, place=sources.measures or "--measure")
    step = Step(replace(choices, control_edges=params.control_edges), traffic=params.traffic)
    if sources.measure:
        note = f"operators were measured on this machine ({sources.measure}), in fp32"
        step.space = replace(step.space, notes=(*step.space.notes, note))
    if sources.strategy:
        step.given = strategy_file.read(sources.strategy, step.space)
    return step


def _measured_here(workload: Workload, servers: Servers, sources: Sources) -> flexflow_measures.Measurements:
    """Return what operators take on this machine."""
    try:
        from meshwright.planners.topoopt.given import torch_measures
    except ImportError:
        raise MissingExtraError("measuring operators (--measure)", "torch") from None
    return torch_measures.measure(workload, servers, sources.measure, sources.say)


def _servers(n_servers: int, params: Params) -> Servers:
    """Return the servers: devices on a bandwidth, or those of a cluster of one server with its all-reduce as its network runs
    it.
    """
    if not params.server:
        return Servers(n_servers, params.gpus_per_server, _wires.device(params.gpu), params.inter_gpu_bytes_per_second)
    from meshwright import clusters
    from meshwright.network import Network

    inside = clusters.cluster(params.server)
    n = inside.n_devices
    if n > MOST_GPUS or len(inside.kinds) > 1 or 1 < len(set(inside.groups[0].tolist())) < n:
        raise InputError(
            f"--set server={params.server}: has {n} devices of {len(inside.kinds)} kinds on "
            f"{len(set(inside.groups[0].tolist()))} "
            f"servers; must be one server of at most {MOST_GPUS} like devices, such as dgx-a100:8"
        )
    if n == 1:
        return Servers(n_servers, 1, inside.kinds[0], params.inter_gpu_bytes_per_second)
    axis = Network.of(inside).axis(np.arange(n)[None])
    few, many = (axis.seconds("all_reduce", n_bytes) for n_bytes in PROBES)
    per_byte = (many - few) / (PROBES[1] - PROBES[0])
    latency = max(few - per_byte * PROBES[0], 0.0)
    return Servers(n_servers, n, inside.kinds[0], 2.0 / n / per_byte, latency, gpus_contend=True)


def _workload(model_spec: ModelSpec, batch: int, n_devices: int) -> Workload:
    """Return what is trained in the terms of this room."""
    if isinstance(model_spec.instance, Workload):
        return replace(model_spec.instance, global_batch=batch or model_spec.instance.global_batch)
    from meshwright.planners.topoopt import models

    return models.workload(model_spec, batch or n_devices)


def _check(wires: NetworkParts, names: tuple[str, ...]) -> None:
    """Check servers, degree and names of topologies."""
    if not 2 <= wires.n_servers <= MOST_SERVERS:
        raise InputError(f"--servers {wires.n_servers}: must be between 2 and {MOST_SERVERS}")
    if not 1 <= wires.degree <= wires.n_servers - 1:
        raise InputError(
            f"--degree {wires.degree}: must be between 1 and {wires.n_servers - 1} for {wires.n_servers} servers: more "
            "interfaces have no server to lead to"
        )
    for name in names:
        if name not in networks.NAMES:
            raise UnknownNameError("topology", name, networks.NAMES)
        if names.count(name) > 1:
            raise InputError(f"--topology: {name} is given twice")
    if {"topoopt", "optical", "expander"} & set(names) and wires.degree < 2 and wires.n_servers > 2:
        raise InputError(
            f"--degree {wires.degree}: {wires.n_servers} servers with one interface each form no connected network without a "
            "switch; "
            "take --degree 2 or more, or --topology switch"
        )


def _injection(wires: NetworkParts) -> float:
    """Return how fast the interfaces of a server send together as asked for; a topology compared with may be faster."""
    return wires.degree * wires.bytes_per_second


def missing_bytes(choices: SplitSpace) -> float:
    """Return how many bytes the fullest server lacks in every plan: not below the mean of what is held where every operator
    takes the least, nor below the smallest part of any operator.
    """
    least = sum(min(choice.memory_bytes * choice.n_parts for choice in options) for options in choices.choices)
    part = max(min(choice.memory_bytes for choice in options) for options in choices.choices)
    return max(least / choices.servers.n_servers, part) - choices.servers.memory_bytes


def _unfit(step: Step, entries: list[tuple[str, Entry]]) -> float:
    """Return what the fullest server lacks in the plan that needs least, 0 where one fits."""
    capacity = step.space.servers.memory_bytes
    lacks = [float(step.memory_bytes(entry.found.placement).max()) - capacity for _, entry in entries]
    return max(min(lacks), 0.0) if lacks else 0.0


def _bound(step: Step, injection: float) -> float:
    """Return what no plan, or not the given one, beats on networks whose servers send at most so many bytes a second."""
    if isinstance(step, GivenStep):
        return step.bound_seconds(injection)
    apart = step.given is None or step.given.apart
    return bounds.step_seconds(step.space, injection, step.model_of_traffic, apart=apart)


def segments_of(step: Step, entries: list[tuple[str, Entry]]) -> list[str]:
    """Return what is to be said of steps that are played in segments larger than the published ones.

    `entries`: what was found on each topology.
    """
    if step.model_of_traffic not in ("queues", "segments"):
        return []
    sizes = {name: step.served_in(entry.found.placement, entry.found.fabric) for name, entry in entries}
    return [
        f"the step on {name} is played in segments of {size} bytes: of those of {step.segment_bytes} bytes links would serve "
        f"more than {step.most_segments} in it"
        for name, size in sizes.items()
        if size > step.segment_bytes
    ]


def _entries(
    name: str, step: Step, wires: NetworkParts, params: Params, known: components.Prices, before: list[tuple[str, Entry]],
    budget: int, seed: int, stop: Stop,
) -> list[tuple[str, Entry]]:  # fmt: skip
    """Return what is found on one topology, and on the same one at the cost of the first."""
    if name in ("topoopt", "optical"):
        return [(name, _found_together(name, step, wires, params, known, budget, seed, stop))]
    size = (name, wires.n_servers, wires.degree)
    built = networks.build(*size, wires.bytes_per_second, wires.latency_seconds, seed)
    made = [(name, _on(built, step, params, known, budget, seed, stop))]
    if params.equal_cost and before:
        parts = components.bill(
            name, wires.n_servers, built.degree, built.n_links, built.n_switch_ports, built.port_bytes_per_second
        )
        speed = components.equal_cost_bandwidth(parts, before[0][1].cost, known)
        if speed > 0:
            ratio = wires.bytes_per_second / built.port_bytes_per_second
            built = networks.build(*size, speed * ratio, wires.latency_seconds, seed)
            made.append((f"{name}-equal-cost", _on(built, step, params, known, budget, seed, stop)))
    return made


def _on(
    built: networks.Built, step: Step, params: Params, known: components.Prices, budget: int, seed: int, stop: Stop
) -> Entry:
    """Search on a fixed topology."""
    rng = np.random.default_rng(seed)
    found = alternate.fixed(step, built.fabric, rng, budget, placement=params.placement, stop=stop)
    parts = components.bill(
        built.fabric.name,
        built.fabric.n_servers,
        built.degree,
        built.n_links,
        built.n_switch_ports,
        built.port_bytes_per_second,
    )
    return Entry(found, parts.cost(known), built.port_bytes_per_second)


def _found_together(
    name: str, step: Step, wires: NetworkParts, params: Params, known: components.Prices, budget: int, seed: int, stop: Stop
) -> Entry:
    """Search plan and topology together."""
    rng = np.random.default_rng(seed)
    if name == "optical":
        from meshwright.planners.topoopt import optical

        found = optical.search(
            step, wires, rng, budget, placement=params.placement, reconfiguration_seconds=params.reconfiguration_seconds,
            stop=stop,
        )  # fmt: skip
    elif params.search == "published":
        placement = "strided" if params.placement == "either" else params.placement
        found = alternate.released(
            step, wires, rng, budget, propagation=params.propagation, placement=placement, alpha_ratio=params.alpha_ratio,
            stop=stop,
        )  # fmt: skip
    else:
        found = alternate.improved(step, wires, rng, budget, placement=params.placement, stop=stop)
    parts = components.bill(name, wires.n_servers, wires.degree, len(found.fabric.wires()), 0, wires.bytes_per_second)
    return Entry(found, parts.cost(known), wires.bytes_per_second)
