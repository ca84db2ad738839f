"""Spreads of layers over virtual stages: what they are, that plans of them are known again, what they are worth."""

from __future__ import annotations

import dataclasses

import pytest

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.planners.best import incumbents, plans, virtual
from meshwright.planners.best.check import member, space
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits
from meshwright.planners.best.space import ANY_SPREAD, Config, MeshDegrees, pools, spreads_of
from small_questions import question


def test_the_last_stage_has_up_to_two_layers_fewer_and_then_the_first_one() -> None:
    assert spreads_of(32, 4, 2, (True, True)) == ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
    assert spreads_of(8, 2, 4, (True, True)) == ((0, 0), (0, 1), (1, 1))  # one layer in each stage
    assert spreads_of(8, 2, 4, (False, True)) == ((0, 0), (0, 1))
    assert spreads_of(8, 2, 4, (True, False)) == spreads_of(6, 2, 4, (True, True)) == ((0, 0),)
    assert spreads_of(32, 4, 1, (True, True)) == ((0, 0),)


@pytest.mark.parametrize("n_layers", [6, 8, 11, 15, 32])
@pytest.mark.parametrize(("n_ranks", "n_chunks"), [(2, 2), (2, 3), (3, 2)])
def test_what_the_ends_give_up_goes_to_the_stages_between(n_layers: int, n_ranks: int, n_chunks: int) -> None:
    even = virtual.spread(n_layers, n_ranks, n_chunks)
    for first, last in spreads_of(n_layers, n_ranks, n_chunks, (True, True)):
        counts = virtual.spread(n_layers, n_ranks, n_chunks, (first, last))
        assert sum(counts) == n_layers and (even[0] - counts[0], even[-1] - counts[-1]) == (first, last)
        assert max(counts[1:-1]) - min(counts[1:-1]) <= 1 and list(counts[1:-1]) == sorted(counts[1:-1], reverse=True)


def test_the_check_has_the_same_spreads() -> None:
    for prefix, suffix in (((0,), (9,)), ((), (9,)), ((0,), ())):
        for n_layers, p, v in ((6, 2, 2), (8, 2, 3), (4, 2, 2), (7, 2, 4), (11, 3, 3)):
            layers = tuple(range(1, n_layers + 1))
            chain = space.CheckedChain(prefix, layers, suffix, (1,) * n_layers, 1)
            found = space.split_counts(chain, space.Form("interleaved_1f1b", v), p, {"uniform": False})
            expected = [virtual.spread(n_layers, p, v, own) for own in spreads_of(n_layers, p, v, (bool(prefix), bool(suffix)))]
            assert found[0] == expected[0] and sorted(found) == sorted(expected)
            assert space.split_counts(chain, space.Form("interleaved_1f1b", v), p, {"uniform": True}) == found[:1]


def test_a_plan_of_a_spread_is_known_again_and_one_of_none_is_refused() -> None:
    problem = question("like", "nodes", sequence=2048, gigabytes=60.0)
    chain = chain_of(problem.graph)
    costs = Costs(problem, pools(problem.required_cluster)[0], chain)
    config = Config(MeshDegrees(2, 1, 1, 1, 1, 1), 0, 0, "interleaved_1f1b", 2, "pipeline", fewer=ANY_SPREAD)
    limits = space.inside(problem, dataclasses.asdict(Limits()))
    m = problem.batch.global_batch
    every = virtual.spreads(costs, config)
    assert len(every) > 2
    for fewer in every:
        own = dataclasses.replace(config, fewer=fewer)
        plan = plans.even(costs, own, m)
        assert plan is not None and incumbents.place_of(plan, [costs]) == (0, own)
        assert member.outside(problem, plan, limits) == ""
    n = len(chain.layers)
    strange = plans.bare(costs, config, m, (n - 3, 1, 1, 1))
    assert strange is not None and incumbents.place_of(strange, [costs]) is None
    assert "no spread of the space" in member.outside(problem, strange, limits)


def test_bounds_of_all_spreads_are_those_of_each() -> None:
    problem = question("like", "nodes", sequence=2048, gigabytes=60.0)
    costs = Costs(problem, pools(problem.required_cluster)[0], chain_of(problem.graph))
    for schedule in ("interleaved_1f1b", "zb_v", "dualpipe_v"):
        config = Config(MeshDegrees(2, 1, 1, 1, 1, 1), 0, 0, schedule, 2, "pipeline", fewer=ANY_SPREAD)
        every = virtual.bounds_of(costs, config, 8, light=False)
        alone = [
            virtual.bound(costs, dataclasses.replace(config, fewer=own), 8, False) for own in virtual.spreads(costs, config)
        ]
        assert every.tolist() == alone and virtual.bound(costs, config, 8, False) == min(alone)


def test_a_large_head_is_worth_fewer_layers_on_its_stage() -> None:
    """llama-3.1-8b: the head works as long as two layers and more; the answer gives its rank less and is quicker for it."""
    options = {"schedules": "interleaved_1f1b", "pipeline": "4", "tensor": "1", "data": "2", "micro_batch": "1"}
    problem = api.make_problem("llama-3.1-8b", "dgx-h100:8", batch=Batch(16, sequence_length=4096))
    free, uniform = (api.plan(problem, search="best", settings=options | own).answer for own in ({}, {"uniform": "true"}))
    assert free.plan is not None and uniform.plan is not None
    assert len(free.plan.stages[-1].ops) - 1 < max(len(stage.ops) for stage in free.plan.stages[1:-1])
    assert free.objective.value < 0.98 * uniform.objective.value
