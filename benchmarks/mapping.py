"""Mappings: ours against the published backtracking and its two heuristics, which get at least as much CPU time.

    python benchmarks/mapping.py [--seeds 10] [--devices 16,64] [--stages 8] [--topologies mesh,uniform] [--large] [--quick] [--csv FILE] [--svg FILE]

The stage graph is a chain of nearly equal stages; all are judged by compute + transfers + gradient ring, rings in fixed order for
the published methods. Seeds draw the stages and, where they are random, the links. ``--large`` adds a torus of 4,096 devices,
``--quick`` takes one seed and 16 devices.
"""

from __future__ import annotations

import argparse
import csv
import time

import numpy as np
from comparison import summary, svg

from meshwright import topologies
from meshwright.solvers.mapping import StageGraph, consecutive, evaluate, map_stages, pair_seconds, point_to_point
from meshwright.solvers.mapping_backtracking import backtrack

COLUMNS = ("case", "seed", "consecutive", "point_to_point", "published", "published_cpu_seconds",
           "ours", "bound", "exact", "ours_cpu_seconds", "ratio")  # fmt: skip


def chain(n_stages: int, n_replicas: int, seed: int) -> StageGraph:
    """Return a chain of stages of about 1 ms that exchange 20 MB and reduce 5 to 30 MB of gradients."""
    random = np.random.default_rng(seed)
    transfers = tuple((s, s + 1, 20e6) for s in range(n_stages - 1))
    return StageGraph(random.uniform(0.8e-3, 1e-3, n_stages), transfers, random.uniform(5e6, 3e7, n_stages), n_replicas)


def row(spec: str, shape: tuple[int, int], seed: int) -> dict[str, object]:
    """Return one line of the table; the published search is asked for more and more until it had our CPU time, or ends by itself."""
    graph, slow = chain(*shape, seed), pair_seconds(topologies.cluster(spec))
    started = time.process_time()
    ours = map_stages(graph, slow, seed=seed)
    ours_seconds = time.process_time() - started
    order = np.arange(len(slow))
    starts = [consecutive(graph, order), point_to_point(graph, order)]
    simple = [evaluate(graph, slow, devices, fixed_rings=True).seconds for devices in starts]
    # the published program maps for the transfers or for the rings; the better of both counts
    halves = (
        StageGraph(graph.compute_seconds, graph.transfers, 0 * graph.reduce_bytes, graph.n_replicas),
        StageGraph(graph.compute_seconds, (), graph.reduce_bytes, graph.n_replicas),
    )
    theirs, n_nodes, started = min(simple), 100_000, time.process_time()
    while True:
        found = [backtrack(half, slow, starts, 4, 1, n_nodes) for half in halves]
        theirs = min(theirs, *(evaluate(graph, slow, one.devices, fixed_rings=True).seconds for one in found))
        theirs_seconds = time.process_time() - started
        if all(one.finished for one in found) or theirs_seconds >= ours_seconds:
            break
        n_nodes *= 3
    figures = (f"{spec.partition(',')[0]} {shape[0]}x{shape[1]}", seed, *simple, theirs, theirs_seconds, ours.seconds,
               ours.bound_seconds, ours.exact, ours_seconds, theirs / ours.seconds)  # fmt: skip
    return dict(zip(COLUMNS, figures, strict=True))


WORDS = ("two-level", "dgx1", "mesh", "torus", "random-blocks-1", "random-blocks-2", "uniform")


def spec_of(word: str, n: int, seed: int) -> str:
    """Return the name of a topology of the paper with n devices; grids as near to a square as can be."""
    if word in ("mesh", "torus"):
        side = max(k for k in range(1, int(n**0.5) + 1) if n % k == 0)
        return f"parmesan-{word}:{side}x{n // side}"
    return f"parmesan-{word}:{n}" + (f",seed={seed}" if word.startswith("random") or word == "uniform" else "")


def main() -> None:
    """Print the rows and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--devices", default="16,64")
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--topologies", default=",".join(WORDS))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--csv", default="")
    parser.add_argument("--svg", default="", help="write a plot to this file")
    arguments = parser.parse_args()
    row("parmesan-two-level:4", (2, 2), 0)  # compile the kernels
    rows = []
    devices, n_seeds = ("16", 1) if arguments.quick else (arguments.devices, arguments.seeds)
    for n in map(int, filter(None, devices.split(","))):
        for word in filter(None, arguments.topologies.split(",")):
            for seed in range(n_seeds):
                rows.append(row(spec_of(word, n, seed), (arguments.stages, n // arguments.stages), seed))
                print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    if arguments.large:
        rows.append(row("torus:64x64", (64, 64), 0))
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    print("columns:", ", ".join(COLUMNS))
    print(summary(rows))
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    if arguments.svg:
        with open(arguments.svg, "w") as file:
            file.write(svg("Mappings: largest cost, published search at no less CPU time", rows))


if __name__ == "__main__":
    main()
