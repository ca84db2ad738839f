"""Every published table, row by row, as what is asked of the cost model: runs, measured figures, reasons to skip."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwright import validation
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.stage_cost import StageCost
from meshwright.validation import Skipped, collectives
from meshwright.validation._points import CellError
from meshwright.validation._runs import Predicted, Run
from recorded import Recorded

KINDS = {name: validation.describe_set(name).kind for name in validation.set_names()}
PUBLISHED = {kind: name for name, kind in KINDS.items() if kind not in ("own_runs", "collectives", "aceso")}
WRONG = ("", "7")


def rows(name: str) -> list[dict[str, str]]:
    with validation.set_file(name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def unlike(entries: list[dict[str, str]], columns: tuple[str, ...], most: int) -> list[dict[str, str]]:
    """Return rows among which most words of every column occur."""
    seen: set[tuple[str, str]] = set()
    found = []
    for row in entries:
        new = {(name, row.get(name, "")) for name in columns if len({one.get(name) for one in entries}) < 20} - seen
        if new and len(found) < most:
            seen |= new
            found.append(row)
    return found


def changed(change: Callable[[StageCost], StageCost] | None) -> dict[str, float]:
    """Return what a change of stage costs makes of one whose figures are all different."""
    if change is None:
        return {}
    names = [f.name for f in dataclasses.fields(StageCost) if f.type == "float"]
    load = StageCost(**{name: 1e9 * (i + 1) for i, name in enumerate(names)})
    after = change(load)
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(load, name)}


def told(run: Run) -> dict[str, Any]:
    """Return what a run says, its model and cluster by their sizes."""
    plain = {f.name: getattr(run, f.name) for f in dataclasses.fields(Run)}
    graph, read = run.graph, run.graph_as_read
    bodies = [operator for op in graph.ops for operator in op.body]
    plain["graph"] = [
        graph.name, graph.sequence_length, len(graph.ops), graph.n_parameters, sum(one.saved_elements for one in bodies),
        sum(one.saved_elements * one.selective for one in bodies), len(bodies),
    ]  # fmt: skip
    plain["graph_as_read"] = read and [read.name, read.n_parameters, sum(len(op.body) for op in read.ops)]
    plain["cluster"] = [run.cluster.name, run.cluster.n_devices, sorted({kind.name for kind in run.cluster.kinds})]
    plain["framework"] = run.framework.name
    training = run.training
    plain["training"] = [training.precision, training.gradient_bytes, training.optimizer_bytes, training.loss_bytes]
    plain["strategies"] = [str(dataclasses.astuple(strategy)) for strategy in dict.fromkeys(run.strategies)]
    plain["recompute_of_stage"] = [len(ways) for ways in run.recompute_of_stage]
    usual = {f.name: f.default for f in dataclasses.fields(Run)}
    return {name: value for name, value in plain.items() if name not in usual or value not in (usual[name], [], None)}


class Asked:
    """Stands for the prediction: notes what it is asked, and answers by a number that tells what was asked."""

    def __init__(self) -> None:
        self.kind: Any = SimpleNamespace(devices=("stub",))
        self.runs: list[dict[str, Any]] = []

    def predict(self, run: Run, change: Callable[[StageCost], StageCost] | None = None) -> Predicted:
        self.runs.append({**told(run), "change": changed(change)} if change else told(run))
        seconds = 1.0 + run.micro_batch / 8 + run.strategies[0].tensor / 64
        return Predicted(seconds, 3e9, 2e9, 1e9, True, (), (), self.kind, "stub")

    def least_recomputed(self, run: Run) -> tuple[Predicted, str]:
        return self.predict(run), "assumed"


def as_read(module: ModuleType, entries: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return for each row the runs that were asked for, and its point or why there is none."""
    asked = Asked()
    for name in ("predict", "least_recomputed"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, getattr(asked, name))
    if hasattr(module, "completed"):
        monkeypatch.setattr(module, "completed", asked.predict)
    found: list[Any] = []
    known: dict[str, int] = {}
    unlike_runs: list[dict[str, Any]] = []
    for row in entries:
        asked.runs.clear()
        try:
            (entry,) = module.points([row])
        except CellError as error:
            found.append(f"{error.column}: {error}")
            continue
        if isinstance(entry, Skipped):
            found.append(entry.reason)
            continue
        plain = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry) if f.name != "kind"}
        plain = {
            name: value for name, value in plain.items()
            if value and name not in ("causes", "memory_causes", "planned_seconds", "planned_bytes", "room_ratio",
                                      "recompute_told", "row")
        }  # fmt: skip
        for run in asked.runs:
            if known.setdefault(str(run), len(known)) == len(unlike_runs):
                unlike_runs.append(run)
        found.append({"point": plain, "runs": [known[str(run)] for run in asked.runs]})
    return [found, unlike_runs]


@pytest.mark.parametrize("kind", sorted(PUBLISHED))
def test_rows_ask_for_the_same_runs_as_before(kind: str, monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    module = registry.load("validation", kind, "measured set")
    some = unlike(rows(PUBLISHED[kind]), module.COLUMNS, 6)
    assert some
    recorded(as_read(module, some, monkeypatch))
    entries = module.points(unlike(rows(PUBLISHED[kind]), module.COLUMNS, 40))  # the predictions are still noted only
    recorded([one.reason if isinstance(one, Skipped) else one.group or one.row for one in entries], "together")


@pytest.mark.parametrize("kind", sorted(PUBLISHED))
def test_wrong_cells_are_told_as_before(kind: str, monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    module = registry.load("validation", kind, "measured set")
    listed = rows(PUBLISHED[kind])
    good: Mapping[str, str] = next(row for row in listed if not isinstance(as_read(module, [row], monkeypatch)[0][0], str))
    wrong = [{**good, column: word} for column in module.COLUMNS for word in WRONG]
    said = as_read(module, wrong, monkeypatch)[0]
    cells = [f"{column}={word}" for column in module.COLUMNS for word in WRONG]
    reasons: dict[str, list[str]] = {}
    for cell, one in zip(cells, said, strict=True):
        reasons.setdefault(one if isinstance(one, str) else str(one["point"].get("measured_seconds")), []).append(cell)
    recorded(reasons)


def test_collectives_ask_the_network_for_these_bytes(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    asked: list[Any] = []

    class Axis:
        def seconds(self, kind: str, n_bytes: float) -> float:
            asked[-1] += [kind, n_bytes]
            return 1e-3

    class Network:
        @classmethod
        def of(cls, cluster: Any) -> Network:
            asked.append([cluster.name])
            return cls()

        def axis(self, group: np.ndarray) -> Axis:
            asked[-1].append(group.tolist())
            return Axis()

    monkeypatch.setattr(collectives, "Network", Network)
    base = {"gpu": "a100", "collective": "all_gather", "group": "4", "nodes": "1", "bytes": "1000", "time_us": "44.5"}
    listed = [
        {**base, "gpu": gpu, "collective": kind, "group": group}
        for gpu, kind, group in (
            ("a100", "all_gather", "4"), ("v100", "all_gather", "2"), ("v100-32g", "all_gather", "3"),
            ("v100-32g", "reduce_scatter", "8"), ("v100-32g", "all_to_all", "4"), ("v100-32g", "all_reduce", "2"),
            ("a100", "all_reduce", "8"), ("a100", "all_reduce", "9"), ("a100", "all_reduce", "1"), ("h100", "all_reduce", "2"),
        )
    ]  # fmt: skip
    listed += [{**base, "nodes": "2"}, {**base, "time_us": "1e12"}, {**base, "time_us": "1e9"}, {**base, "bytes": "0"}]
    device = collectives.clusters()("dgx-v100:8").device(0)
    copied = device.memory_bytes_per_second * device.memory_ratio / 1000.0
    found = [
        [one.row, one.reason] if isinstance(one, Skipped)
        else [one.row, one.measured_seconds, round((one.predicted_seconds - 1e-3) * copied, 6)]
        for one in collectives.points(listed)
    ]  # fmt: skip
    recorded([found, asked])


def test_a_row_that_names_nothing_known_is_skipped_or_refused() -> None:
    for kind, name in PUBLISHED.items():
        module = registry.load("validation", kind, "measured set")
        row = rows(name)[0]
        try:
            (entry,) = module.points([dict.fromkeys(row, "")])
        except InputError:
            continue
        assert isinstance(entry, Skipped), kind
