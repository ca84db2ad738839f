"""Fits the physical constants of the cost model to measured runs, and says how far predictions are from the runs it has not
seen.

    python benchmarks/fit_costs.py [--group NAME]... [--write | --check | --swap | --leave-one-out] [--set NAME]...

Odd rows of every built-in set are fitted (of vTrain's runs on up to eight devices every sixth, because there are so many; of
recipes that were run on 8 to 2,304 devices those on up to 128), even rows are held out.

Procedure. Constants of devices, of frameworks and of links stand in groups, each with every set that tells them: a device's
are the
same under all frameworks, a framework's on all devices. Each constant has a grid (`Constant.step`) and starts at
`Constant.start`, never at what the files say. The objective is the mean over the group's parts of the mean of
``|log(predicted / measured)|`` over a part's rows; a part is one set on one kind of device. Constants are moved one at a time
by
4, 2 and 1 steps of the grid while the objective falls by more than 0.0001, and all of them again until none moves. The values
found are compared with the data files and, with ``--write``, written there. With the constants of the files the script then
prints every set's error on both halves. Where measured runs lie around what ``plan`` predicts is another script's:
``benchmarks/fit_intervals.py``, to be run after this one.

``--check`` ends with status 1 where a file has another figure than was found, and prints no errors (``make constants``).

``--swap`` is the check of over-fitting: the halves change places (even rows are fitted, of vTrain's small runs another sixth),
and the table is that of the constants then found. Nothing is written.

``--leave-one-out`` is the error on a paper that nobody fitted: for every set, the groups that it belongs to are fitted again
without any of its rows, and all of its rows are predicted. A constant that no other set tells stays at its start. Printed are
the errors of what ``plan --for`` predicts and of the set's own program, and how many rows lie inside the intervals that the
other sets give.

A prediction is found once for everything that it depends on (the run, its framework, its links and those figures of its
devices that it reads), so that moving one constant predicts only the rows that read it, and fits without one set share most
of their way.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from meshwright import clusters, frameworks, models, sim
from meshwright.base import files, registry
from meshwright.base.identity import ById
from meshwright.clusters import nodes, wires
from meshwright.core import framework_file
from meshwright.core.cluster import Cluster, Device, Links
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.timeline import Timeline
from meshwright.costs import analytic
from meshwright.costs.analytic import device_mesh
from meshwright.models.readers import huggingface
from meshwright.network import model
from meshwright.sim import engine, transfers
from meshwright.validation import Point, _completed, _domains, _runs, _sets, _table
from meshwright.validation._points import fitted

DATA = Path(clusters.__file__).parents[1]
"""The package: figures of devices and clusters lie in ``clusters/data``, of frameworks in ``frameworks/data``."""
Row = Mapping[str, str]
Half = Callable[[str, int, Row], bool]
Sets = Mapping[str, tuple[str, list[Row]]]
Lent = Mapping[tuple[Any, str], Any]
"""What stands in for attributes of modules: module and name, and the value."""


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


def _told_on(*kinds: str, mixtures: bool = False) -> Callable[[Row], bool]:
    """Return what tells runs told in full on some kinds of cluster."""

    def tells(fields: Row) -> bool:
        name, _, n_devices = Path(fields["cluster"]).name.partition(":")
        return name in kinds and int(n_devices or 0) <= MOST_DEVICES and (int(fields["expert"]) > 1) is mixtures

    return tells


def _device(name: str, key: str, start: float, step: float, *others: str) -> Constant:
    """Return a figure of a device, and the other kinds that take it over."""
    also = tuple((f"clusters/data/devices/{other}.toml", key) for other in others)
    return Constant(f"clusters/data/devices/{name}.toml", key, start, step, 0.95, also)


def _framework(name: str, key: str, start: float, step: float, most: float, *others: str, least: float = 0.0) -> Constant:
    """Return a figure of a framework (``how.issue_seconds``), and other frameworks' or variants' that are the same."""
    also = tuple((f"frameworks/data/{other.split('#')[0]}.toml", other.split("#")[1]) for other in others)
    return Constant(f"frameworks/data/{name}.toml", key, start, step, most, also, least)


MOST_DEVICES = 128
"""Recipes repeated on ever more devices are fitted up to so many."""

EAGER_MICROSECONDS = 120
"""Where issuing an eager operator starts in every group, so that a set that is left out starts at no figure of its own. Cast
and product of an expert are one operator of ours, whose issuing is several kernels with their autograd nodes: they take no
longer than an operator does at its start, whatever the host."""

A100 = ("a100_sxm_40gb", "a100_pcie_80gb", "a100_pcie_40gb")
NOT_COMPILED = ("fsdp2#how", "deepspeed#how", "nanotron#how", "torchtitan#variants.eager.how")
"""Programs in PyTorch that nothing is fitted to, and that no compiler fuses operators of."""

NEMO = ("nemo_2407_h100", "nemo_2412_2504", "dgxc_benchmarking")

GROUPS = (
    Group(
        "a100",
        (
            _device("a100_sxm_80gb", "achieved.matmul", 0.7, 0.01, *A100),
            _device("a100_sxm_80gb", "achieved.memory", 0.75, 0.05, *A100),
            _device("a100_sxm_80gb", "attention.flash1", 0.4, 0.02, *A100),
            _framework(
                "megatron_deepspeed",
                "how.issue_seconds",
                EAGER_MICROSECONDS,
                2,
                300,
                "megatron#variants.eager.how.issue_seconds",
            ),
            _framework(
                "fsdp2",
                "variants.fsdp1_2023.how.memory_passes_ratio",
                1.5,
                0.1,
                4,
                *(f"{place}.memory_passes_ratio" for place in NOT_COMPILED),
                least=1,
            ),
        ),
        (
            ("vtrain_a100", lambda fields: int(fields["gpus"]) > 8),
            ("vtrain_a100", lambda fields: int(fields["gpus"]) <= 8),
            ("megatron_sc21_zero3_vs_ptd", lambda fields: fields["scheme"] == "PTD"),
            ("bigscience_a100", _any),
            ("llm_foundry_mpt", _told_on("dgx-a100", "dgx-a100-40")),
            ("fms_fsdp", _told_on("ibm_a100.yaml")),
        ),
    ),
    Group(
        "zero3",
        (_framework("deepspeed", "variants.sc21.how.shard_bytes_per_second", 17.5, 0.5, 25),),
        (("megatron_sc21_zero3_vs_ptd", lambda fields: fields["scheme"] == "ZeRO-3"),),
    ),
    Group("b200", (_device("b200_sxm_180gb", "achieved.matmul", 0.5, 0.01, "b300_sxm_270gb"),), (("simumax_b200", _any),)),
    Group(
        "h100",
        (
            _device("h100_sxm_80gb", "achieved.matmul", 0.65, 0.01, "h200_sxm_141gb", "gh200_96gb"),
            _device("h100_sxm_80gb", "achieved.fp8", 0.65, 0.01, "h200_sxm_141gb"),
            _device("h100_sxm_80gb", "attention.flash1", 0.2, 0.01, "h200_sxm_141gb", "gh200_96gb"),
            _framework(
                "megatron",
                "how.tensor_overlap_ratio",
                0.5,
                0.05,
                0.95,
                "megatron#variants.experts_drop.how.tensor_overlap_ratio",
            ),
        ),
        (
            ("mlperf_llm_pretrain", lambda fields: "H100" in fields["platform"] and int(fields["nodes"] or 0) <= 128),
            ("megatron_bridge_perf", _dense_on("DGX-H100")),
            *((name, _told_on("dgx-h100")) for name in NEMO),
            ("llm_foundry_mpt", _told_on("dgx-h100")),
            ("fms_fsdp", _told_on("ibm_h100.yaml")),
        ),
    ),
    Group(
        "b200_fp8",
        (_device("b200_sxm_180gb", "achieved.fp8", 0.6, 0.01),),
        (
            ("mlperf_llm_pretrain", lambda fields: " B200" in fields["platform"]),
            ("megatron_bridge_perf", _dense_on("DGX-B200")),
            ("nemo_2412_2504", _told_on("dgx-b200")),
        ),
    ),
    Group(
        "gb200",
        (
            _device("gb200_186gb", "achieved.matmul", 0.5, 0.01, "gb300_279gb"),
            _device("gb200_186gb", "achieved.fp8", 0.6, 0.01),
            _device("gb200_186gb", "achieved.fp4", 0.4, 0.01, "b200_sxm_180gb"),
        ),
        (("megatron_bridge_perf", _dense_on("DGX-GB200")), *((name, _told_on("gb200-nvl72")) for name in NEMO[1:])),
    ),
    Group(
        "gb300",
        (
            _device("gb300_279gb", "achieved.fp8", 0.6, 0.01, "b300_sxm_270gb"),
            _device("gb300_279gb", "achieved.fp4", 0.4, 0.01, "b300_sxm_270gb"),
        ),
        (("megatron_bridge_perf", _dense_on("DGX-GB300")),),
    ),
    Group(
        "mixtures",
        (
            _framework(
                "megatron",
                "variants.experts_2025.how.memory_passes_ratio",
                2,
                0.1,
                6,
                "megatron#variants.experts_drop.how.memory_passes_ratio",
                least=1,
            ),
            _framework("megatron", "variants.experts_captured.how.memory_passes_ratio", 1, 0.1, 6, least=1),
            _framework("megatron", "variants.experts_x86.how.issue_seconds", EAGER_MICROSECONDS, 5, 300),
            _framework("megatron", "variants.experts_x86.how.expert_issue_seconds", 75, 5, EAGER_MICROSECONDS),
        ),
        (
            ("megatron_bridge_perf", _mixture),
            *((name, _told_on("dgx-h100", "dgx-b200", mixtures=True)) for name in NEMO[1:]),
        ),
    ),
    Group(
        "torchtitan",
        (
            _device("h100_sxm_96gb", "achieved.matmul", 0.5, 0.01),
            _device("h100_sxm_96gb", "achieved.fp8", 0.5, 0.01),
            _device("h100_sxm_96gb", "attention.flash2", 0.3, 0.01),
            _framework("torchtitan", "how.ring_imbalance_ratio", 0.5, 0.05, 1, "fsdp2#how.ring_imbalance_ratio"),
            _framework(
                "torchtitan",
                "variants.async_tensor.how.tensor_overlap_ratio",
                0.5,
                0.05,
                0.95,
                "nanotron#variants.async_tensor.how.tensor_overlap_ratio",
            ),
        ),
        (("torchtitan", _any),),
    ),
    Group(
        "sailor",
        (
            _framework("megatron_deepspeed", "variants.fp32.how.memory_passes_ratio", 3.5, 0.1, 8),
            _framework("megatron_deepspeed", "variants.fp32.how.issue_seconds", EAGER_MICROSECONDS, 2, 300),
        ),
        (("sailor", lambda fields: fields["gpu_types"] == "GH-96"),),
    ),
    Group(
        "mist",
        (
            _device("l4_24gb", "achieved.matmul", 0.5, 0.01),
            _device("l4_24gb", "achieved.attention", 0.4, 0.02),
            Constant("clusters/data/clusters/g6_l4.toml", "pcie.achievable", 0.3, 0.02, 0.8),
            Constant("clusters/data/clusters/g5_a10g.toml", "pcie.achievable", 0.2, 0.005, 0.8),
        ),
        (("mist_aceso_runs", lambda fields: not fields["cluster"].startswith("a100")), ("mist_tuned_l4", _any)),
    ),
)
"""Constants of devices, frameworks and links, each with every set that tells it; a framework's figures are the same on every
device, a device's under every framework."""


def main() -> None:
    """Fit, compare with the files, and print the errors of both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", help="fit this group only; 'none' fits nothing")
    parser.add_argument("--set", action="append", dest="sets", help="leave out this set only")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--write", action="store_true", help="write what was found into the data files")
    way.add_argument("--check", action="store_true", help="say which figures of the data files are others than what was found")
    way.add_argument("--swap", action="store_true", help="fit the half that is otherwise held out, judge on the other")
    way.add_argument("--leave-one-out", action="store_true", help="fit without each set in turn, judge on all of its rows")
    asked = parser.parse_args()
    sets = read(_sets.set_names())
    chosen = swapped if asked.swap else fitted_row
    with edited() as folder:
        lent = quick()
        groups = [group for group in GROUPS if not asked.group or group.name in asked.group]
        if asked.leave_one_out:
            for name in asked.sets or sets:
                left_out(name, sets, folder, lent)
            return
        with replaced(lent):
            fit_all(groups, sets, folder, chosen)
        if asked.check:
            if wrong := differing(groups, folder):
                raise SystemExit(wrong)
            return
        if asked.swap:
            errors(sets, chosen)
            return
        if asked.write:
            for constant in (constant for group in groups for constant in group.constants):
                put(DATA, constant, get(folder, *constant.places[0]))
    errors(sets, chosen)


def fit_all(groups: Sequence[Group], sets: Sets, folder: Path, half: Half) -> None:
    """Fit groups, one after the other, from their starts."""
    for constant in (constant for group in groups for constant in group.constants):
        put(folder, constant, constant.start)
    for group in groups:
        fit(group, sets, folder, half)


def differing(groups: Sequence[Group], folder: Path) -> str:
    """Return which figures of the data files are others than those found, in a sentence; empty for none."""
    places = [
        (f"{file} {key}", get(DATA, file, key), get(folder, *constant.places[0]))
        for group in groups
        for constant in group.constants
        for file, key in constant.places
    ]
    wrong = [f"{place}: stands {stands:g}, found {found:g}" for place, stands, found in places if stands != found]
    return "\n".join(wrong)


def left_out(name: str, sets: Sets, folder: Path, lent: Lent) -> list[Point]:
    """Return all rows of a set, predicted with constants fitted without it, and print the error."""
    groups = [group for group in GROUPS if name in dict(group.sets)]
    with replaced(lent):
        fit_all(groups, {other: found for other, found in sets.items() if other != name}, folder, fitted_row)
    kind, rows = sets[name]
    known = [point for _, point in predictions(kind, list(enumerate(rows, 1)))]
    for constant in (constant for group in groups for constant in group.constants):
        put(folder, constant, get(DATA, *constant.places[0]))
    if known:
        measured = np.array([point.measured_seconds for point in known])
        as_planned, own = (
            np.array([getattr(point, name) for point in known]) / measured - 1.0
            for name in ("planned_seconds", "predicted_seconds")
        )
        print(
            f"left out: {name:<28}{len(known):>6} rows, as planned {100.0 * np.abs(as_planned).mean():.1f} %, "
            f"bias {100.0 * as_planned.mean():+.1f} %, its program {100.0 * np.abs(own).mean():.1f} %",
            flush=True,
        )
    return known


def fitted_row(kind: str, row: int, fields: Row) -> bool:
    """Tell whether a row of a built-in set is fitted."""
    return fitted(kind, row, fields, built_in=True)


def swapped(kind: str, row: int, fields: Row) -> bool:
    """Tell whether a row is fitted when the halves change places; sets of which nothing is fitted stay so."""
    return any(fitted_row(kind, i, fields) for i in range(1, 7)) and fitted_row(kind, row + 1, fields)


def read(names: Sequence[str]) -> dict[str, tuple[str, list[Row]]]:
    """Return kind and rows of every set, by name; cells that name files are seen from here."""
    found = {}
    for name in names:
        path = _sets.set_file(name)
        measured = _table.read(path)
        if measured.kind not in ("collectives", "korthikanti_activation_memory"):
            plugin = registry.load("validation", measured.kind, "measured set")
            found[Path(name).stem] = measured.kind, _table.located(path, measured.rows, getattr(plugin, "PATHS", ()))
    return found


@contextmanager
def edited() -> Iterator[Path]:
    """Lend a copy of the data files, which the package reads meanwhile; models and networks are worked out once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("clusters/data", "frameworks/data"):
            shutil.copytree(DATA / part, folder / part)
        lent = {
            (wires, "DATA"): folder / "clusters/data",
            (nodes, "DATA"): folder / "clusters/data",
            (clusters, "cluster"): (rewired := _rewired(folder / "clusters/data", clusters.cluster)),
            (_domains, "_named"): rewired,
            (huggingface, "graph_of"): _once(huggingface.graph_of),
            (models, "read"): _once(models.read),
            (model, "_network"): _by_links(model._network),
            (device_mesh, "_axes"): _by_links(device_mesh._axes),
        }
        with replaced(lent):
            try:
                yield folder
            finally:
                reload_frameworks(DATA)


@contextmanager
def replaced(lent: Lent) -> Iterator[None]:
    """Lend other attributes of modules."""
    before = {(place, name): getattr(place, name) for place, name in lent}
    try:
        for (place, name), value in lent.items():
            setattr(place, name, value)
        yield
    finally:
        for (place, name), value in before.items():
            setattr(place, name, value)


def quick() -> Lent:
    """Return what stands in for parts of the package while constants are fitted: only the time of a step is needed, of the
    set's own program, on links of its own, and what was found once is remembered.
    """
    return {
        (_runs, "as_planned"): lambda run, plan: None,
        (_runs, "_predicted"): _remembered(_runs._predicted),
        (_completed, "fits"): _remembered_fits(_completed.fits),
        (sim, "simulate"): _quicker(sim.simulate),
        (analytic, "stage_costs"): partial(analytic.stage_costs, ledger=False),
    }


def _once(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return what reads a model once for each question: a graph never changes."""
    known: dict[str, Any] = {}

    def found(*asked: Any, **more: Any) -> Any:
        key = repr((asked, more))
        return known[key] if key in known else known.setdefault(key, read(*asked, **more))

    return found


def _by_links(find: Callable[[Cluster], Any]) -> Callable[[Cluster], Any]:
    """Return what finds networks for clusters whose links are the same: constants of devices change none."""
    known: dict[ById[Links], Any] = {}

    def found(cluster: Cluster) -> Any:
        key = ById(cluster.links)
        return known[key] if key in known else known.setdefault(key, find(cluster))

    return found


def _remembered(predicted: Callable[..., _runs.Predicted]) -> Callable[..., _runs.Predicted]:
    """Return what predicts a run once for all that its prediction depends on."""
    known: dict[object, _runs.Predicted] = {}
    plain = [field.name for field in dataclasses.fields(_runs.Run) if field.name not in ("graph", "graph_as_read", "cluster")]

    def found(run: _runs.Run, plan: Plan, change: Callable[..., object] | None) -> _runs.Predicted:
        if change is not None:
            return predicted(run, plan, change)
        links, devices = ById(run.cluster.links), tuple(_read(device, run) for device in run.cluster.kinds)
        key = (ById(run.graph), links, run.cluster.name, devices, *(getattr(run, name) for name in plain))
        return known[key] if key in known else known.setdefault(key, predicted(run, plan, None))

    return found


def _remembered_fits(fits: Callable[[_runs.Run], bool]) -> Callable[[_runs.Run], bool]:
    """Return what tells once whether a run fits: no constant here moves what it holds."""
    known: dict[object, bool] = {}
    plain = [field.name for field in dataclasses.fields(_runs.Run) if field.name not in ("graph", "graph_as_read", "cluster")]

    def found(run: _runs.Run) -> bool:
        key = (ById(run.graph), run.cluster.name, *(getattr(run, name) for name in plain))
        return known[key] if key in known else known.setdefault(key, fits(run))

    return found


def _read(device: Device, run: _runs.Run) -> Device:
    """Return a device with those of its fitted figures alone that a run of one precision and one attention reads."""
    attention, products = device.attention(run.framework.attention), device.achieved(run.training.precision)
    return replace(device, attention_ratio=attention, attention_of=(), fp8_ratio=products, fp4_ratio=products)


def reload_frameworks(folder: Path) -> None:
    """Have every framework read its figures again, but for those that rest on another one's: no published set names them."""
    for name in frameworks.names():
        path = folder / "frameworks/data" / f"{name}.toml"
        if path.is_file() and "base" not in files.read_toml(path):
            module = frameworks.load(name)
            module.FRAMEWORK, module.VARIANTS = framework_file.read(path)


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
    names, stems = nodes.kinds(), {wires.device(name).name: name for name in wires.device_names()}

    def cluster(spec: str) -> Cluster:
        name = names.get(spec.partition(":")[0])
        text = "" if name is None else (folder / "clusters" / f"{name}.toml").read_text(encoding="utf-8")
        if (spec, text) not in built:
            built[spec, text] = build(spec)
        own = built[spec, text]
        return replace(own, kinds=tuple(wires.device(stems[kind.name]) for kind in own.kinds))

    return cluster


def _entry(text: str, key: str) -> re.Match[str]:
    """Return where the number of ``table.key`` stands in the text of a data file."""
    table, _, name = key.rpartition(".")
    found = re.search(
        rf"^\[{re.escape(table)}\]\n(?:(?!\[).*\n)*?{name} = {{ value = \"?(?P<number>[\d.]+)", text, re.MULTILINE
    )
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
    if any(file.startswith("frameworks/") for file, _ in constant.places):
        reload_frameworks(folder)


def predictions(kind: str, rows: Sequence[tuple[int, Row]]) -> list[tuple[int, Point]]:
    """Return the rows that are predicted and were timed."""
    found = registry.load("validation", kind, "measured set").points([fields for _, fields in rows])
    return [
        (row, point)
        for (row, _), point in zip(rows, found, strict=True)
        if isinstance(point, Point) and point.ran and point.measured_seconds > 0.0
    ]


def objective(group: Group, sets: Sets, half: Half) -> float:
    """Return the mean over parts of the mean absolute log error on the half that is fitted."""
    parts: dict[tuple[int, str], list[float]] = {}
    for i, (name, belongs) in enumerate(group.sets):
        kind, rows = sets.get(name, ("", []))
        chosen = [(row, fields) for row, fields in enumerate(rows, 1) if belongs(fields) and half(kind, row, fields)]
        for _, point in predictions(kind, chosen) if chosen else ():
            error = abs(math.log(point.predicted_seconds / point.measured_seconds))
            parts.setdefault((i, point.device), []).append(error)
    return float(np.mean([np.mean(part) for part in parts.values()])) if parts else math.inf


def fit(group: Group, sets: Sets, folder: Path, half: Half) -> None:
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


def errors(sets: Sets, half: Half) -> None:
    """Print the error of every set on both halves."""
    known: list[tuple[str, bool, Point]] = []
    for name, (kind, rows) in sets.items():
        for row, point in predictions(kind, list(enumerate(rows, 1))):
            known.append((name, half(kind, row, rows[row - 1]), point))
    print(f"{'set':<28}{'rows':>6}{'fitted':>9}{'held out':>10}{'bias':>8}")
    for name in dict.fromkeys(name for name, _, _ in known):
        print(_line(name, [(f, p) for k, f, p in known if k == name]))
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
