"""The knapsacks inside Piper's search as a file: which choice each layer of a stage takes, with the greedy's and the best."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.planners.piper.menu import Options, allowed_by
from meshwright.planners.piper.problem import PiperChoice, PiperInstance
from meshwright.solvers.pipeline import downsets
from meshwright.solvers.pipeline.inner_choice import greedy_and_exact

__all__ = ["FORMAT", "write"]

FORMAT = "meshwright/knapsacks/1"

IN_FLIGHT, KEPT_RATIO = 2, 1 / 3
"""Micro-batches that stages keep, and the part of the instances that is drawn: those of the paper's appendix C."""

MOST_SETS = 400
"""Downsets of the largest graph: their pairs are gone through in plain Python."""

Rows = list[tuple[PiperChoice, ...]]


def write(instance: PiperInstance, options: Options, seed: int, path: str) -> int:
    """Write a drawn third of the knapsacks of all stages and tensor degrees in which choices matter; return their number.

    `instance`, `options`: the question. `seed`: of the draw. `path`: the file, JSON.
    Raises `InputError` when the graph has too many downsets.

    Notes
    -----
    Choices matter where the fastest of every layer do not fit and the smallest do. A choice costs the compute of a micro-batch;
    what choices differ in to send is not in it.

    References
    ----------
    Tarnawski et al., "Piper" (NeurIPS 2021), appendix C.
    """
    dice = np.random.default_rng(seed)
    kept = [_solved(instance, options, *one) for one in _instances(instance, options, path) if dice.random() < KEPT_RATIO]
    head = {"format": FORMAT, "in_flight": IN_FLIGHT, "capacity_bytes": instance.memory_bytes, "seed": seed}
    files.write(path, json.dumps({**head, "knapsacks": kept}) + "\n")
    return len(kept)


def _instances(instance: PiperInstance, options: Options, path: str) -> Iterator[tuple[int, tuple[int, ...], Rows]]:
    """Return tensor degree, nodes and their choices of every stage in which choices matter."""
    n = len(instance.nodes)
    ends = np.array([(edge.source, edge.target) for edge in instance.edges], dtype=np.int64).reshape(-1, 2)
    family = downsets.all_downsets(n, ends[:, 0].copy(), ends[:, 1].copy(), MOST_SETS)
    if family is None:
        raise InputError(f"--set knapsacks={path}: the graph has more than {MOST_SETS} downsets; use a smaller one")
    held = [frozenset(np.flatnonzero(row).tolist()) for row in downsets.members(family[0], n)]
    allowed = allowed_by(options)
    degrees = sorted({t for node in instance.nodes for t, _ in node.choices if options.tensor_parallel or t == 1})
    for inner, outer in itertools.combinations(held, 2):
        nodes = tuple(sorted(outer - inner)) if inner < outer else ()
        for degree in degrees if nodes else ():
            rows: Rows = [tuple(filter(allowed, instance.nodes[v].at(degree))) for v in nodes]
            if all(rows) and _matters(rows, instance.memory_bytes):
                yield degree, nodes, rows


def _bytes(choice: PiperChoice) -> float:
    """Return what a choice holds."""
    return choice.activation_bytes * IN_FLIGHT + choice.static_bytes


def _matters(rows: Rows, memory_bytes: float) -> bool:
    """Return whether the fastest choices do not fit, and the smallest do."""
    fastest = math.fsum(_bytes(min(row, key=lambda choice: choice.seconds)) for row in rows)
    return fastest > memory_bytes >= math.fsum(min(map(_bytes, row)) for row in rows)


def _solved(instance: PiperInstance, options: Options, degree: int, nodes: tuple[int, ...], rows: Rows) -> dict[str, Any]:
    """Return an instance as JSON, with the time of the published greedy's choice and the least there is."""
    ways = [[(choice.seconds, _bytes(choice)) for choice in row] for row in rows]
    greedy, lower, upper = greedy_and_exact(ways, instance.memory_bytes, all_or_none=options.all_or_none)
    return {
        "nodes": [instance.nodes[v].id for v in nodes],
        "tensor": degree,
        "choices": [[{"id": one.id, "seconds": one.seconds, "bytes": _bytes(one)} for one in row] for row in rows],
        "greedy_seconds": greedy if math.isfinite(greedy) else None,
        "exact_seconds": upper if math.isfinite(upper) else None,
        "bound_seconds": lower if math.isfinite(lower) else None,
    }
