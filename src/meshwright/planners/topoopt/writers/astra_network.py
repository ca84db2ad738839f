"""The network for ASTRA-sim's analytical backend (YAML): switch, ring, full mesh and torus; others it cannot say."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric

__all__ = ["content", "write"]


def write(design: Design, path: str) -> None:
    """Write the network of the best topology.

    Raises `ExportError` when the topology is none that ASTRA-sim's analytical backend knows.
    """
    files.write(path, content(design.best, design.entry.found.fabric))


def content(name: str, fabric: Fabric) -> str:
    """Return the description of a network.

    Returns: YAML: kinds, sizes, GB/s and nanoseconds of the dimensions, innermost first.
    Raises `ExportError` when the topology cannot be said.

    Notes
    -----
    ASTRA-sim counts the bandwidth of a dimension per device: several links side by side, or both ways of a ring, add up.
    """
    n = fabric.n_servers
    speed, delay = fabric.bytes_per_second / 1e9, fabric.latency_seconds * 1e9
    out = fabric.source < n
    links = set(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True))
    even = len(set(fabric.count.tolist())) == 1
    wide = speed * float(fabric.count[0])
    if fabric.n_nodes == n + 1 and int(out.sum()) == n:
        kinds, sizes, rates = ["Switch"], [n], [wide]
    elif even and len(links) == n * (n - 1) and fabric.n_nodes == n:
        kinds, sizes, rates = ["FullyConnected"], [n], [wide * (n - 1)]
    elif even and fabric.n_nodes == n and (shape := _torus(links, n)):
        kinds, sizes, rates = ["Ring"] * len(shape), list(shape), [wide] * len(shape)
    else:
        raise ExportError(
            f"topology {name}: ASTRA-sim's analytical network knows switches, full meshes, rings and tori only; "
            "take --topology switch, full-mesh or torus, or export the task graph for a packet simulator"
        )
    lists: dict[str, Sequence[object]] = {
        "topology": kinds,
        "npus_count": sizes,
        "bandwidth": rates,
        "latency": [delay] * len(kinds),
    }
    return "".join(
        f"{key}: [ {', '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values)} ]\n"
        for key, values in lists.items()
    )


def _torus(links: set[tuple[int, int]], n: int) -> tuple[int, ...]:
    """Return the sizes of the ring or torus, innermost first, whose links these are; empty for none."""
    shapes: list[tuple[int, ...]] = [(n,)] + [(a, n // a) for a in range(2, n) if n % a == 0 and n // a > 1]
    shapes += [(a, b, n // a // b) for a in range(2, n) for b in range(2, n) if n % (a * b) == 0 and n // a // b > 1]
    for shape in shapes:
        wanted = set()
        stride = 1
        for size in shape:
            for i in range(n):
                at = i // stride % size
                wanted.add((i, i + ((at + 1) % size - at) * stride))
                wanted.add((i, i + ((at - 1) % size - at) * stride))
            stride *= size
        if wanted == links:
            return shape
    return ()
