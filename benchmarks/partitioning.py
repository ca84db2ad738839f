"""Partitions: ours against the published flow on the same units and load, given the same CPU seconds, with bounds.

    python benchmarks/partitioning.py [GRAPH.json PROFILE.txt ...] [--stages 4,8,16] [--seeds 10] [--transformer] [--csv FILE]
    [--svg FILE]

Without files, all published graphs and profiles are cut. Each seed numbers the operators anew (seed 0: as in the file), which
changes all ties of both flows, and starts our orders. The published flow has the CPU seconds that our run took: its three
weights at 32 clusters in any case, then more clusters, then other numberings, until its time is over; the run that is under way
then is finished and counts. ``--transformer`` adds a generated transformer of 10,760 operators cut into 16 and 64 stages (ours
only: clustering it is slow), ``--quick`` takes one seed and 4 stages.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from comparison import Row, add_options, collect, summary, svg

from meshwright import api
from meshwright.core.problem import Problem
from meshwright.planners.parmesan.operators import question
from meshwright.planners.parmesan.search.parmesan import cut_published
from meshwright.solvers.partition import operator_stages
from meshwright.solvers.partition.hypergraph import Operators, contract, loads_of

GRAPHS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference" / "partitioning"
COLUMNS = (
    "case",
    "seed",
    "n_ops",
    "published",
    "published_cpu_seconds",
    "published_runs",
    "ours",
    "bound",
    "exact",
    "ours_cpu_seconds",
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


def renumbered(operators: Operators, seed: int) -> Operators:
    """Return the same operators under other numbers; seed 0 keeps them."""
    n = len(operators.compute)
    new = np.arange(n) if seed == 0 else np.random.default_rng(seed).permutation(n)
    old = np.argsort(new)
    return Operators(
        operators.compute[old], operators.host[old], operators.memory[old], operators.supported[old],
        tuple((int(new[a]), int(new[b])) for a, b in operators.edges), tuple(operators.colocated[v] for v in old),
        tuple((cost, tuple(int(new[pin]) for pin in pins)) for cost, pins in operators.nets),
    )  # fmt: skip


def published(operators: Operators, n_stages: int, seed: int, cpu_seconds: float) -> tuple[float, float, int]:
    """Return the least largest load of the published flow, its CPU seconds and its runs."""
    started = time.process_time()
    best, n_runs = float("inf"), 0
    for again in itertools.count():
        numbered = renumbered(operators, 0 if again == 0 else 1000 * (seed + 1) + again)
        units = contract(numbered)
        unit_of = {op: v for v, members in enumerate(units.members) for op in members}
        for k, comm_coef in itertools.product((32, 48, 72, 96), (0.01, 1.0, 100.0)):
            groups = cut_published(numbered, units, n_stages, k=k, comm_coef=comm_coef, new_flow=True)
            mine = tuple(tuple(sorted({unit_of[op] for op in group})) for group in groups)
            best = min(best, max(loads_of(units, mine, (False,) * n_stages)))
            n_runs += 1
            if n_runs >= 3 and time.process_time() - started >= cpu_seconds:
                return best, time.process_time() - started, n_runs
    raise AssertionError("time does not end")


def row(case: str, operators: Operators, n_stages: int, seed: int, *, compared: bool = True) -> Row:
    """Return one line of the table."""
    numbered = renumbered(operators, seed)
    started = time.process_time()
    found = operator_stages.cut(numbered, n_stages, seed=seed).partition
    seconds = time.process_time() - started
    theirs = published(numbered, n_stages, seed, seconds) if compared else (float("nan"), float("nan"), 0)
    figures = (case, seed, len(operators.compute), *theirs, found.value, found.bound_value, found.exact, seconds)
    return dict(zip(COLUMNS, figures, strict=True))


def asked(graphs: list[str], stages: list[int], seeds: range) -> Iterator[tuple[str, int, Callable[[], Row]]]:
    """Yield each graph, number of stages and seed with what runs it."""
    for spec in graphs:
        name = spec.rsplit("/", 1)[-1].split(".")[0]
        operators = question(Problem(api.read(spec))).operators
        for n_stages in stages:
            for seed in seeds:
                yield f"{name} {n_stages}", seed, partial(row, f"{name} {n_stages}", operators, n_stages, seed)


def main() -> None:
    """Print the rows and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", default=sorted(map(str, [*GRAPHS.glob("*/*.json"), *GRAPHS.glob("*/*.txt")])))
    parser.add_argument("--stages", default="4,8,16")
    parser.add_argument("--transformer", action="store_true")
    add_options(parser)
    arguments = parser.parse_args()
    operator_stages.cut(transformer(1), 2)  # compile the kernels
    stages = [4] if arguments.quick else [int(text) for text in arguments.stages.split(",")]
    seeds = range(arguments.first_seed, arguments.first_seed + (1 if arguments.quick else arguments.seeds))
    rows = collect(asked(arguments.graphs, stages, seeds), arguments.csv, arguments.seconds)
    for n_stages in (16, 64) if arguments.transformer else ():
        print(row(f"transformer {n_stages}", transformer(), n_stages, 0, compared=False))
    print(summary(rows))
    if arguments.svg:
        with open(arguments.svg, "w") as file:
            file.write(svg("Partitions: largest load of the published flow over ours, same CPU seconds", rows))


if __name__ == "__main__":
    main()
