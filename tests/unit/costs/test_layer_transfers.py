"""Which collectives each operator of a layer causes, and what it needs while it runs: bytes worked out by hand.

One sample of 512 positions, 2 bytes an element; tensor degree 4 unless a test says otherwise.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api, clusters
from meshwright.core.graph import Operator
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic import device_mesh, layer, layer_transfers, passes
from meshwright.costs.analytic.layer_transfers import Transfer
from meshwright.costs.analytic.roofline import OperatorSeconds, Shape, operator_seconds, unfused_attention_seconds

from .conftest import SEQUENCE, device, gpt_layer, product

BF16 = MixedPrecision()
WHOLE, SPLIT = Shape(tensor=4), Shape(tensor=4, sequence_parallel=True)
NO_TIME = OperatorSeconds(0.0, 0.0, 0.0)


def transfers(
    body: tuple[Operator, ...], i: int, shape: Shape, seconds: OperatorSeconds = NO_TIME
) -> tuple[list[Transfer], list[Transfer]]:
    return layer_transfers.transfers(body, i, shape, BF16, [seconds] * len(body))


def said(found: list[Transfer]) -> list[tuple[str, str, float]]:
    return [(one.axis, one.kind, one.n_bytes) for one in found]


def operator(kind: str, axis: str = "", **dims: int) -> Operator:
    return Operator(kind, kind, tuple({"sequence": SEQUENCE, **dims}.items()), axis)


def test_a_row_split_product_reduces_both_ways_or_gathers_and_scatters() -> None:
    n_bytes = SEQUENCE * 32.0 * 2
    body = (product("out", 8, 32, "in"),)
    for found in transfers(body, 0, WHOLE):
        assert said(found) == [("tensor", "all_reduce", n_bytes)]
    for found in transfers(body, 0, SPLIT):
        assert said(found) == [("tensor", "all_gather", n_bytes), ("tensor", "reduce_scatter", n_bytes)]
    assert transfers(body, 0, Shape()) == ([], [])


def test_a_column_split_product_is_closed_by_the_next_row_split_one_or_sends_its_gradient_alone() -> None:
    """Inside a layer the closing product reduces for both; a head over the vocabulary gathers and scatters its own 8 columns of input."""  # noqa: E501
    opened, closed = product("in", 8, 32, "out"), product("out", 32, 8, "in")
    n_bytes = SEQUENCE * 8.0 * 2
    assert transfers((opened, closed), 0, WHOLE) == transfers((opened, closed), 0, SPLIT) == ([], [])
    there, back = transfers((opened,), 0, WHOLE)
    assert (said(there), said(back)) == ([], [("tensor", "all_reduce", n_bytes)])
    there, back = transfers((closed, opened), 1, SPLIT)
    assert (said(there), said(back)) == ([("tensor", "all_gather", n_bytes)], [("tensor", "reduce_scatter", n_bytes)])


def test_a_split_table_adds_up_what_every_rank_looked_up() -> None:
    table = operator("embedding", "vocabulary", vocabulary=100, hidden=16)
    n_bytes = SEQUENCE * 16.0 * 2
    there, back = transfers((table,), 0, WHOLE)
    assert (said(there), said(back)) == ([("tensor", "all_reduce", n_bytes)], [])
    there, back = transfers((table,), 0, SPLIT)
    assert (said(there), said(back)) == ([("tensor", "reduce_scatter", n_bytes)], [("tensor", "all_gather", n_bytes)])
    assert transfers((operator("embedding", "", vocabulary=100, hidden=16),), 0, WHOLE) == ([], [])


def test_a_loss_over_a_split_vocabulary_exchanges_three_fp32_numbers_a_position() -> None:
    """The maximum, the sum of exponentials, and the logit of the target."""
    there, back = transfers((operator("cross_entropy", "vocabulary", vocabulary=100),), 0, WHOLE)
    assert (said(there), back) == ([("tensor", "all_reduce", 4.0 * SEQUENCE)] * 3, [])


def test_experts_exchange_every_copy_of_a_token_there_and_back() -> None:
    """Top 2 of 16 elements: each rank of the tensor axis its part of the sequence with sequence parallelism, else all of it."""
    dispatch = operator("dispatch", "", top_k=2, hidden=16)
    for shape, part in (
        (Shape(expert=2), 1),
        (Shape(expert=2, tensor=4), 1),
        (Shape(expert=2, tensor=4, sequence_parallel=True), 4),
    ):
        there, back = transfers((dispatch,), 0, shape)
        assert said(there) == said(back) == [("expert", "all_to_all", SEQUENCE * 2 * 16 * 2 / part)]
        assert there[0].n_copies == 2
    assert transfers((dispatch,), 0, Shape()) == ([], [])


def test_experts_that_are_whole_on_their_device_leave_the_tensor_axis_silent() -> None:
    expert = Operator(
        "experts", "grouped_matmul", (("sequence", SEQUENCE), ("top_k", 2), ("in", 8), ("out", 16)), "in", expert=True
    )
    there, _ = transfers((expert,), 0, Shape(tensor=4, expert=2))
    assert said(there) == [("tensor", "all_reduce", SEQUENCE * 16 * 2 * 2.0)]  # every copy
    assert transfers((expert,), 0, Shape(tensor=4, expert=8, folded=True)) == ([], [])


def test_keys_and_values_go_round_beside_attention_on_the_chunks_that_are_there() -> None:
    """Four ranks: three quarters of the attention hide the round; backward, half of them hide each of two rounds.

    16 key heads over 4 ranks of the tensor axis, 64 + 32 elements a head, the whole sequence.
    """
    dims = {"key_sequence": SEQUENCE, "heads": 32, "kv_heads": 16, "head": 64, "value": 32}
    core = operator("causal_attention", "heads", **dims)
    there, back = transfers((core,), 0, Shape(context=4, tensor=4), OperatorSeconds(8.0, 20.0, 0.0))
    n_bytes = SEQUENCE * 4 * (64 + 32) * 2.0
    assert said(there) == [("context", "all_gather", n_bytes)]
    assert said(back) == [("context", "all_gather", n_bytes), ("context", "reduce_scatter", n_bytes)]
    assert [one.hidden_seconds for one in (*there, *back)] == pytest.approx([6.0, 7.5, 7.5])
    one_head, _ = transfers((operator("attention", "heads", **{**dims, "kv_heads": 2}),), 0, Shape(context=4, tensor=4))
    assert said(one_head) == [("context", "all_gather", SEQUENCE * 1 * 96 * 2.0)]  # a head is never cut
    assert transfers((core,), 0, WHOLE) == ([], [])


def test_gathered_keys_and_values_wait_for_the_own_chunk_at_most_and_stand_beside_their_gradients() -> None:
    """As many bytes as in a ring; one of four chunks is the rank's own. Of a window all keys are gathered."""
    dims = {"key_sequence": SEQUENCE, "heads": 32, "kv_heads": 16, "head": 64, "value": 32}
    core, shape = operator("causal_attention", "heads", **dims), Shape(context=4, tensor=4, exchange="all_gather")
    there, back = transfers((core,), 0, shape, OperatorSeconds(8.0, 20.0, 0.0))
    n_bytes = SEQUENCE * 4 * (64 + 32) * 2.0
    assert said(there) == [("context", "all_gather", n_bytes)]
    assert said(back) == [("context", "all_gather", n_bytes), ("context", "reduce_scatter", n_bytes)]
    assert [one.hidden_seconds for one in (*there, *back)] == pytest.approx([2.0, 5.0, 7.5])
    assert layer_transfers.exchange_buffer_bytes(core, shape, 2) == 2.0 * n_bytes
    ring = Shape(context=4, tensor=4)
    assert layer_transfers.exchange_buffer_bytes(core, ring, 2) == 0.0
    window = operator("attention", "heads", **{**dims, "key_sequence": SEQUENCE // 8})
    assert said(transfers((window,), 0, ring)[0]) == [("context", "all_gather", n_bytes / 8)]
    assert said(transfers((window,), 0, shape)[0]) == [("context", "all_gather", n_bytes)]


def test_by_all_to_all_parts_of_the_sequence_become_parts_of_the_heads_and_back() -> None:
    """A rank has a quarter of the tokens, 8 of 32 heads, 4 of 16 key heads; queries and keys 64, values 32 elements a head."""
    dims = {"key_sequence": SEQUENCE, "heads": 32, "kv_heads": 16, "head": 64, "value": 32}
    core = operator("causal_attention", "heads", **dims)
    shape = Shape(context=4, tensor=4, exchange="all_to_all", head_ranks=4)
    there, back = transfers((core,), 0, shape, OperatorSeconds(8.0, 20.0, 0.0))
    entering, leaving = SEQUENCE / 4 * (8 * 64 + 4 * 96) * 2.0, SEQUENCE / 4 * 8 * 32 * 2.0
    assert said(there) == [("context", "all_to_all", entering), ("context", "all_to_all", leaving)]
    assert said(back) == [("context", "all_to_all", leaving), ("context", "all_to_all", entering)]
    assert all(one.hidden_seconds == 0.0 for one in (*there, *back))
    assert layer_transfers.exchange_buffer_bytes(core, shape, 2) == entering
    assert layer_transfers.exchange_buffer_bytes(product("plain", 8, 32, ""), shape, 2) == 0.0
    assert transfers((core,), 0, Shape(tensor=4, exchange="all_to_all")) == ([], [])


def test_by_heads_attention_computes_as_much_and_evenly_and_unfused_reads_whole_sequences() -> None:
    dims = {"key_sequence": SEQUENCE, "heads": 32, "kv_heads": 32, "head": 64, "value": 64}
    fused, plain = operator("causal_attention", "heads", **dims), operator("attention", "heads", **dims)
    ring, heads = Shape(context=4), Shape(context=4, exchange="all_to_all", head_ranks=4)
    both = [operator_seconds(fused, shape, device(), BF16) for shape in (ring, heads)]
    assert both[1].forward <= both[0].forward
    uneven = Framework(ring_imbalance_ratio=1.0)
    assert passes._slower(fused, heads, uneven) == 1.0 < passes._slower(fused, ring, uneven)
    one = operator("attention", "heads", **{**dims, "heads": 8, "kv_heads": 8})
    assert unfused_attention_seconds(plain, heads, device(), BF16) == unfused_attention_seconds(one, Shape(), device(), BF16)


def test_neighbours_exchange_heads_and_keys_of_their_heads_go_round_between() -> None:
    """Context 8 as 2 by 4: an eighth of the tokens, 8 of 32 heads, then 4; keys of 2 of 16 heads of all tokens go round."""
    dims = {"key_sequence": SEQUENCE, "heads": 32, "kv_heads": 16, "head": 64, "value": 32}
    core = operator("causal_attention", "heads", **dims)
    shape = Shape(context=8, tensor=4, exchange="all_to_all+ring", head_ranks=2)
    there, back = transfers((core,), 0, shape, OperatorSeconds(8.0, 20.0, 0.0))
    entering, leaving = SEQUENCE / 8 * (8 * 64 + 4 * 96) * 2.0, SEQUENCE / 8 * 8 * 32 * 2.0
    keys = SEQUENCE * 2 * (64 + 32) * 2.0
    before, after = ("context_heads", "all_to_all", entering), ("context_heads", "all_to_all", leaving)
    around = ("context_ring", "all_gather", keys)
    assert said(there) == [before, around, after]
    assert said(back) == [after, around, ("context_ring", "reduce_scatter", keys), before]
    assert [one.hidden_seconds for one in (*there, *back)] == [0.0, 6.0, 0.0, 0.0, 7.5, 7.5, 0.0]
    assert layer_transfers.exchange_buffer_bytes(core, shape, 2) == entering
    uneven = Framework(ring_imbalance_ratio=1.0)
    assert passes._slower(core, shape, uneven) == passes._slower(core, Shape(context=4), uneven)
    plain = operator("attention", "heads", **dims)
    one = operator("attention", "heads", **{**dims, "heads": 4, "kv_heads": 2})
    split, alone = (unfused_attention_seconds(*asked, device(), BF16) for asked in ((plain, shape), (one, Shape(context=4))))
    assert split == alone


def test_neighbours_that_exchange_heads_are_next_to_each_other_and_rings_join_their_nodes() -> None:
    """Two nodes of eight: heads stay in the node, four of each ring hop; the simulator is told the same groups and seconds."""
    cluster = clusters.cluster("dgx-h100:16")
    strategy = Strategy(data=1, context=16, context_exchange="all_to_all+ring")
    axes = device_mesh.mesh(cluster, range(16), strategy, head_ranks=8)
    assert axes.context_heads is not None and axes.context_heads.size == 8
    assert axes.context_ring is not None and axes.context_ring.size == 2
    problem = api.make_problem("llama-3.1-8b", "dgx-h100:16", batch=Batch(1, 1, 131072))
    assert strategy.head_ranks(problem.graph) == 8
    n = len(problem.graph.ops)
    plan = Plan((Stage(tuple(range(n)), tuple(range(16)), strategy, ("none",) * n),), 1, 1, "1f1b", 1)
    load = analytic.stage_costs(problem, plan)[0]
    told = {(one.kind, one.size, one.stride) for one in load.collectives if one.part in ("forward", "forward_beside")}
    assert told == {("all_to_all", 8, 1), ("all_gather", 2, 8)}


@pytest.mark.parametrize(
    ("one", "shape", "n_bytes"),
    [
        (product("plain", 8, 32, ""), WHOLE, 512 * 2 * (8 + 32)),
        (product("columns", 8, 32, "out"), WHOLE, 512 * 2 * (8 + 8)),
        (product("columns", 8, 32, "out"), SPLIT, 512 * 2 * (2 * 8 + 8)),  # the gathered input and its gradient
        (product("rows", 8, 32, "in"), SPLIT, 512 * 2 * (2 + 32)),
        (product("positions", 8, 32, "sequence"), SPLIT, 128 * 2 * (8 + 32)),
        (operator("grouped_matmul", "out", top_k=3, **{"in": 8, "out": 32}), WHOLE, 128 * 3 * 2 * 32),
        (operator("cross_entropy", "vocabulary", vocabulary=100), WHOLE, 128 * 100 * 2),
        (operator("softmax", "hidden", hidden=100), WHOLE, 2 * 128 * 100 * 2),
        (operator("norm", "sequence", hidden=8), WHOLE, 512 * 8 * 2),
        (operator("norm", "sequence", hidden=8), SPLIT, 128 * 8 * 2),
    ],
)
def test_an_operator_needs_the_gradients_of_its_output_and_input(one: Operator, shape: Shape, n_bytes: int) -> None:
    assert layer._working_bytes(one, shape, BF16, Framework()) == n_bytes


def test_what_a_frozen_reference_and_quantised_weights_need_is_widened() -> None:
    """A reference's logits, two bytes, stand beside the loss's four; 8 x 32 weights of half a byte are widened to two."""
    logits = replace(operator("cross_entropy", "vocabulary", vocabulary=100), reference=True)
    for logit_bytes in (4.0, 0.0):
        assert layer._working_bytes(logits, WHOLE, BF16, Framework(logit_bytes=logit_bytes)) == 128 * 100 * (2 + logit_bytes)
    quantised = replace(product("plain", 8, 32, ""), n_parameters=256, n_frozen_parameters=256, frozen_weight_bytes=0.5)
    assert layer._working_bytes(quantised, Shape(), BF16, Framework()) == 512 * 2 * (8 + 32) + 2 * 8 * 32


def test_weights_and_what_is_saved_are_divided_as_their_axes_say() -> None:
    shape = Shape(micro_batch=3, tensor=4, context=2, expert=5, sequence_parallel=True)

    def weights(axis: str, shape: Shape = shape, expert: bool = False) -> float:
        return layer.parameters(Operator("o", "matmul", (), axis, 240, expert=expert), shape)

    assert (weights(""), weights("sequence"), weights("out"), weights("in")) == (240.0, 240.0, 60.0, 60.0)
    assert weights("out", expert=True) == 240 / 4 / 5
    assert weights("out", Shape(tensor=4, expert=5, folded=True), expert=True) == 240 / 5

    def saved(axis: str, shape: Shape = shape) -> float:
        kept = Operator("o", "norm", (), "", saved_elements=40, saved_extra_bytes=20, saved_axis=axis)
        return layer.saved_bytes(kept, shape, 2.5)

    whole = (40 * 2.5 + 20) * 3 / 2
    assert (saved(""), saved("tensor"), saved("sequence")) == (whole, whole / 4, whole / 4)
    assert saved("sequence", Shape(micro_batch=3, tensor=4, context=2)) == whole


def test_a_layer_adds_up_its_operators() -> None:
    """The GPT layer of this room, tensor degree 4, on a device that computes in no time: launches and collectives are all there is."""  # noqa: E501
    peaks = tuple((word, 1e26) for word in ("bf16", "fp16", "fp8"))
    quick = replace(device(launch_seconds=1.0), flops_per_second=peaks, memory_bytes_per_second=1e24)
    body = gpt_layer()
    found = layer.layer_work(body, WHOLE, quick, BF16, Framework(), input_elements=10, output_elements=30)
    assert found.forward_seconds == pytest.approx(11.0) and found.selective_seconds == pytest.approx(2.0)
    assert found.backward_weight_seconds == pytest.approx(4.0)
    assert [one.kind for one in found.forward] == ["all_reduce"] * 2 and found.selective == ()
    assert (found.input_bytes, found.output_bytes) == (10 * 2, 30 * 2)
    split = layer.layer_work(body, SPLIT, quick, BF16, Framework(), input_elements=10, output_elements=30)
    assert (split.input_bytes, split.output_bytes) == (5.0, 15.0)
    ring = layer.layer_work(body, Shape(context=2), quick, BF16, Framework(), input_elements=10, output_elements=30)
    assert [one.axis for one in ring.selective] == ["context"] == [one.axis for one in ring.forward]
    assert ring.input_bytes == 10.0


@pytest.mark.parametrize(("frozen", "above"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_split_table_gathers_the_gradient_of_what_it_looked_up_where_it_is_trained(frozen: bool, above: bool) -> None:
    """A table has no input that a gradient could go to: what counts is whether its weights are trained."""
    table = replace(
        operator("embedding", "vocabulary", vocabulary=100, hidden=16),
        n_parameters=1600, n_frozen_parameters=1600 * frozen, input_gradient=above,
    )  # fmt: skip
    there, back = transfers((table,), 0, SPLIT)
    n_bytes = SEQUENCE * 16.0 * 2
    assert said(there) == [("tensor", "reduce_scatter", n_bytes)]
    assert said(back) == ([] if frozen else [("tensor", "all_gather", n_bytes)])


def test_under_frozen_layers_a_trained_table_sends_and_gathers_what_it_does_in_full_training() -> None:
    """Its gradient comes through all the layers, whose own weights have no part in what the tensor axis moves."""
    found = []
    for freeze in ((), ("layers.*",)):
        problem = api.make_problem("gpt2", "dgx-h100:2", batch=Batch(8), freeze=freeze)
        n = len(problem.graph.ops)
        stage = Stage(tuple(range(n)), (0, 1), Strategy(tensor=2, sequence_parallel=True), ("none",) * n)
        (cost,) = analytic.stage_costs(problem, Plan((stage,), 8, 1, "1f1b", 8))
        found.append((dict(cost.backward_communication)["tensor"], dict(cost.forward_communication)["tensor"]))
    assert found[0] == found[1] and found[0][0] > 0.0


def test_a_column_split_product_is_closed_by_a_row_split_one_behind_it_and_by_no_other() -> None:
    """A head over the vocabulary has none behind it: its input's gradient is reduced by itself."""
    column, row = operator("matmul", "out", **{"in": 8, "out": 16}), operator("matmul", "in", **{"in": 16, "out": 8})
    shape = Shape(tensor=4)
    for body, i, is_open in (
        ((column,), 0, True), ((column, row), 0, False), ((row, column), 1, True), ((row, column, row), 1, False),
    ):  # fmt: skip
        there, back = transfers(body, i, shape)
        assert there == [] and said(back) == ([("tensor", "all_reduce", SEQUENCE * 8 * 2.0)] if is_open else [])
