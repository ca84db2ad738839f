"""How the work of layers becomes the load of a stage: every formula on figures that can be added up in the head.

The layer computes 10 s forward, 20 s and 30 s backward; axes of the mesh take a second per byte (an all-reduce two) and no latency;
it has 100 dense weights and 40 of experts, of 2, 4 and 12 bytes (weights, gradients, optimizer state).
"""  # noqa: E501

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic import joined_loads, stage, traffic
from meshwright.costs.analytic.device_mesh import BUCKET_BYTES, Mesh, bucket_seconds
from meshwright.costs.analytic.layer import LayerWork, Transfer

from .conftest import device

TRAINING = MixedPrecision(fragmentation_ratio=0.0)
MEMORY_RATE = 1e12  # bytes per second of `device()`


class Line:
    """An axis on which a byte takes a second, or two where it is reduced and sent back, and every collective a latency."""

    def __init__(self, latency_seconds: float = 0.0) -> None:
        self.latency_seconds = latency_seconds

    def seconds(self, kind: str, n_bytes: float) -> float:
        return self.latency_seconds + (2.0 if kind == "all_reduce" else 1.0) * n_bytes


WORK = LayerWork(
    forward_seconds=10.0, backward_input_seconds=20.0, backward_weight_seconds=30.0, selective_seconds=3.0,
    forward=(Transfer("tensor", "tensor", "all_gather", 5.0), Transfer("context", "context", "all_gather", 9.0, 4.0)),
    backward=(Transfer("tensor", "tensor", "reduce_scatter", 6.0),),
    selective=(Transfer("context", "context", "all_gather", 9.0, 4.0),), rerun_seconds=8.0,
    rerun=(Transfer("tensor", "tensor", "all_gather", 5.0), Transfer("context", "context", "all_gather", 9.0, 4.0)),
    n_dense_parameters=100, n_expert_parameters=40, n_lookup_parameters=0,
    saved_bytes=50.0, selective_bytes=20.0, input_bytes=8.0, output_bytes=16.0, working_bytes=7.0, model_flops=1000.0,
)  # fmt: skip
SILENT = Mesh(None, None, None, None, None, None, 1, 1)


def mesh(**axes: object) -> Mesh:
    """Return a mesh in which only some axes have more than one rank."""
    return replace(SILENT, **axes)


def load(strategy: Strategy, axes: Mesh = SILENT, recompute: str = "none", framework: Framework | None = None) -> StageCost:
    return stage.layer_load(WORK, recompute, axes, strategy, device(), TRAINING, framework or Framework())


INSIDE = mesh(tensor=Line(), context=Line())


def test_what_compute_hides_is_not_waited_for() -> None:
    """Of the 9 s round the ring 4 s run beside attention; the tensor axis' 5 s forward and 6 s backward wait."""
    found = load(Strategy(tensor=2, context=2), INSIDE)
    assert dict(found.forward_communication) == pytest.approx({"tensor": 5.0, "context": 5.0})
    assert dict(found.backward_communication) == pytest.approx({"tensor": 6.0})
    quick = replace(WORK, forward=(Transfer("context", "context", "all_gather", 3.0, 4.0),))
    hidden = stage.layer_load(quick, "none", INSIDE, Strategy(context=2), device(), TRAINING, Framework())
    assert dict(hidden.forward_communication) == {"context": 0.0}


def test_a_program_that_overlaps_waits_for_the_rest_of_gatherings_only_with_sequence_parallelism() -> None:
    beside = Framework(tensor_overlap_ratio=0.25)
    split = load(Strategy(tensor=2, context=2, sequence_parallel=True), INSIDE, framework=beside)
    assert dict(split.forward_communication) == pytest.approx({"tensor": 5.0 * 0.75, "context": 5.0})
    whole = load(Strategy(tensor=2, context=2), INSIDE, framework=beside)
    assert dict(whole.forward_communication) == pytest.approx({"tensor": 5.0, "context": 5.0})


def test_selective_recomputation_repeats_its_seconds_and_its_collectives() -> None:
    """3 s of compute, and the ring once more: 9 s less the 4 s that run beside it."""
    found = load(Strategy(tensor=2, context=2), INSIDE, "selective")
    assert found.recompute_seconds == 3.0
    assert dict(found.backward_communication) == pytest.approx({"tensor": 6.0, "context": 5.0})
    assert (found.activation_bytes, found.working_bytes) == (50.0 - 20.0, 20.0 + 7.0)


def test_full_recomputation_repeats_what_runs_again_and_keeps_the_input_alone() -> None:
    found = load(Strategy(tensor=2, context=2), INSIDE, "full")
    assert found.recompute_seconds == 8.0
    assert dict(found.backward_communication) == pytest.approx({"tensor": 6.0 + 5.0, "context": 5.0})
    assert (found.activation_bytes, found.working_bytes) == (8.0, 50.0 + 7.0)
    plain = load(Strategy(tensor=2, context=2), INSIDE)
    assert (plain.recompute_seconds, plain.activation_bytes, plain.working_bytes) == (0.0, 50.0, 7.0)


def test_replicas_reduce_every_gradient_once_a_step_dense_and_experts() -> None:
    """400 bytes over the shard axis and 160 over that of the experts, an all-reduce at 2 s a byte."""
    axes = mesh(shard=Line(), expert_data=Line(), n_shards=4, n_expert_shards=2)
    assert load(Strategy(data=4), axes).reduce_seconds == pytest.approx(2 * (400 + 160))
    sharded = load(Strategy(data=4, shard=1), axes)
    assert sharded.reduce_seconds == pytest.approx(400 + 160)  # scattered
    assert sharded.gather_seconds == pytest.approx(200 + 80)  # updated weights, 2 bytes each
    assert load(Strategy(data=4), axes).gather_seconds == 0.0


@pytest.mark.parametrize("shard", [2, 3])
def test_accelerate_scatters_gradients_in_the_precision_of_weights_and_adds_replicas_up_each_time(shard: int) -> None:
    """200 bytes scattered instead of 400, and the 100 of a shard all-reduced, at 2 s a byte, in every micro-batch or once."""
    axes = mesh(shard=Line(), replicate=Line(), n_shards=2, n_expert_shards=1)
    strategy, gathers = Strategy(data=4, shard=shard, shard_degree=2), 200.0 if shard == 3 else 0.0
    copies = (2 * 280 * (shard == 3) + 4 * 140) / MEMORY_RATE
    for each, seconds in ((True, 200.0 + 2 * 100.0), (False, 200.0)):
        how = Framework(narrow_scatter=True, reduces_replicas_each=each)
        found = load(strategy, axes, framework=how)
        assert dict(found.backward_communication)["gather"] == pytest.approx(gathers + seconds - 50.0 + copies)
        assert found.reduce_seconds == pytest.approx(0.0 if each else 2 * 100.0)
        assert found.gradient_bytes == pytest.approx(4 * (100 / 2 + 40))


@pytest.mark.parametrize("shard", [2, 3])
def test_gradients_that_stand_whole_are_scattered_once_a_step(shard: int) -> None:
    axes = mesh(shard=Line(), n_shards=4, n_expert_shards=1)
    found = load(Strategy(data=4, shard=shard), axes, framework=Framework(narrow_scatter=True, whole_gradients=True))
    assert found.gradient_bytes == 2 * 140
    assert found.reduce_seconds == pytest.approx(200.0 + 4 * 140 / MEMORY_RATE)
    assert dict(found.backward_communication).get("gather", 0.0) == pytest.approx(
        200.0 - 50.0 + 2 * 280 / MEMORY_RATE if shard == 3 else 0.0
    )


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_with_hsdp_replicas_add_up_their_shards(shard: int) -> None:
    """Four ranks, two shards: the 400 bytes of dense gradients are halved, and the 200 of a shard are all-reduced between replicas."""  # noqa: E501
    axes = mesh(shard=Line(), replicate=Line(), n_shards=2, n_expert_shards=1)
    found = load(Strategy(data=4, shard=shard, shard_degree=2), axes)
    scattered = 400.0 if shard == 1 else 0.0  # ZeRO-2 and 3 scatter every micro-batch
    assert found.reduce_seconds == pytest.approx(2 * 200.0 + scattered)
    assert found.gather_seconds == pytest.approx(200.0 if shard < 3 else 0.0)


def test_sharded_gradients_are_scattered_and_weights_gathered_beside_every_micro_batch() -> None:
    """ZeRO-3: 200 + 80 s of weights beside 10 s forward; as long again and 400 + 160 s of gradients beside 50 s backward."""
    axes = mesh(shard=Line(), expert_data=Line(), n_shards=2, n_expert_shards=2)
    unpack, pack = 2 * 2 * 140 / MEMORY_RATE, (2 + 4) * 140 / MEMORY_RATE
    found = load(Strategy(data=2, shard=3), axes)
    assert dict(found.forward_communication)["gather"] == pytest.approx(280 - 10 + unpack, rel=1e-15)
    assert dict(found.backward_communication)["gather"] == pytest.approx(280 + 560 - 50 + unpack + pack, rel=1e-15)
    later = load(Strategy(data=2, shard=3), axes, framework=Framework(overlaps_scatter=False))
    assert dict(later.backward_communication)["gather"] == pytest.approx(280 - 50 + 560, rel=1e-9)
    again = load(Strategy(data=2, shard=3), axes, "selective")  # three more seconds to hide behind
    assert dict(again.backward_communication)["gather"] == pytest.approx(280 + 560 - 53, rel=1e-9)


def test_zero_2_scatters_gradients_every_micro_batch_and_gathers_weights_once_a_step() -> None:
    axes = mesh(shard=Line(), expert_data=Line(), n_shards=2, n_expert_shards=2)
    found = load(Strategy(data=2, shard=2), axes)
    assert dict(found.backward_communication) == pytest.approx({"gather": 560 - 50.0})
    assert dict(found.forward_communication) == {"gather": 0.0}
    assert (found.reduce_seconds, found.gather_seconds) == pytest.approx((0.0, 280.0))


def test_copies_that_nothing_hides_are_of_all_weights_dense_and_experts() -> None:
    """Weights out and in again at 2 bytes, gradients from 2 bytes to 4: 560 and 840 bytes of 140 weights at a terabyte a second."""  # noqa: E501
    seconds = stage._copy_seconds(WORK, Strategy(shard=3), device(memory_ratio=0.5), TRAINING, Framework())
    assert seconds == pytest.approx((560 / 0.5e12, 840 / 0.5e12))
    assert stage._copy_seconds(WORK, Strategy(shard=2), device(), TRAINING, Framework()) == pytest.approx((0.0, 840e-12))


def test_a_rate_of_their_own_takes_all_weights_whatever_the_axes() -> None:
    slow = Framework(shard_bytes_per_second=10.0)
    assert stage.sharded_seconds(WORK, SILENT, Strategy(data=2, shard=3), TRAINING, slow) == pytest.approx((28.0, 56.0))
    assert stage.sharded_seconds(WORK, SILENT, Strategy(data=2, shard=2), TRAINING, slow) == pytest.approx((0.0, 56.0))
    assert stage.sharded_seconds(WORK, SILENT, Strategy(data=2, shard=1), TRAINING, slow) == (0.0, 0.0)


def test_dense_and_expert_state_are_divided_over_their_own_ranks() -> None:
    axes = mesh(n_shards=4, n_expert_shards=2)

    def held(shard: int, training: MixedPrecision = TRAINING) -> tuple[float, float, float]:
        return stage._state_bytes(
            replace(WORK, n_lookup_parameters=30), axes, Strategy(data=4, shard=shard), training, Framework()
        )

    share = 100 / 4 + 40 / 2
    assert held(0) == (2 * 140, 4 * 140 + 2 * 30, 12 * 140)
    assert held(1) == (2 * 140, 4 * 140 + 2 * 30, 12 * share)
    assert held(2) == (2 * 140, 4 * share, 12 * share)
    assert held(3) == (4 * share, 4 * share, 8 * share)  # the fp32 copy is the weight
    assert held(3, MixedPrecision(optimizer_bytes=8)) == (2 * share, 4 * share, 8 * share)  # no such copy
    assert held(3, MixedPrecision(weight_bytes=4)) == (4 * share, 4 * share, 12 * share)


def test_only_what_is_sharded_needs_buffers() -> None:
    """Three units of two bytes as tensors; one buffer of weights and one of gradients."""

    def unit(**axes: int) -> tuple[float, float]:
        return stage._unit_bytes(WORK, mesh(**axes), Strategy(data=4, shard=3), TRAINING, Framework())

    assert unit(n_shards=4, n_expert_shards=4) == (3 * 2 * 140, (2 + 4) * 140)
    assert unit(n_shards=4, n_expert_shards=1) == (3 * 2 * 100, (2 + 4) * 100)
    assert unit(n_shards=1, n_expert_shards=4) == (3 * 2 * 40, (2 + 4) * 40)
    assert stage._unit_bytes(WORK, mesh(n_shards=4), Strategy(data=4, shard=2), TRAINING, Framework()) == (0.0, 0.0)


def test_weights_gathered_by_operator_are_bounded_and_collectives_in_place_need_no_buffers() -> None:
    """Of 140 weights whose largest tensor has 60: as many as may stay gathered beside it, its gradient, and that laid out."""
    work, axes, whole = replace(WORK, n_largest_parameters=60), mesh(n_shards=4, n_expert_shards=4), Strategy(data=4, shard=3)
    few = stage._unit_bytes(work, axes, whole, TRAINING, Framework(n_gathered_weights=30.0))
    assert few == (2 * (30 + 60) + 2 * 60, 2 * 60)
    many = stage._unit_bytes(work, axes, whole, TRAINING, Framework(n_gathered_weights=1e9))
    assert many == (2 * 2 * 140 + 2 * 60, 2 * 60)  # never more than this layer's and the next one's
    assert stage._unit_bytes(work, axes, whole, TRAINING, Framework(copies_gathered=False)) == ((2 * 2 + 4) * 140, 0.0)


def test_collectives_in_place_spare_the_copies_and_nothing_else() -> None:
    axes = mesh(shard=Line(), expert_data=Line(), n_shards=4, n_expert_shards=4)
    strategy = Strategy(data=4, shard=3)
    copied, placed = load(strategy, axes), load(strategy, axes, framework=Framework(copies_gathered=False))
    unpack, pack = 2 * 2 * 140 / MEMORY_RATE, (2 + 4) * 140 / MEMORY_RATE
    assert dict(copied.forward_communication)["gather"] - dict(placed.forward_communication)["gather"] == pytest.approx(unpack)
    assert dict(copied.backward_communication)["gather"] - dict(placed.backward_communication)["gather"] == pytest.approx(
        unpack + pack
    )
    assert placed.optimizer_seconds == copied.optimizer_seconds and placed.weight_bytes == copied.weight_bytes


@pytest.mark.parametrize("shard", [1, 2])
def test_weights_that_stay_gathered_have_whole_gradients_their_shards_and_buffers_of_a_layer(shard: int) -> None:
    """140 weights, gradients of four bytes whole and a quarter of them as shards; a buffer of weights and one of gradients."""
    axes, strategy = mesh(n_shards=4, n_expert_shards=4), Strategy(data=4, shard=shard)
    kept = load(strategy, axes, framework=Framework(keeps_gathered=True, reduces_once=True))
    assert kept.gradient_bytes == 4 * 140 + 4 * 35
    each = load(strategy, axes, framework=Framework(keeps_gathered=True))
    assert each.gradient_bytes == (4 * 35 if shard == 2 else 4 * 140)
    assert (each.working_bytes, each.communication_bytes) == (kept.working_bytes, kept.communication_bytes)
    assert kept.communication_bytes == (2 + 4) * 140
    plain = load(strategy, axes)
    assert kept.working_bytes - plain.working_bytes == pytest.approx(2 * 140 * (1 + TRAINING.fragmentation_ratio))
    assert load(Strategy(data=4), axes, framework=Framework(keeps_gathered=True)) == load(Strategy(data=4), axes)


def test_gradients_that_are_reduced_once_cost_no_micro_batch_anything_and_leave_after_the_last() -> None:
    """ZeRO-2 communicates as ZeRO-1 does, with one copy of gradients more; without a pipeline every micro-batch scatters."""
    axes = mesh(n_shards=4, n_expert_shards=4, shard=Line(), expert_data=Line())
    once = Framework(reduces_once=True)
    kept, each = (load(Strategy(data=4, shard=2), axes, framework=how) for how in (once, once.in_pipeline(1)))
    plain = load(Strategy(data=4, shard=1), axes)
    assert "gather" not in dict(kept.backward_communication) and dict(each.backward_communication)["gather"] > 0.0
    assert plain.reduce_seconds < kept.reduce_seconds < 2.0 * plain.reduce_seconds and each.reduce_seconds == 0.0
    assert kept.gather_seconds == each.gather_seconds == plain.gather_seconds
    assert once.in_pipeline(2) is once and analytic.combine([(kept, 3)], once, 2).overlap_ratio == 0.0
    assert analytic.combine([(kept, 3)], once, 0).overlap_ratio > 0.0


def test_weights_freed_after_every_backward_pass_are_gathered_before_every_forward_pass_and_not_after_the_update() -> None:
    """280 bytes beside 10 s of compute, copied once; ZeRO-3 gathers before the backward pass, too; a pipeline keeps them."""
    axes = mesh(n_shards=4, n_expert_shards=4, shard=Line(), expert_data=Line())
    how = Framework(gathers_each=True)
    each, once, three = (load(Strategy(data=4, shard=shard), axes, framework=f) for shard, f in
                         ((2, how), (2, how.in_pipeline(4)), (3, how)))  # fmt: skip
    waited = 280.0 - 10.0 + 2 * 280 / MEMORY_RATE
    assert dict(each.forward_communication)["gather"] == dict(three.forward_communication)["gather"] == pytest.approx(waited)
    assert each.backward_communication == once.backward_communication  # the scattering of 560 bytes alone
    assert dict(each.backward_communication)["gather"] == pytest.approx(560.0 - 50.0 + 6 * 140 / MEMORY_RATE)
    assert (each.gather_seconds, once.gather_seconds) == (0.0, pytest.approx(280.0))
    assert dict(once.forward_communication).get("gather", 0.0) == 0.0 and how.in_pipeline(1) is how
    for shard in (0, 1):
        strategy = Strategy(data=4, shard=shard)
        assert load(strategy, axes, framework=how) == load(strategy, axes)


@pytest.mark.parametrize(
    ("shard", "moved"),
    [
        (0, 2 * 560 + 2 * 1680 + 280),
        (1, 560 + 2 * 420 + 280),
        (2, 2 * 140 + 2 * 420 + 280),
        (3, 2 * 140 + 2 * 280 + 140),
    ],
)
def test_the_update_reads_and_writes_state_once(shard: int, moved: float) -> None:
    """Gradients, optimizer state and weights of 140 weights, a quarter of what is sharded; ZeRO-1 only reads its gradients' shard."""  # noqa: E501
    axes = mesh(n_shards=4, n_expert_shards=4)
    assert load(Strategy(data=4, shard=shard), axes).optimizer_seconds == pytest.approx(moved / MEMORY_RATE)


def test_an_output_is_sent_in_pieces_where_the_program_does_so_and_it_is_not_in_pieces_anyway() -> None:
    pieces = Framework(splits_transfers=True)
    assert load(Strategy(tensor=4)).output_bytes == 16.0
    assert load(Strategy(tensor=4), framework=pieces).output_bytes == 4.0
    assert load(Strategy(tensor=4, sequence_parallel=True), framework=pieces).output_bytes == 16.0


def test_a_small_gradient_pays_its_share_of_a_buckets_latency() -> None:
    """A layer of a tenth of a bucket pays a tenth of 5 s; one of two buckets pays the latency once."""
    axis = Line(5.0)
    assert bucket_seconds(axis, "all_gather", BUCKET_BYTES / 10) == pytest.approx(0.5 + BUCKET_BYTES / 10)
    assert bucket_seconds(axis, "all_gather", 2 * BUCKET_BYTES) == pytest.approx(5.0 + 2 * BUCKET_BYTES)
    assert bucket_seconds(None, "all_gather", 1.0) == bucket_seconds(axis, "all_gather", 0.0) == 0.0


def test_a_stage_adds_up_its_layers_and_takes_the_largest_of_what_is_needed_at_a_time() -> None:
    """Two of one layer and one of another; only the second's 4 s of the 2 x 3 + 4 s of reductions come after the backward pass."""  # noqa: E501
    one = StageCost(
        1.0, 2.0, 3.0, 0.5, (("tensor", 1.0),), (("gather", 2.0),), 11.0, 3.0, 0.0, 0.1, 0.2, 10.0, 20.0, 30.0, 40.0, 5.0, 9.0, 100.0,  # noqa: E501
        communication_bytes=6.0, fragmentation_ratio=0.1,
    )  # fmt: skip
    other = replace(one, forward_seconds=7.0, reduce_seconds=4.0, output_bytes=13.0, working_bytes=6.0, reserved_bytes=8.0,
                    forward_communication=(("context", 5.0), ("tensor", 2.0)), communication_bytes=7.0, fragmentation_ratio=0.05)  # fmt: skip  # noqa: E501
    both = joined_loads.combine([(one, 2), (other, 1), (replace(one, forward_seconds=99.0, output_bytes=13.0), 0)])
    assert (both.forward_seconds, both.backward_input_seconds, both.backward_weight_seconds) == (9.0, 6.0, 9.0)
    assert both.recompute_seconds == 1.5
    assert dict(both.forward_communication) == {"context": 5.0, "tensor": 4.0}
    assert dict(both.backward_communication) == {"gather": 6.0}
    assert both.output_bytes == 13.0
    assert (both.reduce_seconds, both.overlap_ratio) == (10.0, pytest.approx(0.6))
    assert (both.gather_seconds, both.optimizer_seconds) == pytest.approx((0.3, 0.6))
    assert (both.weight_bytes, both.gradient_bytes, both.optimizer_bytes) == (30.0, 60.0, 90.0)
    assert (both.activation_bytes, both.working_bytes, both.reserved_bytes, both.model_flops) == (120.0, 6.0, 9.0, 300.0)
    assert (both.communication_bytes, both.fragmentation_ratio) == (7.0, 0.1)
    assert joined_loads.combine([]).output_bytes == joined_loads.combine([]).overlap_ratio == 0.0


def test_reductions_run_beside_the_backward_pass_where_the_framework_and_the_level_let_them() -> None:
    load = replace(StageCost(1.0, 2.0, 3.0), reduce_seconds=3.0)
    for framework, shares in (
        (Framework(), (0.5, 0.5)), (Framework(overlaps_whole_reduce=False), (0.0, 0.5)),
        (Framework(overlaps_reduce=False), (0.0, 0.0)),
    ):  # fmt: skip
        assert tuple(analytic.combine([(load, 2)], framework, shard).overlap_ratio for shard in (0, 1)) == shares


def test_a_stage_of_unlike_devices_takes_every_time_of_the_slowest_and_every_size_of_the_largest() -> None:
    slow = StageCost(5.0, 1.0, optimizer_seconds=1.0, reserved_bytes=3.0)
    quick = StageCost(1.0, 4.0, optimizer_seconds=2.0, reserved_bytes=4.0)  # 5 s in all against 6
    assert joined_loads.slowest_kind((quick, slow)) is slow
    both = joined_loads.slowest((quick, slow))
    assert (both.forward_seconds, both.optimizer_seconds, both.reserved_bytes) == (5.0, 2.0, 4.0)
    assert joined_loads.slowest((quick,)) is quick


def test_the_ledger_of_hsdp_has_both_reductions() -> None:
    """Shards of 200 bytes between replicas, two ranks apart, and the scattering of 400 between neighbours."""
    axes = mesh(shard=Line(), replicate=Line(), n_shards=2, n_expert_shards=1)
    found = traffic.collectives(
        {(0, "none"): 3}, {(0, "none"): WORK}, axes, Strategy(data=4, shard=1, shard_degree=2), TRAINING, Framework()
    )
    seconds = {(one.part, one.kind, one.size, one.stride): one.seconds for one in found}
    assert seconds == pytest.approx({
        ("reduce", "reduce_scatter", 2, 1): 3 * 400.0,
        ("reduce", "all_reduce", 2, 2): 3 * 2 * 200.0,
        ("gather", "all_gather", 2, 1): 3 * 200.0,
    })  # fmt: skip


def ledger(
    strategy: Strategy, axes: Mesh, framework: Framework | None = None
) -> dict[tuple[str, str, int, int], tuple[float, float]]:
    """Return how many collectives of a stage of two such layers there are, and their seconds, by part, kind, size and stride."""  # noqa: E501
    found = traffic.collectives({(0, "none"): 2}, {(0, "none"): WORK}, axes, strategy, TRAINING, framework or Framework())
    return {(one.part, one.kind, one.size, one.stride): (one.n_times, one.seconds) for one in found}


def test_the_ledger_parts_what_blocks_from_what_runs_beside_compute() -> None:
    """Of the 9 s round the ring 5 are waited for: five ninths of a collective block, four ninths run beside; twice for two layers."""  # noqa: E501
    found = ledger(Strategy(tensor=2, context=4), INSIDE)
    assert found[("forward", "all_gather", 4, 2)] == pytest.approx((2 * 5 / 9, 2 * 5.0))
    assert found[("forward_beside", "all_gather", 4, 2)] == pytest.approx((2 * 4 / 9, 2 * 4.0))
    assert found[("forward", "all_gather", 2, 1)] == pytest.approx((2.0, 2 * 5.0))
    assert found[("backward", "reduce_scatter", 2, 1)] == pytest.approx((2.0, 2 * 6.0))
    assert len(found) == 4


def test_the_ledger_of_zero_3_hides_what_compute_is_long_enough_for() -> None:
    """10 of 200 s of gathering run beside the forward pass, 50 of 200 + 400 s beside the backward pass, evenly."""
    axes = mesh(shard=Line(), n_shards=4)
    found = ledger(Strategy(data=4, tensor=3, shard=3), axes)
    seconds = {(part, kind): seconds for (part, kind, size, stride), (_, seconds) in found.items() if (size, stride) == (4, 3)}
    assert seconds == pytest.approx({
        ("forward", "all_gather"): 2 * 190.0, ("forward_beside", "all_gather"): 2 * 10.0,
        ("backward", "all_gather"): 2 * 200 * 550 / 600, ("backward_beside", "all_gather"): 2 * 200 * 50 / 600,
        ("backward", "reduce_scatter"): 2 * 400 * 550 / 600, ("backward_beside", "reduce_scatter"): 2 * 400 * 50 / 600,
    })  # fmt: skip
    later = ledger(Strategy(data=4, tensor=3, shard=3), axes, Framework(overlaps_scatter=False))
    assert later[("backward", "reduce_scatter", 4, 3)][1] == pytest.approx(2 * 400.0)
    assert later[("backward_beside", "all_gather", 4, 3)][1] == pytest.approx(2 * 50.0)


def test_the_ledger_counts_the_share_of_a_bucket_and_the_experts_of_their_own_axis() -> None:
    """400 bytes of dense gradients and 160 of experts, which lie over 2 ranks 6 apart, are parts of whole buckets."""
    axes = mesh(shard=Line(), expert_data=Line(), n_shards=4, n_expert_shards=2)
    found = ledger(Strategy(data=4, tensor=3, expert=2), axes)
    assert found[("reduce", "all_reduce", 4, 3)] == pytest.approx((2 * 400 / BUCKET_BYTES, 2 * 800.0))
    assert found[("reduce", "all_reduce", 2, 6)] == pytest.approx((2 * 160 / BUCKET_BYTES, 2 * 320.0))
    assert len(found) == 2
    folded = ledger(Strategy(data=2, tensor=4, expert=4), mesh(expert_data=Line(), n_expert_shards=2))
    assert list(folded) == [("reduce", "all_reduce", 2, 4)]  # experts whole on their devices, neighbours on the tensor axis


def test_a_rate_of_their_own_changes_the_seconds_of_collectives_not_their_bytes() -> None:
    """At 10 bytes a second 280 bytes take 28 s where the axis says 200: the experts' axis is silent here."""
    found = ledger(Strategy(data=4, shard=3), mesh(shard=Line(), n_shards=4), Framework(shard_bytes_per_second=10.0))
    assert found[("forward", "all_gather", 4, 1)][1] + found[("forward_beside", "all_gather", 4, 1)][1] == pytest.approx(
        2 * 28.0
    )
