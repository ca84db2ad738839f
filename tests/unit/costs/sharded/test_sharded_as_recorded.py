"""Operators on device meshes: choices, tables, re-sharding, and what better splits save over Megatron's, as recorded."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.costs import sharded
from meshwright.costs.sharded import against_megatron
from meshwright.costs.sharded.choices import choices, placement
from meshwright.costs.sharded.operator import MeshCosts
from meshwright.costs.sharded.problem import mesh_axes, mesh_shape, problem_of
from meshwright.costs.sharded.resharding import reshard_seconds
from meshwright.costs.sharded.wiring import wire
from recorded import Recorded
from returned import Returned, refusal
from small_clusters import boxes, device
from small_models import question

ROOM = "costs/sharded/"


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_operators_on_meshes_cost_what_was_recorded(
    kind: str, recompute: str, recorded: Recorded, tmp_path: pathlib.Path
) -> None:
    problem = question(kind, boxes([2, 2]), tmp_path, Batch(4))
    graph = problem.graph
    sums = []
    with Returned(ROOM) as found:
        if recompute == "none":
            whole = wire(graph)
            sums.append([len(whole.nodes), len(whole.wires)])
        wiring = wire(Graph("one", graph.ops[:2], graph.edges[:1], graph.sequence_length))
        for shape, batch, training in (
            ((2, 2), 4, MixedPrecision()),
            ((4,), 3, MixedPrecision(precision="fp16")),
            ((1, 4), 4, MixedPrecision(activation_bytes=4)),
        ):
            axes = mesh_axes(problem.required_cluster, shape)
            costs = MeshCosts(
                axes, problem.required_cluster.device(0), training, batch, recompute, (0,) if shape == (2, 2) else ()
            )
            made = problem_of(wiring, costs)
            sums.append(
                [
                    made.problem.n_nodes,
                    len(made.problem.node_cost),
                    float(made.problem.node_cost.sum()),
                    float(made.held_bytes.sum()),
                    sum(float(it.sum()) for it in made.problem.tables),
                ]
            )
    recorded([sums, found.lines()])


def test_resharding_takes_the_recorded_seconds_in_every_direction(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    body = [operator for op in question("experts", boxes([2]), tmp_path).graph.ops[:3] for operator in op.body]
    found = {}
    for name, cluster, shape in (
        ("one", boxes([4]), (4,)),
        ("two", boxes([2, 2]), (2, 2)),
        ("uneven", boxes([2, 2, 2]), (3, 2)),
    ):
        layouts = np.array(np.meshgrid(*[np.arange(6)] * len(shape), indexing="ij")).reshape(len(shape), -1).T
        some = layouts[:: 1 if len(shape) == 1 else 5]
        forward, backward = reshard_seconds(mesh_axes(cluster, shape), some, some[::-1], 3e6)
        found[name] = [
            forward.shape,
            forward if len(shape) == 1 else [float(forward.sum()), forward[1], forward[:, 2]],
            float(backward.sum()),
            backward[:, 1],
        ]
    ways = {operator.name: [[choice.name, *map(str, choice[1:])] for choice in choices(operator)] for operator in body}
    recorded([found, ways, [[placement(layout, read=read) for layout in range(6)] for read in (False, True)]])


STRATEGIES = {
    "tensor": Strategy(tensor=4, sequence_parallel=True),
    "tensor_2": Strategy(data=2, tensor=2),
    "ring": Strategy(context=4),
    "experts": Strategy(data=4, expert=4),
    "experts_tensor": Strategy(data=2, tensor=2, expert=2, sequence_parallel=True),
    "data": Strategy(data=4),
    "both": Strategy(data=2, context=2, expert=2),
}


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_better_splits_save_what_was_recorded(kind: str, recorded: Recorded, tmp_path: pathlib.Path) -> None:
    said = {}
    with Returned(ROOM) as found:
        cluster = boxes([2, 2], across=1e9)
        problem = question(kind, cluster, tmp_path, Batch(8))
        for name, strategy in STRATEGIES.items():
            if sharded.illegal(problem, strategy, 2):
                continue
            stage = Stage(tuple(range(len(problem.graph.ops))), tuple(range(4)), strategy)
            plan = Plan((stage,), 2, 2, "1f1b", 4 * strategy.data)
            loads = sharded.stage_costs(problem, plan)
            alone = sharded.row_costs(problem, strategy, range(4), 2, inside_only=True)
            said[name] = [
                loads[0].forward_communication,
                loads[0].backward_communication,
                sharded.described(problem, plan),
                [it["saved_seconds"] for it in sharded.splits(problem, plan)],
                float(sum(load.forward_total_seconds + load.backward_total_seconds for load in alone.values())),
            ]
            assert sharded.compute_seconds(problem, strategy, 2, cluster.device(0)) and sharded.axis_times(
                problem, strategy, range(4)
            )
    recorded(said, "said")
    recorded(found.lines(), "functions")


def test_megatrons_labels_and_refusals_are_as_recorded(recorded: Recorded, tmp_path: pathlib.Path) -> None:
    found = {}
    for kind in ("dense", "experts"):
        problem = question(kind, boxes([2, 2]), tmp_path)
        for row in (0, 1, len(problem.graph.ops) - 1):
            wiring = against_megatron.closed_layer(problem.graph, row)
            wires = [(it.source, it.target, it.n_elements) for it in wiring.wires]
            for shape in ((1, 1, 4), (2, 1, 2), (1, 2, 2), (1, 3, 1)):
                axes = mesh_axes(problem.required_cluster if 3 not in shape else boxes([3]), shape)
                costs = MeshCosts(axes, problem.required_cluster.device(0), problem.training, 4, reduced_later=(0, 1))
                made = problem_of(wiring, costs)
                labels = [against_megatron.megatron_labels(made, parallel) for parallel in (False, True)]
                found[f"{kind} {row} {shape}"] = [wires if shape == (1, 1, 4) else len(wires), *labels]
    unlike = question("dense", boxes([2, 2], kinds=[device("a"), device("b")]), tmp_path)
    stage = Stage(tuple(range(len(unlike.graph.ops))), tuple(range(4)), STRATEGIES["tensor"])
    found["unlike"] = [
        sharded.described(unlike, Plan((stage,), 2, 2, "1f1b", 4)),
        against_megatron.savings(unlike, STRATEGIES["tensor"], 2),
    ]
    found["shapes"] = [
        mesh_shape(cluster, asked)
        for cluster, asked in (
            (boxes([2, 2]), ()),
            (boxes([3, 1]), ()),
            (boxes([4]), ()),
            (boxes([1, 1]), ()),
            (boxes([1]), ()),
            (boxes([4]), (2, 2)),
        )
    ]
    found["refused"] = [
        refusal(lambda asked=asked: mesh_shape(boxes([2, 2]), asked)) for asked in ((2,), (2, 2), (-2, -2), (4, 1), (5, 1))
    ]
    recorded(found)
