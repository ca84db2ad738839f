"""Parts of the search for mapped pipelines, each alone: by hand, or against every pattern."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.clusters import cluster
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.strategy import RECOMPUTE, Strategy
from meshwright.network import numbering
from meshwright.planners.parmesan import (
    bandwidth_table,
    device_kinds,
    numbers,
    on_unlike,
    pipelines,
    sharded_pipelines,
    unequal_pipelines,
)  # fmt: skip
from meshwright.planners.parmesan.operators import Question, question
from meshwright.planners.parmesan.pipelines import EvaluatedPlan
from meshwright.solvers.partition.hypergraph import Operators, contract

DATA = pathlib.Path(__file__).resolve().parents[3] / "data"
MODEL = str(DATA / "tiny_llama.json")


def plan_with(degrees: tuple[int, ...], ops: tuple[int, ...] = (), *, n_microbatches: int = 2, **changes: Any) -> Plan:
    """Return a plan with so many replicas and layers of each stage."""
    devices, layers = np.cumsum((0, *degrees)), np.cumsum((0, *(ops or (1,) * len(degrees))))
    stages = tuple(
        Stage(tuple(range(*layers[s : s + 2])), tuple(range(*devices[s : s + 2])), Strategy(data=d),
              ("none",) * int(layers[s + 1] - layers[s]))
        for s, d in enumerate(degrees)
    )  # fmt: skip
    return Plan(stages, n_microbatches, 1, "gpipe", n_microbatches * max(degrees), **changes)


def asked(global_batch: int = 0, micro_batch: int = 0, n_devices: int = 6, n_ops: int = 4) -> Any:
    """Return what functions read of a problem."""
    return SimpleNamespace(
        batch=SimpleNamespace(global_batch=global_batch, micro_batch=micro_batch), graph=SimpleNamespace(ops=(None,) * n_ops),
        cluster=SimpleNamespace(n_devices=n_devices, name="six"), model_spec=SimpleNamespace(name="model"),
    )  # fmt: skip


def test_micro_batches_are_those_that_divide_the_batch() -> None:
    found = [sharded_pipelines.micro_batches(asked(*batch)) for batch in ((12, 0), (12, 2), (0, 0), (0, 3), (16, 0), (7, 0))]
    assert found == [(1, 2, 4), (2,), (1,), (3,), (1, 2, 4, 8), (1,)]


def test_shapes_use_every_device_or_split_the_batch_into_whole_micro_batches() -> None:
    assert pipelines.shapes(asked(), 0) == ((1, 6), (2, 3), (3, 2))
    assert pipelines.shapes(asked(n_ops=6), 0) == ((1, 6), (2, 3), (3, 2), (6, 1))
    assert pipelines.shapes(asked(), 4) == ((4, 1),) and pipelines.shapes(asked(), 2) == ((2, 3),)
    assert pipelines.shapes(asked(10), 0) == ((1, 5), (2, 2), (3, 2))
    assert pipelines.shapes(asked(10, 2), 0) == ((1, 5), (2, 1), (3, 1))
    assert pipelines.shapes(asked(10), 0, whole_batch=False) == ((1, 6), (2, 3), (3, 2))
    for n_ops, n_stages in ((4, 5), (9, 7)):
        with pytest.raises(InputError):
            pipelines.shapes(asked(n_ops=n_ops), n_stages)


def test_variants_are_all_tensor_degrees_micro_batches_and_shards_that_keep_the_batch() -> None:
    """Four and two replicas, 8 samples: at tensor degree 1 micro-batches of 1 or 2, at 2 of 1, 2 or 4."""
    found = list(sharded_pipelines._variants(asked(8), plan_with((4, 2))))
    told = [
        (plan.stages[0].strategy.tensor, plan.micro_batch, max(stage.strategy.shard for stage in plan.stages),
         plan.n_microbatches, tuple(stage.strategy.data for stage in plan.stages), plan.stages[1].strategy.shard)
        for _, plan in found
    ]  # fmt: skip
    wide = [(1, m, z, 8 // (4 * m), (4, 2), z) for m in (1, 2) for z in range(4)]
    split = [(2, m, z, 8 // (2 * m), (2, 1), 0) for m in (1, 2, 4) for z in range(4)]
    assert told == wide + split
    assert all(plan.global_batch == 8 and plan.stages[0].strategy.sequence_parallel == (t[0] > 1)
               for (_, plan), t in zip(found, told, strict=True))  # fmt: skip
    alone = list(sharded_pipelines._variants(asked(), plan_with((1, 1), n_microbatches=3)))
    assert [(plan.n_microbatches, plan.global_batch, plan.stages[0].strategy) for _, plan in alone] == [(3, 3, Strategy())]


def test_the_first_plans_count_and_of_further_ones_those_of_other_shapes() -> None:
    def one(*degrees: int, ops: tuple[int, ...] = ()) -> EvaluatedPlan:
        return EvaluatedPlan(plan_with(degrees, ops), 1.0, "")

    ranked = [one(2, 2, ops=(n, 9 - n)) for n in range(1, 9)] + [one(2, 2, ops=(1, 8)), one(4), one(4, ops=(2,)), one(1, 1)]
    kept = sharded_pipelines._different(ranked)
    assert [ranked.index(plan) for plan in kept] == [0, 1, 2, 3, 4, 5, 9, 11]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], list[Plan]]:
    """Play plans by hand: a stage lacks bytes, of which every layer that recomputes frees 1 or 3; each takes 1 or 3 s."""

    def by_hand(lacking: list[float]) -> list[Plan]:
        seen: list[Plan] = []

        def play(problem: Problem, module: Any, plan: Plan) -> tuple[Any, tuple[float, ...]]:
            seen.append(plan)
            worth = {"none": 0.0, RECOMPUTE[1]: 1.0, RECOMPUTE[2]: 3.0}
            freed = [sum(worth[word] for word in stage.recompute) for stage in plan.stages]
            return SimpleNamespace(step_seconds=10.0 + sum(freed)), tuple(np.subtract(lacking, freed).tolist())

        monkeypatch.setattr(sharded_pipelines, "_played", play)
        return seen

    return by_hand


@pytest.mark.parametrize(("lacking", "recomputing"), [
    ([0.0, 0.0], (("none", 4), ("none", 4))), ([-1.0, 3.0], (("none", 4), (RECOMPUTE[1], 3))),
    ([4.0, 0.0], ((RECOMPUTE[1], 4), ("none", 4))), ([4.5, 1.0], ((RECOMPUTE[2], 2), (RECOMPUTE[1], 1))),
    ([12.0, 7.0], ((RECOMPUTE[2], 4), (RECOMPUTE[2], 3))), ([0.5, 0.0], ((RECOMPUTE[1], 1), ("none", 4))),
])  # fmt: skip
def test_stages_recompute_as_few_layers_as_it_takes(
    played: Callable[[list[float]], list[Plan]], lacking: list[float], recomputing: tuple[tuple[str, int], ...]
) -> None:
    played(lacking)
    plan = plan_with((1, 1), (4, 4))
    fits, over = sharded_pipelines._recomputed(None, None, plan)
    assert fits is not None and over == float("inf")
    assert [stage.recompute for stage in fits.plan.stages] == [(word,) * 4 for word, _ in recomputing]
    spared = sharded_pipelines._spared(None, None, fits)
    for stage, (word, n) in zip(spared.plan.stages, recomputing, strict=True):
        assert stage.recompute == (word,) * n + ("none",) * (4 - n)
    freed = sum({"none": 0, RECOMPUTE[1]: 1, RECOMPUTE[2]: 3}[word] * n for word, n in recomputing)
    assert spared.step_seconds == 10.0 + freed and fits.step_seconds >= spared.step_seconds


def test_what_recomputing_all_does_not_free_is_missing(played: Callable[[list[float]], list[Plan]]) -> None:
    played([12.5, 1.0])
    assert sharded_pipelines._recomputed(None, None, plan_with((1, 1), (4, 4))) == (None, 0.5)


def test_others_count_as_they_are_where_they_fit_to_the_byte(played: Callable[[list[float]], list[Plan]]) -> None:
    problem: Any = SimpleNamespace(costs="analytic", cluster=cluster("full-mesh:2"))
    one = EvaluatedPlan(plan_with((1, 1), (4, 4)), 1.0, "other")
    played([0.0, 0.0])
    fits, missing = sharded_pipelines.fitted(problem, [], [one])
    assert [(fit.label, fit.step_seconds) for fit in fits] == [("other", 10.0)] and missing == float("inf")
    played([0.0, 0.5])
    assert sharded_pipelines.fitted(problem, [], [one])[0] == ()


def test_bandwidths_by_hops_at_the_ends_of_every_row() -> None:
    hops = np.array([1, 2, 10, 19, 20, 21, 30, 31, 51, 52, 99])
    gigabytes = [78.1, 39.0, 1.46, 0.098, 0.098, 0.088, 0.088, 0.078, 0.078, 0.068, 0.068]
    assert bandwidth_table.hop_table(hops) / 1e9 == pytest.approx(gigabytes)
    with pytest.raises(InputError):
        bandwidth_table.check(1025, "wide")
    assert bandwidth_table.check(1024, "wide") == 1024


@pytest.mark.parametrize(("order", "ring"), [
    ([0, 1, 2, 3], ()), ([2, 3, 0, 1], ()), ([0, 3, 2, 1], ()), ([0, 2, 1, 3], (0, 2, 1, 3)), ([3, 1, 2, 0], (0, 2, 1, 3)),
    ([1, 0], ()), ([0], ()), ([1, 3, 0, 2], (0, 2, 1, 3)),
])  # fmt: skip
def test_a_ring_is_told_from_replica_0_the_lower_neighbour_first(order: list[int], ring: tuple[int, ...]) -> None:
    assert pipelines._ring(order) == ring


def a_question(compute: list[float], edges: list[tuple[int, int]], memory: list[float] | None = None) -> Question:
    n = len(compute)
    operators = Operators(
        np.array(compute), np.zeros(n), np.array(memory or [1.0] * n), np.ones(n, dtype=bool), tuple(edges), tuple(range(n)),
        tuple((0.5, (u, *(v for a, v in edges if a == u))) for u in range(n) if any(a == u for a, _ in edges)),
    )  # fmt: skip
    return Question(operators, 1e-3, "load", np.array(compute) / 3, np.arange(1.0, n + 1), np.arange(n) * 10.0)


def test_stages_exchange_every_tensor_once_for_each_stage_that_reads_it_and_its_gradient() -> None:
    """Operator 0 is read in stages 1 and 2, twice in 2; sizes are 1, 2, 3, 4."""
    posed = a_question([4.0, 5.0, 6.0, 7.0], [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)])
    graph = pipelines.stage_graph(posed, ((0,), (1,), (2, 3)), 3, n_microbatches=4)
    assert graph.compute_seconds.tolist() == pytest.approx([4e-3, 5e-3, 13e-3])
    assert graph.transfers == ((0, 1, 2.0), (0, 2, 2.0), (1, 2, 4.0)) and graph.n_replicas == 3
    assert graph.reduce_bytes.tolist() == [0.0, 2.5, 12.5]
    assert pipelines.stage_graph(posed, ((2, 3), (0, 1)), 1, both=1.0).transfers == ((0, 1, 1.0 + 2.0),)


def test_as_many_groups_as_asked_for_are_made_by_halving_the_heaviest_that_can_be() -> None:
    units = contract(a_question([9.0, 2.0, 3.0, 4.0, 1.0], [(i, i + 1) for i in range(4)]).operators, weigh_memory=True)
    assert numbers.filled(units, ((0,), (1, 2, 3, 4), ())) == ((0,), (1, 2), (3, 4))
    assert numbers.filled(units, ((0, 1, 2, 3, 4), (), ())) == ((0,), (1, 2), (3, 4))
    assert numbers.filled(units, ((0,), (1,), (2,), (3,), (4,), ())) == ((0,), (1,), (2,), (3,), (4,), ())
    plans = [EvaluatedPlan(plan_with((1,) * n), 1.0, str(n)) for n in (1, 2, 2)]
    problem: Any = asked()
    assert numbers.as_many(problem, 2, plans) == plans[1:] and numbers.as_many(problem, 0, plans) == plans
    assert numbers.as_many(problem, 3, []) == []
    with pytest.raises(InputError, match="at most 2"):
        numbers.as_many(problem, 3, plans)


@pytest.mark.parametrize("n", [3, 4, 6, 7])
def test_patterns_are_all_unequal_numbers_of_replicas_that_divide_the_largest(n: int) -> None:
    found = list(unequal_pipelines._patterns(n, 4))
    expected = {
        pattern for k in (2, 3, 4) for pattern in itertools.product(range(1, n), repeat=k)
        if sum(pattern) == n and len(set(pattern)) > 1 and all(max(pattern) % part == 0 for part in pattern)
    }  # fmt: skip
    assert len(found) == len(expected) and set(found) == expected
    powers = [max(pattern) & (max(pattern) - 1) == 0 for pattern in found]
    assert powers == sorted(powers, reverse=True)


def test_a_stage_waits_for_its_slowest_device_in_every_order() -> None:
    slower = np.array([1.0, 2.0, 1.0, 3.0])
    laid = (("a", np.array([0, 1, 2, 3])), ("b", np.array([0, 2, 1, 3])), ("c", np.array([2, 1, 0, 3])))
    assert unequal_pipelines._waits((2, 1, 1), laid, slower) == {(2.0, 1.0, 3.0): ["a", "c"], (1.0, 2.0, 3.0): ["b"]}


def on_mixed(flops_ratio: float = 0.5) -> Problem:
    """Return a model on one large device and a small one that is half as quick."""
    pair = cluster(str(DATA / "unlike_memory.yaml"))
    big, small = pair.kinds
    slow = replace(big, name="slow", memory_bytes=small.memory_bytes, flops_per_second=tuple(
        (name, flops_ratio * flops) for name, flops in big.flops_per_second))  # fmt: skip
    return api.make_problem(MODEL, replace(pair, kinds=(big, slow)), batch=Batch(4, sequence_length=256))


def test_kinds_of_device_are_told_by_times_and_memory_the_slowest_last() -> None:
    problem = on_mixed()
    posed = question(problem)
    found = device_kinds.kinds_of(problem, posed)
    assert found.unlike and found.devices == ((0,), (1,)) and (found.kind_of(0), found.kind_of(1)) == (0, 1)
    quick, slow = found.kinds
    assert quick.n_devices == slow.n_devices == 1 and quick.free_bytes > slow.free_bytes
    assert (slow.compute >= quick.compute).all() and slow.compute.sum() > 1.04 * quick.compute.sum()
    capped = device_kinds.kinds_of(problem, replace(posed, own_memory_bytes=slow.free_bytes)).kinds
    assert [kind.free_bytes for kind in capped] == [slow.free_bytes] * 2
    assert [kind.free_bytes for kind in device_kinds.kinds_of(problem, posed, limit_bytes=7.0).kinds] == [7.0] * 2
    slower = unequal_pipelines.slowness(problem, posed)
    reference = posed.operators.compute.sum()
    assert slower == pytest.approx([quick.compute.sum() / reference, slow.compute.sum() / reference])
    assert unequal_pipelines.slowness(replace(problem, costs="partition"), posed).tolist() == [1.0, 1.0]


def test_the_bound_of_unlike_devices_is_told_in_seconds_even_below_one() -> None:
    problem = on_mixed()
    posed = question(problem)
    kinds = device_kinds.kinds_of(problem, posed)
    answer = on_unlike.partition_answer(problem, posed, kinds, 2, 0)
    assert answer.bound is not None and answer.objective is not None
    assert 0.0 < answer.bound.value == pytest.approx(answer.objective.value, rel=1e-9) and answer.bound.value < 1.0
    assert on_unlike.devices_of(SimpleNamespace(kinds=(1, 0)), kinds) == (1, 0)  # type: ignore[arg-type]


def test_stages_that_hold_most_lie_where_most_is_free() -> None:
    problem = on_mixed()
    assert on_unlike.by_memory(problem, np.array([1.0, 2.0]), 1).tolist() == [[1], [0]]  # type: ignore[union-attr]
    assert on_unlike.by_memory(problem, np.array([2.0, 1.0]), 1).tolist() == [[0], [1]]  # type: ignore[union-attr]
    alike = replace(problem, cluster=replace(problem.required_cluster, kinds=problem.required_cluster.kinds[:1] * 2))
    assert on_unlike.by_memory(alike, np.array([2.0, 1.0]), 1) is None
    kinds = SimpleNamespace(kinds=(0, 0), devices=((0, 3, 4, 5), (1, 2)))
    cut = SimpleNamespace(kinds=(1, 0, 1))
    assert on_unlike._devices_of(cut, kinds, (1, 0), 2) == [(0, 3), (1, 2), (4, 5)]  # type: ignore[arg-type]


def test_layers_are_asked_of_the_cost_model_one_by_one() -> None:
    problem = api.make_problem(MODEL, "full-mesh:4", batch=Batch(4, micro_batch=2, sequence_length=256))
    posed = question(problem, 1e9)
    graph = problem.graph
    size = {edge.source: edge.n_elements * problem.training.activation_bytes * 2 for edge in graph.edges}
    assert [posed.output_bytes[u] for u in size] == pytest.approx(list(size.values()))
    assert posed.operators.nets == tuple(
        (pytest.approx(2 * size[u] / 1e9), (u, *sorted(e.target for e in graph.edges if e.source == u))) for u in sorted(size)
    )
    assert (posed.forward < posed.operators.compute).all() and (posed.weight_bytes >= 0).all()
    assert posed.unit_seconds == 1.0 and not posed.own_times


def test_ranks_hops_and_groups_of_a_numbering_by_hand() -> None:
    assert numbering._ranked(["b", "a", "b", "c"]).tolist() == [1, 0, 1, 2]
    near = [{1}, {0, 2}, {1}, set()]
    assert list(numbering._hops(near, 0)) == [0, 1, 2, 4]
    assert numbering._first_seen(np.array([7, 3, 7, 9])).tolist() == [0, 1, 0, 2]
    same = np.eye(3, dtype=bool)
    apart = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0], [2.0, 2.0, 0.0]])
    refined = numbering._refined(np.zeros(3, dtype=int), apart, same).tolist()
    assert refined[0] == refined[1] != refined[2]


def test_recomputing_less_ends_where_a_stage_that_fitted_exceeds_by_what_others_recompute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order of tasks follows the times of all stages, so a stage can hold more where another one recomputes less."""
    plan = plan_with((1, 1), (2, 4))
    full = replace(plan, stages=tuple(replace(stage, recompute=("full",) * len(stage.ops)) for stage in plan.stages))

    def played(problem: Any, module: Any, plan: Plan) -> tuple[Any, tuple[float, float]]:
        n_first, n_second = (sum(word != "none" for word in stage.recompute) for stage in plan.stages)
        # the first stage fits without any where the second recomputes two or more, and never where it recomputes fewer
        return SimpleNamespace(step_seconds=float(n_first + n_second)), (1.0 if n_second < 2 else -1.0, float(1 - n_second))

    monkeypatch.setattr(sharded_pipelines, "_played", played)
    spared = sharded_pipelines._spared(asked(), None, EvaluatedPlan(full, 6.0, "all"))
    assert spared.step_seconds == 3.0  # the quickest of those looked at that fit
    assert [sum(word != "none" for word in stage.recompute) for stage in spared.plan.stages] == [1, 2]
