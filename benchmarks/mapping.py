"""Mappings: ours against the published backtracking and its two heuristics, at no more CPU time than the published search took.

    python benchmarks/mapping.py [--seeds 3] [--devices 64,256] [--large] [--csv FILE]

The stage graph is a chain of nearly equal stages; all are judged by compute + transfers + gradient ring, rings in fixed order for
the published methods. ``--large`` adds a torus of 4,096 devices.
"""

from __future__ import annotations

import argparse
import csv
import time

import numpy as np

from meshwright import topologies
from meshwright.solvers.mapping import StageGraph, consecutive, evaluate, map_stages, pair_seconds, point_to_point
from meshwright.solvers.mapping_backtracking import backtrack

COLUMNS = ("topology", "n_stages", "n_replicas", "seed", "consecutive", "point_to_point", "published", "published_cpu_seconds",
           "ours", "bound", "exact", "ours_cpu_seconds", "ratio")  # fmt: skip


def chain(n_stages: int, n_replicas: int, seed: int) -> StageGraph:
    """Return a chain of stages of about 1 ms that exchange 20 MB and reduce 5 to 30 MB of gradients."""
    random = np.random.default_rng(seed)
    transfers = tuple((s, s + 1, 20e6) for s in range(n_stages - 1))
    return StageGraph(random.uniform(0.8e-3, 1e-3, n_stages), transfers, random.uniform(5e6, 3e7, n_stages), n_replicas)


def row(spec: str, n_stages: int, n_replicas: int, seed: int, n_nodes: int) -> dict[str, object]:
    """Return one line of the table."""
    graph, slow = chain(n_stages, n_replicas, seed), pair_seconds(topologies.cluster(spec))
    order = np.arange(len(slow))
    starts = [consecutive(graph, order), point_to_point(graph, order)]
    simple = [evaluate(graph, slow, devices, fixed_rings=True).seconds for devices in starts]
    started = time.process_time()
    # the published program maps for the transfers or for the rings; the better of both counts
    halves = (
        StageGraph(graph.compute_seconds, graph.transfers, 0 * graph.reduce_bytes, n_replicas),
        StageGraph(graph.compute_seconds, (), graph.reduce_bytes, n_replicas),
    )
    found = [backtrack(half, slow, starts, 4, 1, n_nodes).devices for half in halves]
    theirs = min([evaluate(graph, slow, devices, fixed_rings=True).seconds for devices in found] + simple)
    theirs_seconds = time.process_time() - started
    started = time.process_time()
    ours = map_stages(graph, slow, seed=seed)
    seconds = time.process_time() - started
    figures = (
        spec,
        n_stages,
        n_replicas,
        seed,
        *simple,
        theirs,
        theirs_seconds,
        ours.seconds,
        ours.bound_seconds,
        ours.exact,
        seconds,
    )
    return dict(zip(COLUMNS, (*figures, theirs / ours.seconds), strict=True))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--devices", default="64")
    parser.add_argument("--nodes", type=int, default=3_000_000, help="placements after which one published search gives up")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--csv", default="")
    arguments = parser.parse_args()
    row("parmesan-two-level:4", 2, 2, 0, 100)  # compile the kernels
    rows = []
    for n in map(int, arguments.devices.split(",")):
        side = int(n**0.5)
        fixed = [f"parmesan-mesh:{side}x{n // side}", f"parmesan-torus:{side}x{n // side}"]
        drawn = ["parmesan-random-blocks-1", "parmesan-random-blocks-2", "parmesan-uniform"]
        specs = [(spec, 0) for spec in fixed] + [(f"{word}:{n},seed={k}", k) for word in drawn for k in range(arguments.seeds)]
        for spec, seed in specs:
            rows.append(row(spec, 8, n // 8, seed, arguments.nodes))
            print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    if arguments.large:
        rows.append(row("torus:64x64", 64, 64, 0, arguments.nodes))
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    print("columns:", ", ".join(COLUMNS))


if __name__ == "__main__":
    main()
