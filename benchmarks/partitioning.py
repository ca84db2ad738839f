"""Partitions: ours against the published flow on the same units and load, with bounds and CPU seconds.

    python benchmarks/partitioning.py [GRAPH.json PROFILE.txt ...] [--stages 4,8,16] [--transformer] [--csv FILE]

``--transformer`` adds a generated transformer of 10,760 operators cut into 16 and 64 stages (ours only: clustering it is slow).
"""

from __future__ import annotations

import argparse
import csv
import sys
import time

import numpy as np

from meshwright import api
from meshwright.costs._operators import question
from meshwright.problem import Problem
from meshwright.search.parmesan import cut_published
from meshwright.solvers import operator_stages
from meshwright.solvers.units import Operators, Units, contract, loads_of

COLUMNS = (
    "graph",
    "n_ops",
    "n_stages",
    "published",
    "published_cpu_seconds",
    "ours",
    "bound",
    "exact",
    "ours_cpu_seconds",
    "ratio",
)


def transformer(n_layers: int = 96, layer_operators: int = 112, seed: int = 0) -> Operators:
    """Return a transformer at the level of single tensor operators: 5 before, 112 in each layer, 3 after; 10,760 by default."""
    random = np.random.default_rng(seed)
    compute: list[float] = []
    weight: list[float] = []
    readers: dict[int, list[int]] = {}

    def op(seconds: float, tensor: float, *sources: int) -> int:
        compute.append(seconds)
        weight.append(tensor)
        for source in sources:
            readers.setdefault(source, []).append(len(compute) - 1)
        return len(compute) - 1

    def chain(start: int, n: int, seconds: float = 0.02, tensor: float = 0.02) -> int:
        for _ in range(n):
            start = op(seconds, tensor, start)
        return start

    mask = chain(op(0.01, 0.001), 1, 0.01, 0.001)
    x = chain(op(1.0, 0.02), 2)
    for _ in range(n_layers):
        normed = chain(x, 6)
        branches = [chain(op(0.3, 0.02, chain(normed, 1, 0.0)), 6, 0.005) for _ in range(3)]
        scores = op(0.05, 0.06, chain(op(0.2, 0.06, branches[0], branches[1]), 1, 0.03, 0.06), mask)
        attended = op(0.2, 0.02, chain(scores, 4, 0.04, 0.06), branches[2])
        added = op(0.02, 0.02, op(0.3, 0.02, chain(attended, 4, 0.01)), x)
        up = op(0.6, 0.08, chain(added, 7))
        gate = op(0.03, 0.08, chain(up, 4, 0.03, 0.08), chain(up, 1, 0.02, 0.08))
        x = op(0.02, 0.02, chain(op(0.6, 0.02, gate), 6, 0.01), added)
        x = chain(x, layer_operators - 66, 0.005)
    chain(x, 3, 0.7)
    n = len(compute)
    edges = tuple((u, v) for u, targets in sorted(readers.items()) for v in targets)
    nets = tuple((weight[u], (u, *targets)) for u, targets in sorted(readers.items()))
    times = np.array(compute) * random.uniform(0.95, 1.05, n)
    return Operators(times, np.zeros(n), np.zeros(n), np.ones(n, dtype=bool), edges, tuple(range(n)), nets)


def published(operators: Operators, units: Units, n_stages: int) -> tuple[float, float]:
    """Return the largest load of the published flow, the best over its parameters, and its CPU seconds."""
    started = time.process_time()
    k = 32 if len(units) < 500 else 48
    values = []
    unit_of = {op: v for v, members in enumerate(units.members) for op in members}
    for comm_coef in (0.01, 1.0, 100.0):
        groups = cut_published(operators, units, n_stages, k=k, comm_coef=comm_coef, new_flow=True)
        mine = tuple(tuple(sorted({unit_of[op] for op in group})) for group in groups)
        values.append(max(loads_of(units, mine, (False,) * n_stages)))
    return min(values), time.process_time() - started


def row(name: str, operators: Operators, n_stages: int, *, with_published: bool = True) -> dict[str, object]:
    """Return one line of the table."""
    units = contract(operators)
    theirs, theirs_seconds = published(operators, units, n_stages) if with_published else (float("nan"), float("nan"))
    started = time.process_time()
    found = operator_stages.cut(operators, n_stages).partition
    seconds = time.process_time() - started
    figures = (
        name,
        len(operators.compute),
        n_stages,
        theirs,
        theirs_seconds,
        found.value,
        found.bound_value,
        found.exact,
        seconds,
    )
    return dict(zip(COLUMNS, (*figures, theirs / found.value), strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--stages", default="4,8,16")
    parser.add_argument("--transformer", action="store_true")
    parser.add_argument("--csv", default="")
    arguments = parser.parse_args()
    operator_stages.cut(transformer(1), 2)  # compile the kernels
    rows = []
    for spec in arguments.graphs:
        operators = question(Problem(api.read(spec))).operators
        for n_stages in map(int, arguments.stages.split(",")):
            rows.append(row(spec.rsplit("/", 1)[-1], operators, n_stages))
            print("  ".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    for n_stages in (16, 64) if arguments.transformer else ():
        rows.append(row("transformer", transformer(), n_stages, with_published=False))
        print("  ".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    print("columns:", ", ".join(COLUMNS), file=sys.stderr)


if __name__ == "__main__":
    main()
