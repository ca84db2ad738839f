"""Weights that several layers share, on a rank that holds more than one of these: held, reduced and updated once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from meshwright.core.graph import Graph, Operator
from meshwright.core.plan import Plan
from meshwright.core.stage_cost import StageCost
from meshwright.costs.analytic.layer import LayerWork

__all__ = ["body_without", "counted_twice", "spare_of_stages", "spare_rows", "state_of", "with_state_of"]


def _ends(graph: Graph) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the layers before the first one that repeats, and those behind the last; first and last layer where none does."""
    order = graph.topological_order()
    like = [graph.ops[i].like if graph.ops[i].like >= 0 else i for i in order]
    often = Counter(like)
    repeated = [place for place, own in enumerate(like) if often[own] > 1] or [1, len(order) - 2]
    return order[: repeated[0]], order[repeated[-1] + 1 :]


def _on_ranks(graph: Graph, ranks: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Return the layers at the ends whose shared weights an earlier layer on their rank holds; `ranks`: the layers of each."""
    before, behind = _ends(graph)
    spare: list[frozenset[int]] = []
    for ops in ranks:
        here = frozenset(ops)
        own = [tuple(i for i in (*before, *behind) if i in here and i in dict(shared.places)) for shared in graph.shared]
        spare.append(frozenset(i for layers in own for i in layers[1:]))
    return spare


def spare_rows(graph: Graph, *, ends_together: bool) -> frozenset[int]:
    """Return the layers whose shared weights an earlier layer on their rank holds, in plans of layers in a row.

    `ends_together`: whether the first and the last stage lie on one rank: there is only one, or stages go there and back (a V).

    Notes
    -----
    Only layers at the ends count (before the first layer that repeats and behind the last one), which lie in the first and the
    last stage of all such plans: so it is the same for any split of the layers. What others share is counted for each of them.
    """
    if not graph.shared:
        return frozenset()
    before, behind = _ends(graph)
    return frozenset().union(*_on_ranks(graph, [(*before, *behind)] if ends_together else [before, behind]))


def spare_of_stages(graph: Graph, plan: Plan) -> list[frozenset[int]]:
    """Return the layers of each stage of a plan whose shared weights an earlier layer on their rank holds; see `spare_rows`."""
    if not graph.shared:
        return [frozenset()] * len(plan.stages)
    rank_of_stage = plan.rank_of_stage()
    ranks: list[list[int]] = [[] for _ in plan.ranks()]
    for rank, stage in zip(rank_of_stage, plan.stages, strict=True):
        ranks[rank] += stage.ops
    spare = _on_ranks(graph, ranks)
    return [spare[rank] & frozenset(stage.ops) for rank, stage in zip(rank_of_stage, plan.stages, strict=True)]


def counted_twice(graph: Graph, plan: Plan) -> int:
    """Return how many weights a plan's ranks are taken to hold more often than they do.

    Those of layers that repeat, and, where one rank has the first and the last layer, those of which it is not known where they
    lie.
    """
    spare, rank_of_stage = spare_of_stages(graph, plan), plan.rank_of_stage()
    ranks: list[set[int]] = [set() for _ in plan.ranks()]
    for rank, stage, known in zip(rank_of_stage, plan.stages, spare, strict=True):
        ranks[rank].update(set(stage.ops) - known)
    more = sum(
        max(0, sum(op in ops for op, _ in shared.places) - 1) * shared.n_parameters for shared in graph.shared for ops in ranks
    )
    order = graph.topological_order()
    together = any({order[0], order[-1]} <= ops for ops in ranks)
    return more + together * (graph.n_shared_parameters - graph.n_located_parameters)


def body_without(graph: Graph, row: int) -> tuple[Operator, ...]:
    """Return the operators of a layer without the weights that it shares with others."""
    body = list(graph.ops[row].body)
    for shared in graph.shared:
        name = dict(shared.places).get(row)
        for i, operator in enumerate(body):
            if operator.name == name:
                left = operator.n_parameters - shared.n_parameters
                frozen = max(0, operator.n_frozen_parameters - shared.n_parameters)
                # what is left are biases: a vector
                body[i] = Operator(
                    name, "norm", (("hidden", left),), operator.tensor_axis, left, n_frozen_parameters=frozen,
                    reference=operator.reference,
                )  # fmt: skip
    return tuple(body)


def state_of(work: LayerWork, less: LayerWork) -> LayerWork:
    """Return a layer's work with the weights of `less`."""
    return replace(
        work,
        n_dense_parameters=less.n_dense_parameters,
        n_lookup_parameters=less.n_lookup_parameters,
        n_frozen_dense=less.n_frozen_dense,
        n_packed_parameters=less.n_packed_parameters,
        scale_bytes=less.scale_bytes,
        updates=less.updates,
        reference=state_of(work.reference, less.reference) if work.reference and less.reference else None,
    )


def with_state_of(load: StageCost, less: StageCost) -> StageCost:
    """Return a layer's load that holds, reduces and updates what `less` does, and is as itself in every micro-batch.

    Notes
    -----
    Every use of the weights counts in a micro-batch: under ZeRO-3 both layers gather them and scatter their gradients, as do
    stages that run apart. Where one backward pass goes through both layers, as without a pipeline, programs may scatter the sum
    of both once (autograd adds them first), which is quicker than this.
    """
    return replace(
        load,
        reduce_seconds=less.reduce_seconds,
        gather_seconds=less.gather_seconds,
        optimizer_seconds=less.optimizer_seconds,
        weight_bytes=less.weight_bytes,
        gradient_bytes=less.gradient_bytes,
        optimizer_bytes=less.optimizer_bytes,
        host_bytes=less.host_bytes,
    )
