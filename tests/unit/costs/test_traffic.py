"""The ledger of collectives: its seconds are those of the loads, for every way to spread a model and to run it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright import api, clusters, sim
from meshwright.core.cluster import Cluster
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Framework, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic import joined_loads
from meshwright.costs.analytic import stage as _stage
from meshwright.costs.analytic.device_mesh import mesh
from meshwright.network import Network
from meshwright.sim import engine, transfers
from meshwright.sim.traffic import PARTS, groups

PROGRAMS = {
    "default": Framework(),
    "each expert's node once": Framework(dispatches_once=True),
    "tensor collectives beside products": Framework(tensor_overlap_ratio=0.4),
    "gradients scattered afterwards, at a rate of their own": Framework(shard_bytes_per_second=2e10, overlaps_scatter=False),
    "weights of ZeRO-2 gathered each time": Framework(gathers_each=True),
}
DENSE = [
    Strategy(data=data, tensor=tensor, context=context, sequence_parallel=tensor > 1 and shard != 1, shard=shard)
    for (data, tensor, context), shard in itertools.product(((16, 1, 1), (4, 4, 1), (2, 2, 4), (1, 8, 2)), (0, 1, 2, 3))
] + [
    Strategy(tensor=2, context=8, sequence_parallel=True, context_exchange="all_to_all+ring"),
    Strategy(data=8, tensor=2, shard=3, shard_degree=2),
    Strategy(data=16, shard=2, shard_degree=4),
]
MIXED = [
    Strategy(data=data, tensor=tensor, context=context, expert=expert, sequence_parallel=tensor > 1, shard=shard)
    for (data, tensor, context, expert), shard in itertools.product(
        ((16, 1, 1, 8), (4, 4, 1, 4), (2, 8, 1, 8), (2, 2, 4, 4)), (0, 1, 2, 3)
    )
]
"""In (2, 8, 1, 8) experts are folded over the tensor axis."""
MIXED_KINDS = """
format: meshwright/cluster/1
name: lab
source: made up
nodes:
  - {name: new, devices: [NEW], switch: {bandwidth: 450 GB/s, latency: 2 us}}
  - {name: old, devices: [OLD], switch: {bandwidth: 300 GB/s, latency: 2 us}}
switches: [core]
links:
  - {from: "*/*", to: core, bandwidth: 50 GB/s, latency: 5 us}
""".replace("NEW", ", ".join(["h100-sxm-80gb"] * 8)).replace("OLD", ", ".join(["a100-sxm-80gb"] * 8))


@pytest.fixture(autouse=True)
def plain_network() -> None:
    """Here collectives take what real links take, not the one formula of the other tests of this room."""


def posed(model: str, cluster: str | Cluster, framework: Framework) -> Problem:
    return replace(api.make_problem(model, cluster, batch=Batch(global_batch=64)), framework=framework)


def planned(problem: Problem, strategy: Strategy, how: str) -> Plan:
    """Return the whole model on the first 16 devices."""
    n_ops = len(problem.graph.ops)
    stage = Stage(tuple(range(n_ops)), tuple(range(16)), strategy, (how,) * n_ops)
    return Plan((stage,), 64 // strategy.data, 1, "1f1b", 64)


def copied_seconds(problem: Problem, plan: Plan) -> dict[str, float]:
    """Return what the copies of gathered weights and scattered gradients take on the slowest kind of device, layer by layer."""
    (stage,) = plan.stages
    found = {"forward": 0.0, "backward": 0.0}
    assert problem.cluster is not None
    axes = mesh(problem.cluster, stage.devices, stage.strategy, head_ranks=stage.strategy.head_ranks(problem.graph))
    devices = [problem.cluster.kinds[kind] for kind in sorted(set(problem.cluster.kind_of_device[:16].tolist()))]
    for op, how in zip(analytic.rows(problem), stage.recompute, strict=True):
        works = [
            analytic._works(problem, analytic._shape(problem, stage.strategy, plan.micro_batch), device)[op]
            for device in devices
        ]
        costs = (stage.strategy, problem.training, problem.framework)
        priced = [
            _stage.layer_load(work, how, axes, costs[0], device, *costs[1:])
            for work, device in zip(works, devices, strict=True)
        ]
        slow = priced.index(joined_loads.slowest_kind(priced))
        if any(_stage.sharded_seconds(works[slow], axes, *costs)):
            unpack, pack = _stage._copy_seconds(works[slow], stage.strategy, devices[slow], problem.training, problem.framework)
            found["forward"] += unpack
            found["backward"] += pack + (unpack if stage.strategy.shard == 3 else 0.0)
    return found


def check(problem: Problem, strategy: Strategy, how: str) -> StageCost:
    """Compare the ledger of the whole model on one stage with its load."""
    plan = planned(problem, strategy, how)
    (load,) = analytic.stage_costs(problem, plan)
    sums = dict.fromkeys(PARTS, 0.0)
    for one in load.collectives:
        sums[one.part] += one.seconds
    copies = copied_seconds(problem, plan)
    expected = {
        "forward": sum(value for _, value in load.forward_communication) - copies["forward"],
        "backward": sum(value for _, value in load.backward_communication) - copies["backward"],
        "reduce": load.reduce_seconds,
        "gather": load.gather_seconds,
    }
    assert {part: sums[part] for part in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)
    return load


@pytest.mark.parametrize("framework", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize(
    ("model", "strategies"), [("llama-3.1-8b", DENSE), ("mixtral-8x7b", MIXED)], ids=["a dense model", "a mixture of experts"]
)
def test_the_collectives_of_a_stage_take_the_seconds_it_counts(
    model: str, strategies: list[Strategy], framework: Framework
) -> None:
    problem = posed(model, "dgx-h100:32", framework)
    for i, strategy in enumerate(strategies):
        assert not analytic.illegal(problem, strategy)
        check(problem, strategy, ("none", "selective", "full")[i % 3])
    assert any(strategy.folded for strategy in MIXED)


def test_where_devices_differ_collectives_run_beside_the_compute_of_the_kind_that_takes_longest(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED_KINDS)
    problem = posed("llama-3.1-8b", str(path), Framework())
    assert problem.cluster is not None
    assert len(problem.cluster.kinds) == 2
    for strategy in DENSE[:8]:
        check(problem, strategy, "full")


def test_groups_of_the_ledger_are_those_of_the_mesh() -> None:
    """The seconds of every collective are what the network says of its groups, also where experts are folded."""
    problem = posed("mixtral-8x7b", "dgx-h100:32", Framework())
    for strategy in MIXED:
        plan = planned(problem, strategy, "none")
        (load,) = analytic.stage_costs(problem, plan)
        for one in load.collectives:
            axis = Network.of(problem.cluster).axis(groups(plan.stages[0], one.size, one.stride))
            assert one.seconds == pytest.approx(one.n_times * axis.seconds(one.kind, one.n_bytes), rel=1e-9)


def test_dispatching_once_puts_fewer_bytes_on_the_links_between_nodes() -> None:
    """Of two experts of eight over two nodes, a token reaches 1.5 nodes on average instead of 2."""
    carried = []
    for framework in (Framework(), Framework(dispatches_once=True)):
        problem = posed("mixtral-8x7b", "dgx-h100:16", framework)
        plan = planned(problem, Strategy(data=16, expert=16 // 2), "none")
        plan = replace(plan, stages=(replace(plan.stages[0], devices=tuple(np.arange(16).reshape(2, 8).T.ravel().tolist())),))
        (load,) = analytic.stage_costs(problem, plan)
        carried.append(sum(one.n_times * one.n_bytes for one in load.collectives if one.kind == "all_to_all"))
    assert carried[1] == pytest.approx(0.75 * carried[0])


@pytest.mark.parametrize("how", ["none", "full"])
def test_a_plan_on_links_of_its_own_takes_to_the_last_bit_what_it_takes_without_the_ledger(how: str) -> None:
    """One stage, nothing sharded over micro-batches, no reduction: its blocking collectives are alone on every link."""
    problem = posed("llama-3.1-8b", clusters.cluster("dgx-h100:16"), Framework())
    for strategy in (Strategy(tensor=8), Strategy(tensor=8, sequence_parallel=True), Strategy(data=2, tensor=8)):
        n_ops = len(problem.graph.ops)
        stage = Stage(tuple(range(n_ops)), tuple(range(strategy.n_devices)), strategy, (how,) * n_ops)
        plan = Plan((stage,), 8, 8 // strategy.data, "1f1b", 64)
        stage_costs = analytic.stage_costs(problem, plan)
        assert stage_costs[0].collectives
        with_ledger = sim.simulate(problem, plan, stage_costs)
        without = engine.play(plan, stage_costs, transfers.transfers(problem, plan, stage_costs))
        assert with_ledger.step_seconds == without.step_seconds
        assert with_ledger.link_bytes.any()
