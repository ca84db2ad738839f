"""Single functions of the joint search that a whole search hides."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import api, sim
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem, Stop
from meshwright.planners.best import answer as joint
from meshwright.planners.best import incumbents, layer_sums, limits, plans
from meshwright.planners.best.branch_and_bound import BestFirstSearch
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import Config, MeshDegrees, pools
from small_questions import question


def words(
    allowed: tuple[str, ...], kept: dict[tuple[int, str], float], rows: tuple[int, ...] = (1, 1, 1, 4)
) -> tuple[str, ...]:
    own = SimpleNamespace(recompute=allowed, chain=SimpleNamespace(main_row=1, rows=rows))
    return Costs.words(own, {key: SimpleNamespace(activation_bytes=n) for key, n in kept.items()})  # type: ignore[arg-type]


def test_cheap_activations_are_a_way_where_any_layer_has_some() -> None:
    every = ("none", "selective", "full")
    kept = {(row, word): 5.0 - i for row in (1, 4) for i, word in enumerate(every)}
    frozen = {**kept, **{(1, word): 0.0 for word in every}}
    assert words(every, kept) == words(every, frozen) == words(("full", "selective", "none"), kept) == every
    assert words(every, frozen, (1, 1, 1)) == ("none", "full") and words(("selective",), frozen) == ("selective",)
    assert words(("none", "full"), kept) == ("none", "full")
    assert words(every, {key: n for key, n in kept.items() if key[1] != "selective"}) == ("none", "full")


def test_the_lesser_share_of_a_device_may_be_filled_and_each_rank_is_of_its_kind() -> None:
    config: Any = SimpleNamespace(layout="pipeline", mesh=SimpleNamespace(pipeline=3))
    for kinds, expected in (([8.0, 4.0], [4.0, 4.0, 2.0]), ([8.0], [4.0, 4.0, 4.0])):
        for ratios in ((0.5, 0.75), (0.75, 0.5)):
            problem = SimpleNamespace(memory_ratio=ratios[1])
            own: Any = SimpleNamespace(_kind_bytes=np.array(kinds), memory_ratio=ratios[0], problem=problem)
            own.kind_of_rank = lambda _: [0, 0, 1]
            assert Costs.memory_bytes(own, config).tolist() == expected


def test_with_split_products_the_best_plans_of_megatrons_split_are_known_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are shown, the quickest first; half of the time is for them."""
    problem = dataclasses.replace(question("like", "nodes", gigabytes=4.0), costs="sharded")
    seen: list[tuple[str, list[Plan], float]] = []
    states: list[BestFirstSearch] = []
    own = joint._searched

    def searched(asked: Problem, params: Limits, stop: Stop, first: list[Plan]) -> BestFirstSearch:
        seen.append((asked.costs, list(first), stop.seconds))
        states.append(own(asked, params, dataclasses.replace(stop, seconds=0.0), first))
        return states[-1]

    monkeypatch.setattr(joint, "_searched", searched)
    settings: dict[str, Any] = {"context": "1", "micro_batch": "1", "tensor": "1,2", "pipeline": "1,2", "alternatives": "1"}
    found = api.plan(problem, search="best", settings=settings, stop=Stop(seconds=600.0)).answer
    plain = sorted(states[0].found, key=lambda one: one.step_seconds)
    assert [(costs, len(first)) for costs, first, _ in seen] == [("analytic", 0), ("sharded", 1)] and len(plain) > 1
    assert seen[1][1] == [plain[0].plan]
    assert seen[0][2] == 300.0 and 500.0 < seen[1][2] <= 600.0
    assert found.objective is not None and found.extra["splits"] is not None and found.notes


def test_values_given_twice_count_once() -> None:
    given = Limits(tensor=(2, 1, 2), shard=(3, 0, 3), schedules=("1f1b", "zb_v", "1f1b"), micro_batch=(1, 1), expert=(4, 4))
    own = limits.inside_framework(given, question("like", "nodes"))
    assert own == dataclasses.replace(
        given, tensor=(2, 1), shard=(3, 0), schedules=("1f1b", "zb_v"), micro_batch=(1,), expert=(4,)
    )


def test_layers_that_are_not_counted_once_or_leave_a_stage_empty_make_no_plan() -> None:
    problem = question("like", "nodes", gigabytes=60.0)
    costs = Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph))
    config = Config(MeshDegrees(3, 1, 1, 1, 1, 1), 0, 0, "1f1b", 1, "pipeline")
    for counts, is_plan in (((2, 1, 2), True), ((0, 5, 0), True), ((5, 0, 0), False), ((2, 2, 2), False), ((1, 1, 1), False),
                            ((3, -1, 3), False)):  # fmt: skip
        plan = plans.with_counts(costs, config, 8, counts)
        assert (plan is not None) == is_plan, counts
        if plan is not None:
            assert [len(stage.ops) for stage in plan.stages] == [counts[0] + 1, counts[1], counts[2] + 1]


def test_the_smallest_block_that_fits_everywhere_is_recomputed() -> None:
    """The first layers of every stage recompute all: none where all fits, one more each time that memory is just too small."""
    roomy = question("like", "nodes", gigabytes=60.0)
    chain, pool = chain_of(roomy.graph), pools(roomy.required_cluster)[0]
    config = Config(MeshDegrees(2, 1, 1, 1, 1, 1), 0, 0, "1f1b", 1, "pipeline")
    every = Costs(roomy, pool, chain, ("none", "full"), blocks=True)
    costs, seen = every, []
    for _ in range(5):
        plan = plans.with_counts(costs, config, 8, (2, 3))
        if plan is None:
            break
        seen.append(["".join(word[0] for word in stage.recompute) for stage in plan.stages])
        peaks = sim.simulate(roomy, plan, every.model.stage_costs(roomy, plan)).peak_bytes
        small = question("like", "nodes", gigabytes=max(peaks) * (1 - 1e-9) / 1e9)
        costs = Costs(small, pool, chain, ("none", "full"), blocks=True)
    assert seen == [["nnn", "nnnn"], ["nfn", "fnnn"], ["nff", "ffnn"], ["nff", "fffn"]]


def test_where_a_plan_stands_in_the_space() -> None:
    problem = question("like", "nodes", gigabytes=60.0)
    every = Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph))
    costs = [every.recomputing(("full",)), every]
    for layout in ("pipeline", "data"):
        config = Config(MeshDegrees(2, 2, 1, 1, 1, 1), 1, 0, "1f1b", 1, layout)
        plan = plans.bare(every, config, 4, (2, 3))
        assert plan is not None and incumbents.place_of(plan, costs) == (0, config), (
            "what recomputes nothing stands in the first"
        )
        first, last = plan.stages
        half = dataclasses.replace(first, recompute=("none", "selective", "none"))
        told = dataclasses.replace(plan, stages=(half, last))
        assert incumbents.place_of(told, costs) == (1, config) and incumbents.place_of(told, costs[:1]) is None
        other = dataclasses.replace(last, strategy=dataclasses.replace(last.strategy, shard=2))
        ring = dataclasses.replace(last, ring=tuple(range(len(last.devices))))
        moved = dataclasses.replace(last, devices=last.devices[::-1])
        for changed in (other, ring, moved):
            assert incumbents.place_of(dataclasses.replace(plan, stages=(first, changed)), costs) is None
    virtual = Config(MeshDegrees(2, 1, 1, 2, 1, 2), 0, 0, "interleaved_1f1b", 2, "pipeline")
    plan = plans.bare(every, virtual, 4, (1, 2, 1, 1))
    assert plan is not None and incumbents.place_of(plan, costs) == (0, virtual)


def test_what_is_pinned_adds_up_but_for_what_only_the_largest_needs() -> None:
    def load(n: float, working: float, reserved: float) -> SimpleNamespace:
        return SimpleNamespace(
            forward_total_seconds=2 * n, backward_total_seconds=5 * n, recompute_seconds=n, backward_weight_seconds=1.5 * n,
            static_bytes=7 * n, activation_bytes=3 * n, reduce_seconds=4 * n, gather_seconds=6 * n, optimizer_seconds=0.5 * n,
            working_bytes=working, reserved_bytes=reserved,
        )  # fmt: skip

    rows = {(0, "none"): load(1.0, 10.0, 300.0), (3, "none"): load(2.0, 20.0, 200.0), (3, "full"): load(9.0, 99.0, 999.0)}
    found = layer_sums._total(rows, (0, 3))  # type: ignore[arg-type]
    assert found == layer_sums.Pinned(
        forward_seconds=6.0, backward_seconds=12.0, input_seconds=7.5, weight_seconds=4.5, static_bytes=21.0,
        activation_bytes=9.0, reduce_seconds=12.0, update_seconds=19.5, overhead_bytes=320.0, working_bytes=20.0,
        reserved_bytes=300.0,
    )  # fmt: skip
    assert layer_sums._total(rows, ()) == layer_sums.Pinned() and layer_sums.work_of(rows[3, "none"]) == 14.0  # type: ignore[arg-type]
