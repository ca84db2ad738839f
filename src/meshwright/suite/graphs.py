"""Operator graphs made from a seed, in the format of placement graphs (``dnn_partitioning_json``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright.base.errors import UnknownNameError

__all__ = ["placement_graph"]

_Edges = list[tuple[int, int]]


def _chain(n: int, random: np.random.Generator) -> _Edges:
    return [(i, i + 1) for i in range(n - 1)]


def _layers(n: int, random: np.random.Generator) -> _Edges:
    """Return blocks of five: one operator, three beside each other, one that joins them; a skip over every block."""
    edges: _Edges = []
    for first in range(0, n - 4, 4):
        edges += [(first, first + i) for i in (1, 2, 3)] + [(first + i, first + 4) for i in (1, 2, 3)] + [(first, first + 4)]
    last = (n - 5) // 4 * 4 + 4 if n >= 5 else 0
    return edges + [(i, i + 1) for i in range(last, n - 1)]


def _series_parallel(n: int, random: np.random.Generator) -> _Edges:
    """Return a graph grown from one edge by putting operators into edges, or beside them."""
    edges: _Edges = [(0, 1)] if n > 1 else []
    for new in range(2, n):
        source, target = edges[int(random.integers(len(edges)))]
        if random.random() < 0.6:
            edges.remove((source, target))
        edges += [(source, new), (new, target)]
    return edges


def _random(n: int, random: np.random.Generator) -> _Edges:
    """Return a graph in which each operator reads one to three of the sixteen before it."""
    edges: _Edges = []
    for i in range(1, n):
        count = min(i, int(random.integers(1, 4)))
        edges += [(i - 1 - int(back), i) for back in random.choice(min(i, 16), size=count, replace=False)]
    return edges


_SHAPES: Mapping[str, Callable[[int, np.random.Generator], _Edges]] = MappingProxyType(
    {"chain": _chain, "layers": _layers, "series_parallel": _series_parallel, "random": _random}
)


def placement_graph(shape: str, n: int, seed: int) -> str:
    """Return a graph as JSON: `n` operators of 0.1 to 1 ms (lognormal), tensors that take a tenth of that to move.

    Parameters
    ----------
    shape : str
        ``chain``, ``layers`` (blocks with branches and a skip), ``series_parallel`` or ``random`` (near ones read each other).
    n : int
        Operators, at least 1.
    seed : int
        Of everything drawn; the same text on every machine.

    Returns
    -------
    str
        The file's text.

    Raises
    ------
    UnknownNameError
        When there is no such shape.
    """
    if shape not in _SHAPES:
        raise UnknownNameError("shape of graph", shape, _SHAPES)
    random = np.random.default_rng(seed)
    edges = _SHAPES[shape](n, random)
    latency = np.round(0.3 * np.exp(0.7 * random.standard_normal(n)), 6)
    cost = np.round(0.03 * np.exp(0.7 * random.standard_normal(n)), 6)
    size = random.integers(1 << 20, 1 << 24, n)
    nodes: list[dict[str, Any]] = [
        {
            "id": i, "name": f"op{i}", "supportedOnFpga": 1, "cpuLatency": float(10 * latency[i]),
            "fpgaLatency": float(latency[i]), "isBackwardNode": 0, "size": float(size[i]),
        }
        for i in range(n)
    ]  # fmt: skip
    links = [{"sourceId": u, "destId": v, "cost": float(cost[u])} for u, v in edges]
    return json.dumps({"maxSizePerFPGA": float(2**40), "maxFPGAs": 4, "maxCPUs": 1, "nodes": nodes, "edges": links})
