"""Regenerate the figures and tables of the Piper paper as CSV files and SVG pictures, with our planner's times beside theirs.

python benchmarks/piper_paper.py [--data FOLDER] [--out FOLDER] [--figures 1,2,3,4,gnmt,times] [--full]

Written to FOLDER (build/piper_paper): figure_1.csv and one picture for each memory; figure_2_devices_*.csv and
figure_2_replicas_*.csv with pictures, for batches of 960 and 512; figure_3.csv (CPU seconds of planning), figure_4.csv (fixed
plans), table_gnmt.csv, and times.csv (beside the authors' CPU seconds). ResNet's table is left out: nothing to compare with is
published.

The inputs are the published ones (bert32a100.json, gnmt.json); figure 2 draws whole curves with --full, otherwise the paper's
points. Times are CPU seconds of one thread with compiled kernels, reading included.
"""

from __future__ import annotations

import argparse
import csv
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Iterable, Sequence

from meshwright import api
from meshwright.base import options as _params
from meshwright.core.problem import Stop
from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options
from meshwright.planners.piper.problem import PiperInstance
from meshwright.planners.piper.readers.piper_json import with_limits
from meshwright.planners.piper.search import piper_equal_split

GIB = 2.0**30
VARIANTS = {
    "piper": Options(),
    "noDP": Options(data_parallel=False),
    "noTP": Options(tensor_parallel=False),
    "noAR": Options(recompute="never"),
}
SPLITS = {"equi_noTP": {"tensor_parallel": "false"}, "equi": {}}


def best(instance: PiperInstance, options: Options) -> float:
    """Return the best time per micro-batch; infinite where nothing fits."""
    solution = solve.solve(instance, options, nearly_ratio=0.0)
    return evaluate(instance, solution.stages).seconds if solution.stages else math.inf


def split(path: pathlib.Path, instance: PiperInstance, **settings: str) -> float:
    """Return the time per micro-batch of the best equal split; infinite where none fits."""
    settings |= {
        "max_devices": str(instance.n_devices),
        "n_microbatches": str(instance.n_microbatches),
        "bandwidth": repr(instance.bandwidth),
        "memory": repr(instance.memory_bytes),
    }
    params = _params.parse(piper_equal_split.Params, settings, "search piper_equal_split")
    answer = piper_equal_split.search(api.make_problem(str(path)), params, seed=0, stop=Stop())
    return answer.objective.value if answer.objective is not None else math.inf


def figure_1(data: pathlib.Path, out: pathlib.Path) -> None:
    """Throughput relative to Piper's over devices, for four memories."""
    instance = load(data / "bert32a100.json")
    rows = []
    for memory in (1, 2, 8, 80):
        for devices in (8, 32, 64, 128, 512, 1024, 2048):
            case = with_limits(instance, n_devices=devices, n_microbatches=1920, bandwidth=25 * GIB, memory_bytes=memory * GIB)
            full = best(case, VARIANTS["piper"])
            if not math.isfinite(full):
                continue
            values = {name: best(case, options) for name, options in VARIANTS.items() if name != "piper"}
            values |= {name: split(data / "bert32a100.json", case, **settings) for name, settings in SPLITS.items()}
            rows.append({"memory_gib": memory, "devices": devices, "piper": full} | {n: full / v for n, v in values.items()})
    write(out / "figure_1.csv", rows)
    for memory in (1, 2, 8, 80):
        lines = {
            name: [(row["devices"], row[name]) for row in rows if row["memory_gib"] == memory]
            for name in (*[n for n in VARIANTS if n != "piper"], *SPLITS)
        }
        picture(out / f"figure_1_{memory}gib.svg", f"throughput relative to Piper, {memory} GiB", "devices", lines)


def figure_2(data: pathlib.Path, out: pathlib.Path, full: bool) -> None:
    """Throughput over devices and over the sum of replicas, at two batches."""
    path = data / "bert32a100.json"
    instance = load(path)
    points = (8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048)
    for batch in (960, 512):
        case = with_limits(instance, n_devices=2048, n_microbatches=batch, bandwidth=25e9, memory_bytes=8 * GIB)
        lines: dict[str, list[tuple[float, float]]] = {}
        for name, options in VARIANTS.items():
            if full or name == "piper":
                steps = solve.curve(case, options, "devices")
                lines[name] = [(point["devices"], 1 / point["seconds_per_microbatch"]) for point in steps]
            else:
                values = [(k, best(with_limits(case, n_devices=k), options)) for k in points]
                lines[name] = [(k, 1 / value) for k, value in values]
        for name, settings in SPLITS.items():
            lines[name] = [(k, 1 / split(path, with_limits(case, n_devices=k), **settings)) for k in points]
        write_lines(out / f"figure_2_devices_{batch}.csv", "devices", lines)
        picture(out / f"figure_2_devices_{batch}.svg", f"micro-batches per second, batch {batch}", "devices", lines)
        steps = solve.curve(case, VARIANTS["piper"], "replicas")
        lines = {"piper": [(point["replicas"], 1 / point["seconds_per_microbatch"]) for point in steps]}
        write_lines(out / f"figure_2_replicas_{batch}.csv", "replicas", lines)
        picture(out / f"figure_2_replicas_{batch}.svg", f"micro-batches per second, batch {batch}", "sum of replicas", lines)


def figure_3(data: pathlib.Path, out: pathlib.Path) -> None:
    """CPU seconds of planning over devices, for models of four depths and four batches."""
    rows = []
    best(load(data / "bert32a100.json"), VARIANTS["piper"])  # kernels are loaded before anything is timed
    for layers in (32, 48, 64, 96):
        spec = str(data / "bert32a100.json") + (f"#layers={layers}" if layers > 32 else "")
        for batch in (480, 512, 1920, 2048):
            for devices in (8, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048):
                seconds = []
                for _ in range(3):
                    started = time.process_time()
                    instance = load(spec)
                    case = with_limits(instance, n_devices=devices, n_microbatches=batch, bandwidth=25e9, memory_bytes=80e9)
                    best(case, VARIANTS["piper"])
                    seconds.append(time.process_time() - started)
                rows.append({"layers": layers, "batch": batch, "devices": devices, "cpu_seconds": statistics.median(seconds)})
    write(out / "figure_3.csv", rows)
    lines = {
        f"BERT-{layers}": [
            (row["devices"], row["cpu_seconds"]) for row in rows if row["layers"] == layers and row["batch"] == 1920
        ]
        for layers in (32, 48, 64, 96)
    }
    picture(out / "figure_3.svg", "CPU seconds of planning, batch 1920", "devices", lines)


def figure_4(data: pathlib.Path, out: pathlib.Path) -> None:
    """Fixed plans that the paper measured."""
    path = data / "bert32a100.json"
    rows = []
    for batch in (128, 512):
        for d, t, stages in ((32, 1, 2), (16, 1, 4), (8, 1, 8), (4, 1, 16), (2, 1, 32), (32, 2, 1), (16, 4, 1), (8, 8, 1)):
            case = with_limits(load(path), n_devices=64, n_microbatches=batch, bandwidth=162.5 * GIB, memory_bytes=80e9)
            fixed = {"data": str(d), "tensor": str(t), "stages": str(stages), "separate": "false", "recompute": "always"}
            rows.append({"batch": batch, "d": d, "t": t, "stages": stages, "seconds": split(path, case, **fixed)})
    write(out / "figure_4.csv", rows)
    lines = {
        f"batch {batch}": [(row["stages"], row["seconds"]) for row in rows if row["batch"] == batch and row["t"] == 1]
        for batch in (128, 512)
    }
    picture(out / "figure_4.svg", "seconds per micro-batch of fixed plans, tensor degree 1", "stages", lines)


def table_gnmt(data: pathlib.Path, out: pathlib.Path) -> None:
    """GNMT against an equal split of its layers."""
    cases = [
        "2:2.5",
        "2:3.5",
        "4:1.2",
        "4:2.5",
        "8:.6",
        "8:1.2",
        "8:2.4",
        "16:.3",
        "16:.6",
        "16:1.2",
        "32:.3",
        "32:.8",
        "64:.3",
    ]
    rows = []
    for devices, memory in (case.split(":") for case in cases):
        case = with_limits(
            load(data / "gnmt.json"),
            n_devices=int(devices),
            n_microbatches=256,
            bandwidth=25 * GIB,
            memory_bytes=float(memory) * GIB,
        )
        started = time.process_time()
        value = best(case, VARIANTS["piper"])
        seconds = time.process_time() - started
        equal = split(data / "gnmt.json", case, layers="true", tensor_parallel="false")
        rows.append(
            {"devices": devices, "memory_gib": memory, "piper": value, "equal_layers": equal, "cpu_seconds": round(seconds, 3)}
        )
    write(out / "table_gnmt.csv", rows)


def times(data: pathlib.Path, out: pathlib.Path) -> None:
    """CPU seconds beside those of the authors' program."""
    reference = data / "piper.csv"
    rows = []
    with reference.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["variant"] != "piper" or row["source"] != "algo.cpp" or not row["objective_time_per_sample"]:
                continue
            grown = {"bert48": "bert32a100.json#layers=48", "bert64": "bert32a100.json#layers=64"}
            started = time.process_time()
            case = with_limits(
                load(str(data / grown.get(row["input"], row["input"] + ".json"))),
                n_devices=int(row["maxDevices"]),
                n_microbatches=int(row["mbsInBatch"]),
                bandwidth=float(row["bandwidth"]),
                memory_bytes=float(row["memory"]),
            )
            value = best(case, VARIANTS["piper"])
            seconds = time.process_time() - started
            theirs, known = float(row["cpu_s"].lstrip(">")), float(row["objective_time_per_sample"])
            rows.append(
                {
                    "input": row["input"],
                    "devices": row["maxDevices"],
                    "batch": row["mbsInBatch"],
                    "memory": row["memory"],
                    "ours_cpu_seconds": round(seconds, 4),
                    "theirs_cpu_seconds": theirs,
                    "ratio": round(theirs / seconds, 1),
                    "value_over_theirs": value / known,
                }
            )
    write(out / "times.csv", rows)


def load(spec: str | pathlib.Path) -> PiperInstance:
    """Read an instance."""
    instance = api.read(str(spec)).instance
    assert isinstance(instance, PiperInstance)
    return instance


def write(path: pathlib.Path, rows: Sequence[dict[str, object]]) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path}: {len(rows)} rows", flush=True)


def write_lines(path: pathlib.Path, over: str, lines: dict[str, list[tuple[float, float]]]) -> None:
    """Write lines of points as CSV."""
    write(path, [{"line": name, over: x, "value": y} for name, points in lines.items() for x, y in points])


def picture(path: pathlib.Path, title: str, over: str, lines: dict[str, list[tuple[float, float]]]) -> None:
    """Draw lines over a logarithmic axis as SVG."""
    width, height, left, top = 640, 400, 60, 40
    colours = ("#1b6ca8", "#c0392b", "#27ae60", "#8e44ad", "#d68910", "#34495e")
    points = [(x, y) for line in lines.values() for x, y in line if math.isfinite(y)]
    low, high = (math.log2(bound(x for x, _ in points)) for bound in (min, max))
    most = max(y for _, y in points)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low) / ((high - low) or 1.0)
        return left + across * (width - left - 130), height - 50 - y / (most or 1.0) * (height - 50 - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="22" font-size="14">{title}</text>',
        f'<text x="{width / 2 - 60}" y="{height - 10}">{over} (logarithmic)</text>',
    ]
    for step in range(5):
        y = most * step / 4
        across, down = place(2**low, y)
        parts.append(f'<line x1="{across}" x2="{width - 130}" y1="{down}" y2="{down}" stroke="#ddd"/>')
        parts.append(f'<text x="4" y="{down + 4}">{y:.3g}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1):
        across, down = place(2.0**power, 0.0)
        parts.append(f'<text x="{across - 8}" y="{down + 16}">{2**power}</text>')
    for i, (name, line) in enumerate(lines.items()):
        path_points = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in line if math.isfinite(y)))
        colour = colours[i % len(colours)]
        parts.append(f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{width - 120}" y="{top + 18 * i}" fill="{colour}">{name}</text>')
    path.write_text("\n".join((*parts, "</svg>\n")))


def main(arguments: Iterable[str]) -> int:
    """Make the figures asked for."""
    beside = pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference" / "piper"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--data", type=pathlib.Path, default=beside)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/piper_paper"))
    parser.add_argument("--figures", default="1,2,3,4,gnmt,times")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args(list(arguments))
    if lost := [name for name in ("bert32a100.json", "gnmt.json", "piper.csv") if not (options.data / name).exists()]:
        parser.error(f"{options.data} holds no {lost[0]}; name the folder with --data")
    options.out.mkdir(parents=True, exist_ok=True)
    makers = {
        "1": lambda: figure_1(options.data, options.out),
        "2": lambda: figure_2(options.data, options.out, options.full),
        "3": lambda: figure_3(options.data, options.out),
        "4": lambda: figure_4(options.data, options.out),
        "gnmt": lambda: table_gnmt(options.data, options.out),
        "times": lambda: times(options.data, options.out),
    }
    for name in options.figures.split(","):
        if name not in makers:
            print(f"piper_paper: there is no figure '{name}'; choose of {', '.join(makers)}", file=sys.stderr)
            return 2
        makers[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
