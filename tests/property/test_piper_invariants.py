"""Invariants of the pipeline search on random instances: more room never hurts, names and order never matter."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options
from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance, PiperNode

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

import piper_by_definition as oracle


def value(instance: PiperInstance, **options: object) -> float:
    solution = solve.solve(instance, Options(**options), nearly_ratio=0.0)  # type: ignore[arg-type]
    return evaluate(instance, solution.stages).seconds if solution.stages else float("inf")


INSTANCES = st.builds(
    oracle.random_instance, st.integers(0, 10**6), n_nodes=st.integers(2, 7), n_choices=st.integers(1, 3), alike=st.booleans()
)
QUICK = settings(max_examples=40, deadline=None)


@QUICK
@given(INSTANCES)
def test_more_devices_or_memory_or_bandwidth_never_slow_a_model_down(instance: PiperInstance) -> None:
    best = value(instance)
    slack = 1 + 1e-11
    assert value(replace(instance, n_devices=instance.n_devices + 1)) <= best * slack
    assert value(replace(instance, memory_bytes=instance.memory_bytes * 1.3)) <= best * slack
    assert value(replace(instance, bandwidth=instance.bandwidth * 2)) <= best * slack


@QUICK
@given(INSTANCES)
def test_fewer_options_never_make_a_plan_faster_and_the_greedy_is_never_better(instance: PiperInstance) -> None:
    best = value(instance) * (1 - 1e-11)
    for options in ({"data_parallel": False}, {"tensor_parallel": False}, {"recompute": "never"}, {"exact": False}):
        assert value(instance, **options) >= best


@QUICK
@given(INSTANCES, st.randoms(use_true_random=False))
def test_the_order_of_nodes_in_the_file_does_not_change_the_value(instance: PiperInstance, dice: object) -> None:
    order = list(range(len(instance.nodes)))
    dice.shuffle(order)  # type: ignore[attr-defined]
    place = {v: i for i, v in enumerate(order)}

    def moved(choice: PiperChoice) -> PiperChoice:
        forward = tuple((place[u], x) for u, x in choice.sync_forward)
        return replace(choice, sync_forward=forward, sync_backward=tuple((place[x], y) for x, y in choice.sync_backward))

    nodes = [
        PiperNode(node.id, node.name, tuple((t, tuple(moved(c) for c in choices)) for t, choices in node.choices))
        for node in (instance.nodes[v] for v in order)
    ]
    edges = tuple(PiperEdge(place[e.source], place[e.target], e.bytes) for e in instance.edges)
    assert value(replace(instance, nodes=tuple(nodes), edges=edges)) == pytest.approx(value(instance), rel=1e-11)


@QUICK
@given(INSTANCES, st.floats(0.1, 10.0))
def test_time_scales_with_the_time_unit(instance: PiperInstance, factor: float) -> None:
    def scaled(choice: PiperChoice) -> PiperChoice:
        return replace(choice, seconds=choice.seconds * factor)

    nodes = tuple(
        replace(node, choices=tuple((t, tuple(scaled(c) for c in choices)) for t, choices in node.choices))
        for node in instance.nodes
    )
    slower = replace(instance, nodes=nodes, bandwidth=instance.bandwidth / factor)
    assert value(slower) == pytest.approx(value(instance) * factor, rel=1e-10)
