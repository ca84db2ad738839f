"""What is outside a framework's limits: each limit refuses one plan, names what it is, and lets its neighbour pass."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.core.framework import _FIGURES, Framework, FrameworkLimits
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.plan_forms import inner_words, layout_of, recomputed_in_block
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.strategy import Strategy

GRAPH = Graph("m", (Op("embed", "embedding"), *(Op(f"layers.{i}", "block") for i in range(4)), Op("head", "head")))
TWO = Strategy(data=2)
PLAN = Plan((Stage((0, 1, 2), (0, 1), TWO), Stage((3, 4, 5), (2, 3), TWO)), 4, 1, "1f1b", 8)


def staged(**changes: object) -> Plan:
    """Return the plan of two stages with the strategy of both changed."""
    return replace(PLAN, stages=tuple(replace(stage, strategy=replace(TWO, **changes)) for stage in PLAN.stages))


def test_no_limits_refuse_nothing() -> None:
    odd = Plan((Stage((1, 0), (3,)), Stage((5, 2, 3, 4), (0, 2), TWO, ("full", "none", "selective", "none"), (1, 0))), 4)
    for plan in (PLAN, odd, staged(shard=2, shard_degree=1)):
        assert exceeded(FrameworkLimits(), plan, GRAPH, "fp8") == ()


@pytest.mark.parametrize("axis", ["tensor", "context", "expert"])
def test_a_degree_above_one_needs_its_axis(axis: str) -> None:
    without = FrameworkLimits(degrees=tuple(name for name in ("tensor", "context", "pipeline", "expert") if name != axis))
    assert exceeded(without, PLAN, GRAPH) == ()
    assert exceeded(without, staged(**{axis: 4}), GRAPH) == (f"{axis} degree 4; it has no {axis} parallelism",)
    only = FrameworkLimits(degrees=(axis, "pipeline"))
    assert exceeded(only, staged(**{axis: 4}), GRAPH) == ()


def test_a_pipeline_is_counted_in_ranks_not_in_stages() -> None:
    none = FrameworkLimits(degrees=())
    assert exceeded(none, PLAN, GRAPH) == ("pipeline degree 2; it has no pipeline parallelism",)
    on_one = replace(PLAN, stages=tuple(replace(stage, devices=(0, 1)) for stage in PLAN.stages))
    assert exceeded(none, on_one, GRAPH) == ()
    no_virtual = FrameworkLimits(virtual_stages=False)
    assert exceeded(no_virtual, PLAN, GRAPH) == ()
    assert exceeded(no_virtual, on_one, GRAPH) == ("several stages on one pipeline rank; it has no virtual stages",)


def test_sharding_is_a_level_and_whether_it_goes_over_fewer_ranks() -> None:
    limits = FrameworkLimits(shards=(0, 1), hybrid_shards=())
    assert exceeded(limits, staged(shard=1), GRAPH) == ()
    assert exceeded(limits, staged(shard=1, shard_degree=2), GRAPH) == ()  # all of them
    assert exceeded(limits, staged(shard=3), GRAPH) == ("sharding level 3 of the data axis; it has 0, 1",)
    over = "level 1 sharded over 1 of 2 data ranks; it shards over all of them"
    assert exceeded(limits, staged(shard=1, shard_degree=1), GRAPH) == (over,)
    assert exceeded(replace(limits, hybrid_shards=(1,)), staged(shard=1, shard_degree=1), GRAPH) == ()
    alone = Plan((Stage(tuple(range(6)), (0,), Strategy(shard=3)),))  # nothing to shard over
    assert exceeded(limits, alone, GRAPH) == ()
    along_context = Plan((Stage(tuple(range(6)), (0, 1), Strategy(context=2, shard=3)),))
    assert len(exceeded(limits, along_context, GRAPH)) == 1


def test_schedules_count_where_there_is_a_pipeline() -> None:
    limits = FrameworkLimits(schedules=("gpipe",))
    assert exceeded(limits, PLAN, GRAPH) == ("schedule 1f1b; it has gpipe",)
    assert exceeded(limits, replace(PLAN, schedule="gpipe"), GRAPH) == ()
    assert exceeded(limits, Plan((Stage(tuple(range(6)), (0,)),)), GRAPH) == ()


def test_stages_of_unequal_layers_or_degrees_and_ends_elsewhere() -> None:
    uneven = Plan((Stage((0, 1), (0, 1), TWO), Stage((2, 3, 4, 5), (2, 3), TWO)))
    limits = FrameworkLimits(uneven_stages=False)
    assert exceeded(limits, PLAN, GRAPH) == ()  # two layers each: embedding and head do not count
    assert exceeded(limits, uneven, GRAPH) == ("stages of 1, 3 layers; every stage has equally many there",)
    unlike = Plan((PLAN.stages[0], replace(PLAN.stages[1], strategy=Strategy(tensor=2))))
    limits = FrameworkLimits(unlike_stages=False)
    assert exceeded(limits, PLAN, GRAPH) == ()
    assert exceeded(limits, unlike, GRAPH) == ("stages have 2 different sets of degrees; one set serves all stages there",)
    limits = FrameworkLimits(free_ends=False)
    assert exceeded(limits, PLAN, GRAPH) == ()
    swapped = Plan((Stage((5, 1, 2), (0, 1), TWO), Stage((3, 4, 0), (2, 3), TWO)))
    assert exceeded(limits, swapped, GRAPH) == (
        "the embedding is not on the first stage; it keeps it there", "the head is not on the last stage; it keeps it there",
    )  # fmt: skip


def test_precisions_count_where_one_is_named() -> None:
    limits = FrameworkLimits(precisions=("bf16",))
    assert exceeded(limits, PLAN, GRAPH) == exceeded(limits, PLAN, GRAPH, "bf16") == ()
    assert exceeded(limits, PLAN, GRAPH, "fp8") == ("products in fp8; it has bf16",)


def placed(*groups: tuple[int, ...], **degrees: int) -> Plan:
    """Return a plan of one stage for each group of devices."""
    return Plan(tuple(Stage((i,), group, Strategy(**degrees)) for i, group in enumerate(groups)))


def test_which_axis_changes_slowest_over_the_devices() -> None:
    assert layout_of(placed((0, 1, 2, 3), (4, 5, 6, 7), data=4)) == "pipeline"
    assert layout_of(placed((0, 2, 4, 6), (1, 3, 5, 7), data=4)) == "data"
    assert layout_of(placed((0, 1, 4, 5), (2, 3, 6, 7), data=2, tensor=2)) == "data"
    assert layout_of(placed((0, 1, 4, 5), (2, 3, 6, 7), data=2, context=2)) == "data"
    assert layout_of(placed((0, 1, 4, 5), (2, 3, 6, 7), data=4)) == ""
    assert layout_of(placed((4, 5, 6, 7), (0, 1, 2, 3), data=4)) == ""
    assert layout_of(placed((0, 1), (2, 3, 4, 5), data=2)) == ""
    assert layout_of(placed((1, 2), (3, 4), data=2)) == ""  # the first device is left out


def test_places_out_of_order_and_the_axis_outside_are_told_apart() -> None:
    by_data, backwards = placed((0, 2), (1, 3), data=2), placed((2, 3), (0, 1), data=2)
    limits = FrameworkLimits(layouts=("pipeline",))
    assert exceeded(limits, PLAN, GRAPH) == exceeded(limits, backwards, GRAPH) == ()
    assert exceeded(limits, by_data, GRAPH) == (
        "the data axis changes slowest over the devices; it lays out pipeline outermost",
    )
    assert exceeded(limits, placed((0,), (1,)), GRAPH) == ()  # one replica: both layouts at once
    limits = FrameworkLimits(any_order=False)
    assert exceeded(limits, by_data, GRAPH) == ()
    assert len(exceeded(limits, backwards, GRAPH)) == 1 and "out of order" in exceeded(limits, backwards, GRAPH)[0]
    ringed = replace(PLAN, stages=(replace(PLAN.stages[0], ring=(1, 0)), PLAN.stages[1]))
    assert exceeded(FrameworkLimits(gradient_rings=False), PLAN, GRAPH) == ()
    assert len(exceeded(FrameworkLimits(gradient_rings=False), ringed, GRAPH)) == 1


def recomputing(first: tuple[str, ...], second: tuple[str, ...]) -> Plan:
    """Return the plan of two stages with what its layers recompute."""
    return replace(PLAN, stages=(replace(PLAN.stages[0], recompute=first), replace(PLAN.stages[1], recompute=second)))


def test_embedding_and_head_do_not_count_among_the_layers_that_recompute() -> None:
    assert inner_words(PLAN, GRAPH) == [["none", "none"], ["none", "none"]]
    plan = recomputing(("full", "none", "selective"), ("none", "full", "selective"))
    assert inner_words(plan, GRAPH) == [["none", "selective"], ["none", "full"]]


@pytest.mark.parametrize(
    ("words", "n_layers"),
    [
        ([["none", "none"], ["none", "none"]], 0),
        ([["full", "none"], ["full", "none"]], 1),
        ([["full", "full"], ["full", "full"]], 2),
        ([["full", "full", "none"], ["full"]], 2),  # a stage with fewer layers recomputes all
        ([["full", "none"], ["none", "none"]], -1),
        ([["none", "full"], ["none", "full"]], -1),
        ([["full", "none"], ["full", "full"]], -1),
        ([["full", "selective"], ["full", "none"]], -1),
        ([], 0),
    ],
)
def test_the_first_layers_of_every_stage_recompute_all(words: list[list[str]], n_layers: int) -> None:
    assert recomputed_in_block(words) == n_layers


def test_recomputation_is_known_made_of_known_modules_and_alike_where_one_setting_serves_all() -> None:
    some, none = ("none", "full", "none"), ("none", "none", "none")
    limits = FrameworkLimits(recompute=("none", "full"))
    assert exceeded(limits, recomputing(none, some), GRAPH) == ()
    selective = recomputing(none, ("selective", "selective", "none"))
    assert exceeded(limits, selective, GRAPH) == ("recomputation 'selective'; it has none, full",)
    modules = FrameworkLimits(recompute=("none", "core_attn", "core_attn+mlp"))
    for word, n in (("mlp", 0), ("core_attn+mlp", 0), ("moe", 1), ("core_attn+moe", 1), ("full", 1)):
        assert len(exceeded(modules, recomputing((word,) * 3, (word,) * 3), GRAPH)) == n, word
    whole = FrameworkLimits(recompute_scope="plan")
    assert exceeded(whole, recomputing(("none", "full", "full"), ("full", "full", "none")), GRAPH) == ()
    differently = "layers recompute differently (full, none); all layers recompute alike there"
    first = recomputing(("none", "full", "none"), ("full", "none", "none"))
    last = recomputing(("none", "none", "full"), ("none", "full", "none"))
    assert exceeded(whole, first, GRAPH) == (differently,)
    block = replace(whole, block_recompute=True)
    assert exceeded(block, first, GRAPH) == ()
    assert len(exceeded(block, last, GRAPH)) == 1 and "the first layers of every stage" in exceeded(block, last, GRAPH)[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compute_ratio", -1.0), ("compute_ratio", 0.0), ("compute_ratio", math.nan), ("issue_seconds", -1e-6),
        ("expert_issue_seconds", math.inf), ("memory_passes_ratio", -1.0), ("ring_imbalance_ratio", 1.5),
        ("tensor_overlap_ratio", 1.5), ("shard_bytes_per_second", -1.0), ("logit_bytes", "4"), ("loss_bytes", -1.0),
        ("split_loss_bytes", -1.0), ("buffer_bytes", math.nan), ("gradient_copy_bytes", -1.0),
    ],
)  # fmt: skip
def test_figures_of_a_framework_are_finite_and_in_their_range(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^framework mine: {name} is ") as error:
        Framework(**{"name": "mine", name: value})
    assert "\n" not in str(error.value)


def test_every_figure_of_a_framework_is_looked_at() -> None:
    assert set(_FIGURES) == {field.name for field in fields(Framework) if field.type == "float"}


def test_a_pipeline_is_refused_where_its_ends_share_a_table_that_it_cannot_tie() -> None:
    limits, tied = FrameworkLimits(tied_pipeline=False), replace(GRAPH, n_shared_parameters=8)
    (reason,) = exceeded(limits, PLAN, tied)
    assert reason == "weights shared by embedding and head in a pipeline; it ties them within one stage only"
    assert exceeded(limits, PLAN, GRAPH) == exceeded(FrameworkLimits(), PLAN, tied) == ()
    assert limits.degrees_for(tied) == ("tensor", "context", "expert")
    assert limits.degrees_for(GRAPH) == FrameworkLimits().degrees_for(tied) == ("tensor", "context", "pipeline", "expert")


def test_degrees_that_do_not_stand_beside_each_other_are_refused_together_only() -> None:
    limits = FrameworkLimits(context_shards=(2, 3), whole_experts=True, expert_ranks=("shard", "context", "tensor"))
    for fine in (
        Strategy(8), Strategy(8, shard=2, context=2), Strategy(8, tensor=2), Strategy(8, expert=8, shard=3),
        Strategy(4, tensor=2, expert=8, shard=2), Strategy(8, expert=4, shard=3, shard_degree=4),
    ):  # fmt: skip
        assert limits.unpaired(fine) == () == FrameworkLimits().unpaired(fine)
    refused = {
        Strategy(8, context=2): "sharding level 0 beside a context axis",
        Strategy(8, context=2, shard=1): "sharding level 1 beside a context axis",
        Strategy(8, tensor=2, expert=4, shard=3): "experts split over the tensor axis",
        Strategy(8, expert=2): "an expert degree of 2; it must divide the 1 ranks of shard, context and tensor axis",
        Strategy(8, expert=8, shard=3, shard_degree=4): "an expert degree of 8; it must divide the 4 ranks of shard",
    }
    for one, reason in refused.items():
        assert any(found.startswith(reason) for found in limits.unpaired(one)), one
        assert FrameworkLimits().unpaired(one) == ()
    assert [reason[:12] for reason in exceeded(limits, staged(expert=2), GRAPH)] == ["an expert de"]
    alone = FrameworkLimits(expert_ranks=("shard",)).unpaired(Strategy(8, expert=3, shard=3))
    assert alone == ("an expert degree of 3; it must divide the 8 ranks of shard axis",)
