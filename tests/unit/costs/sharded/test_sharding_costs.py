"""Sharding on a device mesh: wiring of operators, re-sharding, ways to split, the menu;
small cases by hand and by brute force.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.clusters import cluster
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.problem import MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.sharded.against_megatron import closed_layer, megatron_labels
from meshwright.costs.sharded.choices import BATCH, EXPERT, HIDDEN, PARTIAL, REPLICATED, SEQUENCE, choices, placement
from meshwright.costs.sharded.operator import MeshCosts, menu
from meshwright.costs.sharded.problem import mesh_axes, mesh_shape, problem_of
from meshwright.costs.sharded.resharding import reshard_seconds
from meshwright.costs.sharded.wiring import Node, wire
from meshwright.network import Network
from meshwright.solvers.pairwise.labelling import solve
from meshwright.solvers.pairwise.problem import total_cost


@pytest.fixture(scope="module")
def node():
    return cluster("dgx-h100:8")


def _matmul(name: str = "a.product", sequence: int = 64, n_in: int = 128, n_out: int = 256) -> Operator:
    dims = (("sequence", sequence), ("in", n_in), ("out", n_out))
    return Operator(name, "matmul", dims, "out", n_parameters=n_in * n_out, saved_elements=sequence * n_out)


def _costs(node, shape=(8,), batch=8, **more) -> MeshCosts:
    return MeshCosts(mesh_axes(node, shape), node.device(0), MixedPrecision(), batch, **more)


def test_a_dense_layer_is_wired_as_its_residual_stream_says() -> None:
    wiring = wire(api.make_problem("llama-3.1-8b", "dgx-h100:8").graph)
    names = [one.name for one in wiring.nodes]
    read = {name: [names[w.source] for w in wiring.wires if w.target == v] for v, name in enumerate(names)}
    assert read["embed.words"] == []
    assert read["layers.0.attention.norm"] == ["embed.words"]
    assert set(read["layers.0.attention.residual"]) == {"layers.0.attention.output", "embed.words"}
    assert read["layers.0.mlp.norm"] == ["layers.0.attention.residual"]
    assert set(read["layers.0.mlp.residual"]) == {"layers.0.mlp.out", "layers.0.attention.residual"}
    assert read["layers.1.attention.norm"] == ["layers.0.mlp.residual"]
    assert read["head.loss"] == ["head.unembedding"]
    assert all(w.source < w.target for w in wiring.wires)


def test_tokens_reach_experts_past_the_router_and_shared_experts_read_the_norm() -> None:
    wiring = wire(api.make_problem("mixtral-8x7b", "dgx-h100:8").graph)
    names = [one.name for one in wiring.nodes]
    read = {name: {names[w.source] for w in wiring.wires if w.target == v} for v, name in enumerate(names)}
    assert read["layers.0.mlp.dispatch"] == {"layers.0.mlp.norm", "layers.0.mlp.routing"}
    assert read["layers.0.mlp.experts.in"] == {"layers.0.mlp.dispatch"}
    assert read["layers.0.mlp.residual"] == {"layers.0.mlp.combine", "layers.0.attention.residual"}


@pytest.mark.parametrize("model", ["gpt2", "gpt3-175b", "llama-3.1-8b", "mixtral-8x7b"])
def test_every_operator_but_look_ups_reads_something_and_every_output_but_the_loss_is_read(model: str) -> None:
    wiring = wire(api.make_problem(model, "dgx-h100:8").graph)
    reads, is_read = {w.target for w in wiring.wires}, {w.source for w in wiring.wires}
    for v, one in enumerate(wiring.nodes):
        assert v in reads or one.operator.kind == "embedding", one.name
        assert v in is_read or one.operator.kind == "cross_entropy", one.name


def test_one_axis_needs_the_collective_that_its_layouts_say(node) -> None:
    """Written as rows, read as columns; forward and backward, tensor of 80 MB over 8 devices."""
    axis = Network.of(node).axis(np.arange(8)[None, :])
    n_bytes = 8e7
    layouts = np.arange(6)[:, None]
    forward, backward = reshard_seconds((axis,), layouts, layouts, n_bytes)
    gather, scatter = axis.seconds("all_gather", n_bytes), axis.seconds("reduce_scatter", n_bytes)
    whole, turn = axis.seconds("all_reduce", n_bytes), axis.seconds("all_to_all", n_bytes / 8)
    assert forward[BATCH, BATCH] == backward[BATCH, BATCH] == 0.0
    assert forward[BATCH, REPLICATED] == forward[BATCH, PARTIAL] == pytest.approx(gather)
    assert backward[BATCH, REPLICATED] == 0.0  # the whole gradient is there: a part is cut out
    assert backward[BATCH, PARTIAL] == pytest.approx(scatter)
    assert forward[PARTIAL, SEQUENCE] == pytest.approx(scatter)
    assert backward[PARTIAL, SEQUENCE] == pytest.approx(gather)
    assert forward[PARTIAL, REPLICATED] == pytest.approx(whole)
    assert backward[REPLICATED, PARTIAL] == pytest.approx(whole)
    assert forward[SEQUENCE, HIDDEN] == forward[BATCH, EXPERT] == pytest.approx(turn)
    assert forward[REPLICATED, HIDDEN] == 0.0
    assert backward[REPLICATED, HIDDEN] == pytest.approx(gather)


def test_with_two_axes_the_order_of_conversions_is_the_quickest_one() -> None:
    both = cluster("dgx-h100:16")
    axes = mesh_axes(both, (2, 8))
    written, read = np.array([[BATCH, HIDDEN]]), np.array([[REPLICATED, REPLICATED]])
    outer, inner = (axis.seconds for axis in axes)
    first_outer = outer("all_gather", 1e8 / 8) + inner("all_gather", 1e8)
    first_inner = inner("all_gather", 1e8 / 2) + outer("all_gather", 1e8)
    forward, _ = reshard_seconds(axes, written, read, 1e8)
    assert forward[0, 0] == pytest.approx(min(first_outer, first_inner))


def test_a_way_is_offered_only_where_everything_divides(node) -> None:
    costs = _costs(node, batch=4)
    names = {way[0].name for way in menu(Node("", _matmul(n_in=100)), costs).choices}
    assert names == {"sequence", "out", "none"}  # four samples and a hundred inputs do not divide by eight
    grouped = Operator("a.core", "attention", (("sequence", 64), ("heads", 32), ("kv_heads", 3), ("head", 16)), "heads")
    assert "heads" not in {way[0].name for way in menu(Node("", grouped), costs).choices}


def test_splitting_work_never_makes_a_devices_compute_longer_and_split_weights_hold_their_share(node) -> None:
    operator = _matmul(sequence=2048, n_in=4096, n_out=4096)
    made = menu(Node("", operator), _costs(node))
    by_name = {way[0].name: i for i, way in enumerate(made.choices)}
    whole = by_name["none"]
    assert (made.compute_seconds <= made.compute_seconds[whole] * (1 + 1e-12)).all()
    assert made.parameters[by_name["out"]] == operator.n_parameters / 8
    assert made.parameters[by_name["batch"]] == operator.n_parameters
    assert made.state_bytes[by_name["batch, weights sharded"]] == made.state_bytes[whole] / 8
    assert made.communication_seconds[whole] == 0.0
    assert made.saved_bytes[by_name["batch"]] == made.saved_bytes[whole] / 8


def test_recomputing_keeps_less_and_takes_longer(node) -> None:
    operator = _matmul(sequence=2048, n_in=4096, n_out=4096)
    kept, again = (menu(Node("", operator), _costs(node, recompute=how)) for how in ("none", "full"))
    assert (again.saved_bytes == 0.0).all() and (kept.saved_bytes > 0.0).all()
    assert (again.compute_seconds > kept.compute_seconds).all()


def test_the_best_sharding_of_a_small_model_is_that_of_brute_force(node) -> None:
    """Norm, two products and a residual sum on a mesh of 2 x 4: every combination of ways is looked at."""
    stream = (("sequence", 512), ("hidden", 1024))
    body = (
        Operator("a.norm", "norm", stream, "sequence", n_parameters=1024),
        _matmul("a.in", 512, 1024, 4096),
        _matmul("a.out", 512, 4096, 1024),
    )
    graph = Graph("small", (Op("l", "", body),))
    sharding = problem_of(wire(graph), _costs(node, (2, 4), batch=8))
    found = solve(sharding.problem)
    least = min(
        total_cost(sharding.problem, np.array(labels))
        for labels in itertools.product(*(range(len(made.choices)) for made in sharding.menus))
    )
    assert found.value == pytest.approx(least, rel=1e-12)
    assert found.bound_value <= least * (1 + 1e-12)


def test_the_mesh_is_nodes_by_devices_unless_asked_otherwise(node) -> None:
    assert mesh_shape(cluster("dgx-h100:32")) == (4, 8)
    assert mesh_shape(node) == (8,)
    assert mesh_shape(node, (2, 4)) == (2, 4)
    with pytest.raises(InputError, match="2x3: has 6 places"):
        mesh_shape(node, (2, 3))


def test_layouts_are_said_as_dtensor_says_them() -> None:
    assert [placement(layout) for layout in (BATCH, SEQUENCE, HIDDEN, REPLICATED, PARTIAL)] == [
        "Shard(0)", "Shard(1)", "Shard(2)", "Replicate()", "Partial()",
    ]  # fmt: skip
    assert placement(PARTIAL, read=True) == "Replicate()"


def test_every_way_to_split_has_its_own_name() -> None:
    for kind in ("matmul", "grouped_matmul", "attention", "norm", "elementwise", "embedding", "cross_entropy", "softmax",
                 "dispatch", "combine", "convolution", "pooling", "other"):  # fmt: skip
        dims = (("sequence", 8), ("in", 8), ("out", 8), ("hidden", 8))
        names = [choice.name for choice in choices(Operator("x", kind, dims, "hidden", n_parameters=1))]
        assert len(set(names)) == len(names) and names[-1] == "none" and names[0] == "batch"


@pytest.mark.parametrize(
    ("model", "strategy", "within"),
    [
        ("llama-3.1-8b", Strategy(1, 8, sequence_parallel=True), 0.1),
        ("mixtral-8x7b", Strategy(8, expert=8), 0.15),
    ],
)
def test_megatrons_split_costs_about_what_the_analytic_model_says(model: str, strategy: Strategy, within: float) -> None:
    """Two models of one thing, built apart, without gradient reduction on either side."""
    problem = api.make_problem(model, "dgx-h100:8", framework="megatron:plain")
    axes = mesh_axes(problem.cluster, (strategy.expert, strategy.context, strategy.tensor))
    costs = MeshCosts(axes, problem.cluster.device(0), problem.training, strategy.expert, reduced_later=(0, 1))
    sharding = problem_of(closed_layer(problem.graph, 1), costs)
    labels = megatron_labels(sharding, strategy.sequence_parallel)
    load = analytic.row_costs(problem, strategy, range(8), 1)[1, "none"]
    seconds = load.forward_total_seconds + load.backward_total_seconds
    assert total_cost(sharding.problem, labels) == pytest.approx(seconds, rel=within)
    pairs = list(zip(sharding.menus, labels, strict=True))
    assert sum(made.saved_bytes[label] for made, label in pairs) == pytest.approx(load.activation_bytes, rel=0.05)
    ways = {
        node.name: tuple(choice.name for choice in made.choices[label])
        for node, (made, label) in zip(sharding.wiring.nodes, pairs, strict=True)
    }
    if strategy.expert > 1:
        assert ways["mlp.experts.in"][0] == "experts" and ways["attention.norm"][0] == "batch"
    else:
        assert ways["mlp.in"] == ("none", "none", "out") and ways["attention.norm"] == ("none", "none", "sequence")


def test_a_second_input_of_a_layer_is_read_too() -> None:
    body = (_matmul("captured.layers.0.query", 8, 8, 8),)
    graph = Graph("two", (Op("x", "", body), Op("y", "", body), Op("z", "", body)), (Edge(0, 2, 64), Edge(1, 2, 64)))
    assert {(w.source, w.target) for w in wire(graph).wires} == {(0, 2), (1, 2)}


def test_keys_of_cross_attention_read_the_encoder() -> None:
    wiring = wire(api.make_problem("t5-11b", "dgx-h100:8").graph)
    names = [one.name for one in wiring.nodes]
    keys = [v for v, name in enumerate(names) if name.endswith("cross_attention.key_value")]
    read = {names[w.source] for w in wiring.wires if w.target in keys}
    assert keys and len(read) == 1
    assert next(iter(read)).startswith("encoder")
