"""What is compiled beforehand is what the searches then call: the same kernels with arguments of the same types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

from meshwright import api
from meshwright._kernels.mapping import cost, frontier, search
from meshwright._kernels.partition import annealing, convex
from meshwright.clusters import cluster
from meshwright.planners.parmesan import precompile
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import map_stages, pair_seconds
from meshwright.solvers.partition.convex import partition
from meshwright.solvers.partition.hypergraph import Operators, contract


def _types(module: ModuleType, name: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the types of arguments that a kernel is called with."""
    kernel, seen = getattr(module, name), set()

    def spy(*arguments: Any) -> Any:
        seen.add(str(tuple(numba.typeof(argument) for argument in arguments)))
        return kernel(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, spy)
        call()
    return seen


def _wide_partition() -> object:
    """Twenty-four operators side by side: more down-sets than are listed, so that stages are annealed."""
    n, ones = 24, np.ones(24)
    operators = Operators(ones + np.arange(n) / 7, ones, ones, np.ones(n, dtype=bool), (), tuple(range(n)), ())
    return partition(contract(operators), 4, n_ideals=40)


def _mapped() -> object:
    graph = StageGraph(np.ones(3), ((0, 1, 1e9), (1, 2, 1e9)), np.full(3, 1e9), 2)
    return map_stages(graph, pair_seconds(cluster("parmesan-uniform:6")), n_moves=100)


@pytest.mark.parametrize(
    ("module", "name", "beforehand", "real"),
    [
        (annealing, "anneal", partial(precompile.run, api.plan), _wide_partition),
        (convex, "solve_pool", partial(precompile.run, api.plan), _wide_partition),
        (cost, "anneal", partial(precompile.run, api.plan), _mapped),
        (frontier, "expand", partial(precompile.run, api.plan), _mapped),
    ],
)
def test_kernels_are_compiled_for_the_types_that_searches_use(
    module: ModuleType, name: str, beforehand: Callable[[], object], real: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = _types(module, name, real, monkeypatch)
    assert used
    assert used <= _types(module, name, beforehand, monkeypatch)


def test_backtracking_is_compiled_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _types(search, "branch", partial(precompile.run, api.plan), monkeypatch)
