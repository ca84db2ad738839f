"""Below which time the check of Piper plans knows no plan any more, for all options; ways, questions and plans by hand."""

from __future__ import annotations

import math
import pathlib
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, ModelSpec, Problem
from meshwright.planners.piper import answer
from meshwright.planners.piper.check import plans, stage, sums
from meshwright.planners.piper.check.plans import ClaimedStage, check
from meshwright.planners.piper.costs.piper import PiperStage
from meshwright.planners.piper.menu import Options
from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance, PiperNode
from recorded import Recorded

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "oracle"))

import piper_by_definition as oracle

COUNTINGS: dict[str, dict[str, Any]] = {
    "plain": {}, "any replicas": {"any_replicas": True}, "sharded": {"shard_optimizer": True},
    "buffers": {"layer_buffers": True}, "once": {"tensor_once": True}, "filled": {"fill_drain": True, "any_replicas": True},
    "nodes": {"node_size": 2, "node_bytes_per_second": 20.0},
    "filled nodes": {"node_size": 2, "node_bytes_per_second": 20.0, "fill_drain": True},
    "nodes of three": {"node_size": 3, "node_bytes_per_second": 20.0, "tensor_once": True, "shard_optimizer": True},
}  # fmt: skip
OPTIONS = {
    "exact": Options(), "greedy": Options(exact=False), "all or none": Options(exact=False, all_or_none=True),
    "no data": Options(data_parallel=False), "no tensor": Options(tensor_parallel=False), "never": Options(recompute="never"),
    "always": Options(recompute="always"),
}  # fmt: skip


def least(instance: PiperInstance, options: Options) -> float:
    """Return the least time below which the check finds a plan, to three digits; infinite where it finds none at all."""
    low, high = 0.0, 2.0**9
    if not plans._exists(instance, options, high):
        return math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if plans._exists(instance, options, middle) else (middle, high)
    return float(f"{high:.3g}")


@pytest.mark.parametrize("counting", sorted(COUNTINGS))
def test_thresholds_are_as_before_and_those_of_all_plans_where_these_are_few(counting: str, recorded: Recorded) -> None:
    found = {}
    for seed in range(5):
        instance = oracle.random_instance(seed, n_nodes=3 + seed % 2, n_choices=2 + seed % 2, alike=True)
        instance = replace(
            instance, counting=replace(instance.counting, **COUNTINGS[counting]), n_devices=3 + seed % 3,
            memory_bytes=instance.memory_bytes * (0.35, 0.5, 0.8)[seed % 3], n_microbatches=(5, 4, 7)[seed % 3],
        )  # fmt: skip
        named = OPTIONS if seed < 2 else {"exact": Options()}
        found[str(seed)] = {name: least(instance, options) for name, options in named.items()}
        if counting == "filled" and seed < 3:
            best = oracle.best_counted(instance)
            assert found[str(seed)]["exact"] <= best * 1.006
    recorded(found)


def hurried(choices: Any) -> Any:
    """Return the choices of a node, those that recompute twice as fast."""
    return tuple((t, tuple(replace(c, seconds=c.seconds / (1 + (c.id != "vanilla"))) for c in menu)) for t, menu in choices)


@pytest.mark.parametrize("counting", ["plain", "any replicas", "sharded", "buffers", "once"])
def test_sums_find_a_plan_where_going_through_stages_does(counting: str) -> None:
    """Just below and above the least time and further off; graphs with parallel layers, tensors that differ by choice."""
    n_open = 0
    for seed in range(14):
        instance = oracle.random_instance(seed, n_nodes=4 + seed % 3, n_choices=1 + seed % 3, alike=counting == "once")
        instance = replace(
            instance, counting=replace(instance.counting, **COUNTINGS[counting]), n_devices=2 + seed % 5,
            memory_bytes=instance.memory_bytes * (0.3, 0.45, 0.6, 1.0)[seed % 4], n_microbatches=(5, 4, 6, 12)[seed % 4],
        )  # fmt: skip
        if seed % 2 and counting == "buffers":  # what keeps a buffer is the faster one
            instance = replace(instance, nodes=tuple(replace(node, choices=hurried(node.choices)) for node in instance.nodes))
        options = list(OPTIONS.values())[seed % len(OPTIONS)] if counting != "buffers" else Options()
        sets, best = plans._downsets(instance), least(instance, options)
        for seconds in [0.5 * best, 0.9 * best, 0.99 * best, 1.01 * best, 1.3 * best] if best < math.inf else [1e3]:
            found = plans._exists(instance, options, seconds)
            assert found == plans._exists_by_stages(instance, options, seconds, sets), (seed, seconds / best)
            n_open += found
    assert n_open >= 10


def row(menu: tuple[tuple[str, float, float, float], ...], **limits: Any) -> PiperInstance:
    """Return four equal nodes one after the other that send nothing; of each choice id, seconds, bytes in flight and others."""
    nodes = []
    for v in range(4):
        ends = ((v - 1, 0.0),) if v else (), ((v + 1, 0.0),) if v < 3 else ()
        choices = tuple(PiperChoice(name, seconds, 0.0, a, b, *ends) for name, seconds, a, b in menu)
        nodes.append(PiperNode(v, "layer", ((1, choices),)))
    edges = tuple(PiperEdge(v, v + 1, 0.0) for v in range(3))
    return replace(PiperInstance(tuple(nodes), edges, 4, 4, 1.0, 1.0), **limits)


def test_what_stands_in_front_is_not_taken_for_more_than_it_needs() -> None:
    """All devices are busy all the time, and just hold what they must, buffers kept once for each stage."""
    busy = row((("vanilla", 1.0, 0.0, 1.0),))
    assert plans._exists(busy, Options(), 1.0 + 1e-6) and not plans._exists(busy, Options(), 1.0 - 1e-6)
    full = row((("vanilla", 1.0, 6.0, 1.0), ("activation recomp", 1.0, 1.0, 6.0)), n_devices=2)
    full = replace(full, counting=replace(full.counting, layer_buffers=True))
    # by hand: the first of two stages has two micro-batches in flight: 2 x (1 x 2 + 1) bytes and a buffer of 5
    assert plans._exists(replace(full, memory_bytes=11.0), Options(), 2.01)
    assert not plans._exists(replace(full, memory_bytes=10.9), Options(), 2.01)


def test_ways_that_another_one_betters_are_dropped() -> None:
    way = plans._Way
    one, more = way(1, 2, 1.0, 2.0, 3.0, 0), way(1, 3, 1.0, 2.0, 3.0, 0)
    other, joined = way(2, 1, 1.0, 2.0, 3.0, 0), way(1, 2, 1.0, 2.0, 3.0, 1)
    assert plans._undominated({one, more, other, joined}) == [one, joined, other]
    assert plans._undominated({way(1, 2, 1.0, 2.0, 3.0, 2), joined}) == [joined]
    assert plans._undominated(set()) == []


def test_the_greedy_choice_swaps_the_cheapest_per_byte_until_it_fits() -> None:
    two = [[(1.0, 10.0), (3.0, 4.0)], [(1.0, 10.0), (2.0, 8.0)]]  # 2 s for 6 bytes, 1 s for 2
    assert stage._greedy(two, 20.0, False) == 2.0 and stage._greedy(two, 19.0, False) == 4.0
    assert stage._greedy(two, 14.0, False) == 4.0 and stage._greedy(two, 12.0, False) == 5.0
    assert stage._greedy(two, 11.9, False) == math.inf and stage._greedy(two, 19.0, True) == 5.0
    three = [[(1.0, 10.0), (3.0, 4.0), (1.5, 9.0)], [(1.0, 10.0), (2.0, 8.0)]]
    assert stage._greedy(three, 19.0, False) == 2.5  # of what is needed a byte counts, not all that is saved
    assert stage._exact(two, 19.0, 9.0, 1.0) == 3.0 and stage._exact(two, 13.9, 9.0, 1.0) == 5.0
    assert stage._exact(two, 11.9, 9.0, 1.0) == math.inf and stage._exact(two, 19.0, 2.9, 1.0) == math.inf
    assert stage._exact(two, 19.0, 3.0, 1.0) == 3.0
    assert stage.members(0b10110) == [1, 2, 4] and stage.members(0) == []


def line() -> PiperInstance:
    """Return two nodes one after the other, each at degrees 1 and 2."""
    nodes = []
    for v in range(2):
        ends = (((0, 1.0),), ()) if v else ((), ((1, 2.0),))
        menu = tuple(
            (t, tuple(PiperChoice(name, x / t, 2.0, a, b, *ends) for name, x, a, b in (
                ("vanilla", 4.0 + v, 3.0, 5.0), ("activation recomp", 6.0, 1.0, 4.0))))
            for t in (1, 2)
        )  # fmt: skip
        nodes.append(PiperNode(7 + v, "layer", menu))
    return PiperInstance(tuple(nodes), (PiperEdge(0, 1, 3.0),), 4, 4, 2.0, 40.0)


def test_claims_are_judged_one_condition_at_a_time() -> None:
    instance, options = line(), Options()
    good = [ClaimedStage((0,), 1, 1, ("vanilla",)), ClaimedStage((1,), 1, 1, ("vanilla",))]
    # by hand: 4 s and 5 s, 2 x (3 + 2) / 2 and 2 x (3 + 1) / 2 s for the tensor, both ways
    value, held = plans._cost(instance, good)
    assert (value, held) == (9.0, 3.0 * 2 + 5.0)
    assert check(instance, options, good, 9.0, 2.25).valid and check(instance, options, good, 9.0, 2.25).bound_value == 2.25
    refusals = {
        "not every node is in exactly one stage": (good[:1], options),
        "the edge 7 -> 8 leads back": ([replace(good[0], nodes=(1,)), replace(good[1], nodes=(0,))], options),
        "more than the 4 devices": ([replace(good[0], data=2, tensor=2), good[1]], options),
        "more replicas than the 4": ([replace(good[0], data=2), replace(good[1], data=3)], options),
        "stage 0 has 1 replicas of 2 devices": ([replace(good[0], tensor=2), good[1]], Options(tensor_parallel=False)),
        "stage 1 has 2 replicas of 1 devices": ([good[0], replace(good[1], data=2)], Options(data_parallel=False)),
        "node 8 has no choice 'x' at tensor degree 1": ([good[0], replace(good[1], choices=("x",))], options),
        "node 7 has no choice 'vanilla'": (good, Options(recompute="always")),
        "a device holds 11.0 bytes": (good, options), "the plan takes 9.0, not 9.1": (good, options),
        "above what the plan takes": (good, options), "there is a plan whose stages": (good, options),
    }  # fmt: skip
    for said, (stages, own) in refusals.items():
        asked = replace(instance, n_devices=5) if "replicas than" in said else instance
        asked = replace(asked, memory_bytes=10.9) if "holds" in said else asked
        seconds = 9.1 if "9.1" in said else 9.0
        verdict = check(asked, own, stages, seconds, 9.5 if "above" in said else 8.9)
        assert not verdict.valid and said in verdict.reason, (said, verdict.reason)
    assert check(replace(instance, memory_bytes=11.0), options, good, 9.0, 2.0).valid


def test_the_bound_of_a_graph_too_large_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [ClaimedStage((0, 1), 1, 1, ("vanilla", "vanilla"))]
    filled = replace(line(), counting=replace(line().counting, fill_drain=True))
    for module, name, most, asked in (
        (plans, "MOST_SETS", 2, line()), (sums, "MOST_STEPS", 3, line()), (plans, "MOST_STEPS", 3, filled),
        (plans, "MOST_LONG", 2, filled),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, most)
        verdict = check(asked, Options(), good, 9.0, 8.0)
        assert (
            not verdict.valid
            and verdict.bound_value == 2.25
            and "too large to check more than the bound 2.25" in verdict.reason
        )
        monkeypatch.undo()


def posed(instance: PiperInstance, **said: Any) -> Problem:
    spec = ModelSpec("line", "piper_json", "a.json#x,bandwidth=3", SimpleNamespace(sequence_length=0), instance=instance)  # type: ignore[arg-type]
    return Problem(spec, **said)


def test_questions_take_what_the_user_set_in_place_of_the_files(recorded: Recorded) -> None:
    problem = posed(line())
    found = answer.instance_of(problem, "piper", 3, 6, 5.0, 50.0)
    assert (found.n_devices, found.n_microbatches, found.bandwidth, found.memory_bytes) == (3, 6, 5.0, 50.0)
    same = answer.instance_of(problem, "piper", None, None, None, None)
    assert (same.n_devices, same.n_microbatches, same.bandwidth, same.memory_bytes) == (4, 4, 2.0, 40.0)
    for name, values in (("bandwidth", (1e-10, None)), ("memory", (None, 1e-10))):
        with pytest.raises(InputError, match=rf"--set {name} \(of search piper\): 1e-10 is out of range"):
            answer.instance_of(problem, "piper", None, None, *values)
    answer.instance_of(problem, "piper", None, None, 1e-9, 1e-9)
    for batch in (Batch(8), Batch(0, 2)):
        with pytest.raises(InputError, match="search piper: a piper_json file counts micro-batches only"):
            answer.instance_of(replace(problem, batch=batch), "piper", None, None, None, None)
    with pytest.raises(InputError, match=r"search piper: needs the choices of a piper_json file; a.json"):
        answer.instance_of(posed(None), "piper", None, None, None, None)  # type: ignore[arg-type]
    changed = replace(found, counting=replace(found.counting, any_replicas=True, node_size=2))
    recorded([answer._spec(problem, found), answer._spec(problem, changed), answer._spec(problem, line())])


def test_nodes_of_a_stage_are_in_an_order_of_their_edges() -> None:
    for seed in range(12):
        instance = oracle.random_instance(seed, n_nodes=6)
        place = answer._topological(instance)
        assert sorted(place) == list(range(6))
        assert all(place[edge.source] < place[edge.target] for edge in instance.edges)
    edges = (PiperEdge(2, 0, 1.0), PiperEdge(2, 1, 1.0), PiperEdge(1, 0, 1.0))
    three = replace(line(), nodes=tuple(replace(line().nodes[0], id=i) for i in range(3)), edges=edges)
    assert answer._topological(three) == [2, 1, 0]
    stages = [PiperStage((0, 1, 2), 1, 2, ("vanilla", "activation recomp", "vanilla"))]
    (only,) = answer.plan_of(three, stages).stages
    assert only.ops == (2, 1, 0) and only.recompute == ("none", "full", "none") and only.devices == (0, 1)
    assert answer.choices_json(three, stages) == [{
        "nodes": [0, 1, 2], "dataParallelDegree": 1, "tensorParallelDegree": 2,
        "TMPCids": {"0": "vanilla", "1": "activation recomp", "2": "vanilla"},
    }]  # fmt: skip
    assert [answer._yes(word) for word in ("TRUE", "yes", "1", "false", "0", "")] == [True] * 3 + [False] * 3


def test_a_plan_file_is_checked_with_the_settings_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(answer, "check", lambda *words: asked.append(words) or answer.Verdict(False, 0.0, 0.0, ""))
    instance = line()
    plan = answer.plan_of(instance, [PiperStage((0, 1), 2, 1, ("vanilla", "vanilla"))])
    problem = posed(instance)
    entry = {"choices": answer.choices_json(instance, [PiperStage((0, 1), 2, 1, ("vanilla", "vanilla"))]),
             "objective": {"value": 3}, "bound": {"value": "2.5"}}  # fmt: skip
    settings = {
        "knapsack": "greedy",
        "all_or_none": "Yes",
        "data_parallel": "false",
        "tensor_parallel": "0",
        "recompute": "never",
    }
    result: Any = SimpleNamespace(problem=problem, search="piper", plan=plan, settings=settings)
    answer.check_plan(result, entry, "p.json")
    answer.check_plan(SimpleNamespace(problem=problem, search="piper", plan=plan, settings={}), entry, "p.json")  # type: ignore[arg-type]
    stages = [ClaimedStage((0, 1), 2, 1, ("vanilla", "vanilla"))]
    assert asked == [
        (
            instance,
            Options(False, all_or_none=True, data_parallel=False, tensor_parallel=False, recompute="never"),
            stages,
            3.0,
            2.5,
        ),
        (instance, Options(), stages, 3.0, 2.5),
    ]
    cut = replace(plan, stages=(replace(plan.stages[0], ops=(0,), recompute=("none",)),))
    for own in (cut, replace(plan, stages=())):
        verdict = answer.check_plan(SimpleNamespace(problem=problem, search="piper", plan=own, settings={}), entry, "p")  # type: ignore[arg-type]
        assert not verdict.valid and verdict.reason == "its stages and its choices are of different plans"
    for wrong in (
        {"bound": {"value": 2.5}},
        {**entry, "bound": {}},
        {**entry, "objective": None},
        {**entry, "choices": [{"nodes": [99]}]},
    ):
        with pytest.raises(InputError, match=r"p.json: a field is missing or of the wrong kind"):
            answer.check_plan(result, wrong, "p.json")
    for search, own in (("best", instance), ("piper", None)):
        other: Any = SimpleNamespace(problem=posed(own), search=search, plan=plan, settings={})  # type: ignore[arg-type]
        assert answer.check_plan(other, entry, "p.json") is None
