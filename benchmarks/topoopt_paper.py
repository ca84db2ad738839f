"""Iteration time against degree, bandwidth, servers and batch, on the topology found and on others of equal cost; a shared
cluster.

Run ``python benchmarks/topoopt_paper.py [sweep ...] [--data FOLDER] [--out FOLDER] [--budget N]``; the folder holds
``workloads.json`` and ``measures``; sweeps are ``targets degree bandwidth servers batch shared optical packet speed`` (default:
all but the last). Rows are printed as CSV and written to ``SWEEP.csv``; a sweep over a number is also written as tables to
read, ``SWEEP.md``, and drawn, one SVG picture for each workload. What is compared: the network found, a k-ary fat tree whose
links are as fast as the same money buys, one switch with all interfaces of every server at full speed ("ideal"), and an
expander. Traffic is timed as the released program does (``--set traffic=segments``).
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshwright import clusters, models
from meshwright.api import codesign
from meshwright.base.errors import InputError
from meshwright.planners.topoopt import jobs, networks
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.readers import taskgraph_fbuf

FILES = {"dlrm16": "dlrm16", "candle16": "candle16", "bert16": "transformer16", "vgg16_16node": "vgg16"}
COLUMNS = {
    "topoopt": "found", "fat-tree-equal-cost": "fat tree, equal cost", "switch": "ideal switch", "expander": "expander",
}  # fmt: skip
PUBLISHED_MS = {  # the released program, 100 Gbit/s, degree 4 and 8
    ("dlrm16", 4): 20.86, ("dlrm16", 8): 14.71, ("candle16", 4): 218.36, ("candle16", 8): 133.70,
    ("bert16", 4): 62.75, ("bert16", 8): 62.57, ("vgg16_16node", 4): 100.48, ("vgg16_16node", 8): 100.48,
}  # fmt: skip


HEADER = (
    "sweep,workload,degree,gbit,servers,published_ms,topology,step_ms,compute_ms,gap_ratio,cost,port_gbit,mean_hops,cpu_seconds"
)
AXES = {"degree": "degree", "bandwidth": "gbit", "servers": "servers", "batch": "sweep"}
"""Which column a sweep's pictures have from left to right."""


def ask(folder: Path, name: str, *, servers: int = 16, degree: int = 4, gbit: float = 100,
        names: tuple[str, ...] = ("topoopt",),
        budget: int = 600, measured: bool = True, **settings: str) -> tuple[Design, float]:  # fmt: skip
    """Return the answer and the processor seconds it took."""
    started = time.process_time()
    design = codesign(
        name if name.startswith("topoopt:") else f"{folder / 'workloads.json'}#{name}", servers=servers, degree=degree,
        link_bandwidth=gbit * 1e9 / 8, measures=str(folder / "measures" / f"{FILES[name]}.json") if measured else "",
        topologies=names, budget=budget, settings={"equal_cost": "true", "traffic": "segments"} | settings,
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


def compared(label: str, folder: Path, name: str, **question: Any) -> Iterator[str]:
    """Yield rows for the network found and those of `COLUMNS` beside it."""
    yield from rows_of(label, *ask(folder, name, names=("topoopt", "fat-tree"), **question))
    yield from rows_of(label, *ask(folder, name, names=("switch", "expander"), equal_cost="false", **question))


def targets(folder: Path, budget: int) -> Iterator[str]:
    for (name, degree), published in PUBLISHED_MS.items():
        design, seconds = ask(folder, name, degree=degree)
        yield from rows_of(f"target,{name},{degree},100,16,{published}", design, seconds)


def degree(folder: Path, budget: int) -> Iterator[str]:
    for name in FILES:
        for degree in (2, 4, 6, 8):
            yield from compared(f"degree,{name},{degree},100,16,", folder, name, degree=degree, budget=budget)


def bandwidth(folder: Path, budget: int) -> Iterator[str]:
    for name in FILES:
        for gbit in (10, 25, 40, 100, 200):
            yield from compared(f"bandwidth,{name},4,{gbit},16,", folder, name, gbit=gbit, budget=budget)


def servers(folder: Path, budget: int) -> Iterator[str]:
    for n in (8, 16, 32, 64):
        spec = f"topoopt:dlrm,tables={n},batch={1024 * n},bottom=1024x8,top=2048x16-1"
        yield from compared(f"servers,dlrm,4,100,{n},", folder, spec, servers=n, measured=False, budget=budget)


def batch(folder: Path, budget: int) -> Iterator[str]:
    for local in (64, 128, 256, 512, 1024, 2048):
        spec = f"topoopt:dlrm,tables=32,width=128,batch={local * 64},bottom=2048x8,top=4096x16-1"
        yield from compared(f"batch {local},dlrm,4,100,16,", folder, spec, measured=False, budget=budget)


def shared(folder: Path, budget: int) -> Iterator[str]:
    """Jobs of 16 servers: each with wires of its own over the patch panel,
    or scattered over one network of equal cost for all.
    """
    order = ("dlrm16", "bert16", "candle16", "vgg16_16node", "dlrm16", "bert16", "candle16", "dlrm16")
    trees = ("fat-tree", "oversubscribed", "expander")
    found = {name: ask(folder, name, names=("topoopt", *trees), budget=budget)[0] for name in FILES}
    rows = {name: dict(design.entries) for name, design in found.items()}
    for n_jobs in (4, 8):
        names = order[:n_jobs]
        own = [rows[name]["topoopt"].found.seconds for name in names]
        yield f"shared,{n_jobs} jobs,4,100,{16 * n_jobs},,topoopt,{np.mean(own) * 1e3:.3f},{max(own) * 1e3:.3f},,,,,"
        places = jobs.scattered(16 * n_jobs, [16] * n_jobs, np.random.default_rng(0))
        for tree in trees:
            label = tree if f"{tree}-equal-cost" not in rows[names[0]] else f"{tree}-equal-cost"
            speed = rows[names[0]][label].link_bytes_per_second / (1 if tree == "expander" else 4)
            fabric = networks.build(tree, 16 * n_jobs, 4, speed, 1e-6, 0).fabric
            asked = [
                jobs.PlacedJob(found[name].step, rows[name][label].found.placement, servers)
                for name, servers in zip(names, places, strict=True)
            ]
            seconds = jobs.together(asked, jobs.fitted(asked, fabric), "segments")
            yield (
                f"shared,{n_jobs} jobs,4,100,{16 * n_jobs},,{label},{np.mean(seconds) * 1e3:.3f},{max(seconds) * 1e3:.3f},,,,,"
            )


def optical(folder: Path, budget: int) -> Iterator[str]:
    """Circuits chosen anew during a step, against how long they are dark when they change; flows share links fairly."""
    for name in FILES:
        for dark in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
            design, seconds = ask(folder, name, names=("optical",), budget=budget, reconfiguration=str(dark))
            found = design.entry.found
            stays = design.step.seconds(found.placement, found.fabric, traffic="fair")
            moves = found.changing
            for label, value in (
                ("stay", moves.staying_seconds if moves else stays),
                ("change", moves.seconds if moves else stays),
            ):
                yield f"optical {dark:g},{name},4,100,16,,{label},{value * 1e3:.4f},,,,,,{seconds:.2f}"


def packet(folder: Path, budget: int) -> Iterator[str]:
    """The original's task graphs on a k-ary fat tree, against its packet-level results; files not there are left out."""
    with open(folder / "topoopt_packet_level.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (folder / "taskgraphs" / row["taskgraph"]).exists()]
    for row in rows:
        gbit = float(row["link_gbps"])
        tree = clusters.cluster(f"fat-tree:{row['fabric_nodes']},bandwidth={gbit * 1e9 / 8:g},latency=1e-6")
        step = taskgraph_fbuf.play(models.read(str(folder / "taskgraphs" / row["taskgraph"])), tree)
        ratio = step.step_seconds * 1e3 / float(row["iter_ms"]) - 1
        label = f"packet,{row['workload']},1,{gbit:g},{row['job_nodes']},{float(row['iter_ms']):.4f},fat-tree"
        yield f"{label},{step.step_seconds * 1e3:.4f},{step.compute_seconds * 1e3:.4f},{ratio:.4f},,,,"


def speed(folder: Path, budget: int) -> Iterator[str]:
    for search in ("published", "improved"):
        _, seconds = ask(folder, "dlrm16", search=search)
        yield f"speed,dlrm16,4,100,16,,{search} 600 proposals,,,,,,,{seconds:.2f}"


def table(sweep: str, rows: list[dict[str, str]]) -> str:
    """Return the rows of a sweep as Markdown: a table for each workload, a line for each number, milliseconds a step."""
    parts = []
    for name in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == name]
        parts += [f"{name}: milliseconds a step", "", f"| {sweep} | {' | '.join(COLUMNS.values())} |", "|---" * 5 + "|"]
        for x in dict.fromkeys(row[AXES[sweep]] for row in own):
            found = {row["topology"]: f"{float(row['step_ms']):.1f}" for row in own if row[AXES[sweep]] == x}
            parts.append(f"| {x.removeprefix('batch ')} | {' | '.join(found.get(column, '') for column in COLUMNS)} |")
        parts.append("")
    return "\n".join(parts)


def draw(path: Path, title: str, across: str, lines: dict[str, list[tuple[float, float]]]) -> None:
    """Draw lines over two logarithmic axes as SVG, each named at its right end."""
    width, height, left, right, top, bottom = 660, 420, 60, 490, 44, 370
    xs = sorted({x for line in lines.values() for x, _ in line})
    ys = [y for line in lines.values() for _, y in line]
    ticks = [base * 10.0**power for power in range(-1, 6) for base in (1, 2, 5)]
    low, high = max(tick for tick in ticks if tick <= min(ys)), min(tick for tick in ticks if tick >= max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        along = math.log(x / xs[0]) / (math.log(xs[-1] / xs[0]) or 1.0)
        return left + along * (right - left), bottom - math.log(y / low) / (math.log(high / low) or 1.0) * (bottom - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="22" font-size="14">{title}</text>',
        f'<text x="{(left + right) / 2}" y="{height - 12}" text-anchor="middle">{across}</text>',
    ]
    for tick in (tick for tick in ticks if low <= tick <= high):
        y = place(xs[0], tick)[1]
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [f'<text x="{place(x, low)[0]:.1f}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>' for x in xs]
    below = -math.inf
    for name, line in sorted(lines.items(), key=lambda entry: -entry[1][-1][1]):
        colour = dict(zip(COLUMNS.values(), ("#1b6ca8", "#c0392b", "#7f8c8d", "#d68910"), strict=True))[name]
        points = [place(x, y) for x, y in line]
        path_points = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        below = max(points[-1][1] + 4, below + 15)
        parts.append(f'<text x="{right + 10}" y="{below:.1f}" fill="{colour}">{name}</text>')
    path.write_text("\n".join((*parts, "</svg>\n")), encoding="utf-8")


def pictures(out: Path, sweep: str, rows: list[dict[str, str]]) -> None:
    """Draw step against the number that changes, a picture for each workload."""
    labels = {"degree": "interfaces of a server", "bandwidth": "Gbit/s of an interface", "servers": "servers",
              "batch": "samples of a device"}  # fmt: skip
    for name in dict.fromkeys(row["workload"] for row in rows):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in (row for row in rows if row["workload"] == name and row["topology"] in COLUMNS):
            point = (float(row[AXES[sweep]].removeprefix("batch ")), float(row["step_ms"]))
            lines.setdefault(COLUMNS[row["topology"]], []).append(point)
        draw(out / f"{sweep}_{name}.svg", f"{name}: milliseconds a step", labels[sweep], lines)


def main() -> None:
    known = {
        "targets": targets, "degree": degree, "bandwidth": bandwidth, "servers": servers, "batch": batch, "shared": shared,
        "optical": optical, "packet": packet, "speed": speed,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[1] / "tests" / "reference" / "topoopt")
    parser.add_argument("sweeps", nargs="*", default=[name for name in known if name != "speed"])
    parser.add_argument("--out", type=Path, default=Path("build/topoopt_paper"))
    parser.add_argument("--budget", type=int, default=300, help="plans simulated on each topology; targets always take 600")
    options = parser.parse_args()
    folder = options.data.resolve()
    if wrong := [sweep for sweep in options.sweeps if sweep not in known]:
        parser.error(f"no sweep called '{wrong[0]}'; there are {', '.join(known)}")
    needed = ["workloads.json", *(f"measures/{name}.json" for name in FILES.values())]
    if lost := [name for name in needed if not (folder / name).is_file()]:
        parser.error(f"{folder} holds no {lost[0]}; name the folder with workloads.json and measures/ by --data")
    packets = folder / "topoopt_packet_level.csv"
    if "packet" in options.sweeps and not packets.is_file():
        parser.error(f"the sweep 'packet' needs {packets}; name other sweeps")
    options.out.mkdir(parents=True, exist_ok=True)
    print(HEADER)
    for sweep in options.sweeps:
        lines = []
        try:
            for row in known[sweep](folder, options.budget):
                print(row, flush=True)
                lines.append(row)
        except InputError as error:
            parser.error(str(error))
        (options.out / f"{sweep}.csv").write_text("\n".join([HEADER, *lines]) + "\n")
        if sweep in AXES:
            rows = list(csv.DictReader([HEADER, *lines]))
            (options.out / f"{sweep}.md").write_text(table(sweep, rows), encoding="utf-8")
            pictures(options.out, sweep, rows)


if __name__ == "__main__":
    main()
