"""What our cost model says of small cases that can be computed by hand, and what must hold of any case."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.core.cluster import Device
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import MixedPrecision
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import RECOMPUTE, Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic.products import PROLOGUE, Product, product_seconds

from .conftest import HEADS, HIDDEN, SEQUENCE, VOCABULARY, cluster, device, graph, moe_layer, problem

LAYER_PARAMETERS = 12 * HIDDEN**2 + 4 * HIDDEN


def _row(strategy: Strategy, row: int = 1, recompute: str = "none", micro_batch: int = 1, **parts: object) -> StageCost:
    posed = problem(max(8, strategy.n_devices), **parts)  # type: ignore[arg-type]
    return analytic.row_costs(posed, strategy, range(strategy.n_devices), micro_batch)[row, recompute]


def test_a_matrix_product_of_whole_tiles_takes_its_operations_over_the_peak() -> None:
    product = Product(1024, 1024, 2048, 1, 0.0)
    seconds = product_seconds(product, device(), "bf16")
    assert seconds == pytest.approx(product.flops / 100e12 * (2048 + PROLOGUE) / 2048)


def test_a_product_that_fills_a_third_of_a_wave_leaves_the_rest_of_the_device_idle() -> None:
    one_wave = product_seconds(Product(256 * 12, 128, 2048, 1, 0.0), device(n_multiprocessors=12), "bf16")
    third = product_seconds(Product(256 * 4, 128, 2048, 1, 0.0), device(n_multiprocessors=12), "bf16")
    assert one_wave == pytest.approx(256 * 12 * 128 * (2048 + PROLOGUE) * 2 / 100e12)
    assert one_wave / 3 < third <= one_wave


def test_a_product_that_moves_many_bytes_waits_for_the_memory() -> None:
    assert product_seconds(Product(1, 1, 1, 1, 2e12), device(), "bf16") == pytest.approx(2.0)


def test_fp8_products_run_at_their_own_share_of_their_own_peak() -> None:
    product = Product(1024, 1024, 2048, 1, 0.0)
    halved = product_seconds(product, device(), "fp8")
    assert halved == pytest.approx(product_seconds(product, device(), "bf16") / 2)
    assert product_seconds(product, device(fp8_ratio=0.5), "fp8") == pytest.approx(2 * halved)


def _on(kind: Device, row: int = 1) -> StageCost:
    posed = dataclasses.replace(problem(1), cluster=cluster(1, kind))
    return analytic.row_costs(posed, Strategy(), range(1), 1)[row, "none"]


def test_every_operator_adds_its_launch_and_a_slow_host_makes_the_device_wait() -> None:
    plain, launched = _on(device()), _on(device(launch_seconds=1e-3))
    assert launched.forward_seconds == pytest.approx(plain.forward_seconds + 11e-3)  # eleven operators
    issued = _on(device(issue_seconds=1.0))
    assert issued.forward_seconds == pytest.approx(11.0)
    assert issued.backward_weight_seconds == pytest.approx(4.0)  # four products with weights


def test_a_tensor_degree_divides_model_flops_and_large_weights() -> None:
    whole, half = _row(Strategy()), _row(Strategy(tensor=2))
    assert half.model_flops == pytest.approx(whole.model_flops / 2)
    assert half.weight_bytes == pytest.approx(2 * (12 * HIDDEN**2 / 2 + 4 * HIDDEN))
    assert half.forward_seconds < whole.forward_seconds


def test_model_flops_of_a_layer_are_those_of_its_products_three_times() -> None:
    products = 2 * SEQUENCE * 12 * HIDDEN**2 + 4 * SEQUENCE**2 * HIDDEN
    assert _row(Strategy()).model_flops == pytest.approx(3 * products)


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_a_gpt_layer_keeps_what_the_formulas_of_korthikanti_say(tensor: int) -> None:
    sbh, square = SEQUENCE * HIDDEN, 5 * HEADS * SEQUENCE / HIDDEN
    plain = Strategy(tensor=tensor)
    assert _row(plain).activation_bytes == pytest.approx(sbh * (10 + 24 / tensor + square / tensor))
    assert _row(plain, recompute="selective").activation_bytes == pytest.approx(sbh * (10 + 24 / tensor))
    assert _row(plain, recompute="full").activation_bytes == pytest.approx(2 * sbh)
    if tensor > 1:
        split = Strategy(tensor=tensor, sequence_parallel=True)
        assert _row(split).activation_bytes == pytest.approx(sbh / tensor * (34 + square))
        assert _row(split, recompute="selective").activation_bytes == pytest.approx(34 * sbh / tensor)
        assert _row(split, recompute="full").activation_bytes == pytest.approx(2 * sbh / tensor)


def test_mixed_precision_adam_holds_eighteen_bytes_per_weight_until_it_is_sharded() -> None:
    def held(strategy: Strategy) -> tuple[float, float, float]:
        load = _row(strategy)
        return load.weight_bytes, load.gradient_bytes, load.optimizer_bytes

    n = LAYER_PARAMETERS
    assert held(Strategy(data=4)) == pytest.approx((2 * n, 4 * n, 12 * n))
    assert held(Strategy(data=4, shard=1)) == pytest.approx((2 * n, 4 * n, 3 * n))
    assert held(Strategy(data=4, shard=2)) == pytest.approx((2 * n, n, 3 * n))
    assert held(Strategy(data=4, shard=3)) == pytest.approx((n, n, 2 * n))  # the shard of the fp32 copy is the weight
    assert held(Strategy(data=2, context=2, shard=1)) == pytest.approx((2 * n, 4 * n, 3 * n))
    assert held(Strategy(data=4, shard=3, shard_degree=2)) == pytest.approx((2 * n, 2 * n, 4 * n))


def test_sharded_weights_without_an_fp32_copy_are_held_as_they_are() -> None:
    training = MixedPrecision("bf16", activation_bytes=4, weight_bytes=4, gradient_bytes=4, optimizer_bytes=8)
    posed = problem(4, training=training)
    load = analytic.row_costs(posed, Strategy(data=4, shard=3), range(4), 1)[1, "none"]
    assert load.weight_bytes == pytest.approx(LAYER_PARAMETERS)


def test_sharded_weights_need_two_gathered_layers_their_gradients_and_a_buffer_each_way() -> None:
    plain, sharded = _row(Strategy(data=4, shard=1)), _row(Strategy(data=4, shard=3))
    assert sharded.working_bytes == pytest.approx(plain.working_bytes + 3 * 2 * LAYER_PARAMETERS)
    assert sharded.communication_bytes == pytest.approx((2 + 4) * LAYER_PARAMETERS)
    assert sharded.reserved_bytes == pytest.approx(plain.reserved_bytes + sharded.communication_bytes)
    assert _row(Strategy(tensor=2, shard=3)).communication_bytes == 0.0  # nothing to gather from


def test_what_the_allocator_cannot_use_is_a_share_of_what_comes_and_goes() -> None:
    exact = analytic.row_costs(problem(4), Strategy(data=4), range(4), 1)[1, "none"]
    wasteful = problem(4, training=MixedPrecision(fragmentation_ratio=0.25))
    load = analytic.row_costs(wasteful, Strategy(data=4), range(4), 1)[1, "none"]
    assert load.activation_bytes == pytest.approx(1.25 * exact.activation_bytes)
    assert load.working_bytes == pytest.approx(1.25 * exact.working_bytes)
    assert load.static_bytes == exact.static_bytes


def test_experts_are_split_by_their_degree_and_sharded_over_the_ranks_that_hold_the_same() -> None:
    experts, rest = 16 * HIDDEN**2, 2 * HIDDEN
    load = _row(Strategy(data=4, expert=2, shard=1), layer=moe_layer)
    assert load.weight_bytes == pytest.approx(2 * (rest + experts / 2))
    assert load.optimizer_bytes == pytest.approx(12 * (rest / 4 + experts / 2 / 2))
    moved = 2 * 2 * SEQUENCE * HIDDEN  # top_k tokens in two bytes
    assert dict(load.forward_communication)["expert"] == pytest.approx(2 * moved / 2 / 100e9)


def test_tensor_collectives_of_a_layer_are_two_all_reduces_each_way() -> None:
    load = _row(Strategy(tensor=2))
    all_reduce = 2 * 0.5 * 2 * SEQUENCE * HIDDEN / 100e9
    assert dict(load.forward_communication)["tensor"] == pytest.approx(2 * all_reduce)
    assert dict(load.backward_communication)["tensor"] <= 2 * all_reduce
    split = _row(Strategy(tensor=2, sequence_parallel=True))
    assert dict(split.forward_communication)["tensor"] == pytest.approx(2 * all_reduce)


def test_sharded_weights_cost_a_copy_and_the_part_of_their_gathering_that_compute_does_not_hide() -> None:
    long, short = _row(Strategy(data=4, shard=3), micro_batch=64), _row(Strategy(data=4, shard=3))
    gather, copy = 0.75 * 2 * LAYER_PARAMETERS / 100e9, 2 * 2 * LAYER_PARAMETERS / 1e12
    for load in (long, short):
        assert dict(load.forward_communication)["gather"] == pytest.approx(max(0.0, gather - load.forward_seconds) + copy)


def test_gradients_are_reduced_once_a_step_and_updated_weights_gathered() -> None:
    plain, sharded = _row(Strategy(data=4)), _row(Strategy(data=4, shard=1))
    assert plain.reduce_seconds == pytest.approx(2 * 0.75 * 4 * LAYER_PARAMETERS / 100e9)
    assert sharded.reduce_seconds == pytest.approx(plain.reduce_seconds / 2)
    assert sharded.gather_seconds == pytest.approx(0.75 * 2 * LAYER_PARAMETERS / 100e9)
    assert plain.gather_seconds == 0.0


def test_context_parallel_passes_keys_and_values_round() -> None:
    load = _row(Strategy(context=2))
    assert set(dict(load.forward_communication)) == {"context"}
    assert load.activation_bytes == pytest.approx(_row(Strategy()).activation_bytes / 2)


def test_full_recomputation_repeats_the_forward_pass_with_its_collectives() -> None:
    none, full = _row(Strategy(tensor=2)), _row(Strategy(tensor=2), recompute="full")
    assert full.recompute_seconds == pytest.approx(none.forward_seconds)
    assert dict(full.backward_communication)["tensor"] == pytest.approx(
        dict(none.backward_communication)["tensor"] + dict(none.forward_communication)["tensor"]
    )


def test_the_head_keeps_fp32_logits_and_needs_room_for_their_gradient() -> None:
    head = _row(Strategy(tensor=2), row=5)
    logits = SEQUENCE * VOCABULARY / 2
    assert head.activation_bytes == pytest.approx(4 * logits)
    assert head.working_bytes == pytest.approx(2 * (logits + SEQUENCE * HIDDEN))  # gradients of logits and of what made them


def test_the_gradient_of_the_word_table_stands_beside_the_main_gradient() -> None:
    table = _row(Strategy(tensor=2), row=0)
    assert table.gradient_bytes == pytest.approx((4 + 2) * VOCABULARY * HIDDEN / 2)
    assert _row(Strategy(data=2, shard=2), row=0).gradient_bytes == pytest.approx(4 * VOCABULARY * HIDDEN / 2)


def test_a_stage_is_the_sum_of_its_layers() -> None:
    posed, strategy = problem(4), Strategy(data=2, tensor=2, shard=1)
    layers = analytic.row_costs(posed, strategy, range(4), 2)
    recompute = ("none", "full", "full", "none", "none", "none")
    plan = Plan((Stage(tuple(range(6)), tuple(range(4)), strategy, recompute),), 2, 2)
    (load,) = analytic.stage_costs(posed, plan)
    parts = [layers[0, "none"], *[layers[1, "full"]] * 2, *[layers[1, "none"]] * 2, layers[5, "none"]]
    for field in ("forward_seconds", "backward_total_seconds", "activation_bytes", "static_bytes", "reduce_seconds"):
        assert getattr(load, field) == pytest.approx(sum(getattr(part, field) for part in parts))
    assert load.working_bytes == max(part.working_bytes for part in parts)


def test_a_mixed_stage_runs_at_the_pace_of_its_slowest_device() -> None:
    slow = dataclasses.replace(device(), name="slow", flops_per_second=(("bf16", 10e12),))
    posed = dataclasses.replace(problem(4), cluster=cluster(4, device(), slow))
    fast_part = analytic.row_costs(posed, Strategy(data=2), range(2), 1)[1, "none"]
    slow_part = analytic.row_costs(posed, Strategy(data=2), range(2, 4), 1)[1, "none"]
    mixed = analytic.row_costs(posed, Strategy(data=2), (1, 2), 1)[1, "none"]
    assert fast_part.forward_seconds < slow_part.forward_seconds == mixed.forward_seconds


def test_a_refusal_says_why() -> None:
    posed = problem(8)
    assert analytic.illegal(posed, Strategy(tensor=3)) == "layers.0: the tensor degree 3 does not divide the 16 attention heads"
    assert "does not divide the 3 data" in analytic.illegal(posed, Strategy(data=3, expert=2))
    assert "sequence" in analytic.illegal(posed, Strategy(context=512))
    assert "16 attention heads" in analytic.illegal(posed, Strategy(tensor=3, sequence_parallel=True))
    assert "has no experts to spread" in analytic.illegal(posed, Strategy(data=4, expert=2))
    assert analytic.illegal(posed, Strategy(data=2, tensor=4, sequence_parallel=True)) == ""
    plan = Plan((Stage(tuple(range(6)), (0, 1, 2), Strategy(tensor=3)),))
    with pytest.raises(InputError, match=r"stage 0: layers\.0: the tensor degree 3"):
        analytic.stage_costs(posed, plan)


degrees = st.sampled_from([1, 2, 4])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(degrees, degrees, degrees, st.integers(0, 3), st.booleans(), st.sampled_from([1, 3]), st.booleans())
def test_everything_is_finite_and_more_devices_never_compute_longer(
    data: int, tensor: int, context: int, shard: int, sequence_parallel: bool, micro_batch: int, moe: bool
) -> None:
    parts = {"layer": moe_layer} if moe else {}
    posed = problem(64, **parts)  # type: ignore[arg-type]
    expert = min(2, data * context) if moe else 1
    split = sequence_parallel or (expert > 1 and tensor > 1)
    strategy = Strategy(data, tensor, context, expert, split and tensor > 1, shard)
    stage_costs = analytic.row_costs(posed, strategy, range(strategy.n_devices), micro_batch)
    single = analytic.row_costs(posed, Strategy(), range(1), micro_batch)
    for key, load in stage_costs.items():
        for field in dataclasses.fields(load):
            value = getattr(load, field.name)
            values = [seconds for _, seconds in value] if isinstance(value, tuple) else [value]
            assert all(math.isfinite(value) and value >= 0 for value in values), (key, field.name)
        compute = load.forward_seconds + load.backward_input_seconds + load.backward_weight_seconds
        alone = single[key]
        assert compute <= (alone.forward_seconds + alone.backward_input_seconds + alone.backward_weight_seconds) * (1 + 1e-9)


def test_every_way_to_recompute_is_priced() -> None:
    assert {how for _, how in analytic.row_costs(problem(1), Strategy(), range(1), 1)} == set(RECOMPUTE)
    assert graph().n_parameters == 4 * LAYER_PARAMETERS + 2 * VOCABULARY * HIDDEN


def test_layers_without_operators_cost_nothing_that_could_be_said() -> None:
    posed = problem()
    plan = Plan((Stage(tuple(range(len(posed.graph.ops))), (0,), Strategy()),), 1, 1, "1f1b", 1)
    assert analytic.stage_costs(posed, plan)
    bare = dataclasses.replace(posed.graph, ops=tuple(dataclasses.replace(op, body=(), like=-1) for op in posed.graph.ops))
    spec = dataclasses.replace(posed.model_spec, graph=dataclasses.replace(bare, n_shared_parameters=0, shared=()))
    assert analytic.stage_costs(dataclasses.replace(posed, model_spec=spec), plan) == ()
