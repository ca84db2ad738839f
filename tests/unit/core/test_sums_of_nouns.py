"""What nouns say of themselves is the sum of what they hold: seconds and bytes of a stage, weights of a graph."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.stage_cost import StageCost


def test_seconds_and_bytes_of_a_stage_are_sums_of_powers_of_two() -> None:
    """Each part is another power of two, so that a sum tells which are in it."""
    cost = StageCost(
        1.0, 2.0, backward_weight_seconds=4.0, recompute_seconds=8.0,
        forward_communication=(("tensor", 16.0), ("context", 32.0)),
        backward_communication=(("tensor", 64.0), ("expert", 128.0)),
        weight_bytes=256.0, gradient_bytes=512.0, optimizer_bytes=1024.0, activation_bytes=2048.0,
    )  # fmt: skip
    assert cost.forward_total_seconds == 1 + 16 + 32
    assert cost.backward_total_seconds == 2 + 4 + 8 + 64 + 128
    assert cost.static_bytes == 256 + 512 + 1024


def test_only_frozen_weights_of_the_model_itself_make_it_tuned_in_part() -> None:
    for frozen, reference in itertools.product((0, 6), (False, True)):
        part = Operator("a", "matmul", (("in", 2), ("out", 3)), n_parameters=6, n_frozen_parameters=frozen, reference=reference)
        graph = Graph("g", (Op("one", "layer", (part,)),), (), 4)
        assert graph.tuned_in_part == (frozen > 0 and not reference)
        assert graph.has_copy == graph.has_reference == reference
        assert (graph.n_parameters, graph.n_frozen_parameters, graph.n_trained_parameters) == (6, frozen, 6 - frozen)
    bare = Operator("a", "matmul", (("in", 2), ("out", 3)), reference=True)
    graph = Graph("g", (Op("one", "layer", (bare,)),), (), 4)
    assert graph.has_reference and not graph.has_copy


def part(n: int, frozen: int, wanted: bool, **more: Any) -> Operator:
    return Operator(
        "a", "matmul", (("in", 2), ("out", 3)), n_parameters=n, n_frozen_parameters=frozen, input_gradient=wanted, **more
    )


def test_the_backward_pass_reaches_what_has_a_gradient_to_compute() -> None:
    rows = list(itertools.product((0, 6), (False, True), (False, True)))
    for n, is_frozen, wanted in rows:
        one = part(n, n if is_frozen else 0, wanted)
        assert one.n_trained_parameters == (0 if is_frozen else n)
        assert one.frozen == (n > 0 and is_frozen)
        assert one.has_backward == (wanted or (n > 0 and not is_frozen))
    silent, heard = part(6, 6, False), part(6, 2, False)
    assert not heard.frozen and heard.has_backward and not silent.has_backward
    for body, reached in (((), True), ((silent,), False), ((heard,), True), ((silent, heard), True), ((silent, silent), False)):
        assert Op("one", "layer", body).has_backward == reached
    both = Op("one", "layer", (silent, heard, part(5, 0, True)))
    assert (both.n_parameters, both.n_trained_parameters) == (17, 9)


def test_a_graph_counts_shared_weights_once_and_says_what_is_frozen_or_widened() -> None:
    table, head = Op("table", "embedding", (part(6, 6, False),)), Op("head", "head", (part(6, 6, True), part(4, 0, True)))
    graph = Graph("g", (table, head), (Edge(0, 1, 2),), 8, n_shared_parameters=6, n_shared_frozen_parameters=6, n_sequences=2)
    assert (graph.n_parameters, graph.n_frozen_parameters, graph.n_trained_parameters, graph.n_tokens) == (10, 6, 4, 16)
    assert not graph.fully_trained and not graph.quantised and graph.tuned_in_part
    assert Graph("g", (Op("head", "head", (part(4, 0, True),)),)).fully_trained
    assert Graph("g", (Op("head", "head", (part(4, 4, True, frozen_weight_bytes=0.5),)),)).quantised
    assert (graph.single("pipeline"), graph.single("context"), graph.single("tensor")) == ("", " for pairs of sequences", "")
    assert (graph.id_of("head"), graph.ids()) == (1, {"table": 0, "head": 1})


def test_layers_are_put_in_the_order_of_their_edges_and_else_stay_as_they_are() -> None:
    """Of all orders that every edge points forward in, the first one in the alphabet of ids."""
    dice = random.Random(3)
    for _ in range(60):
        n = dice.randint(1, 6)
        place = dice.sample(range(n), n)
        edges = [(u, v) for u in range(n) for v in range(n) if place[u] < place[v] and dice.random() < 0.4]
        graph = Graph("g", tuple(Op(f"n{i}", "other") for i in range(n)), tuple(Edge(u, v) for u, v in edges))
        legal = [order for order in itertools.permutations(range(n)) if all(order.index(u) < order.index(v) for u, v in edges)]
        assert graph.topological_order() == min(legal)
    for wrong in (Edge(0, 2), Edge(2, 0), Edge(-1, 0), Edge(0, -1)):
        with pytest.raises(InputError, match=r"there is no node .*; nodes are 0\.\.1"):
            Graph("g", (Op("a", "other"), Op("b", "other")), (wrong,))
