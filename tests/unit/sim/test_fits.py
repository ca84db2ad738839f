"""Whether a plan fits is one rule, whoever asks: the tightest device of a rank, its own reserve, a share of its memory."""

from __future__ import annotations

import ast
import pathlib
from dataclasses import replace

import numpy as np
import pytest

import meshwright
from meshwright import sim
from meshwright.clusters import cluster
from meshwright.core.cluster import Cluster, Device, Host
from meshwright.core.graph import Graph, Op
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy

BIG = Device("big", (("bf16", 1e12),), 80.0, 1e9, reserved_bytes=12.0)
SMALL = Device("small", (("bf16", 1e12),), 75.0, 1e9, reserved_bytes=2.0)
LOAD = StageCost(1.0, 1.0, weight_bytes=60.0)


def _problem(*kinds: Device, of_device: tuple[int, ...] = (0, 1)) -> Problem:
    plain = cluster(f"full-mesh:{len(of_device)}")
    mixed = replace(plain, kinds=kinds, kind_of_device=np.array(of_device))
    graph = Graph("one", (Op("layer", "other"),))
    return Problem(ModelSpec("one", "test", "one", graph), mixed)


def _plan(n: int = 2) -> Plan:
    return Plan((Stage((0,), tuple(range(n)), Strategy(data=n)),), 1, 1, "1f1b", n)


@pytest.mark.parametrize("of_device", [(0, 1), (1, 0)])
def test_the_peak_of_a_rank_is_that_of_its_tightest_device_however_devices_are_numbered(of_device: tuple[int, ...]) -> None:
    problem, plan = _problem(BIG, SMALL, of_device=of_device), _plan()
    timeline = sim.simulate(problem, plan, (LOAD,))
    # big keeps 12 of 80 for itself, small 2 of 75: 68 are free on the big one, 73 on the small one
    assert sim.tightest(problem.cluster, (0, 1)) is BIG  # type: ignore[arg-type]
    assert timeline.peak_bytes == (72.0,) and timeline.reserved_bytes == (60.0,)
    assert sim.excess_bytes(problem, plan, timeline.peak_bytes) == 72.0 - 80.0


def test_a_share_of_the_memory_may_make_another_device_of_the_rank_the_tightest() -> None:
    tall, thin = replace(BIG, reserved_bytes=0.0, memory_bytes=70.0), replace(SMALL, reserved_bytes=20.0, memory_bytes=100.0)
    problem, plan = _problem(tall, thin), _plan()
    peaks = sim.simulate(problem, plan, (LOAD,)).peak_bytes
    assert sim.excess_bytes(problem, plan, peaks) == 60.0 - 70.0
    # half the memory: 35 - 0 beside 50 - 20
    assert sim.excess_bytes(problem, plan, peaks, 0.5) == 60.0 - 30.0
    assert sim.free_bytes((tall, thin), 0.5) == 30.0


def test_every_rank_has_its_own_limit_and_the_fullest_one_decides() -> None:
    graph = Graph("two", (Op("a", "other"), Op("b", "other")))
    problem = replace(_problem(BIG, SMALL), model_spec=ModelSpec("two", "test", "two", graph))
    plan = Plan((Stage((0,), (0,)), Stage((1,), (1,))), 1, 1, "1f1b", 1)
    peaks = sim.simulate(problem, plan, (LOAD, replace(LOAD, weight_bytes=74.0))).peak_bytes
    assert sim.rank_excess_bytes(problem, plan, peaks) == (72.0 - 80.0, 76.0 - 75.0)
    assert sim.excess_bytes(problem, plan, peaks) == 1.0


def test_what_a_device_keeps_for_itself_counts_whatever_the_cost_model_says_of_it() -> None:
    problem, plan = _problem(BIG, of_device=(0, 0)), _plan()
    silent = sim.simulate(problem, plan, (LOAD,))
    told = sim.simulate(problem, plan, (replace(LOAD, reserved_bytes=12.0),))
    assert silent.peak_bytes == told.peak_bytes == (72.0,)
    assert dict(silent.memory_causes[0])["context"] == 12.0


def test_without_a_cluster_nothing_is_known_and_every_plan_fits() -> None:
    problem = replace(_problem(BIG, of_device=(0, 0)), cluster=None)
    assert sim.excess_bytes(problem, _plan(), (1e30,)) == 0.0


def test_no_other_file_compares_bytes_with_the_memory_of_a_device() -> None:
    """`reserved_bytes` or `memory_bytes` of a device stands in no comparison or difference outside `sim/fits.py`."""
    root = pathlib.Path(meshwright.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        if path == root / "sim" / "fits.py":
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "memory_bytes" in text or "reserved_bytes" in text else ():
            if not isinstance(node, ast.BinOp | ast.Compare):
                continue
            if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Sub):
                continue
            found += [
                f"{path.relative_to(root)}:{node.lineno}"
                for part in ast.iter_child_nodes(node)
                for leaf in ast.walk(part)
                if isinstance(leaf, ast.Attribute)
                and leaf.attr in ("memory_bytes", "reserved_bytes")
                and _is_device(leaf.value)
            ]
    assert found == [], f"ask meshwright.sim.fits instead: {found}"


def _is_device(node: ast.expr) -> bool:
    """Whether an expression reads like a device or one of its kinds."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "device"
    return isinstance(node, ast.Name) and node.id in ("device", "kind", "gpu")


def test_a_cluster_is_any_of_its_numberings() -> None:
    mixed = _problem(BIG, SMALL, of_device=(0, 1, 1, 0)).cluster
    assert isinstance(mixed, Cluster)
    assert sim.tightest(mixed, (1, 2)) is SMALL and sim.tightest(mixed, (2, 3)) is BIG


@pytest.mark.parametrize(("host_bytes", "missing"), [(None, 30.0), (10.0, 30.0 - 0.9 * 10.0), (1000.0, -71.0)])
def test_what_is_held_on_a_host_that_has_no_room_is_missing(host_bytes: float | None, missing: float) -> None:
    """A device holds 3 of 75 - 1 bytes and 30 on its host; a kind without a host has none, nine tenths of one may be filled."""
    host = None if host_bytes is None else Host(1e9, 1e9, host_bytes)
    kind = replace(SMALL, memory_bytes=75.0, reserved_bytes=1.0, host=host)
    problem, plan = _problem(kind, of_device=(0, 0)), _plan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim.fits, "host_bytes", lambda problem, plan: (30.0,))
        assert sim.fits.rank_excess_bytes(problem, plan, (4.0,)) == (pytest.approx(missing),)
