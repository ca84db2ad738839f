"""Graphs in Piper's terms for measurements: ResNet-50 operator by operator, and larger ones than the original takes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from meshwright.readers._piper_instance import PiperChoice, PiperEdge, PiperInstance, PiperNode

__all__ = ["branches", "layered", "resnet50"]

GIB = 2.0**30


def instance_of(
    costs: Iterable[tuple[float, float, float]], pairs: list[tuple[int, int]], crossing: list[float], **limits: float
) -> PiperInstance:
    """Return an instance of nodes with (seconds, weight bytes, activation bytes), each with and without recomputation.

    Fixed memory is twice the weights, as in the published files; recomputing keeps the node's input (a tenth of its activations)
    and costs a third of its time more.
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
