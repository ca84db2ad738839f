"""Prices of layers that are remembered over searches: of which questions they are the same, and of which they are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meshwright import api
from meshwright.core.cluster import Cluster, Links
from meshwright.core.problem import Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.ranks import priced_layers
from meshwright.planners.best.space import Config, DevicePool, MeshDegrees

POOL = DevicePool("all", (np.arange(4),))


@pytest.fixture(scope="module")
def question() -> Problem:
    return api.make_problem("gpt2", "dgx-h100:4")


def on(problem: Problem, change: Callable[[Cluster], Cluster]) -> Problem:
    return replace(problem, cluster=change(problem.required_cluster))


def with_memory(cluster: Cluster) -> Cluster:
    return replace(cluster, kinds=tuple(replace(kind, memory_bytes=2.0 * kind.memory_bytes) for kind in cluster.kinds))


def with_links(cluster: Cluster) -> Cluster:
    links = cluster.links
    return replace(cluster, links=Links(links.source, links.target, 2.0 * links.bytes_per_second, links.latency_seconds))


ALIKE: dict[str, Callable[[Problem], Problem]] = {
    "batch": lambda problem: replace(problem, batch=replace(problem.batch, global_batch=64)),
    "memory": lambda problem: on(problem, with_memory),
    "room": lambda problem: replace(problem, memory_risk=0.4),
}
OTHER: dict[str, Callable[[Problem], Problem]] = {
    "links": lambda problem: on(problem, with_links),
    "launch": lambda problem: on(problem, lambda own: replace(own, launch_seconds=1e-3)),
    "speed": lambda problem: on(
        problem, lambda own: replace(own, kinds=(replace(own.kinds[0], memory_bytes_per_second=1e12), *own.kinds[1:]))
    ),
    "precision": lambda problem: replace(problem, training=replace(problem.training, precision="fp8")),
    "framework": lambda problem: replace(
        problem, framework=replace(problem.framework, overlaps_ring=not problem.framework.overlaps_ring)
    ),
    "graph": lambda problem: replace(problem, model_spec=replace(problem.model_spec, graph=replace(problem.graph))),
}


@pytest.mark.parametrize("change", ALIKE)
def test_questions_that_differ_in_batch_and_memory_share_prices_that_are_the_same(question: Problem, change: str) -> None:
    known, other = priced_layers(question, POOL), ALIKE[change](question)
    assert priced_layers(other, POOL) is known
    for strategy in (Strategy(data=4), Strategy(data=2, tensor=2, shard=1), Strategy(data=4, shard=3)):
        for micro_batch in (1, 2):
            prices = [analytic.row_costs(problem, strategy, range(4), micro_batch) for problem in (question, other)]
            assert prices[0] == prices[1]


@pytest.mark.parametrize("change", OTHER)
def test_questions_that_differ_in_what_layers_cost_share_nothing(question: Problem, change: str) -> None:
    known = priced_layers(question, POOL)
    assert priced_layers(OTHER[change](question), POOL) is not known


def test_other_devices_and_other_cost_models_share_nothing(question: Problem) -> None:
    known = priced_layers(question, POOL)
    assert priced_layers(question, DevicePool("all", (np.arange(4)[::-1].copy(),))) is not known
    sharded = replace(question, costs="sharded")
    assert priced_layers(sharded, POOL) is not priced_layers(sharded, POOL)


@pytest.mark.parametrize("ways", [(True, True), (True, False), (False, True), (False, False)])
def test_a_rank_alone_and_one_in_a_pipeline_are_priced_apart(ways: tuple[bool, bool]) -> None:
    """A framework may reduce once, and gather in every micro-batch, each only in a pipeline or without one, or both."""
    question = api.make_problem("llama-3.1-8b", "dgx-h100:8")  # whose ends share no weights, which tells the two apart too
    framework = replace(question.framework, reduces_once=ways[0], gathers_each=ways[1])
    problem = replace(question, framework=framework)
    for order in ((1, 2), (2, 1)):
        pool = DevicePool(f"of {order}", (np.arange(8),))
        costs = Costs(replace(problem, framework=replace(framework, version=f"{order}")), pool, chain_of(problem.graph))
        for pipeline in order:
            config = Config(MeshDegrees(pipeline, 4, 1, 1, 1, 1), 2, 0, "1f1b", 1, "pipeline")
            own = analytic.in_pipeline(costs.problem, pipeline)
            expected = analytic.row_costs(own, config.strategy, range(4), 1)
            assert costs.rows(config)[0] == expected, (order, pipeline)
