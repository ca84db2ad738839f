"""How keys and values are exchanged over a context axis, as a choice of search best: which there are, bounds below each."""

from __future__ import annotations

import json
import pathlib
from dataclasses import asdict, replace
from typing import Any

import pytest

from meshwright import api
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.problem import Batch, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import CONTEXT_EXCHANGES, Strategy
from meshwright.costs import analytic
from meshwright.planners.best.check.device_pools import pools
from meshwright.planners.best.check.prices import LayerPrices
from meshwright.planners.best.check.space import CheckedMesh, chain_of, exchanged, exchanges, recompute_spaces
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of as searched_chain
from meshwright.planners.best.limits import Limits, variants
from meshwright.planners.best.question import Exchanges
from meshwright.planners.best.space import ANY, Config, MeshDegrees
from meshwright.planners.best.space import pools as searched_pools
from meshwright.writers import plan_json

TINY = pathlib.Path(__file__).resolve().parents[3] / "data" / "tiny_llama.json"
FREE = Framework(ring_imbalance_ratio=1.0, overlaps_ring=False)


def posed(framework: Framework = FREE, cluster: str = "dgx-h100:8", length: int = 16384, batch: int = 2) -> Problem:
    """A model of 8 heads of queries and of keys and values."""
    problem = api.make_problem(str(TINY), cluster, batch=Batch(batch, 0, length), memory_risk=0.5)
    return replace(problem, framework=framework, framework_asked="")


def with_kinds(*kinds: str, **limits: Any) -> Framework:
    return replace(FREE, limits=FrameworkLimits(context_exchanges=kinds, **limits))


def solved(problem: Problem, **settings: str) -> api.Result:
    return api.plan(problem, search="best", settings={"alternatives": "1", **settings})


def _of_inputs(load: StageCost) -> float:
    return load.backward_total_seconds - load.backward_weight_seconds - load.recompute_seconds


def test_what_all_exchanges_cost_at_least_is_below_each_of_them() -> None:
    """In search and check; a ring computes longer here (plain chunks), all-to-all sends otherwise, gathering holds more."""
    problem = posed()
    told = asdict(Limits(context_exchange=CONTEXT_EXCHANGES))
    exchanges = Exchanges(problem, CONTEXT_EXCHANGES)
    costs = Costs(problem, searched_pools(problem.required_cluster)[0], searched_chain(problem.graph), exchanges=exchanges)
    pool, chain = pools(problem)[0], chain_of(problem.graph)
    prices = LayerPrices(problem, pool, chain, told, recompute_spaces(problem, told)[0])
    for context, tensor, pipeline in ((2, 1, 1), (4, 2, 1), (2, 2, 2), (8, 1, 1)):
        mesh = MeshDegrees(pipeline, 8 // (context * tensor * pipeline), context, tensor, 1, 1)
        any_of = Config(mesh, ANY, 0, "1f1b", 1, "")
        least = costs.rows(any_of, light=True)[0]
        seen = {name: set() for name in ("forward_seconds", "working_bytes", "backward_communication")}
        for variant in variants(any_of, problem, costs.pool, (0, 3), exchanges.of(mesh)):
            for rows in costs.rows(variant):
                for key, load in rows.items():
                    for name in (
                        "forward_total_seconds",
                        "backward_total_seconds",
                        "recompute_seconds",
                        "working_bytes",
                        "static_bytes",
                    ):
                        assert getattr(least[key], name) <= getattr(load, name) * (1 + 1e-12), (name, variant, key)
                    assert _of_inputs(least[key]) <= _of_inputs(load) + 1e-15, (variant, key)
                    for name, values in seen.items():
                        values.add((key, getattr(load, name)))
        assert all(len(values) > len(least) for values in seen.values())  # they do differ
        work = costs.least_work(any_of, with_communication=False)
        device = problem.required_cluster.kinds[0]
        checked = CheckedMesh(tensor, context, 1, 1, mesh.data, pipeline)
        base = Strategy(mesh.data, tensor, context, 1, tensor > 1)
        for kind in exchanges.of(mesh):
            alone = analytic.compute_seconds(problem, exchanged(base, kind), 1, device)
            assert work.whole_seconds[0] <= sum(alone[row] for row in analytic.rows(problem)) * (1 + 1e-12)
            assert all(seconds <= alone[row] * (1 + 1e-12) for row, seconds in prices.compute(checked, 0).items())
            own = prices.of_ranks(checked, exchanged(base, kind), "pipeline", inside_only=True)[0][0]
            for key, layer in prices.unsharded(checked)[0].items():
                assert all(mine <= theirs * (1 + 1e-12) for mine, theirs in zip(layer, own[key], strict=True)), (kind, key)


def test_meshes_have_the_exchanges_that_heads_and_framework_allow() -> None:
    mesh = MeshDegrees(1, 1, 4, 2, 1, 1)
    assert Exchanges(posed()).of(mesh) == ("ring", "all_to_all")  # gathering only where there is no ring
    assert Exchanges(posed()).of(replace(mesh, context=1)) == ("ring",)
    assert Exchanges(posed()).of(replace(mesh, tensor=4)) == ("ring",)  # 16 shares of 8 heads
    assert Exchanges(posed(), CONTEXT_EXCHANGES).of(mesh) == CONTEXT_EXCHANGES[:3]  # by heads alone: no ring is left
    both = Exchanges(posed(), ("all_to_all+ring",))
    assert both.of(replace(mesh, tensor=4)) == ("all_to_all+ring",) and both.of(mesh) == () == both.of(replace(mesh, tensor=8))
    assert "take all_to_all" in both.refusal(mesh) and "take ring" in both.refusal(replace(mesh, tensor=8))
    gathers = Exchanges(posed(with_kinds("all_gather", "all_to_all")))
    assert gathers.of(mesh) == ("all_gather", "all_to_all") and gathers.of(replace(mesh, tensor=4)) == ("all_gather",)
    by_heads = Exchanges(posed(with_kinds("all_to_all")))
    assert by_heads.of(replace(mesh, tensor=4)) == () and "to divide the 8 attention heads" in by_heads.refusal(
        replace(mesh, tensor=4)
    )
    assert by_heads.refusal(mesh) == "" == Exchanges(posed(with_kinds())).refusal(replace(mesh, context=1))
    assert "in no way over a context axis" in Exchanges(posed(with_kinds())).refusal(mesh)


def test_heads_of_keys_and_values_of_different_sizes_go_round_where_the_framework_has_no_more() -> None:
    latent, plain = api.make_problem("deepseek-v2-lite", "dgx-h100:8", batch=Batch(8, 0, 4096)).graph, posed().graph
    limits = FrameworkLimits(latent_exchanges=("ring",))
    assert limits.exchanges(latent) == ("ring",) and limits.exchanges(plain) == CONTEXT_EXCHANGES
    assert FrameworkLimits().exchanges(latent) == CONTEXT_EXCHANGES


def test_sliding_windows_are_exchanged_as_the_framework_has_it_in_search_and_check() -> None:
    question = api.make_problem("gemma-2-9b", "dgx-h100:8", batch=Batch(8, 0, 32768))
    windows, plain = question.graph, posed().graph
    limits = FrameworkLimits(window_exchanges=("all_gather", "all_to_all"))
    assert limits.exchanges(windows) == ("all_gather", "all_to_all") and limits.exchanges(plain) == CONTEXT_EXCHANGES
    assert FrameworkLimits().exchanges(windows) == CONTEXT_EXCHANGES
    short = api.make_problem("gemma-2-9b", "dgx-h100:8", batch=Batch(8, 0, 4096)).graph  # no longer than the window
    assert limits.exchanges(short) == CONTEXT_EXCHANGES
    posed_so = replace(question, framework=replace(question.framework, limits=limits))
    for tensor, context, kinds in ((1, 2, ["all_gather", "all_to_all"]), (8, 2, ["all_gather"]), (1, 1, ["ring"])):
        mesh = CheckedMesh(pipeline=1, data=1, context=context, tensor=tensor, expert=1, micro_batch=1)
        assert exchanges(posed_so, mesh, {"context_exchange": ()}) == kinds
        assert [*Exchanges(posed_so).of(MeshDegrees(1, 1, context, tensor, 1, 1))] == kinds


def test_the_exchange_that_is_quickest_is_the_answer_and_the_plan_file_says_it() -> None:
    """On slow links an uneven ring that nothing hides loses; where it is hidden and even it wins."""
    fixed = {"tensor": "1", "pipeline": "1", "data": "1", "context": "8"}
    one_by_one = {kind: solved(posed(), **fixed, context_exchange=kind) for kind in CONTEXT_EXCHANGES[:3]}
    steps = {kind: result.timeline.step_seconds for kind, result in one_by_one.items()}
    assert steps["all_to_all"] < steps["ring"] <= steps["all_gather"]
    best = solved(posed(), **fixed)
    assert best.timeline.step_seconds == pytest.approx(steps["all_to_all"], rel=1e-12)
    assert best.plan.stages[0].strategy.context_exchange == "all_to_all"
    entry = json.loads(json.dumps(plan_json.as_json(best)))
    assert entry["stages"][0]["context_exchange"] == "all_to_all"
    names = {op.name: i for i, op in enumerate(best.problem.graph.ops)}
    assert plan_json.plan_from_json(entry, names, "file") == best.plan
    del entry["stages"][0]["context_exchange"]  # as older files
    assert plan_json.plan_from_json(entry, names, "file").stages[0].strategy.context_exchange == "ring"
    entry["stages"][0]["context_exchange"] = "a2a"
    with pytest.raises(
        InputError, match="context_exchange is 'a2a'; it must be one of ring, all_gather, all_to_all, all_to_all\\+ring"
    ):
        plan_json.plan_from_json(entry, names, "file")
    even = solved(posed(replace(FREE, ring_imbalance_ratio=0.0, overlaps_ring=True), length=131072), **fixed)
    assert even.plan.stages[0].strategy.context_exchange == "ring"


def test_what_is_asked_for_and_cannot_be_is_refused() -> None:
    problem = posed(with_kinds("ring"))
    with pytest.raises(InputError, match="context exchange all_to_all: not in framework"):
        solved(problem, context_exchange="all_to_all")
    with pytest.raises(InputError, match="context_exchange"):
        solved(problem, context_exchange="a2a")
    with pytest.raises(InputError, match="to divide the 8 attention heads"):
        solved(posed(cluster="dgx-h100:16"), context="16", context_exchange="all_to_all")
    short = solved(posed(length=512), context_exchange="ring")
    assert any("context_exchange=ring changes nothing here" in note for note in short.answer.notes)


def test_a_fixed_exchange_takes_a_context_axis_with_it() -> None:
    result = api.plan(posed(), search="best", fix="context_exchange=all_gather")
    strategy = result.plan.stages[0].strategy
    assert strategy.context > 1 and strategy.context_exchange == "all_gather"
    with pytest.raises(UnknownNameError, match="all_to_all"):
        api.plan(posed(), search="best", fix="context_exchange=alltoall")
    with pytest.raises(InputError, match="with a context degree of 1 nothing is exchanged"):
        api.plan(posed(), search="best", fix="context_exchange=ring,context=1")
    with pytest.raises(InputError, match="needs 2,048 tokens and two devices"):
        api.plan(posed(length=1024), search="best", fix="context_exchange=ring")
