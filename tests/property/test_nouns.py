"""Nouns never change: `dataclasses.replace` is building anew, and what was asked before leaves no trace in any answer."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import importlib
import inspect
import json
import os
import pathlib
import pickle
import pkgutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright import api, core, sim
from meshwright import clusters as topologies
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Device, Host, Links
from meshwright.core.framework import SHARES
from meshwright.core.graph import Edge, Graph, Op, Operator, SharedWeights
from meshwright.core.interval import Interval
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Framework, MixedPrecision, ModelSpec, Problem, Stop
from meshwright.core.result import Alternative, Answer, Bound, Objective, Result
from meshwright.core.stage_cost import Collective, StageCost
from meshwright.core.strategy import Strategy
from meshwright.core.timeline import Timeline
from meshwright.costs.analytic.device_mesh import mesh
from meshwright.network import REMEMBERED_CLUSTERS, Network

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def noun_classes() -> list[type]:
    """Every dataclass of the files of `meshwright.core`, those of its packages included."""
    found: list[type] = []
    for entry in pkgutil.walk_packages(core.__path__, "meshwright.core."):
        module = importlib.import_module(entry.name)
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
        ]
    return sorted(found, key=lambda noun: noun.__name__)


NOUNS = noun_classes()

ATOMS: dict[str, st.SearchStrategy[Any]] = {
    "str": st.sampled_from(["", "a", "b"]),
    "int": st.integers(0, 3),
    "float": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    "bool": st.booleans(),
    "str | bool": st.sampled_from(["a", True]),
    "Callable[[], bool]": st.just(bool),
    "object | None": st.just(None),
    "Callable[[Callable[[], str]], None]": st.just(bool),
    "T": st.builds(Stop),
    "Mapping[str, object]": st.dictionaries(st.sampled_from("ab"), st.integers()),
    "Mapping[str, object] | None": st.none() | st.dictionaries(st.sampled_from("ab"), st.integers()),
    "Mapping[str, tuple[str, int]]": st.dictionaries(st.sampled_from("ab"), st.tuples(st.sampled_from("cd"), st.integers())),
    "Mapping[str, str]": st.dictionaries(st.sampled_from("ab"), st.sampled_from("cd")),
    "NDArray[np.int64]": st.lists(st.integers(0, 1), min_size=2, max_size=2).map(lambda row: np.array(row, dtype=np.int64)),
    "NDArray[np.float64]": st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=2, max_size=2).map(np.array),
}
"""How values are drawn for a field, by its annotation."""

TABLE = Operator("words", "norm", (("hidden", 2),), n_parameters=2)

HOST_RATES = ("memory_bytes", "memory_bytes_per_second", "link_bytes_per_second")

FIELDS: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (Operator, "dims"): st.just((("sequence", 4), ("in", 8), ("out", 8))),
    (Graph, "ops"): st.sampled_from(
        [
            (Op("a", "x", (TABLE,)), Op("b", "x", (TABLE,)), Op("c", "x")),
            (Op("b", "x", (TABLE,)), Op("c", "x", (TABLE,)), Op("a", "x", (TABLE,))),
        ]
    ),
    (Graph, "n_shared_parameters"): st.integers(1, 3),
    (Graph, "shared"): st.sampled_from([(), (SharedWeights(((0, "words"), (1, "words")), 1),)]),
    (SharedWeights, "places"): st.just(((0, "words"), (1, "words"))),
    (Graph, "edges"): st.sampled_from([(), (Edge(0, 1, 4),), (Edge(1, 0, 2),), (Edge(0, 2, 1),)]),
    **{(Device, f"{name}_ratio"): st.sampled_from([0.5, 1.0]) for name in ("matmul", "attention", "memory", "fp8", "fp4")},
    **{(Device, f"memory_{name}"): st.sampled_from([1.0, 2.0]) for name in ("bytes", "bytes_per_second")},
    (Device, "name"): st.sampled_from(["a", "b"]),
    (Device, "flops_per_second"): st.sampled_from([(("a", 1.0),), (("a", 2.0), ("bf16", 1.0))]),
    (Device, "attention_of"): st.sampled_from([(), (("a", 0.5),)]),
    **{(Host, name): st.sampled_from([1.0, 2.0]) for name in HOST_RATES},
    (Cluster, "kinds"): st.tuples(*[st.deferred(lambda: drawn(Device))] * 2),
    (Cluster, "kind_of_device"): st.sampled_from([[0, 0], [1, 0]]).map(np.array),
    (Cluster, "links"): st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=2, max_size=2).map(
        lambda rates: Links(np.array([0, 1]), np.array([1, 0]), np.array(rates), np.zeros(2))
    ),
    (Cluster, "groups"): st.sampled_from([[[0, 0]], [[0, 1]]]).map(np.array),
    (Strategy, "data"): st.integers(1, 3),
    (Strategy, "tensor"): st.integers(1, 3),
    (Strategy, "context"): st.integers(1, 3),
    (Strategy, "expert"): st.integers(1, 3),
    (Problem, "memory_risk"): st.sampled_from([0.01, 0.5]),
    (Problem, "batch"): st.builds(Batch, st.integers(0, 3), st.integers(0, 3)),
    **{(Framework, name): st.sampled_from([0.0, 0.5, 1.0]) for name in SHARES},
    (MixedPrecision, "optimizer"): st.sampled_from(["adamw", "muon", "lion"]),
    (MixedPrecision, "state_bytes"): st.sampled_from([2, 4]),
    (Framework, "compute_ratio"): st.sampled_from([0.5, 2.0]),
    (Objective, "name"): st.sampled_from(["step_seconds", "speedup"]),
    (Objective, "value"): st.sampled_from([1.0, 2.0]),
    (Plan, "stages"): st.sampled_from([(Stage((0,), (0,)),), (Stage((0,), (0,)), Stage((1,), (1,)))]),
}
"""Fields that must fit together, or must not be empty."""


@functools.cache
def drawn(noun: type) -> st.SearchStrategy[Any]:
    """Instances of a noun with any values in its fields that it does not refuse."""

    def made(fields: dict[str, Any]) -> Any:
        try:
            return noun(**fields)
        except InputError:
            return None

    fields = dataclasses.fields(noun)
    values = {
        field.name: FIELDS[noun, field.name] if (noun, field.name) in FIELDS else of_annotation(str(field.type))
        for field in fields
    }
    return st.fixed_dictionaries(values).map(made).filter(lambda one: one is not None)


def of_annotation(text: str) -> st.SearchStrategy[Any]:
    """Values of an annotation; fails where there is none for it, so that no new field or noun goes untested."""
    if text in ATOMS:
        return ATOMS[text]
    if text.endswith(" | None"):
        return st.none() | of_annotation(text.removesuffix(" | None"))
    if text.startswith("tuple["):
        parts = _parts(text.removeprefix("tuple[").removesuffix("]"))
        if parts[-1] == "...":
            return st.lists(of_annotation(parts[0]), min_size=1, max_size=2).map(tuple)
        return st.tuples(*map(of_annotation, parts))
    named = {noun.__name__: noun for noun in NOUNS}
    assert text in named, f"say in ATOMS how values of {text} are drawn"
    return drawn(named[text])


def _parts(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def told(value: Any) -> Any:
    """Everything a value says, comparable: its fields, and what its properties and methods without arguments answer."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tolist())
    if isinstance(value, tuple):
        return tuple(map(told, value))
    if isinstance(value, MappingProxyType):
        return ("mapping", dict(value))
    if not dataclasses.is_dataclass(value):
        return value
    known = {field.name: told(getattr(value, field.name)) for field in dataclasses.fields(value)}
    for name, is_property in answers_of(type(value)).items():
        known[name] = outcome((lambda name=name: getattr(value, name)) if is_property else getattr(value, name))
    return (type(value).__name__, known)


@functools.cache
def answers_of(noun: type) -> MappingProxyType[str, bool]:
    """The properties of a noun, and its methods without arguments, by name: whether it is a property."""
    found: dict[str, bool] = {}
    for name, member in inspect.getmembers(noun):
        if name.startswith("_") or name in {field.name for field in dataclasses.fields(noun)}:
            continue
        if isinstance(member, property) or (inspect.isfunction(member) and len(inspect.signature(member).parameters) == 1):
            found[name] = isinstance(member, property)
    return MappingProxyType(found)


def fresh(value: Any) -> Any:
    """The same value, sharing nothing with it that could be written to or remember anything."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(map(fresh, value))
    if isinstance(value, MappingProxyType):
        return dict(value)
    if not dataclasses.is_dataclass(value):
        return value
    return type(value)(**{field.name: fresh(getattr(value, field.name)) for field in dataclasses.fields(value)})


def outcome(call: Callable[[], Any]) -> Any:
    """What a call answers, or how it refuses."""
    try:
        return told(call())
    except (InputError, AttributeError, IndexError, ValueError, ZeroDivisionError) as error:
        return (type(error).__name__, str(error))


def mutable_parts(value: Any, where: str) -> list[str]:
    """Places in a value that somebody could write to."""
    if isinstance(value, np.ndarray):
        owner: Any = value
        while isinstance(owner, np.ndarray):
            if owner.flags.writeable:
                return [where]
            owner = owner.base
        return []
    if value is None or value is bool or isinstance(value, (str, int, float, bool, frozenset, MappingProxyType)):
        return []
    if isinstance(value, tuple):
        return [place for i, part in enumerate(value) for place in mutable_parts(part, f"{where}[{i}]")]
    if dataclasses.is_dataclass(value) and type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
        return [place for name in slots for place in mutable_parts(getattr(value, name), f"{where}.{name}")]
    return [where]


def test_the_nouns_are_found() -> None:
    known = {
        Alternative, Answer, Batch, Bound, Cluster, Collective, Device, Edge, Graph, Interval, Links,
        Objective, Op, Operator, Plan, Problem, Framework, ModelSpec, Result, Stage, StageCost, Stop, Strategy, Timeline,
        MixedPrecision,
    }  # fmt: skip
    assert known <= set(NOUNS)


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_a_noun_is_frozen_has_slots_and_no_hidden_field(noun: type) -> None:
    assert noun.__dataclass_params__.frozen, "frozen=True"  # type: ignore[attr-defined]
    assert "__slots__" in vars(noun), "slots=True"
    assert [field.name for field in dataclasses.fields(noun) if field.name.startswith("_") or not field.init] == []


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_replacing_any_field_is_building_anew(noun: type, data: st.DataObject) -> None:
    one, other = data.draw(drawn(noun)), data.draw(drawn(noun))
    assert mutable_parts(one, noun.__name__) == []
    told(one)  # whatever answering may remember
    fields = {field.name: getattr(one, field.name) for field in dataclasses.fields(noun)}
    for name in fields:
        changed = {name: getattr(other, name)}
        anew = outcome(lambda changed=changed: noun(**{key: fresh(value) for key, value in (fields | changed).items()}))
        assert outcome(lambda changed=changed: dataclasses.replace(one, **changed)) == anew, name
    assert told(dataclasses.replace(one)) == told(one)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda noun: pickle.loads(pickle.dumps(noun))])
def test_copies_of_a_cluster_are_read_only_too(copied: Callable[[Cluster], Cluster]) -> None:
    cluster = topologies.cluster("two-level:8,per_node=4")
    other = copied(cluster)
    assert mutable_parts(other, "cluster") == []
    assert told(other) == told(cluster)


def test_an_array_given_to_a_cluster_stays_its_owners() -> None:
    rates = np.array([1e9, 1e9])
    links = Links(np.array([0, 1]), np.array([1, 0]), rates[:], np.zeros(2))
    rates[:] = 1.0
    assert links.bytes_per_second.tolist() == [1e9, 1e9]
    ends, ids = np.array([5.0]), np.zeros(1, dtype=np.int64)
    timeline = Timeline(1.0, ids, ids, ids, ids, ends, ends, (1.0,))
    ends[0] = 6.0
    assert timeline.end_seconds.tolist() == [5.0]


CHANGES: dict[str, Callable[[Cluster], Cluster]] = {
    "links 100 times as fast": lambda cluster: dataclasses.replace(
        cluster, links=dataclasses.replace(cluster.links, bytes_per_second=cluster.links.bytes_per_second * 100)
    ),
    "a third of the memory": lambda cluster: dataclasses.replace(
        cluster, kinds=tuple(dataclasses.replace(kind, memory_bytes=kind.memory_bytes / 3) for kind in cluster.kinds)
    ),
    "half the speed": lambda cluster: dataclasses.replace(
        cluster,
        kinds=tuple(
            dataclasses.replace(kind, flops_per_second=tuple((name, peak / 2) for name, peak in kind.flops_per_second))
            for kind in cluster.kinds
        ),
    ),
    "a slow launch": lambda cluster: dataclasses.replace(cluster, launch_seconds=1e-3),
    "only rings": lambda cluster: dataclasses.replace(cluster, algorithms=("ring",)),
}

SEARCHES = {
    "best": ("best", "analytic", {"tensor": "2"}),
    "best under sharded costs": ("best", "sharded", {"tensor": "4", "pipeline": "1"}),
    "data_parallel": ("data_parallel", "analytic", {}),
    "megatron_grid": ("megatron_grid", "analytic", {}),
    "pase": ("pase", "analytic", {}),
    "piper": ("piper", "analytic", {}),
    "parmesan": ("parmesan", "analytic", {}),
}


def posed(costs: str, cluster: Cluster | str = "flat:4,bandwidth=1 GB/s") -> Problem:
    return api.make_problem(str(DATA / "tiny_llama.json"), cluster, costs=costs, batch=Batch(16))


def answered(problem: Problem, name: str) -> Any:
    search, _, options = SEARCHES[name]
    result = api.plan(problem, search=search, settings=options)
    answer = result.answer
    extra = {key: value for key, value in answer.extra.items() if not key.endswith("_seconds")}  # wall times
    return told((answer.plan, answer.objective, answer.bound, answer.missing_bytes, result.stage_costs, result.timeline)), extra


@pytest.mark.parametrize("name", SEARCHES)
def test_planning_after_a_change_of_the_cluster_is_planning_anew(name: str) -> None:
    problem = posed(SEARCHES[name][1])
    assert problem.cluster is not None
    before, distinct_levels = answered(problem, name), 0
    for kind, change in CHANGES.items():
        changed = change(problem.cluster)
        after = answered(dataclasses.replace(problem, cluster=changed), name)
        assert after == answered(posed(SEARCHES[name][1], fresh(changed)), name), kind
        distinct_levels += after != before
    assert distinct_levels >= 2  # the changes matter, so that remembering what was before would show


@pytest.mark.parametrize("name", SEARCHES)
def test_planning_after_a_change_of_the_model_is_planning_anew(name: str) -> None:
    problem = posed(SEARCHES[name][1])
    before = answered(problem, name)
    graph = problem.graph
    body = tuple(dataclasses.replace(part, n_parameters=2 * part.n_parameters) for part in graph.ops[1].body)
    heavier = dataclasses.replace(
        graph, ops=tuple(dataclasses.replace(op, body=body if op.body == graph.ops[1].body else op.body) for op in graph.ops)
    )
    for changed, same in ((dataclasses.replace(graph, name="another"), True), (heavier, False)):
        again = dataclasses.replace(problem, model_spec=dataclasses.replace(problem.model_spec, graph=changed))
        after = answered(again, name)
        assert after == answered(fresh(again), name)
        assert (after == before) == same


def test_links_a_hundred_times_as_fast_train_faster_although_the_slow_ones_were_asked_before() -> None:
    slow = topologies.cluster("flat:4,bandwidth=1 GB/s")
    quick = CHANGES["links 100 times as fast"](slow)
    first, second = (api.plan("gpt2", cluster, search="data_parallel", batch=Batch(64)).timeline for cluster in (slow, quick))
    assert first is not None and second is not None
    assert second.step_seconds < first.step_seconds / 2


def test_a_sweep_over_many_clusters_keeps_the_networks_of_the_last_few() -> None:
    clusters = [topologies.cluster("flat:4") for _ in range(40)]
    alive = [weakref.ref(Network.of(cluster)) for cluster in clusters]
    for cluster in clusters:
        mesh(cluster, range(4), Strategy(tensor=4))
        Network.of(cluster).axis(np.arange(4)[None]).seconds("all_reduce", 1.0)
    gc.collect()
    assert sum(network() is not None for network in alive) <= REMEMBERED_CLUSTERS
    assert Network.of(clusters[-1]) is Network.of(clusters[-1])
    assert Network.of(clusters[-1]) is not Network.of(clusters[-2])


def plans(problem: Problem) -> dict[str, Plan]:
    """A plan of two stages, and the same with one thing in it replaced."""
    n = len(problem.graph.ops)
    ways = Strategy(data=2)
    stages = (Stage(tuple(range(2)), (0, 1), ways, ("none",) * 2), Stage(tuple(range(2, n)), (2, 3), ways, ("none",) * (n - 2)))
    plan = Plan(stages, 4, 2, "1f1b", 16)

    def last(**fields: Any) -> Plan:
        return dataclasses.replace(plan, stages=(stages[0], dataclasses.replace(stages[1], **fields)))

    return {
        "as it is": plan,
        "Plan.schedule": dataclasses.replace(plan, schedule="gpipe"),
        "Plan.micro_batch": dataclasses.replace(plan, micro_batch=1, n_microbatches=8),
        "Stage.recompute": last(recompute=("full",) * (n - 2)),
        "Stage.devices": last(devices=(3, 2)),
        "Strategy.shard": last(strategy=dataclasses.replace(ways, shard=3)),
        "Strategy.tensor": last(strategy=dataclasses.replace(ways, data=1, tensor=2)),
    }


def played() -> dict[str, list[str]]:
    """What every one of these plans costs and takes, one after the other, and the first with a stage's cost replaced."""
    problem = posed("analytic")
    return {word: asked_of(problem, plan) for word, plan in plans(problem).items()}


def asked_of(problem: Problem, plan: Plan) -> list[str]:
    """What a plan costs and takes, and what it takes where its first stage's forward pass is twice as long."""
    stage_costs, timeline = api.evaluate(problem, plan)
    twice = (dataclasses.replace(stage_costs[0], forward_seconds=2 * stage_costs[0].forward_seconds), *stage_costs[1:])
    return [repr((stage_costs, told(timeline))), repr(told(sim.simulate(problem, plan, twice)))]


def test_plans_with_a_part_replaced_cost_and_take_what_they_do_in_a_process_that_knew_no_other() -> None:
    """Equal keys of what is remembered would be equal there too, so each is asked of a process of its own, in its own order."""
    here = played()
    assert len({one for both in here.values() for one in both}) >= 2 * (len(here) - 1)  # devices in another order are all alike
    code = "import json, test_nouns; print(json.dumps(test_nouns.alone({!r})))"
    for word in ("Stage.recompute", "Strategy.tensor"):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code.format(word)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(pathlib.Path(__file__).parent), *sys.path))},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert json.loads(done.stdout.splitlines()[-1]) == here[word]


def alone(word: str) -> list[str]:
    """What one plan of `plans` costs and takes, and with a stage's cost replaced, where nothing else was asked before."""
    problem = posed("analytic")
    return asked_of(problem, plans(problem)[word])
