"""Invariants of co-designed steps on random small workloads."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.clusters.wires import device
from meshwright.models import read
from meshwright.planners.topoopt import bounds, finder, moves
from meshwright.planners.topoopt.choices import Servers, space
from meshwright.planners.topoopt.step import PlacementTraffic, Step, data_parallel


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    n=st.sampled_from([2, 3, 4, 6]),
    tables=st.integers(1, 4),
    seed=st.integers(0, 100),
    rate=st.sampled_from([1e6, 1e9]),
    n_moves=st.integers(0, 10),
)
def test_a_step_is_never_shorter_than_its_bounds_and_all_parts_have_servers(
    n: int, tables: int, seed: int, rate: float, n_moves: int
) -> None:
    workload = read(f"topoopt:dlrm,tables={tables},rows=500,width=12,bottom=24-12,top=24-12-1,batch=48").instance
    step = Step(space(workload, Servers(n, 2, device("a100-sxm-40gb"), 25e9), None, shard=True))
    rng = np.random.default_rng(seed)
    plan = data_parallel(step.space)
    groups = moves.chains(workload)
    for _ in range(n_moves):
        plan = moves.propose(step.space, groups, plan, rng, "either")
    for choice, servers in zip(step.chosen(plan), plan.servers, strict=True):
        assert len(servers) == choice.n_parts == len(set(servers))
        assert all(0 <= server < n for server in servers)
    degree = min(2, n - 1)
    traffic = step.traffic(plan)
    cut = bounds.cut_seconds(traffic, degree * rate)
    floor = bounds.step_seconds(step.space, degree * rate)
    for fabric in finder.fabrics(traffic, n, degree, rate, 1e-6, finder.random_cycles(n, degree // 2, rng)):
        seconds = step.seconds(plan, fabric)
        assert np.isfinite(seconds)
        for below in (cut, floor, step.compute_seconds(plan), step.busy_seconds(plan, fabric)):
            assert seconds >= below * (1 - 1e-6)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(n=st.integers(3, 12), degree=st.integers(2, 5), seed=st.integers(0, 1000), n_groups=st.integers(0, 3))
def test_every_topology_keeps_its_degree_reaches_every_pair_and_sends_all_of_every_byte(
    n: int, degree: int, seed: int, n_groups: int
) -> None:
    rng, degree = np.random.default_rng(seed), min(degree, n - 1)
    groups = {tuple(sorted(rng.choice(n, size=int(rng.integers(2, n + 1)), replace=False).tolist())) for _ in range(n_groups)}
    sent = rng.random((n, n)) * (rng.random((n, n)) < 0.5) * 1e8
    np.fill_diagonal(sent, 0.0)
    traffic = PlacementTraffic(sent, tuple((members, 1e7 * (i + 1)) for i, members in enumerate(sorted(groups))))
    for made in finder.fabrics(traffic, n, degree, 1e9, 1e-6, finder.random_cycles(n, degree // 2, rng)):
        assert np.bincount(made.source, made.count, n).max() <= degree
        assert np.bincount(made.target, made.count, n).max() <= degree
        assert made.hops.min() >= 0
        for fabric in (made, made.spread(sent, traffic.group_bytes) or made):
            for a in range(n):
                for b in range(n):
                    if a != b:
                        assert abs(sum(fabric.way_shares(a, b)) - 1.0) < 1e-9
                        for way in fabric.ways(a, b):
                            assert fabric.source[way[0]] == a and fabric.target[way[-1]] == b
            for members, _ in traffic.group_bytes:
                leaves = dict.fromkeys(members, 0.0)
                for links, share in fabric.flows(members):
                    leaves[int(fabric.source[links[0]])] += share
                assert all(abs(share - 1.0) < 1e-6 for share in leaves.values())
