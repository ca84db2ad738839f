"""A measured profile off its measured points: other numbers of rows, every sharding, links that are not alike, its machine."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from meshwright.core.plan import Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import profiled
from meshwright.costs.profiled.readers.profile_json import Measure, MeasuredLayer, Profile

from .test_profiled import content, plan, problem


@pytest.fixture(autouse=True)
def plain_network() -> None:
    """Here collectives take what real links take, not the one formula of the other tests of this room."""


def test_between_measures_seconds_follow_a_line_and_outside_the_nearest_two_but_not_below_nought() -> None:
    def measured(*points: tuple[int, float]) -> Profile:
        listed = tuple(Measure("a", rows, 1, seconds, 2 * seconds, 3 * seconds, seconds) for rows, seconds in points)
        return Profile((MeasuredLayer("a", "a", 1, 1.0, 1.0),), {("a", 1): listed}, (), 0.0)

    three = measured((2, 1.0), (4, 3.0), (8, 4.0))
    for rows, seconds in ((2, 1.0), (3, 2.0), (4, 3.0), (6, 3.5), (8, 4.0), (12, 5.0), (1.5, 0.5), (1, 0.0), (0.5, 0.0)):
        found = profiled.layer_seconds(three, 0, rows, 1)
        assert found == pytest.approx((seconds, 2 * seconds, 3 * seconds)), rows
    assert profiled.layer_seconds(measured((4, 2.0)), 0, 6, 1)[0] == pytest.approx(3.0)  # one point: in proportion
    assert profiled.layer_seconds(measured((1, 3.0), (2, 1.0)), 0, 4, 1)[0] == 0.0
    assert profiled.layer_seconds(three, 0, 3, 2) == profiled.layer_seconds(three, 0, 3, 1)  # not split: whole on every rank


def links(**changed: Any) -> dict[str, Any]:
    """Return links whose collectives among two take 1, 2 and 3 seconds whatever their size."""
    kinds = (("all_reduce", 1.0), ("all_gather", 2.0), ("reduce_scatter", 3.0))
    collectives = [{"kind": kind, "n_ranks": 2, "latency_seconds": t, "seconds_per_byte": 0.0} for kind, t in kinds]
    return {**content()["links"], "collectives": collectives, **changed}


def loaded(posed: Problem, **degrees: int) -> StageCost:
    """Return the load of all three layers on the first devices, four rows in all."""
    strategy = Strategy(**degrees)
    (load,) = profiled.stage_costs(posed, plan(Stage((0, 1, 2), tuple(range(strategy.n_devices)), strategy), n_microbatches=1))
    return load


@pytest.mark.parametrize(
    ("shard", "forward", "backward", "reduce", "update", "weights", "gradients", "optimizer"),
    [
        (0, 0, 0, 1, 0, 120, 120, 240),
        (1, 0, 0, 3, 2, 120, 120, 120),
        (2, 0, 3, 0, 2, 120, 60, 120),
        (3, 2, 5, 0, 0, 60, 60, 120),
    ],
)
def test_every_sharding_has_its_collectives_and_its_share(
    shard: int, forward: float, backward: float, reduce: float, update: float, weights: float, gradients: float,
    optimizer: float, tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    load = loaded(problem(tmp_path, links=links()), data=2, shard=shard)
    assert (dict(load.forward_communication)["gather"], dict(load.backward_communication)["gather"]) == (forward, backward)
    assert (load.reduce_seconds, load.gather_seconds) == (reduce, update)
    assert (load.weight_bytes, load.gradient_bytes, load.optimizer_bytes) == (weights, gradients, optimizer)
    assert load.optimizer_seconds == pytest.approx(120e-6 if shard == 0 else 60e-6)


def test_one_replica_has_nothing_to_reduce_and_a_sharding_degree_is_what_divides(tmp_path: pathlib.Path) -> None:
    posed = problem(tmp_path, links=links())
    alone = loaded(posed, data=1, shard=3)
    assert (alone.reduce_seconds, alone.gather_seconds, alone.weight_bytes) == (0.0, 0.0, 120.0)
    assert dict(alone.forward_communication) == {"gather": 0.0, "tensor": 0.0}
    assert loaded(posed, data=4, shard=3).weight_bytes == 30.0
    assert loaded(posed, data=4, shard=3, shard_degree=2).weight_bytes == 60.0


def test_recomputation_keeps_what_enters_and_needs_room_for_the_widest_layer(tmp_path: pathlib.Path) -> None:
    posed = problem(tmp_path)
    how = ("none", "full", "full")
    (load,) = profiled.stage_costs(posed, plan(Stage((0, 1, 2), (0,), recompute=how), n_microbatches=1))
    assert load.recompute_seconds == pytest.approx(8.0 + 8.0) and load.working_bytes == pytest.approx(400.0)
    assert load.activation_bytes == pytest.approx(400.0 + 2 * 16 * 4)
    (first,) = profiled.stage_costs(posed, plan(Stage((0,), (0,), recompute=("full",)), n_microbatches=1))
    assert (first.activation_bytes, first.output_bytes) == (0.0, 64.0)  # nothing enters the first layer


@pytest.mark.parametrize(("ratio", "as_measured"), [(3.0, True), (3.1, False)])
def test_collectives_measured_among_some_ranks_hold_for_others_where_all_links_are_alike(
    ratio: float, as_measured: bool, tmp_path: pathlib.Path
) -> None:
    pairs = [dict(pair) for pair in content()["links"]["pairs"]]
    for pair in pairs:
        if {pair["source"], pair["target"]} == {2, 3}:
            pair["seconds_per_byte"] *= ratio
    load = loaded(problem(tmp_path, links=links(pairs=pairs)), data=2)
    assert (load.reduce_seconds == 1.0) == as_measured
    if not as_measured:
        assert load.reduce_seconds >= 2 * (120 / 2) * 0.25  # a ring of two sends half of it twice over its own link


def test_a_profile_is_a_chain_of_layers_and_its_processes_share_the_machines_memory(tmp_path: pathlib.Path) -> None:
    posed = problem(tmp_path)
    assert [(edge.source, edge.target, edge.n_elements) for edge in posed.graph.edges] == [(0, 1, 4), (1, 2, 4)]
    assert posed.graph.sequence_length == 8 and posed.graph.n_parameters == 30
    cluster = posed.cluster
    assert cluster is not None and cluster.device(0).memory_bytes == 0.25e9 and cluster.n_devices == 4
    assert cluster.links.bytes_per_second.tolist() == [4.0] * 12 and cluster.links.latency_seconds.tolist() == [0.5] * 12
    assert len(set(cluster.node_of_device.tolist())) == 4
    two = problem(tmp_path, links=links(hosts=[0, 0, 1, 1])).cluster
    assert two is not None and two.node_of_device.tolist() == [0, 0, 1, 1]
