"""Partitions and mappings of small operator graphs as they were when this was written: answers, candidates, orders, refusals.

Times are those of files written here, machines are made up: only the memory of a device counts.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import api, clusters
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Device
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.source import Source
from meshwright.core.strategy import Strategy
from meshwright.network import numbering
from meshwright.planners.parmesan import (
    device_kinds,
    on_unlike,
    operators,
    pipelines,
    precompile,
    sharded_pipelines,
    unequal_pipelines,
)
from meshwright.planners.parmesan.check import blocks as check_blocks
from meshwright.planners.parmesan.check import mapping as check_mapping
from meshwright.planners.parmesan.check import partition as check_partition
from meshwright.planners.parmesan.check import unlike as check_unlike
from meshwright.planners.parmesan.costs import partition as costs
from meshwright.planners.parmesan.pipelines import EvaluatedPlan
from meshwright.planners.parmesan.readers import dnn_partitioning_json
from meshwright.planners.parmesan.search import parmesan, stage_mapping
from meshwright.planners.parmesan.search import partition as search_partition
from meshwright.solvers.mapping.search import pair_seconds
from meshwright.solvers.partition.hypergraph import contract
from recorded import Recorded, plain


def crc(text: str) -> int:
    """Return a sum over a text."""
    return zlib.crc32(text.encode())


def rounded(value: Any) -> Any:
    """Return plain figures with nine digits each."""
    if isinstance(value, dict):
        return {key: rounded(of) for key, of in value.items()}
    if isinstance(value, list):
        return [rounded(of) for of in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def node(i: int, seconds: float, **more: object) -> dict[str, object]:
    """Return an operator of a placement graph."""
    whole = {
        "id": i,
        "supportedOnFpga": 1,
        "cpuLatency": 9.0 * seconds,
        "fpgaLatency": seconds,
        "isBackwardNode": 0,
        "size": 2.0e6,
    }
    return whole | more


def forward(tmp_path: Path, n: int = 9, seed: int = 3, **limits: object) -> str:
    """Write a forward graph of so many operators with drawn round times, edges to the next and two further ones."""
    rng = np.random.default_rng(seed)
    times, sizes = rng.integers(1, 9, n).tolist(), rng.integers(1, 5, n).tolist()
    nodes = [node(i, float(times[i]), size=1e6 * sizes[i]) for i in range(n)]
    cost = [0.25 * (1 + i % 3) for i in range(n)]
    pairs = [(i, j) for i in range(n) for j in (i + 1, i + 3) if j < n and (j == i + 1 or i % 2)]
    edges = [{"sourceId": i, "destId": j, "cost": cost[i], "size": 1e5 * (1 + i % 4)} for i, j in pairs]
    content = {"maxSizePerFPGA": 1e9, "maxFPGAs": 3, "maxCPUs": 0, "nodes": nodes, "edges": edges}
    path = tmp_path / f"forward{n}.json"
    path.write_text(json.dumps(content | limits))
    return str(path)


def training(tmp_path: Path) -> str:
    """Write a graph with a backward pass: three forward operators, their backward ones by colour, and one alone."""
    nodes = [node(i, 2.0 + i, colorClass=i, name=f"f{i}") for i in range(3)]
    nodes += [node(3 + i, 5.0 - i, colorClass=2 - i, isBackwardNode=1, name="b") for i in range(3)]
    nodes += [node(6, 1.0, isBackwardNode=1), node(7, 0.5, name="free")]
    pairs = [(0, 1, 0.5), (1, 2, 1.0), (2, 3, 0.25), (3, 4, 0.75), (4, 5, 0.5), (5, 6, 0.125), (0, 5, 0.5), (2, 7, 0.25)]
    edges = [{"sourceId": a, "destId": b, "cost": c, "size": 1e4 * (a + 1)} for a, b, c in pairs]
    path = tmp_path / "training.json"
    path.write_text(json.dumps({"maxSizePerFPGA": 9e6, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}))
    return str(path)


def profile(tmp_path: Path) -> str:
    """Write a profile of five layers, two of which read the second."""
    rows = [(1.0, 2.0, 4e6, 1e6), (2.0, 4.0, 3e6, 8e6), (3.0, 5.0, 2e6, 0.0), (1.5, 2.5, 1e6, 3e6), (0.5, 0.5, 1e5, 2e6)]
    lines = [
        f"node{i} -- Layer{i} -- forward_compute_time={f}, backward_compute_time={b}, activation_size={a}, parameter_size={w}"
        for i, (f, b, a, w) in enumerate(rows)
    ]
    lines += [f"\tnode{a} -- node{b}" for a, b in ((0, 1), (1, 2), (1, 3), (2, 4), (3, 4))]
    path = tmp_path / "profile.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def device(memory_bytes: float, name: str = "made up") -> Device:
    return Device(name, (("bf16", 1e14),), memory_bytes, 1e12, reserved_bytes=0.0)


def uniform(n: int, memory_bytes: float = 1e9, spec: str = "parmesan-two-level") -> Cluster:
    """Return devices that are alike."""
    return replace(clusters.cluster(f"{spec}:{n}"), kinds=(device(memory_bytes),), kind_of_device=np.zeros(n, dtype=np.int64))


def mixed(n: int = 4, small: float = 6e6, large: float = 14e6) -> Cluster:
    """Return devices of which every third is large."""
    kinds = (device(small, "small"), device(large, "large"))
    return replace(clusters.cluster(f"parmesan-dgx1:{n}"), kinds=kinds, kind_of_device=(np.arange(n) % 3 == 1).astype(np.int64))


def short(plan: Plan) -> str:
    """Return a plan in a line."""
    stages = [f"{stage.ops}@{stage.devices}{stage.ring or ''}" for stage in plan.stages]
    return f"{' '.join(stages)} {plan.n_microbatches}x{plan.micro_batch} {plan.schedule} {plan.global_batch}"


def told(answer: Any) -> dict[str, object]:
    """Return an answer without what only names the question."""
    return {
        "plan": None if answer.plan is None else short(answer.plan),
        "objective": answer.objective,
        "bound": answer.bound,
        "notes": answer.notes,
        "missing": answer.missing_bytes,
        "nearest": answer.nearest,
        "proven": answer.infeasible_proven,
        "others": summed(f"{short(one.plan)} {one.objective.value:.9g} {one.why}" for one in answer.alternatives),
        "n": answer.n_iterations,
    }


def summed(lines: Iterable[str]) -> list[object]:
    """Return how many lines there are, the first, and a sum over all."""
    found = list(lines)
    return [len(found), found[:1], crc("\n".join(found))]


def test_operators_of_files(tmp_path: Path, recorded: Recorded) -> None:
    for name, path, cluster in (
        ("forward", forward(tmp_path), None),
        ("training", training(tmp_path), None),
        ("profile", profile(tmp_path), None),
        ("profile on", profile(tmp_path), uniform(4)),
    ):
        problem = api.make_problem(path, cluster)
        posed = operators.question(problem)
        recorded(
            {
                "operators": posed.operators,
                **{
                    field: getattr(posed, field)
                    for field in (
                        "unit_seconds",
                        "objective",
                        "forward",
                        "output_bytes",
                        "weight_bytes",
                        "n_stages",
                        "own_memory_bytes",
                        "own_times",
                        "notes",
                    )
                },
            },
            name,
        )
        assert operators.costed(problem).costs == "partition"
    wide = operators.question(api.make_problem(profile(tmp_path), mixed(4)))
    recorded([wide.operators.nets, wide.notes], "on mixed")
    wide = operators.question(api.make_problem(profile(tmp_path), uniform(4)), 1e9)
    recorded([wide.operators.nets, wide.notes], "a bandwidth asked for")
    with pytest.raises(
        InputError, match=re.escape("holds the time of every transfer, so a bandwidth does not apply; leave the option out")
    ):
        operators.question(api.make_problem(forward(tmp_path)), 1e9)
    with pytest.raises(InputError, match="say where to train it: --cluster dgx-h100:64"):
        operators._modelled(SimpleNamespace(cluster=None, model_spec=SimpleNamespace(name="m")), 0.0)  # type: ignore[arg-type]


def test_what_stages_of_files_do(tmp_path: Path, recorded: Recorded) -> None:
    cases: tuple[tuple[str, str, Cluster | None, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]], ...] = (
        ("forward", forward(tmp_path), uniform(4), (((0, 1, 2), (0, 1)), ((3, 4), (2,)), ((5, 6, 7, 8), (3,)))),
        ("alone", forward(tmp_path), None, (((0, 1, 2), (0,)), ((3, 4), (9,)), ((5, 6, 7, 8), (1,)))),
        ("training", training(tmp_path), None, (((0, 5), (0,)), ((1, 4, 6), (8,)), ((2, 3, 7), (1,)))),
        ("profile", profile(tmp_path), uniform(5), (((0, 1), (0, 4, 1)), ((2, 3, 4), (2,)))),
        ("profile alone", profile(tmp_path), None, (((0, 1), (0,)), ((2,), (1,)), ((3, 4), (2,)))),
    )
    for name, path, cluster, parts in cases:
        problem = operators.costed(api.make_problem(path, cluster))
        stages = tuple(Stage(ops, devices, Strategy(data=len(devices)), ("none",) * len(ops)) for ops, devices in parts)
        most = max(len(devices) for _, devices in parts)
        plan = Plan(stages, 2, 1, "gpipe", 2 * most)
        loads = [plain(load) for load in costs.stage_costs(problem, plan)]
        recorded([{key: value for key, value in load.items() if value} for load in loads], name)
        if cluster is not None:
            both = [pipelines.evaluate_plan(problem, plan, "x", copies_beside_compute=beside) for beside in (True, False)]
            recorded([(one.step_seconds, one.seconds_per_sample, one.label) for one in both], f"{name} played")
            assert both[0].step_seconds <= both[1].step_seconds
    wrong = replace(plan, stages=(replace(plan.stages[0], strategy=Strategy(shard=2)), *plan.stages[1:]))
    with pytest.raises(InputError, match="stage 0: shard is 2; costs partition know replicas only, so it must be 0"):
        costs.stage_costs(problem, wrong)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_stages": "2"},
        {"n_stages": "4", "memory_limit": "8 MB"},
        {"n_cpus": "1"},
        {"memory_limit": "none", "n_stages": "1"},
        {"memory_limit": "5 MB"},
        {"memory_limit": "1 MB"},
    ],
)
def test_partitions_of_files(settings: dict[str, str], tmp_path: Path, recorded: Recorded) -> None:
    for name, path in (("forward", forward(tmp_path)), ("training", training(tmp_path))):
        answer = api.plan(path, search="partition", settings=settings).answer
        recorded([told(answer), dict(answer.extra)], name)
    if "n_cpus" not in settings:
        for name, cluster in (("alike", uniform(4, 9e6)), ("unlike", mixed(4)), ("small", mixed(4, 1e6, 2e6))):
            answer = api.plan(path, cluster, search="partition", settings=settings).answer
            recorded([told(answer), dict(answer.extra)], name)


def test_partitions_of_profiles_and_what_is_refused(tmp_path: Path, recorded: Recorded) -> None:
    answer = api.plan(profile(tmp_path), search="partition", settings={"n_stages": "3"}, batch=Batch(12, 2)).answer
    recorded(told(answer), "profile")
    recorded(told(api.plan(profile(tmp_path), mixed(4, 2e7, 9e7), search="partition").answer), "on mixed")
    none = tmp_path / "none.json"
    entry = json.loads(Path(forward(tmp_path)).read_text())
    entry["nodes"][2]["supportedOnFpga"] = 0
    none.write_text(json.dumps(entry))
    for cluster in (None, uniform(4), mixed(4)):
        recorded(
            told(api.plan(str(none), cluster, search="partition", settings={"memory_limit": "none"}).answer),
            f"unsupported {cluster and cluster.homogeneous}",
        )
    recorded(told(api.plan(str(none), search="partition").answer), "unsupported within the limit")
    for path, cluster, settings, says in (
        (
            profile(tmp_path),
            None,
            {},
            "--set n_stages: say how many stages (the input names neither a number of accelerators nor a cluster)",
        ),
        (profile(tmp_path), uniform(3), {"n_cpus": "1"}, "has no times on host devices; leave it at 0"),
        (
            forward(tmp_path),
            uniform(3),
            {"n_cpus": "2"},
            "--set n_cpus=2: cluster parmesan-two-level:3 has no host devices; leave --cluster out, or n_cpus",
        ),
        (
            forward(tmp_path),
            uniform(3),
            {"n_stages": "4"},
            "--set n_stages=4: cluster parmesan-two-level:3 has only 3 devices; give at most as many",
        ),
        (
            forward(tmp_path),
            mixed(3),
            {"n_stages": "4"},
            "--set n_stages=4: cluster parmesan-dgx1:3 has only 3 devices; give at most as many",
        ),
        (
            forward(tmp_path),
            None,
            {"n_stages": "10"},
            "--set n_stages=10: forward9 has only 9 operators; give at most as many stages",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            api.plan(path, cluster, search="partition", settings=settings)


FLOWS: dict[str, dict[str, str]] = {
    "plain": {},
    "old": {"new_flow": "false", "k": "5", "n_stages": "3"},
    "many": {"search_k": "true", "search_comm_coef": "true", "k": "4", "n_stages": "2"},
    "blocking": {"concurrent_copy_comp": "false", "incl_allr": "true", "n_stages": "2"},
    "transfers": {"incl_p2p": "true", "incl_allr": "true", "n_stages": "4", "nodes": "3"},
    "rounds": {"parallel_degree": "4", "parallel_same_t": "2", "n_stages": "3", "n_microbatches": "2"},
}


@pytest.mark.parametrize("name", FLOWS)
def test_the_published_flow(name: str, tmp_path: Path, recorded: Recorded) -> None:
    for of, path, cluster in (
        ("graph", forward(tmp_path), uniform(6)),
        ("profile", profile(tmp_path), uniform(6, spec="parmesan-dgx1")),
        ("unlike", forward(tmp_path), mixed(6, 12e6, 20e6)),
    ):
        if of == "profile" and FLOWS[name].get("n_stages") == "4":
            continue
        answer = api.plan(path, cluster, search="parmesan", settings=FLOWS[name], seed=2).answer
        extra = {key: value for key, value in answer.extra.items() if key != "candidates"}
        candidates = answer.extra["candidates"]
        assert isinstance(candidates, dict)
        recorded(
            [
                told(answer) | {"others": len(answer.alternatives)},
                extra,
                len(candidates),
                sorted(candidates.values())[:6],
                crc(" ".join(candidates)),
            ],
            of,
        )


@pytest.mark.parametrize("search", ["parmesan", "stage_mapping"])
def test_what_is_said_where_nothing_fits(search: str, tmp_path: Path, recorded: Recorded) -> None:
    for name, cluster in (("alike", uniform(3, 3e6)), ("unlike", mixed(3, 1e6, 6e6)), ("nearly", mixed(4, 6e6, 9e6))):
        recorded(told(api.plan(forward(tmp_path), cluster, search=search).answer), name)
    recorded(told(api.plan(profile(tmp_path), mixed(3, 1e6, 9e6), search=search).answer), "profile")


@pytest.mark.parametrize(
    "settings", [{}, {"n_stages": "3", "rounds": "2"}, {"published": "false", "unequal": "false", "moves": "300"}]
)
def test_partition_and_mapping_together(settings: dict[str, str], tmp_path: Path, recorded: Recorded) -> None:
    for name, path, cluster in (
        ("graph", forward(tmp_path, 6), uniform(5)),
        ("profile", profile(tmp_path), uniform(4)),
        ("unlike", forward(tmp_path), mixed(4, 16e6, 20e6)),
    ):
        answer = api.plan(path, cluster, search="stage_mapping", settings=settings, seed=1).answer
        mappings = answer.extra["mappings"]
        assert isinstance(mappings, list)
        recorded(
            [
                told(answer),
                [(one["n_stages"], one["n_replicas"], one["seconds"], one["bound_seconds"], one["exact"]) for one in mappings],
            ],
            name,
        )


def test_plans_with_unequal_replicas_and_exchanged_devices(tmp_path: Path, recorded: Recorded) -> None:
    for name, cluster, batch in (("five", uniform(5), Batch(12, 1)), ("mixed", mixed(4, 14e6, 20e6), Batch())):
        problem = operators.costed(api.make_problem(forward(tmp_path), cluster, batch=batch))
        posed = operators.question(problem)
        units = contract(posed.operators, weigh_memory=True)
        laid = unequal_pipelines.device_orders(cluster)
        recorded([(word, order) for word, order in laid], f"{name} orders")
        slower = np.array([1.0, 2.0, 1.0, 1.5, 1.0])[: cluster.n_devices]
        found = list(unequal_pipelines.unequal_plans(problem, units, 4, laid, slower, (2e7, 9e6)))
        recorded(summed(f"{label}: {short(plan)}" for label, plan in found), f"{name} plans")
        judged = [pipelines.evaluate_plan(problem, plan, label) for label, plan in found[:12]]
        better = unequal_pipelines.swapped(problem, posed, judged)
        recorded([(one.label, short(one.plan), one.step_seconds) for one in better], f"{name} exchanged")
        fits, missing = pipelines.fitting(problem, posed, judged)
        recorded([[(one.label, one.step_seconds) for one in fits], missing], f"{name} fitting")


def test_pipelines_on_unlike_devices(tmp_path: Path, recorded: Recorded) -> None:
    for name, path, cluster in (
        ("graph", forward(tmp_path), mixed(5, 9e6, 16e6)),
        ("profile", profile(tmp_path), mixed(4, 3e7, 6e7)),
    ):
        problem = operators.costed(api.make_problem(path, cluster))
        posed = operators.question(problem)
        kinds = device_kinds.kinds_of(problem, posed)
        recorded([[(kind.n_devices, kind.free_bytes) for kind in kinds.kinds], kinds.devices, kinds.unlike], f"{name} kinds")
        shapes = ((2, 2), (3, 1), (1, 4), (2, 5))
        recorded(
            [(label, short(plan)) for label, plan in on_unlike.pipelines_on_unlike(problem, posed, shapes, 3, 0)], f"{name} all"
        )
        recorded(
            [(label, short(plan)) for label, plan in on_unlike.pipelines_on_unlike(problem, posed, shapes[:1], 3, 2)],
            f"{name} two",
        )
        recorded(
            [(label, short(plan)) for label, plan in on_unlike.nearest_pipelines(problem, posed, shapes, 3, 0)],
            f"{name} nearest",
        )
        recorded([one.nets for one in on_unlike._priced(problem, posed)], f"{name} priced")
        recorded([on_unlike._held_bytes(problem, posed, n) for n in (1, 3)], f"{name} held")
        recorded([on_unlike.nothing_fits(problem, posed, n) for n in (0, 1, 2)], f"{name} nothing")
        recorded(pipelines.memory_limits(problem, posed), f"{name} limits")
        alike = operators.costed(api.make_problem(path, uniform(4)))
        assert on_unlike.pipelines_on_unlike(alike, operators.question(alike), shapes, 3, 0) == []
        assert pipelines.memory_limits(alike, posed) == (np.inf,)
        assert pipelines.memory_limits(replace(problem, costs="analytic"), posed)[0] == np.inf


def test_numberings_of_mixed_clusters(tmp_path: Path, recorded: Recorded) -> None:
    """Whatever the numbering, the same device comes first; switches and links follow."""
    cluster = mixed(6)
    seen = pair_seconds(cluster)
    order = numbering.canonical_order(cluster, pair_seconds)
    recorded([order, numbering._renumbered(cluster, order).links.source, numbering._renumbered(cluster, order).groups], "dgx1")
    switched = replace(
        clusters.cluster("flat:4,bandwidth=1e9,latency=1e-6"), kinds=cluster.kinds, kind_of_device=np.array([1, 0, 0, 1])
    )
    made = numbering._renumbered(switched, np.array([2, 0, 3, 1]))
    recorded(
        [numbering.canonical_order(switched, pair_seconds), made.links, made.groups, made.kind_of_device, made.n_switches],
        "switched",
    )
    for seed in range(3):
        moved = np.random.default_rng(seed).permutation(6)
        other = numbering._renumbered(cluster, moved)
        again = numbering.canonical_order(other, pair_seconds)
        assert (pair_seconds(other)[np.ix_(again, again)] == seen[np.ix_(order, order)]).all()
        assert (other.kind_of_device[again] == cluster.kind_of_device[order]).all()
    problem = operators.costed(api.make_problem(forward(tmp_path), cluster))
    values = {
        api.plan(
            problem.model_spec.spec,
            numbering._renumbered(cluster, np.random.default_rng(seed).permutation(6)),
            search="parmesan",
            settings={"n_stages": "3"},
        ).answer.objective
        for seed in range(2)
    }
    assert len({round(one.value, 12) for one in values if one is not None}) == 1


def test_clusters_of_the_tables(recorded: Recorded) -> None:
    for spec in (
        "parmesan-two-level:9",
        "parmesan-dgx1:17",
        "parmesan-mesh:2x3",
        "parmesan-torus:4x3",
        "parmesan-torus:2x3x2",
        "parmesan-uniform:5,seed=1",
        "parmesan-random-blocks-1:9",
        "parmesan-random-blocks-2:12,seed=4",
        "parmesan-random-blocks-2:1",
        "parmesan-uniform:3,latency=1us,launch=2us",
    ):
        made = clusters.cluster(spec)
        table = np.zeros((made.n_devices, made.n_devices))
        table[made.links.source, made.links.target] = made.links.bytes_per_second
        recorded(
            [
                table,
                made.groups,
                sorted(set(made.links.latency_seconds.tolist())),
                made.source,
                made.forwards,
                made.launch_seconds,
            ],
            spec,
        )


def unequal_graph(tmp_path: Path) -> tuple[Any, Problem]:
    problem = api.make_problem(forward(tmp_path, 6))
    return operators.question(problem).operators, problem


def test_checks_of_partitions_refuse_what_is_wrong(tmp_path: Path) -> None:
    made, _ = unequal_graph(tmp_path)
    found = api.plan(forward(tmp_path, 6), search="partition", settings={"n_stages": "2"})
    groups = tuple(tuple(stage.ops) for stage in found.plan.stages)
    assert found.answer.objective is not None
    value = found.answer.objective.value
    claim = check_partition.ClaimedPartition(groups, (False, False), 2, 0, 1e9, value, value)
    assert check_partition.check(made, claim) == check_partition.Verdict(True, value, value)
    held = max(float(made.memory[list(group)].sum()) for group in groups)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"groups": (groups[0], groups[1][1:])}, "not every operator is in exactly one stage"),
        ({"n_stages": 1}, "2 accelerators and 0 hosts are used of 1 and 0"),
        ({"hosts": (True, False)}, "1 accelerators and 1 hosts are used of 2 and 0"),
        ({"groups": groups[::-1]}, "behind stage"),
        ({"memory_limit_bytes": held - 1}, f"holds {held!r} bytes of {held - 1!r}"),
        ({"value": value * 1.001}, f"the largest load is {value!r}, not {value * 1.001!r}"),
        ({"value": value * 0.999}, "the largest load is"),
        ({"bound_value": value * 1.001}, "is above the largest load"),
        ({"n_hosts": 1}, "the partition holds, but bounds are checked without host devices only"),
        (
            {"n_stages": 3, "groups": groups, "bound_value": value, "memory_limit_bytes": 2 * held},
            "the partition holds, but its bound needs the memory limit, which is not checked here",
        ),
        ({"n_stages": 3, "memory_limit_bytes": np.inf}, "some partition has less than the bound claimed"),
    ]
    for change, says in cases:
        verdict = check_partition.check(made, replace(claim, **change))
        assert not verdict.valid and says in verdict.reason, says
    assert check_partition.check(made, replace(claim, memory_limit_bytes=held, bound_value=value * 0.5)).valid
    together = replace(made, colocated=(0, 1, 2, 3, 4, 0))
    assert check_partition.check(together, claim).reason == "operators 0 and 5 must stay together and do not"
    barred = replace(made, supported=np.array([True, False, True, True, True, True]))
    assert check_partition.check(barred, claim).reason.endswith("has an operator that no accelerator supports")
    hosts = replace(claim, hosts=(True, False), n_hosts=1, value=max(float(made.host[list(groups[0])].sum()), 0.0))
    assert check_partition.check(made, hosts).reason.startswith("the partition holds")


def test_checks_of_partitions_onto_unlike_devices_refuse_what_is_wrong(tmp_path: Path) -> None:
    made, _ = unequal_graph(tmp_path)
    kinds = [check_unlike.DeviceKind(made.compute, 8e6, 1), check_unlike.DeviceKind(2.0 * made.compute, 2e7, 1)]
    from meshwright.solvers.partition.unlike import cut_unlike

    cut = cut_unlike(made, kinds, 2)
    assert cut.exact
    claim = check_unlike.ClaimedUnlikePartition(cut.groups, cut.kinds, 2, cut.value, cut.value)
    assert check_unlike.check(made, kinds, claim).valid
    value = cut.value
    small = [replace(kind, free_bytes=1e6) for kind in kinds]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (kinds, {"groups": (cut.groups[0],) * 2}, "not every operator is in exactly one stage"),
        (kinds, {"n_stages": 1}, "2 devices are used of 1"),
        (kinds, {"kinds": (1, 1)}, "2 devices of a kind are used of 1"),
        (kinds, {"groups": cut.groups[::-1]}, "behind stage"),
        (small, {}, "bytes of the 1000000.0 of its device"),
        (kinds, {"value": value * 1.01}, f"the largest load is {value!r}, not {value * 1.01!r}"),
        (kinds, {"bound_value": value * 1.01}, "is above the largest load"),
        ([*kinds, kinds[0]], {"n_stages": 3}, "some partition has less than the bound claimed"),
    ]
    for of, change, says in cases:
        verdict = check_unlike.check(made, of, replace(claim, **change))
        assert not verdict.valid and says in verdict.reason, says
    assert check_unlike.check(made, kinds, replace(claim, bound_value=value / 5)).valid
    together = replace(made, colocated=(0, 1, 2, 3, 4, 0))
    assert check_unlike.check(together, kinds, claim).reason == "operators 0 and 5 must stay together and do not"
    barred = replace(made, supported=np.array([False] * 6))
    assert check_unlike.check(barred, kinds, claim).reason == "stage 0 has an operator that no accelerator supports"


def test_checks_list_all_down_sets_and_blocks(tmp_path: Path, recorded: Recorded) -> None:
    for name, path in (("forward", forward(tmp_path, 6)), ("training", training(tmp_path))):
        made = operators.question(api.make_problem(path)).operators
        blocks = check_blocks.OperatorBlocks.of(made)
        recorded([blocks, check_blocks._joined(made)], f"{name} blocks")
        total = sum(blocks.compute)
        steps = [0]
        windows = [(0.0, 0.3 * total), (0.6 * total, 0.8 * total)]
        listed = sorted(check_partition._down_sets(blocks, windows, steps, 10**6, nets=0, most=[0.0]))
        recorded([listed, steps], f"{name} down-sets")
        for limit in (0.35, 0.5, 0.6, 0.8):
            steps = [0]
            ends = check_partition._ends(blocks, 3, limit * total, steps)
            recorded(
                [
                    sorted((ideal, compute, sorted(nets)) for ideal, (compute, nets) in ends.items()),
                    steps,
                    check_partition._exists(blocks, 3, limit * total),
                ],
                f"{name} ends {limit}",
            )
        recorded(check_unlike._down_sets(made), f"{name} sets")
        kinds = [check_unlike.DeviceKind(made.compute, 1e9, 2), check_unlike.DeviceKind(0.5 * made.compute, 9e6, 1)]
        recorded(
            [check_unlike._exists(made, kinds, n, share * total) for n in (1, 2, 3) for share in (0.2, 0.3, 0.4, 0.6, 1.1)],
            f"{name} exist",
        )
    assert check_blocks._free(replace(made, compute=np.zeros(len(made.compute))), list(range(8)), [(0, 1)]) is not None


def test_checks_of_mappings_refuse_what_is_wrong(recorded: Recorded) -> None:
    cluster = uniform(6, spec="parmesan-uniform")
    table = check_mapping.pair_table(cluster)
    assert np.allclose(table, pair_seconds(cluster))
    for spec in ("parmesan-mesh:2x3", "flat:4,bandwidth=1e9,latency=1e-6", "parmesan-dgx1:9"):
        recorded(np.array(check_mapping.pair_table(clusters.cluster(spec)))[:4], spec)
    relayed = replace(clusters.cluster("torus:2x3"), forwards=True)
    recorded(check_mapping.pair_table(relayed), "relayed")
    stages = check_mapping.MappedStages((1e-3, 2e-3), {(0, 1): 5e6}, (1e6, 3e6))
    devices = ((0, 1, 2), (3, 4, 5))
    costs_of = [
        check_mapping._replica(stages, table, devices, s, r) + stages.ring[s] * check_mapping._slowest(table, devices[s])
        for s in range(2)
        for r in range(3)
    ]
    recorded(costs_of, "costs")
    worst = max(costs_of)
    claim = check_mapping.ClaimedMapping(devices, ((0, 1, 2), (0, 1, 2)), worst, 0.0)
    assert check_mapping.check(stages, table, claim) == ""
    assert check_mapping.check(stages, table, replace(claim, bound_seconds=worst), worst) == ""
    for change, says in (
        ({"devices": ((0, 1, 2), (3, 4, 0))}, "a device is used twice, or there is no such device"),
        ({"devices": ((0, 1, 2), (3, 4, 6))}, "a device is used twice"),
        ({"rings": ((0, 1, 1), (0, 1, 2))}, "a ring does not go once through all replicas"),
        ({"devices": ((0, 1, 2), (3, 4))}, "a ring does not go once"),
        ({"seconds": worst * 1.001}, f"the largest cost of a device is {worst!r} seconds, not {worst * 1.001!r}"),
        ({"bound_seconds": worst * 1.001}, "is above the largest cost"),
        ({"bound_seconds": worst}, "some mapping costs less than the bound claimed"),
    ):
        assert check_mapping.check(stages, table, replace(claim, **change)).startswith(says) or says in check_mapping.check(
            stages, table, replace(claim, **change)
        )  # type: ignore[arg-type]
    recorded(
        [check_mapping._exists(stages, table, n, ratio * worst) for n in (1, 2, 3) for ratio in (0.2, 0.5, 0.8, 1.0)], "exist"
    )
    recorded(
        [check_mapping._ring(table, tuple(range(5)), float(rate)) for rate in np.quantile(table, np.linspace(0, 1, 9))], "rings"
    )
    recorded([list(check_mapping._rows(table, placed, 2))[:9] for placed in ((), ((0, 3),))], "rows")


def test_the_warm_up_compiles_what_the_searches_call(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """The kernels are asked with small questions of the types that searches ask with."""
    seen: list[object] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(precompile, name)

        def note(*args: object, **more: object) -> object:
            plain = [one if not hasattr(one, "arrays") else one.arrays for one in args]  # type: ignore[attr-defined]
            flags = [value.flags.writeable for value in more.values() if isinstance(value, np.ndarray)]
            seen.append([name, plain, more, flags])
            return real(*args, **more)

        return note

    for name in ("map_stages", "backtrack", "partition", "annealed"):
        monkeypatch.setattr(precompile, name, noting(name))
    precompile.run(
        lambda *args, **more: seen.append(
            [args, {key: value for key, value in more.items() if key != "batch"}, more["batch"].global_batch]
        )
    )
    recorded([[one[0] if isinstance(one[0], str) else one, crc(json.dumps(rounded(plain(one))))] for one in seen])


def variant_costs(problem: object, plan: Plan) -> tuple[Any, ...]:
    """Return made-up loads: layers take a second per sample each, less with tensors split; states shrink with shards."""
    return tuple(
        SimpleNamespace(
            forward_total_seconds=len(stage.ops) * (1.0 + s) / stage.strategy.tensor,
            backward_total_seconds=0.5 * plan.micro_batch,
            static_bytes=len(stage.ops) * 10.0 / (1 + stage.strategy.shard),
        )
        for s, stage in enumerate(plan.stages)
    )


def test_variants_of_plans_in_the_order_of_their_work(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    module = SimpleNamespace(
        illegal=lambda problem, strategy, samples: strategy.tensor == 8 or samples == 3,
        stage_costs=variant_costs,
        compute_seconds=lambda problem, strategy, size, device: {
            0: (0.5 + size) * device.memory_bytes / strategy.tensor,
            1: 3.0 * size,
        },
    )
    cluster = mixed(6, 20.0, 45.0)
    problem: Any = SimpleNamespace(costs="made up", cluster=cluster, required_cluster=cluster, batch=Batch(8), memory_ratio=1.0)
    stages = tuple(
        Stage(ops, devices, Strategy(data=len(devices)), ("none",) * len(ops))
        for ops, devices in (((0, 1, 2), (0, 1, 2, 3)), ((3,), (4, 5)))
    )
    plan = Plan(stages, 2, 1, "gpipe", 8)
    found = sharded_pipelines._candidates(problem, module, [EvaluatedPlan(plan, 1.0, "it")])
    recorded([(one.label, one.work_seconds, one.too_large, one.plan.n_microbatches) for one in found], "candidates")
    monkeypatch.setattr(registry, "load", lambda *_: module)
    monkeypatch.setattr(sharded_pipelines, "offers", lambda *_: True)
    monkeypatch.setattr(sharded_pipelines.analytic, "rows", lambda _: [0, 0, 1])
    recorded(
        [sharded_pipelines.least_seconds_per_sample(replace_batch(problem, *batch)) for batch in ((8, 0), (8, 2), (0, 0))],
        "bound",
    )

    def play(problem: object, module: object, plan: Plan) -> tuple[Any, tuple[float, ...]]:
        extra = {"gpipe": 0.0, "1f1b": 2.0, "zb_h1": 1.0}[plan.schedule]
        over = tuple(
            load.static_bytes - 12.0 - sum(word != "none" for word in stage.recompute)
            for load, stage in zip(variant_costs(problem, plan), plan.stages, strict=True)
        )
        return SimpleNamespace(
            step_seconds=extra + plan.n_microbatches * sum(load.forward_total_seconds for load in variant_costs(problem, plan))
        ), over

    monkeypatch.setattr(sharded_pipelines, "_played", play)
    fits, missing = sharded_pipelines.fitted(problem, [EvaluatedPlan(plan, 1.0, "it")])
    recorded([[(one.label, one.step_seconds, one.plan.stages[0].recompute) for one in fits], missing], "fitted")
    monkeypatch.setattr(sharded_pipelines, "offers", lambda *_: False)
    assert sharded_pipelines.least_seconds_per_sample(problem) == 0.0


def replace_batch(problem: Any, global_batch: int, micro_batch: int) -> Any:
    return SimpleNamespace(**{**vars(problem), "batch": Batch(global_batch, micro_batch)})


def test_placement_graphs_are_read_or_refused(tmp_path: Path, recorded: Recorded) -> None:
    read = dnn_partitioning_json.read(Source(training(tmp_path)))
    recorded(
        [
            crc(repr(read.instance)),
            [op.name for op in read.graph.ops],
            [op.kind for op in read.graph.ops],
            read.costs,
            read.search,
        ]
    )
    path = tmp_path / "wrong.json"
    edge = {"sourceId": 0, "destId": 1, "cost": 1.0}
    whole = {"maxSizePerFPGA": 9e6, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [node(i, 1.0) for i in range(3)], "edges": [edge]}
    for change, says in (
        ({"nodes": [node(0, 1.0), node(0, 1.0)]}, "nodes[1]: the id 0 is that of nodes[0] too; ids must be unique"),
        ({"nodes": []}, "nodes"),
        ({"maxFPGAs": -1}, "maxFPGAs"),
        ({"maxCPUs": 0.5}, "maxCPUs"),
        ({"more": 1}, "more"),
        ({"maxSizePerFPGA": -1}, "maxSizePerFPGA"),
        ({"nodes": [node(0, 1.0, fpgaLatency=-1), node(1, 1.0)]}, "nodes[0]: fpgaLatency"),
        (
            {"nodes": [node(0, 1.0, supportedOnFpga=2), node(1, 1.0)]},
            "nodes[0]: supportedOnFpga is 2; it must be true, false, 0 or 1",
        ),
        ({"nodes": [node(0, 1.0, colorClass="x"), node(1, 1.0)]}, "colorClass"),
        ({"edges": [edge | {"destId": 7}]}, "edges[0]: 'destId' is 7, but no node has this id"),
        ({"edges": [edge | {"sourceId": 8}]}, "edges[0]: 'sourceId' is 8"),
        ({"edges": [edge | {"destId": 0}]}, "edges[0]: goes from node 0 to itself; edges must form no cycle"),
        ({"edges": [edge, edge | {"destId": 2, "cost": 2.0}]}, "edges[1]: 'cost' is 2, but another edge out of node 0 has 1;"),
        ({"edges": [edge | {"size": -1}]}, "edges[0]: size"),
        ({"edges": [edge, {"sourceId": 1, "destId": 0, "cost": 1.0}]}, "cycle"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(InputError, match=re.escape(says)):
            dnn_partitioning_json.read(Source(str(path)))
    for change, known in (({}, True), ({"nodes": 1}, True), ({"drop": "nodes"}, False), ({"drop": "edges"}, False)):
        entry = {key: value for key, value in (whole | change).items() if key not in ("drop", change.get("drop"))}
        path.write_text(json.dumps(entry))
        assert dnn_partitioning_json.recognises(Source(str(path))) is known
    for gone in (("maxFPGAs",), ("maxSizePerFPGA",), ("maxFPGAs", "maxSizePerFPGA")):
        path.write_text(json.dumps({key: value for key, value in whole.items() if key not in gone}))
        assert dnn_partitioning_json.recognises(Source(str(path))) is (len(gone) == 1)


def test_parameters_and_small_parts(recorded: Recorded) -> None:
    recorded([parmesan.Params(), stage_mapping.Params(), search_partition.Params()])
