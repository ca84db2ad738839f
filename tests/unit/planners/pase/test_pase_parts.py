"""PaSE's costs of every kind of operator, with splits and sizes small enough to count by hand; W is FLOP per word."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshwright.planners.pase import layer_costs, tables
from meshwright.planners.pase.memory import held_bytes
from meshwright.planners.pase.operators import NetworkBuilder, PaseGraph, PaseOperator, Tensor

W = 10.0
IMAGE, WORDS = Tensor(-1, (4, 6, 2, 2)), Tensor(-1, (4, 6, 8))

COSTS: list[tuple[str, Callable[[NetworkBuilder], object], tuple[int, ...], float]] = [
    # 96 elements in 6 parts, one operation and two behind it
    ("elementwise", lambda net: net.elementwise(IMAGE, IMAGE, 2), (2, 3, 1, 1), 3 * 16),
    # 3 x 3 outputs of 2 samples and 6 channels in two halves; 7 x 8 are read for 4 x 8
    ("pooling", lambda net: net.pooling(Tensor(-1, (4, 6, 8, 8)), 3, 2), (2, 1, 2, 1), 54 + W * 24 * 12),
    ("pooling whole", lambda net: net.pooling(Tensor(-1, (4, 6, 8, 8)), 3, 2), (2, 3, 1, 1), 36),
    ("pooling wide", lambda net: net.pooling(Tensor(-1, (4, 6, 8, 8)), 3, 2), (1, 1, 1, 2), 108 + W * (8 * 7 - 32) * 24),
    # 24 elements; 12 rows over 4 parts, four times, and 2 along the axis over 2
    ("norm", lambda net: net.norm(WORDS, 2), (2, 1, 4), 16 * 24 + 4 * W * 3 * 2 * 3 + 4 * W * 1 * 2),
    ("norm of batch", lambda net: net.norm(IMAGE, 0), (2, 3, 1, 1), 16 * 16 + 4 * W * 4 * 2 + 4 * W * (2 / 3) * 4),
    ("mean", lambda net: net.mean(IMAGE, (2, 3)), (2, 3, 2, 1), W * 4 * 2),
    # rows of 8 in 4 parts: 12 W twice, and 8 times that
    ("softmax", lambda net: net.softmax(Tensor(-1, (2, 2, 4, 8)), 3), (1, 2, 1, 4), 4 * 16 + 16 * 8 + W * (12 + 96 + 12)),
    ("cross-entropy", lambda net: net.cross_entropy(Tensor(-1, (4, 8))), (2, 4), 4 * 4 + 2 * 2 + W * 2 * 2),
    ("cross-entropy whole", lambda net: net.cross_entropy(Tensor(-1, (4, 8))), (2, 1), 4 * 16 + 2 * 2),
    # 2 x 2 times 2 x 2, three times, and one operation behind; sums over 3, 4 and 2 parts
    ("connected", lambda net: net.fully_connected(Tensor(-1, (4, 6)), 8, 1), (2, 4, 3), 36 + W * (16 / 3 + 6 + 4)),
    # 2 samples of 4 outputs: m = 8, n = 3, k = 12 with filters in 2, samples in 2, channels in 3
    ("convolution", lambda net: net.convolution(IMAGE, 6, (1, 1), 1), (2, 3, 1, 1, 1, 1, 2),
     3 * 8 * 3 * 2 + W * (8 * 3 / 3 * 4 + 8 * 2 / 2 * 2 + 3 * 2 / 2 * 2)),
    # 2 layers: 4 x 8 x 6, nine operations behind; sums over 2, 3 and 2; of 6 words of the cell 4 are in place
    ("lstm", lambda net: net.lstm(Tensor(-1, (4, 2, 6)), 6, 2), (1, 1, 2, 3, 2), 2 * (864 + W * 112) + 4 * W * 2),
    ("lstm apart", lambda net: net.lstm(Tensor(-1, (4, 2, 6)), 6, 2), (1, 1, 2, 2, 3),
     2 * (3 * 4 * 12 * 4 + 9 * 48 + W * (48 / 3 * 4 + 16 / 2 * 2 + 48 / 2 * 2)) + 4 * W * 4),
    ("lstm layers", lambda net: net.lstm(Tensor(-1, (4, 2, 6)), 6, 2), (2, 1, 1, 1, 1), 3 * 8 * 24 * 12 + 9 * 8 * 24),
    ("concatenation", lambda net: net.concatenation((IMAGE, IMAGE)), (2, 1, 2, 2), 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "add", "splits", "cost"), COSTS, ids=[row[0] for row in COSTS])
def test_the_cost_of_a_layer_by_hand(
    name: str, add: Callable[[NetworkBuilder], object], splits: tuple[int, ...], cost: float
) -> None:
    net = NetworkBuilder()
    add(net)
    assert layer_costs.layer_cost(net.operators[0], np.array([splits]), W)[0] == pytest.approx(cost), name


def test_what_a_consumer_lacks_is_moved_twice() -> None:
    """4 x 6 written in rows; read whole it lacks half, in columns on as many devices half, on more devices all."""
    produced = np.array([[2, 1], [1, 1], [4, 1]])
    consumed = np.array([[1, 2], [1, 3], [2, 1], [1, 1], [2, 2]])
    found = layer_costs.edge_cost((4, 6), produced, consumed, W) / (2 * W)
    assert found.tolist() == [[6.0, 8.0, 0.0, 12.0, 6.0], [12.0, 8.0, 12.0, 0.0, 6.0], [9.0, 6.0, 6.0, 18.0, 3.0]]


def test_axes_are_split_into_divisors_that_leave_enough_of_them() -> None:
    assert layer_costs.allowed_splits(12, 4, 8).tolist() == [1, 2, 3]
    assert layer_costs.allowed_splits(12, 1, 8).tolist() == [1, 2, 3, 4, 6]
    assert layer_costs.allowed_splits(12, 1, 6).tolist() == [1, 2, 3, 4, 6]
    assert layer_costs.allowed_splits(12, 1, 5).tolist() == [1, 2, 3, 4]
    assert layer_costs.allowed_splits(9, 1, 9).tolist() == [1, 3, 9] and layer_costs.allowed_splits(3, 4, 8).tolist() == [1]


def operator(add: Callable[[NetworkBuilder], object], cutoff: int = 1) -> PaseOperator:
    net = NetworkBuilder(cutoff)
    add(net)
    return net.operators[0]


def test_configurations_are_all_products_within_the_processors_in_order() -> None:
    connected = operator(lambda net: net.fully_connected(Tensor(-1, (2, 4)), 3))
    expected = [[b, n, k] for b in (1, 2) for n in (1, 3) for k in (1, 2, 4) if b * n * k <= 6]
    assert layer_costs.configurations(connected, 6).tolist() == expected
    assert layer_costs.data_parallel_splits(connected, 6).tolist() == [[6, 1, 1]]
    assert layer_costs.data_parallel_splits(operator(lambda net: net.lstm(Tensor(-1, (4, 2, 6)), 6, 2)), 3)[0, 2] == 3
    # parts of a tensor laid out in rows: whole axes, then one partial split, then none
    ravel = operator(lambda net: net.reshape(Tensor(-1, (2, 2, 2)), (2, 4)))
    assert layer_costs.configurations(ravel, 8).tolist() == [[1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]
    grouped = layer_costs.tensor_splits(np.array([[2, 3, 5]]), ((0, 2), (1,)))
    assert grouped.tolist() == [[10, 3]] and layer_costs.tensor_splits(np.array([[2, 3, 5]]), ((2,), (0,))).tolist() == [[5, 2]]


def test_shapes_of_outputs_and_weights_by_hand() -> None:
    net = NetworkBuilder()
    assert net.convolution(Tensor(-1, (4, 3, 9, 8)), 5, (3, 2), 2, (1, 0)).shape == (4, 5, 5, 4)
    assert net.pooling(Tensor(-1, (4, 3, 9, 8)), 3, 2, 1).shape == (4, 3, 5, 4)
    assert net.concatenation((IMAGE, Tensor(-1, (4, 5, 2, 2)))).shape == (4, 11, 2, 2)
    assert net.mean(IMAGE, (2, 3)).shape == (4, 6) and net.fully_connected(WORDS, 7).shape == (4, 6, 7)
    assert net.stack((WORDS, WORDS, WORDS)).shape == (3, 4, 6, 8)
    assert [tensor.shape for tensor in net.unstack(Tensor(-1, (3, 4, 2, 6, 8)))] == [(4, 2, 6, 8)] * 3
    assert net.embedding(4, 6, 100, 8).shape == (4, 6, 8)
    conv, pool, _, mean, full, _, _, embedding = net.operators
    assert conv.weight_elements == 3 * 3 * 2 * 5 and conv.output_elements == 4 * 5 * 5 * 4
    assert conv.splittable == (4, 3, 1, 1, 3, 2, 5) and conv.gemm is not None and conv.gemm.sizes == (80, 5, 18)
    assert pool.window == (9, 8, 3, 3) and mean.output_elements == 24
    assert full.weight_elements == 56 and full.output_elements == 4 * 6 * 7 and full.gemm is not None
    assert full.gemm.sizes == (24, 7, 8) and full.gemm.axes == ((0, 1), (2,), (3,))
    assert embedding.weight_elements == 800 and embedding.gemm is not None and embedding.gemm.sizes == (24, 8, 100)


def test_a_graph_costs_its_layers_and_edges_and_holds_weights_with_optimizer_and_outputs() -> None:
    net = NetworkBuilder(1)
    x = net.fully_connected(Tensor(-1, (4, 6)), 8)
    net.fully_connected(x, 2)
    graph = PaseGraph("two", tuple(net.operators))
    assert tables.flop_per_word(2e12, 16e9) == 1000.0
    made = tables.tables(graph, 4, W)
    held = held_bytes(made)
    wanted = ([2, 2, 1], [1, 2, 2])
    at = [[row.tolist() for row in splits].index(want) for splits, want in zip(made.splits, wanted, strict=True)]
    assert held[at[0]] == 16 * 48 / 2 + 4 * 32 / 4 and held[len(made.splits[0]) + at[1]] == 16 * 16 / 4 + 4 * 8 / 2
    chosen = (np.array([2, 2, 1]), np.array([1, 2, 2]))
    layers = [float(layer_costs.layer_cost(op, row[None], W)[0]) for op, row in zip(graph.operators, chosen, strict=True)]
    # 4 x 8 written in 2 x 2 parts, read in columns: 16 needed, 8 held
    assert tables.splits_cost(graph, chosen, W) == pytest.approx(sum(layers) + 2 * W * 8)
    distinct, row_of = tables._distinct(np.array([[1, 2], [2, 1], [1, 2], [1, 1]]))
    assert distinct[row_of].tolist() == [[1, 2], [2, 1], [1, 2], [1, 1]] and len(distinct) == 3


def test_axes_that_split_inputs_outputs_and_weights_by_hand() -> None:
    net = NetworkBuilder()
    x = net.convolution(Tensor(-1, (4, 6, 8, 8)), 6, (3, 3), 1, (1, 1))
    x = net.elementwise(x, net.pooling(x, 3, 1, 1))
    x = net.norm(net.concatenation((x, x)), 0)
    net.cross_entropy(net.fully_connected(net.mean(x, (2, 3)), 8))
    conv, pool, both, joined, norm, mean, full, loss = net.operators
    each = ((0,), (1,), (2,), (3,))
    assert conv.output_axes == ((0,), (6,), (2,), (3,)) and conv.weight_axes == (1, 4, 5, 6) and conv.uses == ()
    assert conv.gemm is not None and conv.gemm.axes == ((0, 2, 3), (6,), (1, 4, 5)) and conv.sizes == (4, 6, 8, 8, 3, 3, 6)
    assert pool.output_axes == each and [use.axes for use in pool.uses] == [each] and pool.uses[0].shape == (4, 6, 8, 8)
    assert [(use.producer, use.axes) for use in both.uses] == [(0, each), (1, each)]
    assert joined.splittable == (4, 1, 8, 8) and [use.producer for use in joined.uses] == [2, 2]
    assert (norm.weight_elements, norm.weight_axes, norm.axis) == (24, (1,), 0)
    assert mean.output_axes == ((0,), (1,)) and mean.reduced == (2, 3)
    assert [use.axes for use in full.uses] == [((0,), (2,))] and full.output_axes == ((0,), (1,)) and full.weight_axes == (1, 2)
    assert loss.axis == 1 and PaseGraph("some", tuple(net.operators)).edges()[0][:2] == (0, 1)
    words = NetworkBuilder(1)
    stacked = words.stack((WORDS, WORDS, WORDS))
    made = words.einsum("sble,shek->sbhlk", stacked, Tensor(-1, (3, 2, 8, 5)))
    words.softmax(words.unstack(made)[0], 3)
    words.norm(words.fully_connected(WORDS, 4), 2)
    words.lstm(Tensor(-1, (4, 6, 8)), 8, 2)
    stack, product, apart, _, _, norm, lstm = words.operators
    assert (stack.splittable, stack.batch_axis) == ((1, 4, 6, 8), 1) and stack.output_axes == each
    assert product.axis_names == tuple("sbhlke") and product.batch_axis == 1 and product.output_axes == (*each, (4,))
    assert product.gemm is not None and product.gemm.sizes == (3, 24, 10, 8)
    assert product.gemm.axes == ((0,), (1, 3), (2, 4), (5,)) and product.weight_axes == (0, 2, 5, 4)
    assert product.uses[0].axes == ((0,), (1,), (3,), (5,)) and product.output_elements == 3 * 4 * 2 * 6 * 5
    assert apart.splittable == (1, 4, 2, 6, 5) and apart.output_axes == ((1,), (2,), (3,), (4,)) and apart.batch_axis == 1
    assert (norm.weight_elements, norm.weight_axes) == (8, (2,))
    assert lstm.splittable == (2, 1, 4, 8, 8) and lstm.output_axes == ((2,), (1,), (3,)) and lstm.weight_axes == (0, 3, 4)
    assert lstm.weight_elements == 2 * 8 * 64 and lstm.output_elements == 4 * 6 * 8 and lstm.gemm is not None
    assert lstm.gemm.sizes == (2, 24, 32, 16) and lstm.gemm.axes == ((0,), (1, 2), (3,), (4,)) and lstm.gemm.pointwise == 3
