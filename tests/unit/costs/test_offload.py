"""Optimizer state on the host: bytes and seconds by hand, what the device keeps, and what cannot lie there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api, frameworks, sim
from meshwright.base.errors import InputError
from meshwright.core.cluster import Host
from meshwright.core.graph import Edge, Graph, Op, Operator
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic.offload import HOST_FILL_RATIO, HOST_MEMORY_RATIO, exposed_seconds, host_update

N = 512 * 1280
HOST = Host(20e9, 100e9, 1e12, "made up")


def _problem(host: Host | None = HOST, cluster: str = "dgx-h100:8") -> Problem:
    """One product of N weights."""
    body = (Operator("p", "matmul", (("sequence", 64), ("in", 512), ("out", 1280)), "out", N),)
    graph = Graph("one", (Op("layer", "layer", body, 0),), (), 64)
    problem = api.make_problem(ModelSpec("one", "test", "one", graph), cluster, batch=Batch(8))
    kinds = tuple(replace(kind, host=host) for kind in problem.required_cluster.kinds)
    return replace(problem, cluster=replace(problem.required_cluster, kinds=kinds))


def _plan(strategy: Strategy) -> Plan:
    return Plan((Stage((0,), tuple(range(strategy.n_devices)), strategy),), 1, 8 // strategy.data, global_batch=8)


def _load(problem: Problem, strategy: Strategy) -> StageCost:
    return analytic.stage_costs(problem, _plan(strategy))[0]


@pytest.mark.parametrize(("host", "slowest"), [
    (Host(1e9, 1e15, 1e12), 4 * N / 1e9),  # the link, both ways at once
    (Host(1e15, 10e9, 1e12), (2 * 4 + 2 * 12 + 4) * N / (10e9 * HOST_MEMORY_RATIO)),  # gradients, state, weights out
])  # fmt: skip
def test_the_slowest_of_sending_updating_and_fetching_counts_and_what_the_device_does(host: Host, slowest: float) -> None:
    device = replace(_problem().required_cluster.kinds[0], host=host)
    seconds, n_bytes = host_update(float(N), device, MixedPrecision())
    here = (4 + 4 + 2) * N / (device.memory_bytes_per_second * device.memory_ratio)
    assert seconds == pytest.approx(slowest + here, rel=1e-12)
    assert n_bytes == (12 + 4) * N  # the copy, both moments, and gradients


def test_gradients_of_two_bytes_and_weights_without_a_copy() -> None:
    device = replace(_problem().required_cluster.kinds[0], host=Host(1e9, 1e15, 1e12))
    ways = (MixedPrecision(gradient_bytes=2), MixedPrecision.of("fp32"))
    thin, wide = (host_update(1e9, device, own) for own in ways)
    assert thin[1] == 14e9 and wide[1] == (8 + 4 + 4) * 1e9  # weights that devices use are not those that the host updates
    assert thin[0] == pytest.approx(4.0, rel=1e-2)  # weights on their way back are wider than gradients


@pytest.mark.parametrize(("strategy", "share"), [
    (Strategy(), 1), (Strategy(data=4), 1), (Strategy(data=4, shard=1), 4), (Strategy(data=4, shard=3), 4),
    (Strategy(data=8, shard=3, shard_degree=2), 2), (Strategy(tensor=4, sequence_parallel=True), 4),
])  # fmt: skip
def test_the_device_keeps_weights_and_gradients_and_its_host_the_rest(strategy: Strategy, share: int) -> None:
    problem = _problem()
    before, after = _load(problem, strategy), _load(problem, replace(strategy, offload="optimizer"))
    assert before.host_bytes == 0.0 and after.optimizer_bytes == 0.0
    assert after.host_bytes == 16 * N / share
    # under ZeRO-3 the shard of the copy is the weight; on the host it is another
    assert after.weight_bytes == (2 * N / share if strategy.shard == 3 else before.weight_bytes)
    assert after.gradient_bytes == before.gradient_bytes
    assert after.optimizer_seconds > before.optimizer_seconds
    same = ("forward_total_seconds", "backward_total_seconds", "reduce_seconds", "gather_seconds", "working_bytes")
    assert all(getattr(before, name) == getattr(after, name) for name in same)


def test_a_plan_that_its_hosts_cannot_hold_does_not_fit() -> None:
    plan = _plan(Strategy(data=8, offload="optimizer"))
    for size, fits in ((16 * N / HOST_FILL_RATIO * 1.001, True), (16 * N / HOST_FILL_RATIO * 0.999, False)):
        problem = _problem(replace(HOST, memory_bytes=size))
        peaks = sim.simulate(problem, plan, analytic.stage_costs(problem, plan, ledger=False)).peak_bytes
        assert (sim.excess_bytes(problem, plan, peaks) <= 0.0) == fits


def test_what_cannot_lie_on_a_host_is_refused() -> None:
    strategy = Strategy(offload="optimizer")
    assert analytic.illegal(_problem(), strategy) == ""
    assert "nothing is known of the host of H100-SXM-80GB" in analytic.illegal(_problem(None), strategy)
    assert analytic.illegal(_problem(None), Strategy()) == ""
    shaped = replace(_problem(), training=MixedPrecision().updated_by("adafactor"))
    assert "adafactor keeps state that follows from shapes" in analytic.illegal(shaped, strategy)
    assert "the offload is 'weights'; there are none, optimizer" in analytic.illegal(_problem(), Strategy(offload="weights"))
    with pytest.raises(InputError, match="host: memory_bytes is 0"):
        Host(1.0, 1.0, 0)


def test_a_host_is_shared_out_to_its_devices() -> None:
    for name, n_devices, memory in (("dgx-h100:16", 8, 2e12), ("gb200-nvl72:72", 4, 960e9), ("gh200:2", 1, 480e9)):
        host = api.make_problem("llama-3.1-8b", name).required_cluster.kinds[0].host
        assert host is not None and host.memory_bytes == pytest.approx(memory / n_devices) and host.source


def _stack(host: Host | None = HOST, n_layers: int = 4) -> Problem:
    """Layers alike, of one product each, told for a framework that has activations on the host."""
    body = (Operator("p", "matmul", (("sequence", 64), ("in", 512), ("out", 512)), "out", 512 * 512, saved_elements=64 * 512),)
    ops = tuple(Op(f"layer{i}", "layer", body, 0) for i in range(n_layers))
    edges = tuple(Edge(i, i + 1, 64 * 512) for i in range(n_layers - 1))
    spec = ModelSpec("stack", "test", "stack", Graph("stack", ops, edges, 64))
    problem = api.make_problem(spec, "dgx-h100:8", batch=Batch(8), framework="megatron")
    kinds = tuple(replace(kind, host=host) for kind in problem.required_cluster.kinds)
    return replace(problem, cluster=replace(problem.required_cluster, kinds=kinds))


def _away(n_away: int, n_layers: int = 4, **more: str) -> Plan:
    words = ("offload",) * n_away + ("none",) * (n_layers - n_away)
    return Plan((Stage(tuple(range(n_layers)), (0,), Strategy(), words),), 8, 1, more.get("schedule", "1f1b"), global_batch=8)


def test_activations_on_the_host_are_waited_for_as_far_as_their_layer_computes_less() -> None:
    device = replace(_problem().required_cluster.kinds[0], host=Host(1e9, 1e12, 1e12))
    assert exposed_seconds(3e9, 2.0, device) == 1.0  # three seconds on the link, two beside compute
    assert exposed_seconds(3e9, 4.0, device) == 0.0


@pytest.mark.parametrize("link", [1e6, 1e15])
def test_the_device_keeps_what_is_not_away_and_twice_a_layer_while_it_works(link: float) -> None:
    problem = _stack(replace(HOST, link_bytes_per_second=link))
    none, one, three = (analytic.stage_costs(problem, _away(n), ledger=False)[0] for n in (0, 1, 3))
    saved, waste = one.host_bytes, 1.0 + none.fragmentation_ratio
    assert saved > 0.0 and three.host_bytes == pytest.approx(3 * saved)
    assert none.activation_bytes == pytest.approx(4 * waste * saved) and three.activation_bytes == pytest.approx(waste * saved)
    assert three.working_bytes == one.working_bytes == pytest.approx(none.working_bytes + 2 * waste * saved)
    passes = [(dict(load.forward_communication), dict(load.backward_communication)) for load in (one, three)]
    waits = [there["offload"] + back["offload"] for there, back in passes]
    both_ways = none.forward_seconds + none.backward_input_seconds + none.backward_weight_seconds
    assert waits[0] == pytest.approx(2 * saved / link - both_ways / 4 if link == 1e6 else 0.0)
    assert waits[1] == pytest.approx(3 * waits[0]) and three.forward_seconds == none.forward_seconds
    timeline = sim.simulate(problem, _away(3), (three,))
    assert dict(timeline.causes)["offload"] == pytest.approx(8 * waits[1])


def test_activations_must_fit_the_host_and_be_of_a_plan_that_is_priced() -> None:
    saved = analytic.stage_costs(_stack(), _away(1), ledger=False)[0].host_bytes
    for size, fits in ((3 * saved / HOST_FILL_RATIO * 1.001, True), (3 * saved / HOST_FILL_RATIO * 0.999, False)):
        problem = _stack(replace(HOST, memory_bytes=size))
        peaks = sim.simulate(problem, _away(3), analytic.stage_costs(problem, _away(3), ledger=False)).peak_bytes
        assert (sim.excess_bytes(problem, _away(3), peaks) <= 0.0) == fits
    with pytest.raises(InputError, match="activations on the host: nothing is known of the host"):
        analytic.stage_costs(_stack(None), _away(1))
    other = replace(_stack(), framework=frameworks.load("torchtitan").FRAMEWORK)
    with pytest.raises(InputError, match="recomputation 'offload' is none of torchtitan"):
        analytic.stage_costs(other, _away(1))
    with pytest.raises(
        InputError, match="in a plan of 1 stages under gpipe; activations on the host are priced with one stage"
    ):
        sim.check_plan(_stack(), _away(1, schedule="gpipe"))
    mixed = replace(_away(1).stages[0], recompute=("offload", "full", "none", "none"))
    with pytest.raises(InputError, match="'offload' of some layers and 'full' of others"):
        sim.check_plan(_stack(), replace(_away(1), stages=(mixed,)))
