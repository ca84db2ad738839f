"""Kernels as plain Python on small questions: what every function, and every part that a compiler hides, said, as recorded."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pairwise as oracle  # tests/oracle/pairwise.py
import pytest
from numba import config

from meshwright import schedules
from meshwright.schedules import Durations
from recorded import Recorded
from returned import Returned
from small_clusters import boxes, mesh
from small_pipelines import PIPELINES, posed

CALLERS = ("meshwright._kernels", "meshwright.solvers", "meshwright.sim", "meshwright.network", "meshwright.planners.dapple")


UNSET = ("_kernels/network/paths:_workspace", "_kernels/network/paths:_forget")
"""Return room, or are given some, that nothing is written to yet."""


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Import kernels and what calls them anew, with nothing compiled, for as long as the block runs."""
    before = {name: module for name, module in sys.modules.items() if name.startswith("meshwright")}
    fields = {name: dict(vars(module)) for name, module in before.items() if hasattr(module, "__path__")}
    compiled, asked = config.DISABLE_JIT, os.environ.get("NUMBA_DISABLE_JIT")
    for name in before:
        if name.startswith(CALLERS):
            del sys.modules[name]
    config.DISABLE_JIT = 1
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # which our kernels look at
    try:
        yield
    finally:
        config.DISABLE_JIT = compiled
        os.environ.pop("NUMBA_DISABLE_JIT")
        if asked is not None:
            os.environ["NUMBA_DISABLE_JIT"] = asked
        for name in [name for name in sys.modules if name.startswith("meshwright")]:
            del sys.modules[name]
        sys.modules.update(before)
        for name, known in fields.items():  # `from meshwright import sim` reads the package, not the table of modules
            vars(before[name]).update(known)


def plain(name: str) -> ModuleType:
    return importlib.import_module(f"meshwright.{name}")


@pytest.mark.parametrize("name", PIPELINES)
def test_steps_on_shared_links_are_played_as_recorded(name: str, recorded: Recorded) -> None:
    with interpreted(), Returned("_kernels/events/") as found:
        for linked in (True, False):
            problem, plan, loads = posed(name, linked=linked)
            timeline = plain("sim").simulate(problem, plan, loads)
    recorded([timeline.step_seconds, found.lines()])


def test_weight_gradients_are_placed_as_recorded(recorded: Recorded) -> None:
    with interpreted(), Returned("_kernels/events/") as found:
        for word, n_ranks, n_chunks in (("zb_h1", 3, 1), ("zb_h2", 2, 1), ("zb_v", 2, 2), ("v_min", 3, 2)):
            dice = np.random.default_rng(n_ranks)
            n = n_ranks * n_chunks
            times = Durations(*(dice.integers(1, 9, n) / 8 for _ in range(3)), dice.integers(0, 5, n - 1) / 8)
            plain("schedules").load(word).order(n_ranks, n_chunks, 4, times)
    recorded(found.lines())


@pytest.mark.parametrize("kind", ["boxes", "uneven", "torus", "line"])
def test_routes_are_found_as_recorded(kind: str, recorded: Recorded) -> None:
    cluster = {
        "boxes": lambda: boxes([2, 2], rails=True),
        "uneven": lambda: boxes([3, 1]),
        "torus": lambda: mesh(2, 3),
        "line": lambda: mesh(1, 4, rate=3e10),
    }[kind]()
    n, dice = cluster.n_devices, np.random.default_rng(2)
    with interpreted(), Returned("_kernels/network/", "_kernels/heap", without=UNSET) as found:
        network = plain("network").Network.of(cluster)
        said = [network.transfer([[0, n - 1], [1, 2]]), network.axis(np.arange(n)[None]).seconds("all_to_all", 1e6)]
        load, latency = plain("network.routes").load(cluster, *dice.integers(0, n, (2, 12)), dice.random(12))
    recorded([said, load, latency, found.lines()])


@pytest.mark.parametrize("frustrated", [False, True])
def test_messages_are_passed_as_recorded(frustrated: bool, recorded: Recorded) -> None:
    said = []
    with interpreted(), Returned("_kernels/pairwise/") as found:
        for seed, (n_nodes, n_edges, n_labels) in enumerate(((1, 0, 2), (3, 2, 3), (4, 6, 3), (5, 7, 4))):
            drawn = oracle.random_problem(seed, n_nodes, n_edges, n_labels, frustrated=frustrated)
            problem = plain("solvers.pairwise.problem").Pairwise(*(getattr(drawn, name) for name in drawn.__dataclass_fields__))
            relaxation = plain("solvers.pairwise.message_passing").tighten(problem, n_sweeps=3)
            said.append([relaxation.forced_cost, relaxation.labels, relaxation.to_row, relaxation.to_column])
    recorded([said, found.lines()])


LAYERS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"


@pytest.mark.parametrize("mode", ["corrected", "uneven", "published", "pipedream"])
def test_measured_profiles_are_planned_as_recorded(mode: str, recorded: Recorded) -> None:
    problems = plain("core.problem")
    rows = [f"n{i} -- L -- " + LAYERS.format(4 + i % 3, 9 + 2 * i, 1e9 * (1 + i % 4), 3e8 * (i % 3)) for i in range(5)]
    edges = [f"\tn{a} -- n{b}" for a, b in ((0, 1), (1, 2), (1, 3), (2, 4), (3, 4))]
    with interpreted(), Returned("_kernels/dapple/") as found:
        profile = plain("planners.dapple.readers.pipedream_txt").parse("\n".join(rows + edges), "p", profile_batch=1)
        graph = plain("planners.dapple.readers.pipedream_txt")._graph(profile, "p", "p")
        spec = problems.ModelSpec("p", "pipedream_txt", "p", graph, profile, costs="dapple", search="dapple")
        search = plain(f"planners.dapple.search.{'pipedream' if mode == 'pipedream' else 'dapple'}")
        given = {
            "machines": (2, 4),
            "global_batch": 6,
            **({"mode": mode} if mode == "published" else {"uneven": True} if mode == "uneven" else {}),
        }
        said = search.search(problems.Problem(spec, None), search.Params(**given), seed=0, stop=problems.Stop())
    recorded([said.objective, [stage.devices for stage in said.plan.stages], found.lines()])


def test_nothing_stays_interpreted() -> None:
    """After the block the compiled modules are there again, and the package names them."""
    with interpreted():
        inside = plain("_kernels.events.order")
        assert not hasattr(inside.play, "py_func")
    assert plain("_kernels.events.order") is not inside and plain("schedules") is schedules
