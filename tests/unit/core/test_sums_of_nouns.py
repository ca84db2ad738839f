"""What nouns say of themselves is the sum of what they hold: seconds and bytes of a stage, weights of a graph."""

from __future__ import annotations

import itertools

from meshwright.core.graph import Graph, Op, Operator
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
