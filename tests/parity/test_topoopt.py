"""TopoOpt's released program: topologies exactly, starting times within its own spread, workloads from parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest

import reference
from meshwright.clusters.wires import device
from meshwright.models import read
from meshwright.planners.topoopt import alternate, networks, published
from meshwright.planners.topoopt.alternate import NetworkParts
from meshwright.planners.topoopt.choices import Servers, space
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.readers import flexflow_measures
from meshwright.planners.topoopt.step import Step, data_parallel
from meshwright.solvers.graph import circulants

RATE, LATENCY, SIZE = 12.5e9, 1e-6, 256 * 2**20
FILES = {"dlrm16": "dlrm16", "bert16": "transformer16", "candle16": "candle16", "vgg16": "vgg16"}


def rows(name: str) -> list[dict[str, str]]:
    return reference.rows(f"topoopt/{name}")


def well_defined(row: dict[str, str]) -> bool:
    """Return whether the released program neither stopped nor read past the end of its list on this row's topology."""
    same = [r for r in rows("topoopt_topologies.csv") if all(r[k] == row[k] for k in ("n", "d", "bidir", "dp_groups"))]
    return all(r["group"] and r["ar_ms_seed_semantics"] != "inf" for r in same)


@pytest.mark.parametrize(
    "row", [r for r in rows("topoopt_topologies.csv") if well_defined(r)], ids=lambda r: "-".join(list(r.values())[:5])
)
def test_a_published_topology_is_reproduced_exactly(row: dict[str, str]) -> None:
    n, degree, group = int(row["n"]), int(row["d"]), int(row["group"])
    traffic = {n: SIZE * (2 * n - 1) / n}
    if "+" in row["dp_groups"]:
        traffic[n // 2] = 2 * SIZE * (n - 1) / (n // 2)
    rings = published.find(n, degree, traffic, bidirectional=row["bidir"] == "1")
    fabric = published.fabric(rings, RATE, LATENCY)
    paths = dict(rings.paths)[group]
    assert " ".join("+".join(map(str, path)) for path in paths) == row["jumps"]
    assert int(fabric.count.sum()) == int(row["links_directed_total"])
    assert round(fabric.mean_hops(), 4) == float(row["avg_hops"])
    assert int(fabric.hops.max()) == int(row["diameter"])
    assert len(paths) == int(row["npath"])
    per_path = math.ceil(2 * (group - 1) / group * SIZE / len(paths))
    assert per_path == int(row["bytes_per_path"])
    busy = np.zeros(len(fabric.source))
    flows = fabric.flows(tuple(range(0, n, n // group)))
    for links, _ in flows:
        place = list(links)
        busy[place] += per_path * fabric.seconds_per_byte[place] + math.ceil(per_path / 2**20) * LATENCY
    seconds = busy.max() + (max(len(links) for links, _ in flows) - 1) * LATENCY
    assert seconds * 1e3 == pytest.approx(float(row["ar_ms_seed_semantics"]), abs=6e-5)


@pytest.mark.parametrize("row", rows("topoopt_circulants.csv"), ids=lambda r: f"{r['n']}-{r['d']}")
def test_our_jumps_have_no_more_mean_hops_than_any_listed(row: dict[str, str]) -> None:
    n, degree = int(row["n"]), int(row["d"])
    published_jumps = [int(jump) for jump in row["seed_jumps"].split()]
    folded = sorted({min(jump, n - jump) for jump in published_jumps})
    assert round(circulants.summary(n, folded)[1], 4) == float(row["seed_avg"])
    listed = [int(jump) for jump in row["best_coprime_jumps"].split()]
    best = circulants.best_jumps(n, degree)
    assert circulants.summary(n, best)[1] <= circulants.summary(n, listed)[1]
    assert all(math.gcd(n, jump) == 1 for jump in best)
    anything = [int(jump) for jump in row["best_any_jumps(with 1)"].split()]
    if 2 * anything[-1] < n:  # the jump of half way round takes one interface only
        assert (
            circulants.summary(n, circulants.best_jumps(n, degree, coprime=False))[1]
            <= circulants.summary(n, anything)[1] + 1e-9
        )


def step_of(name: str) -> Step:
    """Return the question of a published workload, traffic timed as the released program does."""
    spec = "vgg16_16node" if name == "vgg16" else name
    workload = read(f"{reference.path('topoopt/workloads.json')}#{spec}").instance
    measured = flexflow_measures.load(str(reference.path(f"topoopt/measures/{FILES[name]}.json")))
    return Step(space(workload, Servers(16, 4, device("a100-sxm-40gb"), 25e9), measured, shard=False), traffic="segments")


@pytest.mark.parametrize(
    "row", [r for r in rows("topoopt_search.csv") if r["topology"] != "random"], ids=lambda r: "-".join(list(r.values())[1:6])
)
def test_the_starting_time_is_that_of_the_released_program(row: dict[str, str]) -> None:
    step = step_of(row["workload"])
    plan = data_parallel(step.space)
    rate = float(row["link_gbps"]) * 1e9 / 8
    if row["topology"] == "topoopt":
        rings = published.find(16, int(row["degree"]), step.traffic(plan).by_group_size())
        fabric = published.fabric(rings, rate, LATENCY)
    else:
        ends = [(i, 16) for i in range(16)] + [(16, i) for i in range(16)]
        fabric = Fabric("switch", 16, dict.fromkeys(ends, 1.0), rate, LATENCY, forwards=False)
    # event order at equal times is ours: 3 %, and 20 % where the released program's own runs spread as far
    tolerance = 0.2 if row["workload"] == "dlrm16" and row["degree"] == "4" else 0.03
    assert step.seconds(plan, fabric) * 1e3 == pytest.approx(float(row["init_ms"]), rel=tolerance)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("dlrm_readme_16node", "dlrm"),
        ("dlrm16", "dlrm,batch=16384,bottom=1024x8,top=2048x16-1"),
        ("dlrm32", "dlrm,tables=32,batch=32768,bottom=1024x8,top=2048x16-1"),
        ("dlrm128", "dlrm,tables=64,width=128,batch=65536,bottom=2048x8,top=4096x16-1"),
        ("dlrm128_128tables", "dlrm,tables=128,width=128,batch=65536,bottom=2048x8,top=4096x16-1"),
        ("candle_default", "candle,top=4192x3-1"),
        ("candle16", "candle,batch=16384,tower=4096x12,top=4096x8-1"),
        ("candle32", "candle,batch=32768,tower=8192x12,top=8192x8-1"),
        ("candle128", "candle,batch=131072,tower=16384x16,top=16384x8-1"),
        ("bert16", "bert,layers=6,length=256,hidden=768,heads=12"),
        ("bert128", "bert,layers=12,length=64,hidden=1024,heads=16,batch=8192"),
        ("ncf128", "ncf"),
        ("vgg16_16node", "vgg16,batch=4096"),
        ("vgg16_128node", "vgg16,batch=32768"),
        ("resnet50_128node", "resnet50,batch=65536"),
        ("alexnet32", "alexnet"),
    ],
)
def test_a_workload_from_parameters_is_the_one_of_the_file(name: str, spec: str) -> None:
    filed = read(f"{reference.path('topoopt/workloads.json')}#{name}").instance
    made = read(f"topoopt:{spec}").instance
    assert made.operations == filed.operations
    assert made.global_batch == filed.global_batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "degree", "most_ms"),
    [
        ("dlrm16", 4, 20.3),
        ("dlrm16", 8, 14.7),
        ("candle16", 4, 200.0),
        ("candle16", 8, 128.0),
        ("bert16", 8, 62.5),
        ("vgg16", 4, 100.5),
    ],
)
def test_our_search_is_as_fast_as_its_target(name: str, degree: int, most_ms: float) -> None:
    step = step_of(name)
    found = alternate.improved(step, NetworkParts(16, degree, RATE, LATENCY), np.random.default_rng(0), 600, placement="either")
    assert found.seconds * 1e3 <= most_ms


@pytest.mark.parametrize("traffic", ["queues", "segments", "fair"])
@pytest.mark.parametrize(
    "row",
    [r for r in rows("topoopt_packet_level.csv") if r["workload"] in ("transformer", "vgg") and r["job_nodes"] == "16"],
    ids=lambda r: f"{r['workload']}-{r['link_gbps']}",
)
def test_data_parallel_steps_on_a_fat_tree_are_those_of_the_packet_simulator(row: dict[str, str], traffic: str) -> None:
    """Workloads whose published task graphs are data parallel; those of the others are not known."""
    step = step_of({"transformer": "bert16", "vgg": "vgg16"}[row["workload"]])
    plan = data_parallel(step.space)
    sent = step.traffic(plan)
    tree = networks.build("fat-tree", 16, 1, float(row["link_gbps"]) * 1e9 / 8, LATENCY, 0).fabric
    fitted = tree.refitted(sent.pair_bytes, sent.group_bytes)
    assert step.seconds(plan, fitted, traffic=traffic) * 1e3 == pytest.approx(float(row["iter_ms"]), rel=0.03)


def test_a_data_parallel_step_on_32_servers_of_a_fat_tree_is_that_of_the_packet_simulator() -> None:
    row = next(r for r in rows("topoopt_packet_level.csv") if r["workload"] == "transformer" and r["job_nodes"] == "32")
    workload = read("topoopt:bert,layers=12,length=256,hidden=768,heads=12,batch=2048").instance
    measured = flexflow_measures.load(str(reference.path("topoopt/measures/transformer32.json")))
    step = Step(space(workload, Servers(32, 4, device("a100-sxm-40gb"), 25e9), measured, shard=False))
    plan = data_parallel(step.space)
    sent = step.traffic(plan)
    tree = networks.build("fat-tree", 32, 1, float(row["link_gbps"]) * 1e9 / 8, LATENCY, 0).fabric
    fitted = tree.refitted(sent.pair_bytes, sent.group_bytes)
    assert step.seconds(plan, fitted) * 1e3 == pytest.approx(float(row["iter_ms"]), rel=0.01)


def test_every_published_task_graph_is_read_and_has_the_packet_simulators_time() -> None:
    times = {row["taskgraph"]: row for row in rows("topoopt_packet_level.csv")}
    files = sorted(reference.path("topoopt/taskgraphs").glob("*.fbuf"))
    assert len(files) == 10
    for file in files:
        graph = read(str(file)).instance
        assert str(graph.n_servers) == times[file.name]["job_nodes"]
        on = [task for task in graph.tasks if task.kind in ("forward", "backward")]
        busiest = max(
            sum(task.milliseconds[0] for task in on if task.device == device) for device in {task.device for task in on}
        )
        assert 0.0 < busiest <= float(times[file.name]["iter_ms"])  # no iteration is shorter than what one device computes
