"""What the program that trains adds to the work of a layer, each part against the same layer without it."""

from __future__ import annotations

import dataclasses

import pytest

from meshwright.core.framework import FrameworkLimits
from meshwright.core.problem import Framework, MixedPrecision, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic.stage import distinct

from .conftest import HIDDEN, SEQUENCE, cluster, device, graph, moe_layer, problem

PARAMETERS = 12 * HIDDEN**2 + 4 * HIDDEN


def _row(
    strategy: Strategy, framework: Framework | None = None, posed: Problem | None = None, recompute: str = "none"
) -> StageCost:
    posed = dataclasses.replace(posed or problem(max(8, strategy.n_devices)), framework=framework or Framework())
    return analytic.row_costs(posed, strategy, range(strategy.n_devices), 1)[1, recompute]


def _seconds(load: StageCost, cause: str) -> tuple[float, float]:
    return dict(load.forward_communication).get(cause, 0.0), dict(load.backward_communication).get(cause, 0.0)


def test_a_program_that_issues_slowly_makes_the_device_wait_whatever_the_device_says() -> None:
    load = _row(Strategy(), Framework(issue_seconds=1.0))
    assert load.forward_seconds == pytest.approx(11.0)
    assert load.backward_weight_seconds == pytest.approx(4.0)


def test_a_host_that_waits_for_every_kernel_issues_after_computing_not_beside_it() -> None:
    plain, blocked = _row(Strategy()), _row(Strategy(), Framework(issue_seconds=1.0, blocks_launches=True))
    assert blocked.forward_seconds == pytest.approx(plain.forward_seconds + 11.0)
    assert blocked.backward_weight_seconds == pytest.approx(plain.backward_weight_seconds + 4.0)
    alike = Framework(issue_seconds=1e-12)  # issuing that takes no time hides anyway
    assert _row(Strategy(), dataclasses.replace(alike, blocks_launches=True)).forward_seconds == pytest.approx(
        _row(Strategy(), alike).forward_seconds, rel=1e-6
    )


def test_softmax_whose_heads_no_fused_kernel_takes_is_five_kernels_through_memory() -> None:
    blocks = Framework(n_softmax_heads=4)
    for fits in (Strategy(), Strategy(tensor=4)):  # 16 and 4 heads of one sample
        assert _row(fits, blocks) == _row(fits)
    apart = Strategy(tensor=8)  # two heads
    plain, found = _row(apart), _row(apart, blocks)
    elements = 2 * SEQUENCE * SEQUENCE
    assert found.forward_seconds == pytest.approx(plain.forward_seconds + 32.0 * elements / 1e12)
    assert found.backward_input_seconds == pytest.approx(plain.backward_input_seconds + 34.0 * elements / 1e12)
    assert found.backward_weight_seconds == plain.backward_weight_seconds
    two = analytic.row_costs(dataclasses.replace(problem(8), framework=blocks), apart, range(8), 2)[1, "none"]  # four heads
    assert two == analytic.row_costs(problem(8), apart, range(8), 2)[1, "none"]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_each_kernel_of_a_softmax_apart_is_issued_and_launched(recompute: str) -> None:
    posed = dataclasses.replace(problem(8), cluster=cluster(8, device(launch_seconds=1.0)))
    apart, blocks = Strategy(tensor=8), Framework(n_softmax_heads=4)
    plain, found = _row(apart, None, posed, recompute), _row(apart, blocks, posed, recompute)
    assert found.forward_seconds == pytest.approx(plain.forward_seconds + 4.0, rel=1e-4)
    assert found.backward_input_seconds == pytest.approx(plain.backward_input_seconds + 4.0, rel=1e-4)
    assert found.recompute_seconds == pytest.approx(plain.recompute_seconds + 4.0 * (recompute != "none"), rel=1e-4)
    slow = Framework(issue_seconds=1.0)
    plain, found = _row(apart, slow), _row(apart, dataclasses.replace(slow, n_softmax_heads=4))
    assert found.forward_seconds == pytest.approx(plain.forward_seconds + 4.0)
    assert found.backward_input_seconds == pytest.approx(plain.backward_input_seconds + 4.0)


def test_a_setting_of_the_frameworks_own_repeats_a_softmax_apart_kernel_by_kernel() -> None:
    posed = dataclasses.replace(problem(8), cluster=cluster(8, device(launch_seconds=1.0)))
    own = Framework(limits=FrameworkLimits(recompute=("none", "core_attn")))
    apart = dataclasses.replace(own, n_softmax_heads=4)
    plain, found = (_row(Strategy(tensor=8), one, posed, "core_attn") for one in (own, apart))
    assert found.recompute_seconds == pytest.approx(plain.recompute_seconds + 4.0, rel=1e-4)


def test_experts_issued_one_by_one_cost_their_number_on_the_device() -> None:
    mixture = problem(8, layer=moe_layer)
    n_grouped = sum(operator.kind == "grouped_matmul" for operator in moe_layer())
    n_experts = next(operator.size("experts") for operator in moe_layer() if operator.kind == "grouped_matmul")
    one = _row(Strategy(data=8), Framework(expert_issue_seconds=1.0), mixture)
    spread = _row(Strategy(data=8, expert=2), Framework(expert_issue_seconds=1.0), mixture)
    assert one.forward_seconds == pytest.approx(n_grouped * n_experts)
    assert spread.forward_seconds == pytest.approx(n_grouped * n_experts / 2)


def test_unfused_passes_cost_more_only_where_bytes_are_moved() -> None:
    fused, twice = _row(Strategy()), _row(Strategy(), Framework(memory_passes_ratio=2.0))
    assert twice.forward_seconds > fused.forward_seconds
    assert twice.backward_weight_seconds == fused.backward_weight_seconds  # products only


def test_overlap_hides_its_share_of_gatherings_and_scatterings_but_no_plain_all_reduce() -> None:
    split = Strategy(tensor=4, sequence_parallel=True)
    plain, half = _row(split), _row(split, Framework(tensor_overlap_ratio=0.5))
    assert _seconds(half, "tensor") == pytest.approx(tuple(seconds / 2 for seconds in _seconds(plain, "tensor")))
    whole = Strategy(tensor=4)
    assert _row(whole, Framework(tensor_overlap_ratio=0.5)) == _row(whole)


def test_fully_sharded_weights_are_copied_apart_and_gradients_laid_out() -> None:
    kind = device()
    posed = dataclasses.replace(problem(8), cluster=cluster(8, kind))
    load = _row(Strategy(data=8, shard=3), posed=posed)
    training = MixedPrecision()
    unpack = 2.0 * training.weight_bytes * PARAMETERS / kind.memory_bytes_per_second
    pack = (training.weight_bytes + training.gradient_bytes) * PARAMETERS / kind.memory_bytes_per_second
    gather = 7 / 8 * training.weight_bytes * PARAMETERS / 100e9
    reduce = 7 / 8 * training.gradient_bytes * PARAMETERS / 100e9
    forward, backward = _seconds(load, "gather")
    assert forward == pytest.approx(max(0.0, gather - load.forward_seconds) + unpack)
    computed = load.backward_input_seconds + load.backward_weight_seconds
    assert backward == pytest.approx(max(0.0, gather + reduce - computed) + unpack + pack)


def test_a_program_may_scatter_after_the_backward_pass_and_at_its_own_rate() -> None:
    load = _row(Strategy(data=8, shard=3), Framework(shard_bytes_per_second=1e9, overlaps_scatter=False))
    beside = _row(Strategy(data=8, shard=3), Framework(shard_bytes_per_second=1e9))
    gather, reduce = 2 * PARAMETERS / 1e9, 4 * PARAMETERS / 1e9
    computed = load.backward_input_seconds + load.backward_weight_seconds
    after = _seconds(load, "gather")[1] - _seconds(beside, "gather")[1]
    assert after == pytest.approx(max(0.0, gather - computed) + reduce - max(0.0, gather + reduce - computed))
    assert _seconds(load, "gather")[0] >= gather - load.forward_seconds


def test_a_ring_of_plain_chunks_waits_for_the_rank_that_attends_to_all() -> None:
    from meshwright.core.graph import Operator
    from meshwright.costs.analytic.passes import _slower
    from meshwright.costs.analytic.roofline import Shape

    attention = Operator("core", "causal_attention", (("sequence", SEQUENCE), ("heads", 8), ("head", 128)), "heads")
    for context in (1, 2, 4, 8):
        slowest = max((2 * rank + 1) / context**2 for rank in range(context))  # of the lower triangle in rows of one chunk
        factor = _slower(attention, Shape(context=context), Framework(ring_imbalance_ratio=1.0))
        chunks = 2 * context / (context + 1)  # chunk pairs of the last rank over the mean, the diagonal counted whole
        assert factor == pytest.approx(chunks)
        assert factor <= slowest * context + 1e-12
    assert _slower(attention, Shape(context=8), Framework()) == 1.0


def test_copies_of_a_token_meet_on_the_same_target() -> None:
    assert distinct(1, 8) == pytest.approx(1.0)
    assert distinct(2, 2) == pytest.approx(1.5)  # half of the pairs of targets differ
    assert distinct(10**6, 8) == pytest.approx(8.0, rel=1e-4)


def test_a_token_sent_once_per_device_moves_fewer_bytes() -> None:
    mixture = problem(8, layer=moe_layer)
    top_k = next(operator.size("top_k") for operator in moe_layer() if operator.kind == "dispatch")
    plain = _row(Strategy(data=8, expert=4), posed=mixture)
    once = _row(Strategy(data=8, expert=4), Framework(dispatches_once=True), mixture)
    assert _seconds(once, "expert")[0] == pytest.approx(_seconds(plain, "expert")[0] * distinct(4, top_k) / top_k)


def test_experts_spread_over_the_tensor_axis_too_are_whole_and_get_a_share_of_the_tokens() -> None:
    mixture = problem(8, layer=moe_layer)
    folded = Strategy(data=2, tensor=2, expert=4, sequence_parallel=True)
    assert folded.folded and not Strategy(data=4, tensor=2, expert=4, sequence_parallel=True).folded
    assert not analytic.illegal(mixture, folded)
    split = Strategy(data=2, tensor=2, expert=2, sequence_parallel=True)
    a, b = _row(folded, posed=mixture), _row(split, posed=mixture)
    assert a.weight_bytes == pytest.approx(b.weight_bytes)  # an eighth of each expert or two eighths of half of them
    assert a.model_flops == pytest.approx(b.model_flops)
    assert _seconds(a, "tensor")[0] < _seconds(b, "tensor")[0]  # no collectives of the tensor axis around experts


def test_an_expert_degree_that_fits_nowhere_is_refused() -> None:
    mixture = problem(8, layer=moe_layer)
    refused = analytic.illegal(mixture, Strategy(data=3, tensor=2, expert=4, sequence_parallel=True))
    assert "does not divide the 3 data" in refused and "6 devices" in refused


def test_narrow_precisions_run_at_their_own_share_and_blocks_are_cast_twice() -> None:
    kind = dataclasses.replace(
        device(fp8_ratio=0.5, fp4_ratio=0.25), flops_per_second=(("bf16", 100e12), ("fp8", 200e12), ("fp4", 400e12))
    )
    assert kind.achieved("fp4") == 0.25 and kind.achieved("mxfp8") == 0.5 and kind.achieved("bf16") == 1.0
    assert kind.peak("mxfp8") == kind.peak("fp8")

    def forward(precision: str, bandwidth: float) -> float:
        slow = dataclasses.replace(kind, memory_bytes_per_second=bandwidth)
        posed = dataclasses.replace(problem(1), cluster=cluster(1, slow), training=MixedPrecision(precision))
        return analytic.row_costs(posed, Strategy(), range(1), 1)[1, "none"].forward_seconds

    assert forward("fp8", 1e16) == pytest.approx(forward("fp4", 1e16))  # half the share of twice the peak
    assert forward("mxfp8", 1e9) > forward("fp8", 1e9) > forward("fp4", 1e9)


def test_the_default_program_changes_nothing() -> None:
    assert graph() is not None
    for strategy in (Strategy(), Strategy(tensor=4, sequence_parallel=True), Strategy(data=4, context=2)):
        assert _row(strategy, Framework()) == _row(strategy)


def test_an_output_that_all_ranks_of_a_tensor_axis_hold_is_sent_in_pieces_where_the_program_does_so() -> None:
    whole, split = _row(Strategy(tensor=4)), _row(Strategy(tensor=4), Framework(splits_transfers=True))
    assert split.output_bytes == pytest.approx(whole.output_bytes / 4)
    pieces = Strategy(tensor=4, sequence_parallel=True)
    assert _row(pieces, Framework(splits_transfers=True)).output_bytes == _row(pieces).output_bytes  # these are pieces anyway


def test_inputs_of_products_kept_as_cast_take_fewer_bytes() -> None:
    posed = dataclasses.replace(problem(8), training=MixedPrecision("fp8"))
    wide, cast = _row(Strategy(), posed=posed), _row(Strategy(), Framework(keeps_casts=True), posed)
    # two norms of two tensors each and the activation function of four widths, at one byte less an element
    handed_on = (2 * 2 + 4) * SEQUENCE * HIDDEN
    assert wide.activation_bytes - cast.activation_bytes == pytest.approx(1.05 * handed_on)
    assert wide.forward_seconds == cast.forward_seconds
    assert _row(Strategy(), Framework(keeps_casts=True)) == _row(
        Strategy()
    )  # products in the activations' own precision cast nothing
