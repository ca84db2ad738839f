"""What a better split inside a layer saves over Megatron's, both priced in the same model and joined to the same stream."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import ById
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import MixedPrecision, Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic.device_mesh import mesh
from meshwright.costs.sharded.choices import PARTIAL, REPLICATED, choices
from meshwright.costs.sharded.operator import MeshCosts, OperatorChoices
from meshwright.costs.sharded.problem import ShardingProblem, problem_of
from meshwright.costs.sharded.wiring import Node, Wire, Wiring, output_elements, wire
from meshwright.network import REMEMBERED_CLUSTERS, Axis, Network
from meshwright.solvers.pairwise.labelling import solve
from meshwright.solvers.pairwise.problem import restrict

__all__ = ["Saving", "closed_layer", "megatron_labels", "savings"]

_STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Saving:
    """What one layer's best split saves.

    `forward_seconds`, `backward_seconds`: of one micro-batch, over Megatron's split; neither is negative.
    `operators` (tuple of (str, str, str)): the operators that are split otherwise: name, Megatron's split and the better one
    over the expert, context and tensor axis, as ``experts/none/out``.
    `labels`, `megatron`: per operator the way of its menu: the better split and Megatron's.
    """

    forward_seconds: float
    backward_seconds: float
    operators: tuple[tuple[str, str, str], ...]
    labels: tuple[int, ...]
    megatron: tuple[int, ...]


def savings(problem: Problem, strategy: Strategy, micro_batch: int, *, alone: bool = False) -> dict[int, Saving]:
    """Return what the best split inside each distinct layer saves under one strategy.

    `problem`: model and cluster; several kinds of device are not looked at.
    `strategy`: degrees; must be legal. Priced on the first devices of the cluster.
    `micro_batch`: samples of one micro-batch and replica.
    `alone`: whether to price as if other replicas kept silent: quick, and never less than with them.
    Returns: by row; layers for which Megatron's split is best are left out.

    Notes
    -----
    What enters and leaves a layer is laid out as Megatron does, so any layer may be split otherwise without its neighbours. An
    operator may take only ways that hold no more weights and no more for the backward pass than Megatron's, and no more
    temporarily than the widest operator of Megatron's layer; Megatron's split is one of them, so none is worse.
    Expert and context degrees at once, and experts spread over the tensor axis too, are not looked at.
    """
    cluster = problem.required_cluster
    degrees = strategy.expert, strategy.context, strategy.tensor
    both = strategy.expert > 1 and strategy.context > 1
    if math.prod(degrees) == 1 or both or strategy.folded or len(cluster.kinds) > 1:
        return {}
    group = replace(strategy, data=strategy.expert, shard=0, shard_degree=0)
    remembered = _savings(ById(problem.graph), cluster, problem.training)
    found = remembered.of(group, micro_batch)
    if alone or strategy.data == group.data or not found:
        return found
    return remembered.of(replace(strategy, shard=0, shard_degree=0), micro_batch, found)


class _Savings:
    """The savings of one graph on one cluster, found once for each strategy and micro-batch."""

    def __init__(self, graph: Graph, cluster: Cluster, training: MixedPrecision) -> None:
        self._graph, self._cluster, self._training = graph, cluster, training
        self._rows = tuple(row for row in analytic.distinct_rows(graph) if graph.ops[row].body)
        self._found: dict[tuple[Strategy, int, bool], dict[int, Saving]] = {}

    def of(self, strategy: Strategy, micro_batch: int, known: dict[int, Saving] | None = None) -> dict[int, Saving]:
        """Return the savings under a strategy; splits already `known` are only priced again."""
        key = (strategy, micro_batch, known is None)
        if key not in self._found:
            costs = MeshCosts(
                _axes(self._cluster, strategy),
                self._cluster.device(0),
                self._training,
                micro_batch * strategy.expert,
                reduced_later=(0, 1),
            )
            savings = {
                row: self._saving(strategy, row, costs, known) for row in (self._rows if known is None else sorted(known))
            }
            self._found[key] = {row: saving for row, saving in savings.items() if saving is not None}
        return self._found[key]

    def _saving(self, strategy: Strategy, row: int, costs: MeshCosts, known: dict[int, Saving] | None) -> Saving | None:
        """Return what one layer saves; None where it saves nothing."""
        sharding = problem_of(closed_layer(self._graph, row), costs)
        if known is None:
            return _best(strategy, sharding)
        again = _priced(sharding, known[row].labels, known[row].megatron)
        # no more than the silent network promised: what bounds were told stays true
        return again and replace(
            again,
            forward_seconds=min(again.forward_seconds, known[row].forward_seconds),
            backward_seconds=min(again.backward_seconds, known[row].backward_seconds),
        )


@lru_cache(maxsize=REMEMBERED_CLUSTERS)
def _savings(graph: ById[Graph], cluster: Cluster, training: MixedPrecision) -> _Savings:
    """Return the savings on a cluster; graph and cluster are told apart by identity and never change: none can be stale."""
    return _Savings(graph.of, cluster, training)


def _axes(cluster: Cluster, strategy: Strategy) -> tuple[Axis, Axis, Axis]:
    """Return the expert, context and tensor axis over the first devices."""
    axes = mesh(cluster, range(strategy.n_devices), strategy, inside_only=strategy.data == strategy.expert)
    single = Network.of(cluster).axis(np.zeros((1, 1), dtype=np.int64))
    expert, context, tensor = (single if axis is None else axis for axis in (axes.expert, axes.context, axes.tensor))
    return expert, context, tensor


def _best(strategy: Strategy, sharding: ShardingProblem) -> Saving | None:
    """Solve one layer; None where Megatron's split is best or does not divide."""
    hand = megatron_labels(sharding, strategy.sequence_parallel)
    if hand is None:
        return None
    sizes = [axis.size for axis in sharding.costs.axes]
    working = [_working_elements(node, made, sizes) for node, made in zip(sharding.wiring.nodes, sharding.menus, strict=True)]
    widest = max(elements[label] for elements, label in zip(working, hand.tolist(), strict=True))
    kept = []
    for made, elements, label in zip(sharding.menus, working, hand.tolist(), strict=True):
        fits = (made.parameters <= made.parameters[label]) & (made.saved_bytes <= made.saved_bytes[label] * (1.0 + 1e-12))
        kept.append(fits & (elements <= widest))
    kept[0] = np.arange(len(kept[0])) == hand[0]
    smaller, old = restrict(sharding.problem, np.concatenate(kept))
    labels = old[smaller.first[:-1] + solve(smaller).labels]
    return _priced(sharding, tuple(labels.tolist()), tuple(hand.tolist()))


def _priced(sharding: ShardingProblem, labels: tuple[int, ...], hand: tuple[int, ...]) -> Saving | None:
    """Return what one split saves over another; None where it saves nothing, or makes either pass slower."""
    ours, theirs = _seconds(sharding, labels), _seconds(sharding, hand)
    forward, backward = theirs[0] - ours[0], theirs[1] - ours[1]
    least = 1e-9 * sum(theirs)  # less is rounding
    if min(forward, backward) < -least or forward + backward <= least:
        return None
    operators = []
    for node, made, now, before in zip(sharding.wiring.nodes, sharding.menus, labels, hand, strict=True):
        names = ["/".join(choice.name for choice in made.choices[label]) for label in (before, now)]
        if names[0] != names[1]:
            operators.append((node.name, names[0], names[1]))
    return Saving(max(0.0, forward), max(0.0, backward), tuple(operators), labels, hand)


def _seconds(sharding: ShardingProblem, labels: tuple[int, ...]) -> tuple[float, float]:
    """Return the seconds of one micro-batch forward and backward, collectives included, of a layer under one split."""
    forward = backward = 0.0
    for made, label in zip(sharding.menus, labels, strict=True):
        forward += float(made.forward_seconds[label] + made.forward_communication_seconds[label])
        backward += float(made.backward_seconds[label] + made.backward_communication_seconds[label])
    problem = sharding.problem
    for e, (u, v) in enumerate(zip(problem.source.tolist(), problem.target.tolist(), strict=True)):
        place = problem.rows[e][labels[u]], problem.columns[e][labels[v]]
        there = float(sharding.forward_tables[problem.table_of_edge[e]][place])
        forward += there
        backward += float(problem.table(e)[place]) - there
    return forward, backward


def _working_elements(node: Node, made: OperatorChoices, sizes: list[int]) -> NDArray[np.float64]:
    """Return what one device reads and writes of an operator per sample of the mesh, for every way to split it."""
    operator = node.operator
    written = float(output_elements(operator))
    read = written
    if operator.kind in ("matmul", "grouped_matmul"):
        read *= operator.size("in") / operator.size("out")
    elif operator.kind == "cross_entropy":
        read = float(operator.size("sequence") * operator.size("vocabulary"))
    elements = []
    for way in made.choices:
        parts = [math.prod(n for n, c in zip(sizes, way, strict=True) if c.read not in (PARTIAL, REPLICATED))]
        parts += [math.prod(n for n, c in zip(sizes, way, strict=True) if c.written not in (PARTIAL, REPLICATED))]
        elements.append(read / parts[0] + written / parts[1])
    return np.array(elements)


def closed_layer(graph: Graph, row: int) -> Wiring:
    """Return the operators of one layer between the stream that enters it and the stream that leaves it, which are one.

    Returns: the stream is the first operator.
    """
    layer = graph.ops[row]
    width = max((edge.n_elements for edge in graph.edges if row in (edge.source, edge.target)), default=0)
    width = width or graph.sequence_length
    dims = (("sequence", graph.sequence_length), ("hidden", max(1, width // graph.sequence_length)), ("inputs", 0))
    before = Op("before", "", (Operator(_STREAM, "elementwise", dims, moved_elements=0),))
    joined = wire(Graph("layer", (before, replace(layer, like=-1)), (Edge(0, 1, width),)))
    enters, leaves = (any(getattr(edge, end) == row for edge in graph.edges) for end in ("target", "source"))
    wires = [w for w in joined.wires if enters or w.source != 0]
    last = len(joined.nodes) - 1
    if leaves:
        wires.append(Wire(last, 0, output_elements(joined.nodes[last].operator)))
    nodes = tuple(
        Node(node.name.removeprefix(f"{layer.name}.").removeprefix("before."), node.operator, node.unfused)
        for node in joined.nodes
    )
    return Wiring(nodes, tuple(wires))


def megatron_labels(sharding: ShardingProblem, sequence_parallel: bool) -> NDArray[np.int64] | None:
    """Return Megatron's split of every operator: columns, then rows; the sequence over the context axis, experts over theirs.

    `sharding`: operators on a mesh of (expert, context, tensor).
    `sequence_parallel`: whether norms and residual sums are split along the sequence over the tensor axis.
    Returns shape (n_operators,), int64, or None: labels; None where a size does not divide.

    References
    ----------
    .. [1] M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; V. Korthikanti et al., arXiv:2205.05198, section 4.
    """
    labels = []
    for node, made in zip(sharding.wiring.nodes, sharding.menus, strict=True):
        operator = node.operator
        known = {choice.name for choice in choices(operator)}
        tensor = operator.tensor_axis if operator.tensor_axis in known else "none"
        if operator.tensor_axis in ("", "sequence"):
            tensor = "sequence" if sequence_parallel and "sequence" in known else "none"
        context = "sequence" if "sequence" in known else "none"
        expert = "experts" if "experts" in known else "batch"
        wanted = [
            word if axis.size > 1 else "none" for word, axis in zip((expert, context, tensor), sharding.costs.axes, strict=True)
        ]
        names = [[choice.name for choice in way] for way in made.choices]
        if wanted not in names:
            return None
        labels.append(names.index(wanted))
    return np.array(labels, dtype=np.int64)
