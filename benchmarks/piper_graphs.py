"""Graphs in Piper's terms for measurements: ResNet-50 operator by operator, and larger ones than the original takes.

python benchmarks/piper_graphs.py [--shapes layered,grid,...] [--memory 0,4] [--operators 10000] [--devices 64] [--out FILE.csv]

plans each shape at each memory (a multiple of what all operators hold, over the devices; 0 for plenty) and prints the gap
between plan and bound. CPU seconds are of one thread with compiled kernels.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import pathlib
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable

from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options
from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance, PiperNode

__all__ = ["branches", "grid", "layered", "nasnet", "resnet50", "series_parallel", "star", "transformer"]

GIB = 2.0**30


def instance_of(
    costs: Iterable[tuple[float, float, float]], pairs: list[tuple[int, int]], crossing: list[float], **limits: float
) -> PiperInstance:
    """Return an instance of nodes with (seconds, weight bytes, activation bytes), each with and without recomputation.

    Fixed memory is twice the weights, as in the published files; recomputing keeps the node's input (a tenth of its
    activations) and costs a third of its time more.
    """
    tails: dict[int, list[int]] = {}
    heads: dict[int, list[int]] = {}
    for u, v in pairs:
        tails.setdefault(v, []).append(u)
        heads.setdefault(u, []).append(v)
    nodes = []
    for v, (seconds, weight, activation) in enumerate(costs):
        forward = tuple((u, 0.0) for u in sorted(tails.get(v, ())))
        backward = tuple((x, 0.0) for x in sorted(heads.get(v, ())))
        choices = (
            PiperChoice("vanilla", seconds, weight, activation, 2 * weight, forward, backward),
            PiperChoice(
                "activation recomp", seconds * 4 / 3, weight, 0.1 * activation, 2 * weight + 0.9 * activation, forward, backward
            ),
        )
        nodes.append(PiperNode(v, "layer", ((1, choices),)))
    edges = tuple(PiperEdge(u, v, size) for (u, v), size in zip(pairs, crossing, strict=True))
    return PiperInstance(
        tuple(nodes),
        edges,
        int(limits["n_devices"]),
        int(limits["n_microbatches"]),
        limits["bandwidth"],
        limits["memory_bytes"],
    )


def resnet50(*, n_devices: int = 128, memory_bytes: float = GIB) -> PiperInstance:
    """Return ResNet-50, one node per operator: 177 nodes, 242 downsets, 28,729 pairs of nested ones.

    Seconds follow from floating point operations at 10 TFLOP/s and bytes moved at 500 GB/s; a sample has 224 x 224 points.
    """
    costs: list[tuple[float, float, float]] = []
    pairs: list[tuple[int, int]] = []
    sizes: list[float] = []

    def add(tails: Iterable[int], flops: float, weight: float, n_points: float) -> int:
        for u in tails:
            pairs.append((u, len(costs)))
            sizes.append(out[u])
        moved = 4.0 * n_points * 3
        costs.append((3 * flops / 10e12 + 3 * moved / 500e9, 4.0 * weight, 4.0 * n_points))
        out.append(4.0 * n_points)
        return len(costs) - 1

    def chain(tail: int, kinds: str, channels: list[tuple[int, int, int]], side: int) -> int:
        widths = iter(channels)
        width = 0
        for kind in kinds:
            if kind == "c":
                kernel, before, width = next(widths)
                n = kernel * kernel * before * width
                tail = add((tail,), 2.0 * n * side * side, n, width * side * side)
            else:
                tail = add((tail,), 0.0, 2.0 * width if kind == "b" else 0.0, width * side * side)
        return tail

    out: list[float] = []
    tail = add((), 0.0, 0.0, 3 * 224 * 224)
    tail = chain(tail, "cbr", [(7, 3, 64)], 112)
    tail = add((tail,), 0.0, 0.0, 64 * 56 * 56)
    before = 64
    for width, count, side in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for i in range(count):
            main = chain(tail, "cbrcbrcb", [(1, before, width), (3, width, width), (1, width, 4 * width)], side)
            short = chain(tail, "cb", [(1, before, 4 * width)], side) if i == 0 else tail
            tail = add((main, short), 0.0, 0.0, 4 * width * side * side)
            tail = add((tail,), 0.0, 0.0, 4 * width * side * side)
            before = 4 * width
    tail = add((tail,), 0.0, 0.0, 2048)
    tail = add((tail,), 0.0, 0.0, 2048)
    tail = add((tail,), 2.0 * 2048 * 1000, 2048.0 * 1000, 1000)
    add((tail,), 0.0, 0.0, 1000)
    return instance_of(
        costs, pairs, sizes, n_devices=n_devices, n_microbatches=7680, bandwidth=25 * GIB, memory_bytes=memory_bytes
    )  # fmt: skip


def branches(n_branches: int, length: int, *, n_devices: int = 64, memory_ratio: float = 0.0, seed: int = 0) -> PiperInstance:
    """Return chains side by side between a first and a last node; about (length + 1) ^ n_branches downsets.

    Parameters
    ----------
    n_branches, length : int
        Chains, and nodes of each.
    n_devices : int
        Devices.
    memory_ratio : float
        Memory of a device over the bytes of all nodes at one micro-batch in flight divided by the devices; 0 for plenty.
    seed : int
        Of the nodes' costs.
    """
    dice = random.Random(seed)
    last = 1 + n_branches * length
    pairs = []
    for b in range(n_branches):
        chain = [0, *range(1 + b * length, 1 + (b + 1) * length), last]
        pairs += list(itertools.pairwise(chain))
    return _drawn(last + 1, pairs, dice, n_devices, memory_ratio)


def layered(n_layers: int, width: int, *, n_devices: int = 64, memory_ratio: float = 0.0, seed: int = 0) -> PiperInstance:
    """Return layers of nodes, each fed by one to three of the layer before; arguments as of `branches`."""
    dice = random.Random(seed)
    pairs = []
    for layer in range(1, n_layers):
        for i in range(width):
            chosen = {i} | {dice.randrange(width) for _ in range(dice.randrange(3))}
            pairs += [((layer - 1) * width + j, layer * width + i) for j in sorted(chosen)]
    return _drawn(n_layers * width, pairs, dice, n_devices, memory_ratio)


def grid(n_rows: int, n_columns: int, *, n_devices: int = 64, memory_ratio: float = 0.0, seed: int = 0) -> PiperInstance:
    """Return a grid whose nodes feed those to the right and below; arguments as of `branches`."""
    pairs = []
    for i, j in itertools.product(range(n_rows), range(n_columns)):
        v = i * n_columns + j
        pairs += [(v, v + 1)] if j + 1 < n_columns else []
        pairs += [(v, v + n_columns)] if i + 1 < n_rows else []
    return _drawn(n_rows * n_columns, pairs, random.Random(seed), n_devices, memory_ratio)


def series_parallel(n_nodes: int, *, n_devices: int = 64, memory_ratio: float = 0.0, seed: int = 0) -> PiperInstance:
    """Return a random series-parallel graph: edges drawn at random get a node within them or beside them."""
    dice = random.Random(seed)
    pairs = [(0, 1)]
    for v in range(2, n_nodes):
        at = dice.randrange(len(pairs))
        u, x = pairs[at]
        if dice.random() < 0.5:
            pairs[at] = (u, v)
            pairs.append((v, x))
        else:
            pairs += [(u, v), (v, x)]
    return _drawn(n_nodes, pairs, dice, n_devices, memory_ratio)


def transformer(n_layers: int, n_heads: int, *, n_devices: int = 64, memory_ratio: float = 0.0, seed: int = 0) -> PiperInstance:
    """Return transformer layers with every head's query, key, value and product as operators of their own,
    and residual edges.
    """
    pairs: list[tuple[int, int]] = []
    tail, n = 0, 1
    for _ in range(n_layers):
        norm, joined, added, wide, narrow, out = n, n + 1, n + 2, n + 3, n + 4, n + 5
        n += 6
        pairs += [(tail, norm), (tail, added), (joined, added), (added, wide), (wide, narrow), (narrow, out), (added, out)]
        for _ in range(n_heads):
            pairs += [(norm, n), (norm, n + 1), (norm, n + 2), (n, n + 3), (n + 1, n + 3), (n + 2, n + 3), (n + 3, joined)]
            n += 4
        tail = out
    return _drawn(n, pairs, random.Random(seed), n_devices, memory_ratio)


def nasnet(n_cells: int, n_blocks: int = 5, *, n_devices: int = 64, memory_ratio: float = 0.0, seed: int = 0) -> PiperInstance:
    """Return cells of blocks (two operators and their sum),
    each fed by the two cells before or by earlier blocks of its own.
    """
    dice = random.Random(seed)
    pairs: list[tuple[int, int]] = [(0, 1)]
    ends, n = [0, 1], 2
    for _ in range(n_cells):
        known = ends[-2:]
        for _ in range(n_blocks):
            for side in range(2):
                pairs += [(dice.choice(known), n + side), (n + side, n + 2)]
            known = [*known, n + 2]
            n += 3
        pairs += [(u, n) for u in known[2:]]
        ends.append(n)
        n += 1
    return _drawn(n, pairs, dice, n_devices, memory_ratio)


def star(n_nodes: int, *, n_devices: int = 64, memory_ratio: float = 0.0, seed: int = 0) -> PiperInstance:
    """Return one node that feeds all others: as many downsets as sets."""
    return _drawn(n_nodes, [(0, v) for v in range(1, n_nodes)], random.Random(seed), n_devices, memory_ratio)


def _drawn(
    n_nodes: int, pairs: list[tuple[int, int]], dice: random.Random, n_devices: int, memory_ratio: float
) -> PiperInstance:
    """Return an instance with random costs."""
    costs = [(dice.uniform(0.5, 1.5) * 1e-3, dice.uniform(0.0, 2e6), dice.uniform(1e6, 4e6)) for _ in range(n_nodes)]
    held = sum(2 * weight + activation for _, weight, activation in costs)
    memory = memory_ratio * held / n_devices if memory_ratio else held
    return instance_of(
        costs, pairs, [dice.uniform(1e4, 1e5) for _ in pairs], n_devices=n_devices, n_microbatches=512, bandwidth=10e9,
        memory_bytes=memory,
    )  # fmt: skip


def shapes(n_nodes: int) -> dict[str, Callable[..., PiperInstance]]:
    """Return the shapes measured, of about this many operators."""
    side = math.isqrt(n_nodes)

    def of(make: Callable[..., PiperInstance], *sizes: int) -> Callable[..., PiperInstance]:
        return lambda **limits: make(*sizes, **limits)

    return {
        "chain": of(layered, n_nodes, 1),
        "layered": of(layered, n_nodes // 10, 10),
        "chains": of(branches, 4, n_nodes // 4),
        "series_parallel": of(series_parallel, n_nodes),
        "grid": of(grid, side, side),
        "narrow_grid": of(grid, n_nodes // 10, 10),
        "transformer": of(transformer, n_nodes // 70, 16),
        "nasnet": of(nasnet, n_nodes // 16),
        "star": of(star, n_nodes),
        "wide": of(layered, 2, n_nodes // 2),
    }


def main(arguments: list[str]) -> int:
    """Plan the shapes asked for and print the gaps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--memory", default="0,8,4,3")
    parser.add_argument("--operators", type=int, default=10_000)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args(arguments)
    known = shapes(options.operators)
    wanted = options.shapes.split(",") if options.shapes else list(known)
    strange = [name for name in wanted if name not in known]
    if strange:
        parser.error(f"there is no shape '{strange[0]}'; choose of {', '.join(known)}")
    solve.solve(branches(3, 40), Options(), nearly_ratio=0.01)  # kernels are loaded before anything is timed
    rows = []
    for name, ratio in itertools.product(wanted, map(float, options.memory.split(","))):
        instance = known[name](n_devices=options.devices, memory_ratio=ratio, seed=options.seed)
        started = time.process_time()
        solution = solve.solve(instance, Options(), nearly_ratio=0.01)
        seconds = time.process_time() - started
        value = evaluate(instance, solution.stages).seconds if solution.stages else math.inf
        rows.append({
            "shape": name, "operators": len(instance.nodes), "devices": options.devices, "memory": ratio,
            "method": solution.method,
            "downsets": solution.n_downsets, "value": value, "bound": solution.lower_seconds,
            "gap": value / solution.lower_seconds - 1,
            "cpu_seconds": round(seconds, 2), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
        })  # fmt: skip
        print("  ".join(f"{key}={x:.4g}" if isinstance(x, float) else f"{key}={x}" for key, x in rows[-1].items()), flush=True)
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
