"""Fits the physical constants of the cost model to measured runs, and says how far predictions are from the runs it has not
seen.

    python benchmarks/fit_costs.py [FOLDER] [--group NAME]... [--write | --swap]

FOLDER holds CSV files that ``meshwright validate`` reads, by default the built-in sets. Odd rows of every set are fitted (of
vTrain's runs on up to eight devices every sixth, because there are so many), even rows are held out.

Procedure. Constants stand in groups that share runs; groups follow each other in the order of `GROUPS`. Each constant has a
grid (`Constant.step`) and starts at `Constant.start`, never at what the files say. The objective is the mean over the group's
parts of the mean of ``|log(predicted / measured)|`` over a part's rows; a part is one set on one kind of device. Constants are
moved one at a time by 4, 2 and 1 steps of the grid while the objective falls by more than 0.0001, and all of them again until
none moves. The values found are compared with the data files and, with ``--write``, written there. With the constants of the
files the script then prints every set's error on both halves. Where measured runs lie around what ``plan`` predicts is another
script's: ``benchmarks/fit_intervals.py``, to be run after this one.

``--swap`` is the check of over-fitting: the halves change places (even rows are fitted, of vTrain's small runs another sixth),
and the table is that of the constants then found, so that what stands as *held out* is an error on rows of which the data
files' own constants have seen half and these constants none. Nothing is written.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from meshwright import clusters, sim, validation
from meshwright.base import registry
from meshwright.clusters import nodes, wires
from meshwright.core.cluster import Cluster
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import Timeline
from meshwright.sim import engine, transfers
from meshwright.validation import Point, _programs, _runs
from meshwright.validation._points import fitted

DATA = _programs.DATA
Row = Mapping[str, str]
Half = Callable[[str, int, Row], bool]


@dataclass(frozen=True)
class Constant:
    """One figure of a data file, and those that are set to the same."""

    file: str
    key: str
    start: float
    step: float
    most: float = math.inf
    also: tuple[tuple[str, str], ...] = ()
    least: float = 0.0

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Where it stands: file and ``table.key``."""
        return ((self.file, self.key), *self.also)


@dataclass(frozen=True)
class Group:
    """Constants that are fitted together, and the runs: sets with what tells whether a row belongs."""

    name: str
    constants: tuple[Constant, ...]
    sets: tuple[tuple[str, Callable[[Row], bool]], ...]


def _any(fields: Row) -> bool:
    return True


def _mixture(fields: Row) -> bool:
    return fields["ep"].strip() not in ("", "n/a", "1")


def _dense_on(system: str) -> Callable[[Row], bool]:
    """Return what tells dense runs on a system."""
    return lambda fields: fields["system"] == system and not _mixture(fields)


def _pulled(file: str, *others: str) -> tuple[tuple[str, str], ...]:
    """Return where else a device's figure goes."""
    return tuple((f"devices/{other}.toml", file) for other in others)


A100 = ("a100_sxm_40gb", "a100_pcie_80gb", "a100_pcie_40gb")
OVERLAP = tuple(
    ("programs.toml", f"{name}.tensor_overlap")
    for name in ("megatron_mixture", "megatron_mixture_captured", "megatron_mixture_host")
)

GROUPS = (
    Group(
        "a100",
        (
            Constant("devices/a100_sxm_80gb.toml", "achieved.matmul", 0.7, 0.01, 0.95, _pulled("achieved.matmul", *A100)),
            Constant("devices/a100_sxm_80gb.toml", "achieved.memory", 0.75, 0.05, 0.95, _pulled("achieved.memory", *A100)),
            Constant(
                "programs.toml",
                "megatron_deepspeed.issue",
                90,
                1,
                300,
                (("programs.toml", "aceso.issue"), ("programs.toml", "mist.issue")),
            ),
        ),
        (
            ("vtrain", lambda fields: int(fields["gpus"]) > 8),
            ("vtrain", lambda fields: int(fields["gpus"]) <= 8),
            ("megatron_sc21_zero3_vs_ptd", lambda fields: fields["scheme"] == "PTD"),
        ),
    ),
    Group(
        "zero3",
        (Constant("programs.toml", "zero3_2021.shard", 17.5, 0.5),),
        (("megatron_sc21_zero3_vs_ptd", lambda fields: fields["scheme"] == "ZeRO-3"),),
    ),
    Group(
        "b200",
        (
            Constant(
                "devices/b200_sxm_180gb.toml", "achieved.matmul", 0.5, 0.01, 0.95, _pulled("achieved.matmul", "b300_sxm_270gb")
            ),
        ),
        (("simumax", _any),),
    ),
    Group(
        "h100",
        (
            Constant("devices/h100_sxm_80gb.toml", "achieved.fp8", 0.65, 0.01, 0.95, _pulled("achieved.fp8", "h200_sxm_141gb")),
            Constant("programs.toml", "megatron.tensor_overlap", 0.5, 0.05, 0.95, OVERLAP),
        ),
        (("mlperf", lambda fields: "H100" in fields["platform"]), ("megatron_bridge", _dense_on("DGX-H100"))),
    ),
    Group(
        "b200_fp8",
        (Constant("devices/b200_sxm_180gb.toml", "achieved.fp8", 0.6, 0.01, 0.95),),
        (("mlperf", lambda fields: " B200" in fields["platform"]), ("megatron_bridge", _dense_on("DGX-B200"))),
    ),
    Group(
        "gb200",
        (
            Constant("devices/gb200_186gb.toml", "achieved.fp8", 0.6, 0.01, 0.95),
            Constant("devices/gb200_186gb.toml", "achieved.fp4", 0.4, 0.01, 0.95, _pulled("achieved.fp4", "b200_sxm_180gb")),
        ),
        (("megatron_bridge", _dense_on("DGX-GB200")),),
    ),
    Group(
        "gb300",
        (
            Constant("devices/gb300_279gb.toml", "achieved.fp8", 0.6, 0.01, 0.95, _pulled("achieved.fp8", "b300_sxm_270gb")),
            Constant("devices/gb300_279gb.toml", "achieved.fp4", 0.4, 0.01, 0.95, _pulled("achieved.fp4", "b300_sxm_270gb")),
        ),
        (("megatron_bridge", _dense_on("DGX-GB300")),),
    ),
    Group(
        "mixtures",
        (
            Constant(
                "programs.toml",
                "megatron_mixture.memory_passes",
                2,
                0.1,
                6,
                (("programs.toml", "megatron_mixture_dropped.memory_passes"),),
            ),
            Constant("programs.toml", "megatron_mixture_captured.memory_passes", 1, 0.1, 6, least=1),
            Constant("programs.toml", "megatron_mixture_host.issue", 100, 5, 400),
            Constant("programs.toml", "megatron_mixture_host.expert_issue", 75, 5, 400),
            Constant("devices/gb200_186gb.toml", "achieved.matmul", 0.5, 0.01, 0.95, _pulled("achieved.matmul", "gb300_279gb")),
        ),
        (("megatron_bridge", _mixture),),
    ),
    Group(
        "torchtitan",
        (
            Constant("devices/h100_sxm_96gb.toml", "achieved.matmul", 0.5, 0.01, 0.95),
            Constant("devices/h100_sxm_96gb.toml", "achieved.attention", 0.3, 0.01, 0.95),
            Constant(
                "programs.toml",
                "torchtitan.ring_imbalance",
                0.5,
                0.05,
                1,
                (("programs.toml", "torchtitan_async.ring_imbalance"),),
            ),
            Constant("programs.toml", "torchtitan_async.tensor_overlap", 0.5, 0.05, 0.95),
        ),
        (("torchtitan", _any),),
    ),
    Group(
        "sailor",
        (
            Constant("programs.toml", "megatron_deepspeed_fp32.memory_passes", 3.5, 0.1, 8),
            Constant("programs.toml", "megatron_deepspeed_fp32.issue", 120, 2, 300),
        ),
        (("sailor", lambda fields: fields["gpu_types"] == "GH-96"),),
    ),
    Group(
        "mist",
        (
            Constant("devices/l4_24gb.toml", "achieved.matmul", 0.5, 0.01, 0.95),
            Constant("devices/l4_24gb.toml", "achieved.attention", 0.4, 0.02, 0.95),
            Constant("clusters/g6_l4.toml", "pcie.achievable", 0.3, 0.02, 0.8),
            Constant("clusters/g5_a10g.toml", "pcie.achievable", 0.2, 0.01, 0.8),
        ),
        (("mist_aceso", lambda fields: not fields["cluster"].startswith("a100")), ("mist_tuned", _any)),
    ),
)


def main() -> None:
    """Fit, compare with the files, and print the errors of both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(validation.__file__).parent / "data")
    parser.add_argument("--group", action="append", help="fit this group only; 'none' fits nothing")
    parser.add_argument("--write", action="store_true", help="write what was found into the data files")
    parser.add_argument(
        "--swap", action="store_true", help="fit the half that is otherwise held out, judge on the other; writes nothing"
    )
    asked = parser.parse_args()
    if asked.write and asked.swap:
        parser.error("--swap only checks: it cannot be combined with --write")
    sets = read(asked.folder)
    chosen = swapped if asked.swap else fitted
    with edited() as folder:
        groups = [group for group in GROUPS if not asked.group or group.name in asked.group]
        for group in groups:
            for constant in group.constants:
                put(folder, constant, constant.start)
        for group in groups:
            fit(group, sets, folder, chosen)
        if asked.swap:
            errors(sets, chosen)
            return
        if asked.write:
            for constant in (constant for group in groups for constant in group.constants):
                put(DATA, constant, get(folder, *constant.places[0]))
    errors(sets, chosen)


def swapped(kind: str, row: int, fields: Row) -> bool:
    """Tell whether a row is fitted when the halves change places; sets of which nothing is fitted stay so."""
    if any(fitted(kind, i, fields) for i in range(1, 7)):
        return fitted(kind, row + 1, fields)
    return False


def read(folder: Path) -> dict[str, list[Row]]:
    """Return the rows of every set found in a folder, by kind."""
    found: dict[str, list[Row]] = {}
    kinds = {kind: set(registry.load("validation", kind, "measured set").COLUMNS) for kind in registry.names("validation")}
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        matching = [kind for kind, columns in kinds.items() if rows and columns <= set(rows[0])]
        if matching:
            found[max(matching, key=lambda kind: (len(kinds[kind]), kind))] = rows
    return found


@contextmanager
def edited() -> Iterator[Path]:
    """Lend a copy of the data files, which the package reads meanwhile."""
    before = _programs.DATA, wires.DATA, nodes.DATA, clusters.cluster, sim.simulate, _runs.as_planned
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        shutil.copytree(DATA, folder)
        _programs.DATA = wires.DATA = nodes.DATA = folder
        clusters.cluster = _rewired(folder, before[3])
        sim.simulate = _quicker(before[4])
        _runs.as_planned = lambda run, plan: None  # what no constant is fitted to need not be predicted
        try:
            yield folder
        finally:
            _programs.DATA, wires.DATA, nodes.DATA, clusters.cluster, sim.simulate, _runs.as_planned = before


def _quicker(simulate: Callable[..., Timeline]) -> Callable[..., SimpleNamespace]:
    """Return what plays a step for its time; what it holds, which no constant here moves, is found once for each plan."""
    known: dict[object, dict[str, object]] = {}

    def quick(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> SimpleNamespace:
        key = (
            plan,
            tuple((load.static_bytes, load.activation_bytes, load.working_bytes, load.reserved_bytes) for load in stage_costs),
        )
        if key not in known:
            whole = simulate(problem, plan, stage_costs)
            kept = ("peak_bytes", "reserved_bytes", "allocated_bytes", "causes", "memory_causes")
            known[key] = {name: getattr(whole, name) for name in kept}
        seconds = engine.played_seconds(plan, stage_costs, transfers.transfers(problem, plan, stage_costs))
        return SimpleNamespace(step_seconds=seconds, **known[key])

    return quick


def _rewired(folder: Path, build: Callable[[str], Cluster]) -> Callable[[str], Cluster]:
    """Return what builds clusters from the folder, wires only once for each state of a cluster's file."""
    built: dict[tuple[str, str], Cluster] = {}
    names = nodes.kinds()

    def cluster(spec: str) -> Cluster:
        name = names[spec.partition(":")[0]]
        text = (folder / "clusters" / f"{name}.toml").read_text(encoding="utf-8")
        device = tomllib.loads(text)["device"]
        if (spec, text) not in built:
            built[spec, text] = build(spec)
        return replace(built[spec, text], kinds=(wires.device(device),))

    return cluster


def _entry(text: str, key: str) -> re.Match[str]:
    """Return where the number of ``table.key`` stands in the text of a data file."""
    table, name = key.split(".")
    found = re.search(rf"^\[{table}\]\n(?:(?!\[).*\n)*?{name} = {{ value = \"?(?P<number>[\d.]+)", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"no figure {key}")
    return found


def get(folder: Path, file: str, key: str) -> float:
    """Return a figure of a data file in its own unit."""
    return float(_entry((folder / file).read_text(encoding="utf-8"), key)["number"])


def put(folder: Path, constant: Constant, value: float) -> None:
    """Write a figure, and those that are set to the same."""
    for file, key in constant.places:
        text = (folder / file).read_text(encoding="utf-8")
        found = _entry(text, key)
        (folder / file).write_text(
            text[: found.start("number")] + f"{value:.6g}" + text[found.end("number") :], encoding="utf-8"
        )


def predictions(kind: str, rows: Sequence[tuple[int, Row]]) -> list[tuple[int, Point]]:
    """Return the rows that are predicted and were timed."""
    found = registry.load("validation", kind, "measured set").points([fields for _, fields in rows])
    return [
        (row, point)
        for (row, _), point in zip(rows, found, strict=True)
        if isinstance(point, Point) and point.ran and point.measured_seconds > 0.0
    ]


def objective(group: Group, sets: Mapping[str, Sequence[Row]], half: Half) -> float:
    """Return the mean over parts of the mean absolute log error on the half that is fitted."""
    parts: dict[tuple[int, str], list[float]] = {}
    for i, (kind, belongs) in enumerate(group.sets):
        chosen = [
            (row, fields) for row, fields in enumerate(sets.get(kind, ()), 1) if belongs(fields) and half(kind, row, fields)
        ]
        for _, point in predictions(kind, chosen):
            error = abs(math.log(point.predicted_seconds / point.measured_seconds))
            parts.setdefault((i, point.device), []).append(error)
    return float(np.mean([np.mean(part) for part in parts.values()])) if parts else math.inf


def fit(group: Group, sets: Mapping[str, Sequence[Row]], folder: Path, half: Half) -> None:
    """Move the constants of a group along their grids until the objective falls no more, and print them."""
    known: dict[tuple[float, ...], float] = {}

    def reached() -> float:
        values = tuple(get(folder, *constant.places[0]) for constant in group.constants)
        return known[values] if values in known else known.setdefault(values, objective(group, sets, half))

    best = reached()
    if not math.isfinite(best):
        print(f"{group.name}: no measured runs in the folder")
        return
    moved = True
    while moved:
        moved = False
        for constant in group.constants:
            for n_steps in (4, 2, 1):
                for direction in (1, -1):
                    while True:
                        value = get(folder, *constant.places[0])
                        tried = round(value + direction * n_steps * constant.step, 6)
                        if tried <= 0.0 or not constant.least <= tried <= constant.most:
                            break
                        put(folder, constant, tried)
                        error = reached()
                        if error > best - 1e-4:
                            put(folder, constant, value)
                            break
                        best, moved = error, True
    print(f"{group.name}: mean |log error| of the fitted half {best:.4f}")
    for constant in group.constants:
        found, stands = get(folder, *constant.places[0]), get(DATA, *constant.places[0])
        print(f"  {constant.file} {constant.key}: found {found:g}, stands {stands:g}", flush=True)


def errors(sets: Mapping[str, Sequence[Row]], half: Half) -> None:
    """Print the error of every set on both halves."""
    known: list[tuple[str, bool, Point]] = []
    for kind, rows in sets.items():
        if kind in ("collectives", "korthikanti_activation_memory"):
            continue
        for row, point in predictions(kind, list(enumerate(rows, 1))):
            known.append((kind, half(kind, row, rows[row - 1]), point))
    print(f"{'set':<28}{'rows':>6}{'fitted':>9}{'held out':>10}{'bias':>8}")
    for kind in dict.fromkeys(kind for kind, _, _ in known):
        print(_line(kind, [(f, p) for k, f, p in known if k == kind]))
    print(_line("all", [(f, p) for _, f, p in known]))


def _line(name: str, known: Sequence[tuple[bool, Point]]) -> str:
    """Return one line of the table: mean absolute errors of both halves, and bias."""

    def mean(half: bool) -> str:
        found = [abs(p.predicted_seconds / p.measured_seconds - 1.0) for f, p in known if f is half]
        return f"{100.0 * float(np.mean(found)):.1f} %" if found else "-"

    bias = float(np.mean([p.predicted_seconds / p.measured_seconds - 1.0 for _, p in known]))
    return f"{name:<28}{len(known):>6}{mean(True):>9}{mean(False):>10}{100.0 * bias:>6.1f} %"


if __name__ == "__main__":
    main()
