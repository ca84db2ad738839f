"""Partitions: ours against the published flow on the same units and load at no less CPU time, with bounds.

    python benchmarks/partitioning.py [GRAPH.json PROFILE.txt ...] [--stages 4,8,16] [--seeds 10] [--transformer] [--quick] [--csv FILE] [--svg FILE]

Seeds are those of our starting orders; the published flow has none, it tries ever more clusters instead. ``--transformer`` adds a
generated transformer of 10,760 operators cut into 16 and 64 stages (ours only: clustering it is slow), ``--quick`` takes one seed and
4 stages.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time

import numpy as np
from comparison import summary, svg

from meshwright import api
from meshwright.costs._operators import question
from meshwright.problem import Problem
from meshwright.search.parmesan import cut_published
from meshwright.solvers import operator_stages
from meshwright.solvers.units import Operators, Units, contract, loads_of

COLUMNS = ("case", "seed", "n_ops", "published", "published_cpu_seconds", "ours", "bound", "exact", "ours_cpu_seconds", "ratio")


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


def published(operators: Operators, units: Units, n_stages: int, cpu_seconds: float) -> tuple[float, float]:
    """Return the largest load of the published flow, the best over more and more clusters until it had its time, and its CPU seconds."""
    started = time.process_time()
    values = []
    unit_of = {op: v for v, members in enumerate(units.members) for op in members}
    for k in (32, 48, 72, 96):
        for comm_coef in (0.01, 1.0, 100.0):
            groups = cut_published(operators, units, n_stages, k=k, comm_coef=comm_coef, new_flow=True)
            mine = tuple(tuple(sorted({unit_of[op] for op in group})) for group in groups)
            values.append(max(loads_of(units, mine, (False,) * n_stages)))
        if time.process_time() - started >= cpu_seconds:
            break
    return min(values), time.process_time() - started


def rows_of(name: str, operators: Operators, n_stages: int, n_seeds: int, *, compared: bool = True) -> list[dict[str, object]]:
    """Return the lines of one graph and number of stages."""
    units = contract(operators)
    rows = []
    theirs = (float("nan"), float("nan"))
    for seed in range(n_seeds):
        started = time.process_time()
        found = operator_stages.cut(operators, n_stages, seed=seed).partition
        seconds = time.process_time() - started
        if compared and seed == 0:
            theirs = published(operators, units, n_stages, seconds)
        figures = (f"{name} {n_stages}", seed, len(operators.compute), *theirs, found.value, found.bound_value, found.exact,
                   seconds, theirs[0] / found.value)  # fmt: skip
        rows.append(dict(zip(COLUMNS, figures, strict=True)))
        print("  ".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    return rows


def main() -> None:
    """Print the rows and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--stages", default="4,8,16")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--transformer", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--csv", default="")
    parser.add_argument("--svg", default="", help="write a plot to this file")
    arguments = parser.parse_args()
    operator_stages.cut(transformer(1), 2)  # compile the kernels
    rows: list[dict[str, object]] = []
    for spec in arguments.graphs:
        operators = question(Problem(api.read(spec))).operators
        for n_stages in map(int, ("4" if arguments.quick else arguments.stages).split(",")):
            rows += rows_of(
                spec.rsplit("/", 1)[-1].split(".")[0], operators, n_stages, 1 if arguments.quick else arguments.seeds
            )
    compared = list(rows)
    for n_stages in (16, 64) if arguments.transformer else ():
        rows += rows_of("transformer", transformer(), n_stages, 1, compared=False)
    print("columns:", ", ".join(COLUMNS), file=sys.stderr)
    print(summary(compared))
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    if arguments.svg:
        with open(arguments.svg, "w") as file:
            file.write(svg("Partitions: largest load, published flow at no less CPU time", compared))


if __name__ == "__main__":
    main()
