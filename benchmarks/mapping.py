"""Mappings: ours against the published backtracking and its two heuristics, given the same CPU seconds, with bounds.

    python benchmarks/mapping.py [--seeds 10] [--devices 16,64] [--stages 8] [--topologies mesh,uniform] [--csv FILE] [--svg
    FILE]

The stage graph is a chain of nearly equal stages; all are judged by compute + transfers + gradient ring, rings in fixed order
for the published methods. Seeds draw the stages and, where they are random, the links. The published search has the CPU seconds
that ours took: the better of mapping for the transfers and for the rings, with a larger and larger limit of placements until
its time is over (the run that is under way then is finished and counts), or until it ends by itself. 4,096 devices are a torus
of 64 stages of 64 replicas. ``--quick`` takes one seed and 16 devices.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from comparison import Row, add_options, collect, summary, svg

from meshwright import clusters
from meshwright.solvers.mapping.backtracking import backtrack
from meshwright.solvers.mapping.problem import StageGraph
from meshwright.solvers.mapping.search import consecutive, evaluate, map_stages, pair_seconds, point_to_point

COLUMNS = ("case", "seed", "consecutive", "point_to_point", "published", "published_cpu_seconds",
           "ours", "bound", "exact", "ours_cpu_seconds")  # fmt: skip


def chain(n_stages: int, n_replicas: int, seed: int) -> StageGraph:
    """Return a chain of stages of about 1 ms that exchange 20 MB and reduce 5 to 30 MB of gradients."""
    random = np.random.default_rng(seed)
    transfers = tuple((s, s + 1, 20e6) for s in range(n_stages - 1))
    return StageGraph(random.uniform(0.8e-3, 1e-3, n_stages), transfers, random.uniform(5e6, 3e7, n_stages), n_replicas)


def row(case: str, spec: str, shape: tuple[int, int], seed: int) -> Row:
    """Return one line of the table."""
    graph, seconds_per_byte = chain(*shape, seed), pair_seconds(clusters.cluster(spec))
    started = time.process_time()
    ours = map_stages(graph, seconds_per_byte, seed=seed)
    ours_seconds = time.process_time() - started
    order = np.arange(len(seconds_per_byte))
    starts = [consecutive(graph, order), point_to_point(graph, order)]
    simple = [evaluate(graph, seconds_per_byte, devices, fixed_rings=True).seconds for devices in starts]
    # the published program maps for the transfers or for the rings; the better of both counts
    halves = (
        StageGraph(graph.compute_seconds, graph.transfers, 0 * graph.reduce_bytes, graph.n_replicas),
        StageGraph(graph.compute_seconds, (), graph.reduce_bytes, graph.n_replicas),
    )
    theirs, n_nodes, started = min(simple), 100_000, time.process_time()
    while True:
        found = [backtrack(half, seconds_per_byte, starts, 4, 1, n_nodes) for half in halves]
        theirs = min(theirs, *(evaluate(graph, seconds_per_byte, one.devices, fixed_rings=True).seconds for one in found))
        theirs_seconds = time.process_time() - started
        if all(one.finished for one in found) or theirs_seconds >= ours_seconds:
            break
        n_nodes *= 3
    figures = (case, seed, *simple, theirs, theirs_seconds, ours.seconds, ours.bound_seconds, ours.exact, ours_seconds)
    return dict(zip(COLUMNS, figures, strict=True))


WORDS = ("two-level", "dgx1", "mesh", "torus", "random-blocks-1", "random-blocks-2", "uniform")


def spec_of(word: str, n: int, seed: int) -> str:
    """Return the name of a topology of the paper with n devices, grids as near to a square as can be;
    beyond 2,000 a plain torus.
    """
    if n > 2000:
        side = max(k for k in range(1, int(n**0.5) + 1) if n % k == 0)
        return f"torus:{side}x{n // side}"
    if word in ("mesh", "torus"):
        side = max(k for k in range(1, int(n**0.5) + 1) if n % k == 0)
        return f"parmesan-{word}:{side}x{n // side}"
    return f"parmesan-{word}:{n}" + (f",seed={seed}" if word.startswith("random") or word == "uniform" else "")


def asked(devices: list[int], words: list[str], n_stages: int, seeds: range) -> Iterator[tuple[str, int, Callable[[], Row]]]:
    """Yield each topology, number of devices and seed with what runs it."""
    for n in devices:
        for word in words if n <= 2000 else ["torus"]:
            shape = (n_stages, n // n_stages) if n <= 2000 else (64, n // 64)
            for seed in seeds:
                spec = spec_of(word, n, seed)
                case = f"{spec.partition(',')[0]} {shape[0]}x{shape[1]}"
                yield case, seed, partial(row, case, spec, shape, seed)


def main() -> None:
    """Print the rows and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="16,64")
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--topologies", default=",".join(WORDS))
    add_options(parser)
    arguments = parser.parse_args()
    row("", "parmesan-two-level:4", (2, 2), 0)  # compile the kernels
    devices = [16] if arguments.quick else [int(text) for text in arguments.devices.split(",")]
    seeds = range(arguments.first_seed, arguments.first_seed + (1 if arguments.quick else arguments.seeds))
    rows = collect(asked(devices, arguments.topologies.split(","), arguments.stages, seeds), arguments.csv, arguments.seconds)
    print(summary(rows))
    if arguments.svg:
        with open(arguments.svg, "w") as file:
            file.write(svg("Mappings: largest cost of the published search over ours, same CPU seconds", rows))


if __name__ == "__main__":
    main()
