"""The menu for stages: for every repeated layer and degree the best sharding inside it, never worse than Megatron's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import CostTable
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.sharded.choices import choices
from meshwright.costs.sharded.operator import MeshCosts
from meshwright.costs.sharded.problem import ShardingProblem, mesh_axes, problem_of
from meshwright.costs.sharded.wiring import Node, Wire, Wiring, output_elements, wire
from meshwright.solvers.pairwise.labelling import solve
from meshwright.solvers.pairwise.problem import restrict, total_cost

__all__ = ["MenuRow", "closed_layer", "megatron_labels", "menu_row", "rows_of", "table"]

_STREAM = "stream"


@dataclass(frozen=True, slots=True)
class MenuRow:
    """One layer under one strategy, its operators sharded in the best way over the strategy's expert, context and tensor axes.

    Parameters
    ----------
    row : int
        Id of the layer (the first of those alike).
    strategy : Strategy
        The degrees.
    recompute : str
        What is computed again.
    split : str
        ``best``, or ``megatron`` for its hand-written split in the same cost model.
    forward_seconds, backward_seconds : float
        One micro-batch on one replica, collectives included.
    parameters_bytes : float
        Weights on one device as the products use them, before sharding over the data axis.
    activation_bytes : float
        Kept per micro-batch in flight and device.
    megatron_seconds : float
        Forward and backward of Megatron's split in the same cost model; infinite where it does not divide. Over the layers of
        the model the menu is at most that; a single layer may be more.
    shardings : tuple of (str, tuple of str)
        Per operator what each of the three axes splits.
    """

    row: int
    strategy: Strategy
    recompute: str
    split: str
    forward_seconds: float
    backward_seconds: float
    parameters_bytes: float
    activation_bytes: float
    megatron_seconds: float
    shardings: tuple[tuple[str, tuple[str, ...]], ...]


def rows_of(problem: Problem, strategies: Sequence[Strategy], micro_batch: int, recompute: str = "none") -> tuple[MenuRow, ...]:
    """Return the best sharding inside every distinct layer under every legal strategy.

    Parameters
    ----------
    problem : Problem
        Model and cluster.
    strategies : sequence of Strategy
        Degrees; each is priced on the first devices of the cluster, data outermost and tensor over neighbours. Illegal ones
        are left out.
    micro_batch : int
        Samples of one micro-batch and replica.
    recompute : str
        ``none``, ``selective`` or ``full``.

    Returns
    -------
    tuple of MenuRow
        By layer, then in the order of the strategies; for each the best split and, where it divides, Megatron's.

    Raises
    ------
    InputError
        When there is no cluster.

    Notes
    -----
    Every layer is joined to a stream, an operator that does nothing: what enters the layer and what leaves it are laid out as
    the stream is. All layers under one strategy share the layout of the stream, the one for which the whole model is quickest;
    so rows fit to each other at no cost, and a stage of n layers costs n rows. Megatron's split is one of the ways looked at:
    over the layers of the model the menu is never slower than it. Gradients that the context axis leaves in parts are summed
    once a step with those of the data axis and not counted here; those of the tensor axis are counted with every micro-batch.
    An expert degree takes neighbouring replicas together: the batch is split over them wherever the stream passes, and experts may
    be. Expert and context degrees at once are left out, as are illegal strategies.
    """
    cluster = problem.required_cluster
    row_of_op = analytic.rows(problem)
    counts = {row: row_of_op.count(row) for row in sorted(set(row_of_op)) if problem.graph.ops[row].body}
    found: list[MenuRow] = []
    for strategy in strategies:
        both = strategy.expert > 1 and strategy.context > 1
        if both or strategy.data % strategy.expert or analytic.illegal(problem, strategy, micro_batch):
            continue
        shape = (strategy.data // strategy.expert, strategy.expert, strategy.context, strategy.tensor)
        axes = mesh_axes(cluster, shape, np.arange(strategy.n_devices))[1:]
        batch = micro_batch * strategy.expert
        costs = MeshCosts(axes, cluster.device(0), problem.training, batch, recompute, reduced_later=(0, 1))
        found += _under(problem.graph, counts, strategy, costs)
    return tuple(sorted(found, key=lambda row: row.row))


def _under(graph: Graph, counts: dict[int, int], strategy: Strategy, costs: MeshCosts) -> list[MenuRow]:
    """Solve all distinct layers under one strategy, for the layout of the stream that is quickest over the model."""
    shardings = {row: problem_of(closed_layer(graph, row), costs) for row in counts}
    streams = next(iter(shardings.values())).menus[0].choices
    n_layouts = len(streams)
    best: tuple[float, dict[int, NDArray[np.int64]]] | None = None
    for layout, way in enumerate(streams):
        if strategy.expert > 1 and way[0].name != "batch":
            continue  # replicas have their own samples
        chosen, total = {}, 0.0
        for row, sharding in shardings.items():
            kept = np.ones(len(sharding.problem.node_cost), dtype=bool)
            kept[:n_layouts] = np.arange(n_layouts) == layout
            smaller, old = restrict(sharding.problem, kept)
            solved = solve(smaller)
            chosen[row] = old[smaller.first[:-1] + solved.labels]
            total += counts[row] * solved.value
        if best is None or total < best[0]:
            best = total, chosen
    assert best is not None
    hand = _megatron(shardings, counts)
    rows = []
    for row, sharding in shardings.items():
        seconds = math.inf if hand is None else total_cost(sharding.problem, hand[row])
        rows.append(menu_row(row, strategy, sharding, best[1][row].tolist(), "best", seconds))
        if hand is not None:
            rows.append(menu_row(row, strategy, sharding, hand[row].tolist(), "megatron", seconds))
    return rows


def _megatron(shardings: dict[int, ShardingProblem], counts: dict[int, int]) -> dict[int, NDArray[np.int64]] | None:
    """Return Megatron's split of each layer, with sequence parallelism where that is quicker over the model; None for none."""
    best: tuple[float, dict[int, NDArray[np.int64]]] | None = None
    for sequence_parallel in (False, True):
        found = {row: megatron_labels(sharding, sequence_parallel) for row, sharding in shardings.items()}
        labels = {row: chosen for row, chosen in found.items() if chosen is not None}
        if len(labels) == len(shardings):
            seconds = sum(counts[row] * total_cost(shardings[row].problem, chosen) for row, chosen in labels.items())
            best = (seconds, labels) if best is None or seconds < best[0] else best
    return None if best is None else best[1]


def menu_row(
    row: int, strategy: Strategy, sharding: ShardingProblem, labels: list[int], split: str, megatron_seconds: float
) -> MenuRow:
    """Add up one layer under one split.

    Parameters
    ----------
    row : int
        Id of the layer.
    strategy : Strategy
        The degrees.
    sharding : ShardingProblem
        The layer's operators on the mesh.
    labels : list of int
        Per operator the way it is split.
    split : str
        What the split is called.
    megatron_seconds : float
        See `MenuRow`.
    """
    forward = backward = parameters = saved = 0.0
    for made, label in zip(sharding.menus, labels, strict=True):
        forward += float(made.forward_seconds[label] + made.forward_communication_seconds[label])
        backward += float(made.backward_seconds[label] + made.backward_communication_seconds[label])
        parameters += float(made.parameters[label])
        saved += float(made.saved_bytes[label])
    problem = sharding.problem
    for e, (u, v) in enumerate(zip(problem.source.tolist(), problem.target.tolist(), strict=True)):
        place = problem.rows[e][labels[u]], problem.columns[e][labels[v]]
        there = float(sharding.forward_tables[problem.table_of_edge[e]][place])
        forward += there
        backward += float(problem.table(e)[place]) - there
    shardings = tuple(
        (node.name, tuple(choice.name for choice in made.choices[label]))
        for node, made, label in zip(sharding.wiring.nodes, sharding.menus, labels, strict=True)
    )
    return MenuRow(
        row, strategy, sharding.costs.recompute, split, forward, backward, parameters * sharding.costs.training.weight_bytes, saved, megatron_seconds, shardings
    )  # fmt: skip


def closed_layer(graph: Graph, row: int) -> Wiring:
    """Return the operators of one layer between the stream that enters it and the stream that leaves it, which are one.

    Parameters
    ----------
    graph : Graph
        The model.
    row : int
        Id of the layer.

    Returns
    -------
    Wiring
        The stream is the first operator.
    """
    layer = graph.ops[row]
    width = max((edge.n_elements for edge in graph.edges if row in (edge.source, edge.target)), default=0)
    width = width or graph.sequence_length
    dims = (("sequence", graph.sequence_length), ("hidden", max(1, width // graph.sequence_length)), ("inputs", 0))
    before = Op("before", "", (Operator(_STREAM, "elementwise", dims, moved_elements=0),))
    joined = wire(Graph("layer", (before, layer), (Edge(0, 1, width),)))
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

    Parameters
    ----------
    sharding : ShardingProblem
        Operators on a mesh of (expert, context, tensor).
    sequence_parallel : bool
        Whether norms and residual sums are split along the sequence over the tensor axis.

    Returns
    -------
    ndarray, shape (n_operators,), int64, or None
        Labels; None where a size does not divide.

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


def table(
    problem: Problem, strategies: Sequence[Strategy], micro_batch: int, recompute: Sequence[str] = ("none",)
) -> CostTable:
    """Return the menu as the cost table that stage searches read.

    Parameters
    ----------
    problem : Problem
        Model and cluster.
    strategies : sequence of Strategy
        Degrees to price.
    micro_batch : int
        Samples of one micro-batch and replica.
    recompute : sequence of str
        Ways to recompute to price.

    Returns
    -------
    CostTable
        Rows are distinct layers in order; Megatron's split is a choice of its own where it holds less. Working memory is not modelled here and is 0.

    Raises
    ------
    InputError
        When no strategy is legal.
    """
    made: list[MenuRow] = []
    for row in (row for how in recompute for row in rows_of(problem, strategies, micro_batch, how)):
        # Megatron's split stays on the menu where it is leaner than the best one, which stands just before it.
        if (
            row.split == "best"
            or row.parameters_bytes < made[-1].parameters_bytes
            or row.activation_bytes < made[-1].activation_bytes
        ):
            made.append(row)
    if not made:
        raise InputError(f"model {problem.model_spec.name}: no strategy given can run it")
    distinct = sorted({row.row for row in made})
    made.sort(key=lambda row: row.row)
    first = np.concatenate(([0], np.cumsum([sum(row.row == one for row in made) for one in distinct])))
    position = {row: i for i, row in enumerate(distinct)}
    training = problem.training
    parameters = np.array([row.parameters_bytes for row in made]) / training.weight_bytes
    state = training.weight_bytes + training.gradient_bytes + training.optimizer_bytes
    return CostTable(
        row_of_op=np.array([position[row] for row in analytic.rows(problem)], dtype=np.int64),
        first=first.astype(np.int64),
        strategies=tuple(row.strategy for row in made),
        recompute=tuple(row.recompute for row in made),
        forward_seconds=np.array([row.forward_seconds for row in made]),
        backward_seconds=np.array([row.backward_seconds for row in made]),
        weight_bytes=parameters * training.gradient_bytes,
        static_bytes=parameters * state,
        activation_bytes=np.array([row.activation_bytes for row in made]),
        working_bytes=np.zeros(len(made)),
        edge_bytes=np.array([float(e.n_elements * micro_batch * training.activation_bytes) for e in problem.graph.edges]),
        micro_batch=micro_batch,
    )
