"""Partition and mapping on devices of unlike memory, speed and links: no numbering changes an answer, and what fits is found."""  # noqa: E501

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright import api, sim
from meshwright.clusters import cluster
from meshwright.core.cluster import Cluster, Links
from meshwright.core.plan import Plan, Stage
from meshwright.core.strategy import Strategy
from meshwright.network.numbering import canonical_order
from meshwright.planners.parmesan.costs import partition as costs
from meshwright.solvers.mapping.search import pair_seconds

GIGA = 1e9


def graph_file(random: np.random.Generator, path: Path) -> str:
    """Write a graph of a few operators of some gigabytes each."""
    n = int(random.integers(2, 6))
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 99.0, "fpgaLatency": float(random.integers(1, 6)), "isBackwardNode": 0,
         "size": float(random.integers(1, 9)) * GIGA}
        for i in range(n)
    ]  # fmt: skip
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n) if v == u + 1 or random.random() < 0.2]
    edges = [{"sourceId": u, "destId": v, "cost": 0.1, "size": float(random.choice([1e4, 1e6, 2e7]))} for u, v in pairs]
    path.write_text(json.dumps({"maxSizePerFPGA": 1e15, "maxFPGAs": 4, "maxCPUs": 0, "nodes": nodes, "edges": edges}))
    return str(path)


def unlike_cluster(random: np.random.Generator, n: int) -> Cluster:
    """Return devices of two kinds, unlike in memory and speed, with links of two speeds between them."""
    plain = cluster(f"full-mesh:{n}")
    kinds = tuple(
        replace(
            plain.kinds[0], name=name, memory_bytes=memory * GIGA, reserved_bytes=reserved * GIGA,
            flops_per_second=tuple((word, flops * factor) for word, flops in plain.kinds[0].flops_per_second),
        )
        for name, memory, reserved, factor in (
            ("big", float(random.integers(10, 24)), 1.0, 1.0), ("small", float(random.integers(4, 10)), 0.5, 0.4),
        )
    )  # fmt: skip
    of_device = random.integers(0, 2, n)
    of_device[: min(n, 2)] = [1, 0][: min(n, 2)]
    links = plain.links
    seconds_per_byte = random.random((n, n)) < 0.4
    seconds_per_byte |= seconds_per_byte.T
    speed = np.where(seconds_per_byte[links.source, links.target], 1e9, 2e10)
    return replace(
        plain, kinds=kinds, kind_of_device=of_device, links=Links(links.source, links.target, speed, links.latency_seconds),
        periods=(),
    )  # fmt: skip


def renumbered(asked: Cluster, order: np.ndarray) -> Cluster:
    """Return a cluster without switches with device `order[i]` as device `i`, and its kinds the other way round."""
    place = np.argsort(order)
    links = asked.links
    return replace(
        asked, kinds=asked.kinds[::-1], kind_of_device=len(asked.kinds) - 1 - asked.kind_of_device[order],
        links=Links(place[links.source], place[links.target], links.bytes_per_second, links.latency_seconds),
        groups=asked.groups[:, order],
    )  # fmt: skip


def single_plans(n_ops: int, n_devices: int, edges: list[tuple[int, int]]) -> list[Plan]:
    """Return every pipeline of one device a stage: all convex cuts, all devices."""
    found = []
    for n_stages in range(1, min(n_ops, n_devices) + 1):
        for stage_of in itertools.product(range(n_stages), repeat=n_ops):
            if len(set(stage_of)) < n_stages or any(stage_of[u] > stage_of[v] for u, v in edges):
                continue
            groups = [tuple(op for op in range(n_ops) if stage_of[op] == s) for s in range(n_stages)]
            for devices in itertools.permutations(range(n_devices), n_stages):
                stages = tuple(
                    Stage(group, (device,), Strategy(), ("none",) * len(group))
                    for group, device in zip(groups, devices, strict=True)
                )
                found.append(Plan(stages, 4, 1, "gpipe", 4))
    return found


def case(seed: int, tmp_path: Path) -> tuple[str, Cluster]:
    random = np.random.default_rng(seed)
    return graph_file(random, tmp_path / "graph.json"), unlike_cluster(random, int(random.integers(2, 5)))


def best_by_trying(path: str, asked: Cluster) -> float:
    """Return the least seconds per sample of all pipelines of one device a stage that fit; infinite for none."""
    problem = api.make_problem(path, asked, costs="partition")
    graph, sizes = problem.graph, [node["size"] for node in json.loads(Path(path).read_text())["nodes"]]
    best = math.inf
    for plan in single_plans(len(graph.ops), asked.n_devices, [(edge.source, edge.target) for edge in graph.edges]):
        held = [sum(sizes[op] for op in stage.ops) for stage in plan.stages]
        kinds = [asked.device(stage.devices[0]) for stage in plan.stages]
        if all(size <= kind.memory_bytes - kind.reserved_bytes for size, kind in zip(held, kinds, strict=True)):
            loads = costs.stage_costs(problem, plan)
            busiest = max(load.forward_total_seconds + load.backward_total_seconds for load in loads)
            if plan.n_microbatches * busiest < best * plan.global_batch:  # no need to play the others
                best = min(best, sim.simulate(problem, plan, loads).step_seconds / plan.global_batch)
    return best


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_what_fits_is_never_called_infeasible_and_what_does_not_is_proven(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        path, asked = case(seed, tmp_path)
        truth = best_by_trying(path, asked)
        found = api.plan(path, asked, search="stage_mapping", settings={"published": "false"})
        assert found.feasible == math.isfinite(truth), seed
        if found.feasible:
            assert found.timeline is not None and found.answer.objective is not None
            assert sim.excess_bytes(found.problem, found.plan, found.timeline.peak_bytes) <= 0.0
            assert found.answer.objective.value <= truth * 2.0, seed
        else:
            assert found.answer.infeasible_proven and found.answer.missing_bytes > 0.0


@pytest.mark.parametrize("search", ["partition", "parmesan"])
def test_the_other_searches_find_a_plan_that_fits_too(search: str, tmp_path: Path) -> None:
    for seed in range(8):
        path, asked = case(seed, tmp_path)
        found = api.plan(path, asked, search=search)
        assert found.feasible == math.isfinite(best_by_trying(path, asked)), seed
        if found.feasible:
            assert found.timeline is not None
            assert sim.excess_bytes(found.problem, found.plan, found.timeline.peak_bytes) <= 0.0


def profile_case(seed: int, tmp_path: Path) -> tuple[str, Cluster]:
    """Return a measured profile, of which every micro-batch in flight keeps activations, on unlike devices of little memory."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 6))
    lines = [
        f"node{i + 1} -- Layer{i} -- forward_compute_time={random.integers(1, 6)}.0, "
        f"backward_compute_time={random.integers(1, 9)}.0, activation_size={random.integers(1, 9) * 1e8}, "
        f"parameter_size={random.integers(1, 9) * 4e8}"
        for i in range(n)
    ]
    lines += [f"\tnode{i + 1} -- node{i + 2}" for i in range(n - 1)]
    (tmp_path / "profile.txt").write_text("\n".join(lines) + "\n")
    asked = unlike_cluster(random, int(random.integers(2, 5)))
    return str(tmp_path / "profile.txt"), grown(asked, factor=1.0 / float(random.choice([3, 6])))


def grown(asked: Cluster, *, factor: float = 1.0, more: float = 0.0) -> Cluster:
    """Return a cluster whose devices have other memory, and reserve nothing."""
    return replace(
        asked,
        kinds=tuple(replace(kind, memory_bytes=kind.memory_bytes * factor + more, reserved_bytes=0.0) for kind in asked.kinds),
    )


def test_with_what_is_missing_on_every_device_something_fits(tmp_path: Path) -> None:
    asked_for = dict.fromkeys(("partition", "parmesan", "stage_mapping", "ensemble"), 0)
    for seed in (0, 1, 5010):
        for make in (profile_case, case):
            path, small = make(seed, tmp_path)
            small = grown(small, factor=0.5)
            for search in asked_for:
                found = api.plan(path, small, search=search)
                if found.feasible:
                    continue
                asked_for[search] += 1
                assert found.answer.missing_bytes > 0.0
                more = found.answer.missing_bytes * (1 + 1e-9)
                assert api.plan(path, grown(small, more=more), search=search).feasible, (search, seed)
    assert min(asked_for.values()) >= 4


@pytest.mark.parametrize("search", ["partition", "stage_mapping", "parmesan"])
@pytest.mark.parametrize("seed", range(3))
def test_no_numbering_of_the_devices_changes_the_objective(search: str, seed: int, tmp_path: Path) -> None:
    path, asked = case(seed, tmp_path)
    first = api.plan(path, asked, search=search).answer
    random = np.random.default_rng(seed)
    for _ in range(2):
        other = api.plan(path, renumbered(asked, random.permutation(asked.n_devices)), search=search).answer
        assert (other.plan is None) == (first.plan is None)
        if first.objective is not None:
            assert other.objective is not None
            assert other.objective.value == pytest.approx(first.objective.value, rel=1e-9)
        else:
            assert other.missing_bytes == pytest.approx(first.missing_bytes, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_every_numbering_has_the_same_canonical_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    asked = unlike_cluster(random, 6)
    order = random.permutation(6)
    other = renumbered(asked, order)
    seen = []
    for one in (asked, other):
        first = canonical_order(one, pair_seconds)
        place = np.argsort(first)
        memory = [one.device(int(device)).memory_bytes for device in first]
        links = sorted(zip(place[one.links.source], place[one.links.target], one.links.bytes_per_second.tolist(), strict=True))
        seen.append((memory, links))
    assert seen[0] == seen[1]
