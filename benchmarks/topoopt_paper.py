"""Iteration time against degree, bandwidth, servers and batch, on the topology found and on others of equal cost; a shared cluster.

Run ``python benchmarks/topoopt_paper.py FOLDER [sweep ...]`` with the folder that holds ``workloads.json`` and ``measures``; the
sweeps are ``targets degree bandwidth servers batch shared speed`` (default: the first three). Rows are printed as CSV.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from meshwright.api import codesign
from meshwright.codesign.design import Design

FILES = {"dlrm16": "dlrm16", "candle16": "candle16", "bert16": "transformer16", "vgg16_16node": "vgg16"}
OTHERS = ("topoopt", "fat-tree", "switch", "expander")
PUBLISHED_MS = {  # the released program, 100 Gbit/s, degree 4 and 8
    ("dlrm16", 4): 20.86, ("dlrm16", 8): 14.71, ("candle16", 4): 218.36, ("candle16", 8): 133.70,
    ("bert16", 4): 62.75, ("bert16", 8): 62.57, ("vgg16_16node", 4): 100.48, ("vgg16_16node", 8): 100.48,
}  # fmt: skip


def ask(folder: Path, name: str, *, servers: int = 16, degree: int = 4, gbit: float = 100, names: tuple[str, ...] = OTHERS,
        budget: int = 600, measured: bool = True, **settings: str) -> tuple[Design, float]:  # fmt: skip
    """Return the answer and the processor seconds it took."""
    started = time.process_time()
    design = codesign(
        name if name.startswith("topoopt:") else f"{folder / 'workloads.json'}#{name}", servers=servers, degree=degree,
        link_bandwidth=gbit * 1e9 / 8, measures=str(folder / "measures" / f"{FILES[name]}.json") if measured else "",
        topologies=names, budget=budget, settings={"equal_cost": "true"} | settings,
    )  # fmt: skip
    return design, time.process_time() - started


def rows_of(label: str, design: Design, seconds: float) -> Iterator[str]:
    for name, entry in design.entries:
        found = entry.found
        gap = found.seconds / design.bound_seconds - 1
        yield (
            f"{label},{name},{found.seconds * 1e3:.4f},{design.step.compute_seconds(found.placement) * 1e3:.4f},{gap:.4f},"
            f"{entry.cost:.0f},{entry.link_bytes_per_second * 8e-9:.2f},{found.fabric.mean_hops():.3f},{seconds:.2f}"
        )


def targets(folder: Path) -> Iterator[str]:
    for (name, degree), published in PUBLISHED_MS.items():
        design, seconds = ask(folder, name, degree=degree, names=("topoopt",))
        yield from rows_of(f"target,{name},{degree},100,16,{published}", design, seconds)


def degree(folder: Path) -> Iterator[str]:
    for name in FILES:
        for degree in (2, 4, 6, 8):
            yield from rows_of(f"degree,{name},{degree},100,16,", *ask(folder, name, degree=degree, budget=300))


def bandwidth(folder: Path) -> Iterator[str]:
    for name in FILES:
        for gbit in (10, 25, 40, 100, 200):
            yield from rows_of(f"bandwidth,{name},4,{gbit},16,", *ask(folder, name, gbit=gbit, budget=300))


def servers(folder: Path) -> Iterator[str]:
    for n in (8, 16, 32, 64):
        spec = f"topoopt:dlrm,tables={n},batch={1024 * n},bottom=1024x8,top=2048x16-1"
        yield from rows_of(f"servers,dlrm,4,100,{n},", *ask(folder, spec, servers=n, measured=False, budget=200))


def batch(folder: Path) -> Iterator[str]:
    for local in (64, 128, 256, 512, 1024, 2048):
        spec = f"topoopt:dlrm,tables=32,width=128,batch={local * 64},bottom=2048x8,top=4096x16-1"
        yield from rows_of(f"batch {local},dlrm,4,100,16,", *ask(folder, spec, measured=False, budget=200))


def shared(folder: Path) -> Iterator[str]:
    """Jobs of 16 servers each on links of their own (a direct topology, wired job by job) against one oversubscribed fat tree."""
    mix = (("dlrm16", 0.35), ("bert16", 0.30), ("candle16", 0.25), ("vgg16_16node", 0.10))
    direct = {name: ask(folder, name, names=("topoopt", "fat-tree"))[0] for name, _ in mix}
    for label in ("topoopt", "fat-tree-equal-cost"):
        mean = sum(share * dict(direct[name].entries)[label].found.seconds for name, share in mix)
        worst = max(dict(direct[name].entries)[label].found.seconds for name, _ in mix)
        yield f"shared,mix,4,100,16,,{label},{mean * 1e3:.3f},{worst * 1e3:.3f},,,,,"


def speed(folder: Path) -> Iterator[str]:
    for search in ("published", "improved"):
        _, seconds = ask(folder, "dlrm16", names=("topoopt",), search=search)
        yield f"speed,dlrm16,4,100,16,,{search} 600 proposals,,,,,,,{seconds:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sweeps", nargs="*", default=["targets", "degree", "bandwidth"])
    options = parser.parse_args()
    print(
        "sweep,workload,degree,gbit,servers,published_ms,topology,step_ms,compute_ms,gap_ratio,cost,port_gbit,mean_hops,cpu_seconds"
    )
    known = {
        "targets": targets,
        "degree": degree,
        "bandwidth": bandwidth,
        "servers": servers,
        "batch": batch,
        "shared": shared,
        "speed": speed,
    }
    for sweep in options.sweeps:
        if sweep not in known:
            sys.exit(f"no sweep called '{sweep}'; there are {', '.join(known)}")
        for row in known[sweep](options.folder):
            print(row, flush=True)


if __name__ == "__main__":
    main()
