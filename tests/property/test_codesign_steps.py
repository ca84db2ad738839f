"""Invariants of co-designed steps on random small workloads."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.codesign import bounds, finder, moves
from meshwright.codesign.choices import Servers, space
from meshwright.codesign.step import Step, data_parallel
from meshwright.readers import read
from meshwright.topologies._wires import device


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
