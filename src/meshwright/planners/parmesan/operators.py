"""Operators of a problem with their times, order constraints and tensors, whatever the format of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.network.numbering import links_alike
from meshwright.planners.parmesan.readers.dnn_partitioning_json import PlacementGraph
from meshwright.solvers.mapping.search import pair_seconds
from meshwright.solvers.partition.hypergraph import Operators

__all__ = ["Question", "costed", "question"]

_DEFAULT_BYTES_PER_SECOND = 11e9  # PCIe between the devices of one server, as in Parmesan (TCAD 2024), section VIII
_PLACEMENT_UNIT_SECONDS = 1e-3  # placement graphs name no unit; the tables of the paper they come with are in milliseconds


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is to be partitioned, and in which unit.

    Parameters
    ----------
    operators : Operators
        One for each layer of the problem's graph, in its order; times in the unit below.
    unit_seconds : float
        Seconds of one unit of time.
    objective : str
        Name of the objective in that unit.
    forward : ndarray, shape (n_ops,), float64
        The part of each operator's compute that belongs to the forward pass.
    output_bytes : ndarray, shape (n_ops,), float64
        Size of each operator's output.
    weight_bytes : ndarray, shape (n_ops,), float64
        Gradients that replicas reduce.
    n_stages, own_memory_bytes
        The file's own number of accelerators and limit of one; 0 and infinity where it has none. The limit of a placement
        graph is its published memory rule; a cluster that is named limits each stage by `meshwright.sim.free_bytes` of its
        device as well.
    own_times : bool
        Whether the times are the file's own, which hold on every device.
    notes : tuple of str
        What was assumed.
    """

    operators: Operators
    unit_seconds: float
    objective: str
    forward: np.ndarray
    output_bytes: np.ndarray
    weight_bytes: np.ndarray
    n_stages: int = 0
    own_memory_bytes: float = float("inf")
    own_times: bool = False
    notes: tuple[str, ...] = ()


def question(problem: Problem, bandwidth: float = 0.0) -> Question:
    """Return the operators of a problem.

    Parameters
    ----------
    problem : Problem
        A placement graph, a PipeDream profile, or a model or profile of ours with its cost model and a cluster.
    bandwidth : float
        Of the links between stages in bytes per second; 0 for the file's own transfer times, or the cluster's slowest hop
        between neighbouring devices (between any two where devices are unlike, and stages may lie anywhere), or a stated
        default.

    Returns
    -------
    Question
        Operators with times.

    Raises
    ------
    InputError
        When the bandwidth contradicts a file that has transfer times of its own.
    """
    instance = problem.model_spec.instance
    if isinstance(instance, PlacementGraph):
        if bandwidth:
            raise InputError(
                f"--set bandwidth: {problem.model_spec.spec} holds the time of every transfer, so a bandwidth does not apply; "
                "leave the option out"
            )
        return _placement(instance)
    if problem.model_spec.format == "pipedream_txt":
        return _profile(problem, bandwidth)
    if instance is not None and problem.costs not in ("analytic", "profiled"):
        raise InputError(
            f"{problem.model_spec.spec}: the partitioner reads operator graphs, measured profiles and models; it has no times "
            "for the format "
            f"'{problem.model_spec.format}'"
        )
    if problem.costs == "partition":
        raise InputError(
            f"--costs partition: has the times of operator graphs and measured profiles; {problem.model_spec.spec} is none: "
            "leave it out"
        )
    return _modelled(problem, bandwidth)


def costed(problem: Problem) -> Problem:
    """Return the problem with the cost model that plays partitions of its content: ``partition`` for graphs and profiles."""
    own = isinstance(problem.model_spec.instance, PlacementGraph) or problem.model_spec.format == "pipedream_txt"
    return replace(problem, costs="partition") if own else problem


def _placement(instance: PlacementGraph) -> Question:
    """Return a placement graph's operators.

    A backward node follows its forward node through their colour; the order of stages comes from the forward graph alone, where
    a backward node without a forward one counts as if it had one, with its backward edges turned round.
    """
    nodes, n = instance.nodes, len(instance.nodes)
    colocated = [0] * n
    number: dict[tuple[str, int], int] = {}
    for i, node in enumerate(nodes):
        key = ("node", i) if node.colour is None else ("class", node.colour)
        colocated[i] = number.setdefault(key, len(number))
    with_forward = {colocated[i] for i, node in enumerate(nodes) if not node.backward}
    edges: list[tuple[int, int]] = []
    consumers: list[set[int]] = [set() for _ in range(n)]
    cost, output_bytes = [0.0] * n, np.zeros(n)
    for edge in instance.edges:
        u, v = edge.source, edge.target
        consumers[u].add(v)
        cost[u] = edge.cost
        output_bytes[u] = max(output_bytes[u], edge.bytes)
        if not nodes[u].backward and not nodes[v].backward:
            edges.append((u, v))
        elif nodes[u].backward and nodes[v].backward and not {colocated[u], colocated[v]} <= with_forward:
            edges.append((v, u))
    operators = Operators(
        compute=np.array([node.accelerator_cost for node in nodes]),
        host=np.array([node.host_cost for node in nodes]),
        memory=np.array([node.bytes for node in nodes]),
        supported=np.array([node.supported for node in nodes]),
        edges=tuple(edges),
        colocated=tuple(colocated),
        nets=tuple((cost[u], (u, *sorted(consumers[u]))) for u in range(n) if consumers[u]),
    )
    return Question(
        operators, _PLACEMENT_UNIT_SECONDS, "largest_load", np.where([node.backward for node in nodes], 0.0, operators.compute),
        output_bytes, np.zeros(n), instance.n_accelerators, instance.memory_bytes, own_times=True,
    )  # fmt: skip


def _link(problem: Problem, bandwidth: float) -> tuple[float, tuple[str, ...]]:
    """Return the bandwidth between stages, in bytes per second, and what was assumed."""
    if bandwidth:
        return bandwidth, ()
    cluster = problem.cluster
    if cluster is None or cluster.n_devices < 2:
        note = (
            "no cluster and no bandwidth were given: 11 GB/s between stages is assumed (--set bandwidth='25 GB/s' to change it)"
        )
        return _DEFAULT_BYTES_PER_SECOND, (note,)
    if not cluster.homogeneous:
        return float(1.0 / pair_seconds(cluster).max()), (
            "between stages, the bandwidth of the slowest pair of devices is assumed",
        )
    from meshwright.network import Network

    chain = np.arange(cluster.n_devices)
    _, per_byte = Network.of(cluster).transfer(np.stack([chain[:-1], chain[1:]], axis=1))
    notes: tuple[str, ...] = ()
    if not links_alike(cluster, pair_seconds):
        notes = (
            "links are unlike: bandwidth between stages is taken as that of the slowest pair of devices next to each other in "
            f"the cluster's numbering, {1e-9 / np.max(per_byte):.4g} GB/s",
        )
    return float(1.0 / np.max(per_byte)), notes


def _profile(problem: Problem, bandwidth: float) -> Question:
    """Return the operators of a measured profile, in its milliseconds."""
    profile = problem.model_spec.instance
    by_name = {node.name: node for node in profile.nodes}  # type: ignore[attr-defined]
    nodes = [by_name[op.name] for op in problem.graph.ops]
    bytes_per_second, notes = _link(problem, bandwidth)
    output_bytes = np.array([node.output_bytes for node in nodes])
    compute = np.array([node.forward_milli_seconds + node.backward_milli_seconds for node in nodes])
    forward = np.array([node.forward_milli_seconds for node in nodes])
    weights = np.array([node.parameter_bytes for node in nodes])
    # the activation goes forward and its gradient comes back
    transfer = 2.0 * output_bytes / bytes_per_second * 1e3
    # weights, their gradients, and what one micro-batch keeps
    operators = _forward_graph(problem, compute, 2.0 * weights + output_bytes, transfer)
    return Question(operators, 1e-3, "largest_load_milliseconds", forward, output_bytes, weights, own_times=True, notes=notes)


def _modelled(problem: Problem, bandwidth: float) -> Question:
    """Return a model's layers with the times of its cost model, one micro-batch on one device each."""
    if problem.cluster is None:
        raise InputError(f"model {problem.model_spec.name}: say where to train it: --cluster dgx-h100:64")
    graph = problem.graph
    stages = tuple(Stage((i,), (0,), recompute=("none",)) for i in range(len(graph.ops)))
    micro_batch = problem.batch.micro_batch or 1
    plan = Plan(stages, 1, micro_batch, "1f1b", micro_batch)
    stage_costs = registry.load("costs", problem.costs, "cost model").stage_costs(problem, plan)
    if not stage_costs:
        raise InputError(f"model {problem.model_spec.name}: the cost model '{problem.costs}' has no times for its layers")
    bytes_per_second, notes = _link(problem, bandwidth)
    compute = np.array([load.forward_total_seconds + load.backward_total_seconds for load in stage_costs])
    memory = np.array([load.static_bytes + load.activation_bytes for load in stage_costs])
    output_bytes = np.zeros(len(graph.ops))
    for edge in graph.edges:
        n_bytes = edge.n_elements * problem.training.activation_bytes * micro_batch
        if problem.costs == "profiled":  # in the type that was measured
            n_bytes = stage_costs[edge.source].output_bytes
        output_bytes[edge.source] = max(output_bytes[edge.source], n_bytes)
    operators = _forward_graph(problem, compute, memory, 2.0 * output_bytes / bytes_per_second)
    weights = np.array([load.gradient_bytes for load in stage_costs])
    return Question(
        operators, 1.0, "largest_load_seconds", np.array([load.forward_total_seconds for load in stage_costs]), output_bytes,
        weights, notes=notes,
    )  # fmt: skip


def _forward_graph(problem: Problem, compute: np.ndarray, memory: np.ndarray, transfer: np.ndarray) -> Operators:
    """Return operators of a graph whose edges are the tensors of the forward pass."""
    graph, n = problem.graph, len(problem.graph.ops)
    consumers: list[set[int]] = [set() for _ in range(n)]
    for edge in graph.edges:
        consumers[edge.source].add(edge.target)
    return Operators(
        compute=compute, host=np.zeros(n), memory=memory, supported=np.ones(n, dtype=bool),
        edges=tuple((edge.source, edge.target) for edge in graph.edges), colocated=tuple(range(n)),
        nets=tuple((float(transfer[u]), (u, *sorted(consumers[u]))) for u in range(n) if consumers[u]),
    )  # fmt: skip
