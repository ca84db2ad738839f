"""TopoOpt (NSDI 2023): the released search, its task graphs packet by packet, fat trees of equal cost, and several jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, ModuleType

import numpy as np

from meshwright import clusters, models, published
from meshwright.planners.topoopt import jobs, networks
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.readers import taskgraph_fbuf
from meshwright.published.claims import Case, Claim

__all__ = ["CASES"]

_WORKLOADS = MappingProxyType({"dlrm16": "dlrm16", "bert16": "transformer16", "candle16": "candle16", "vgg16": "vgg16"})
"""Workloads as the tables call them, and their files of measured times."""
_BUDGET, _FEW = 600, 60
_SERVERS = 16
_SHARED_SERVERS, _DRAWS, _TAIL = 432, 10, 0.99
_LOADS = (0.2, 0.6, 1.0)
"""Shares of the shared cluster that jobs of 16 servers take."""
_MODELS_128 = ("dlrm128", "candle128", "bert128", "ncf128", "resnet50_128node", "vgg16_128node")
_FEWER = 20


def _design(
    api: ModuleType, name: str, degree: int, budget: int, networks_asked: tuple[str, ...] = ("topoopt",), **settings: str
) -> Design:
    """Return plan and network for a workload on 16 servers, traffic timed as the released program does."""
    word = "vgg16_16node" if name == "vgg16" else name
    found: Design = api.codesign(
        f"{published.path('topoopt/workloads.json')}#{word}", servers=_SERVERS, degree=degree, link_bandwidth=100e9 / 8,
        measures=published.path(f"topoopt/measures/{_WORKLOADS[name]}.json"), topologies=networks_asked, budget=budget,
        settings={"traffic": "segments", **settings},
    )  # fmt: skip
    return found


def _found_ms(design: Design) -> float:
    return design.entry.found.seconds * 1e3


def released(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the step found for every workload and degree of the released program's rows."""
    for row in published.rows("topoopt/topoopt_search.csv"):
        name, degree = row["workload"], int(row["degree"])
        if row["topology"] != "topoopt" or (name == "candle16") != claim.id.endswith("candle"):
            continue
        theirs, ours = (_design(api, name, degree, _BUDGET, search=search) for search in ("published", "improved"))
        yield Case(
            f"{name}, {degree} interfaces", float(row["best_ms_in_search"]), _found_ms(theirs), _found_ms(ours), None,
            ours.bound_seconds * 1e3,
        )  # fmt: skip


def packets(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the step of every task graph that the package holds."""
    held = ("100dlrm_16.fbuf", "100vgg_16.fbuf", "200candle_16.fbuf", "400transformer_16.fbuf")
    for row in published.rows("topoopt/topoopt_packet_level.csv"):
        if row["taskgraph"] not in held:
            continue
        gbit = float(row["link_gbps"])
        tree = clusters.cluster(f"fat-tree:{row['fabric_nodes']},bandwidth={gbit * 1e9 / 8:g},latency=1e-6")
        graph = models.read(published.path(f"topoopt/taskgraphs/{row['taskgraph']}"))
        step = taskgraph_fbuf.play(graph, tree)
        yield Case(f"{row['taskgraph']}, {gbit:g} Gbit/s", float(row["iter_ms"]), step.step_seconds * 1e3)


def equal_cost(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the gain over a fat tree of equal cost of every workload, then the largest."""
    gains = []
    for name in _WORKLOADS:
        design = _design(api, name, 4, _FEW, ("topoopt", "fat-tree"), equal_cost="true")
        entries = dict(design.entries)
        found, tree = entries["topoopt"], entries["fat-tree-equal-cost"]
        gains.append(tree.found.seconds / found.found.seconds)
        note = f"costs {found.cost:.0f} and {tree.cost:.0f}"
        yield Case(f"{name}, 4 interfaces", None, None, gains[-1], note=note)
    for name, claimed in claim.values.items():
        yield Case(name, claimed, None, max(gains))


def shared(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield mean and tail of many jobs, each alone on wires of its own, against all on one fat tree, for several loads."""
    tree = "fat-tree-equal-cost"
    designs = {name: _design(api, name, 4, _FEW, ("topoopt", "fat-tree"), equal_cost="true") for name in _WORKLOADS}
    rows = {name: dict(design.entries) for name, design in designs.items()}
    speed = max(row[tree].link_bytes_per_second for row in rows.values()) / 4
    fabric = networks.build("fat-tree", _SHARED_SERVERS, 4, speed, 1e-6, 0).fabric
    random = np.random.default_rng(0)
    for load in _LOADS:
        names = [
            name for name, _ in zip(itertools.cycle(_WORKLOADS), range(round(load * _SHARED_SERVERS / _SERVERS)), strict=False)
        ]
        own = [rows[name]["topoopt"].found.seconds for name in names] * _DRAWS
        together: list[float] = []
        for _ in range(_DRAWS):
            places = jobs.scattered(_SHARED_SERVERS, [_SERVERS] * len(names), random)
            asked = [
                jobs.PlacedJob(designs[name].step, rows[name][tree].found.placement, servers)
                for name, servers in zip(names, places, strict=True)
            ]
            together += jobs.together(asked, jobs.fitted(asked, fabric), "segments")
        gains = (np.mean(together) / np.mean(own), np.quantile(together, _TAIL) / np.quantile(own, _TAIL))
        for word, gain in zip(("mean", "tail"), gains, strict=True):
            yield Case(f"{word}, {len(names)} jobs", claim.values[word] if load == 1.0 else None, None, float(gain))


def dedicated(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the gain over a fat tree of equal cost of the six models on 128 servers."""
    for name in _MODELS_128:
        design: Design = api.codesign(
            f"{published.path('topoopt/workloads.json')}#{name}", servers=128, degree=4, link_bandwidth=100e9 / 8,
            topologies=("topoopt", "fat-tree"), budget=_FEWER, settings={"equal_cost": "true"},
        )  # fmt: skip
        entries = dict(design.entries)
        if not {"topoopt", "fat-tree-equal-cost"} <= set(entries):
            lacking = f": the fullest device lacks {design.missing_bytes / 2**30:.3g} GiB" if design.missing_bytes else ""
            yield Case(f"{name}, 4 interfaces", note=f"nothing fits{lacking}" if lacking else "no plan was found in 20")
            continue
        found, tree = entries["topoopt"], entries["fat-tree-equal-cost"]
        gain = tree.found.seconds / found.found.seconds
        note = f"{found.found.seconds * 1e3:.4g} and {tree.found.seconds * 1e3:.4g} ms"
        yield Case(f"{name}, 4 interfaces", None, None, gain, note=note)


CASES: Mapping[str, Callable[[Claim, ModuleType], Iterator[Case]]] = MappingProxyType({
    "released-search": released, "released-search-candle": released, "packets": packets, "equal-cost": equal_cost,
    "shared": shared, "dedicated-128": dedicated,
})  # fmt: skip
"""What computes each claim."""
