"""Plans that are given: task graphs on networks of `codesign`, and strategy files of FlexNet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import reference
from meshwright import api, clusters
from meshwright.base.errors import InputError
from meshwright.clusters.wires import device
from meshwright.planners.topoopt import networks
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.given import strategy as strategy_file
from meshwright.planners.topoopt.given.task_graph import GivenStep
from meshwright.planners.topoopt.readers import taskgraph_fbuf
from meshwright.planners.topoopt.step import Placement, Step, data_parallel
from meshwright.planners.topoopt.task_graphs.graph import FlexNetTask, TaskGraph
from meshwright.planners.topoopt.task_graphs.played import play
from meshwright.planners.topoopt.writers import taskgraph_fbuf as writer

A100 = device("a100-sxm-40gb")
SMALL = "topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64"
GRAPHS = ("100dlrm_16", "100vgg_16", "400transformer_16", "800candle_16")


def designed(seed: int) -> Design:
    """Return a small design whose rings a task graph can say."""
    settings = {"search": "published", "shard_weights": "no"}
    return api.codesign(
        SMALL, servers=4, degree=2, link_bandwidth="10 Gbit/s", budget=60, settings=settings, seed=seed
    )  # fmt: skip


def given(graph: TaskGraph, traffic: str = "segments") -> GivenStep:
    return GivenStep(graph, "graph", A100, traffic)


def by_hand(*extra: FlexNetTask, change: Callable[[list[FlexNetTask]], None] | None = None) -> TaskGraph:
    """Return a graph on two servers: operator A on both, whose gradients are all-reduced, feeds B on server 1."""
    tasks = [
        FlexNetTask("forward", 1, 0, (1.0,), 0, (2, 20)),
        FlexNetTask("backward", 2, 0, (2.0,), 0, (30,)),
        FlexNetTask("forward", 3, 1, (1.0,), 0, (4, 5)),
        FlexNetTask("backward", 4, 1, (2.0,), 0, (30,)),
        FlexNetTask("forward", 5, 1, (4.0,), 0, (6,)),
        FlexNetTask("backward", 6, 1, (8.0,), 0, (4, 21)),
        FlexNetTask("nominal_comm", 20, 101, (0.0,), 1_000_000, (5,)),
        FlexNetTask("nominal_comm", 21, 110, (0.0,), 1_000_000, (2,)),
        FlexNetTask("all_reduce", 30, 0, (0.5,), 4_000_000, (0, 1)),
        *extra,
    ]
    if change:
        change(tasks)
    devices = ((0, 0, 0, 0), (0, 1, 1, 1), (14, 101, 0, 1), (14, 110, 1, 2))
    return TaskGraph(1, 2, 0, (1.0, 1.0, 1e6), ((1, 0, 1),), ("A_1", "B_2"), tuple(tasks), devices, (), ())


def test_a_step_by_hand_takes_its_chain_of_tasks_and_what_is_sent() -> None:
    step, fabric = given(by_hand()), networks.build("full-mesh", 2, 1, 1e9, 0.0, 0).fabric
    # A, then 1 MB at 1 GB/s; B and its backward on server 1; 1 MB back; A's backward; half a ms inside; 4 MB each way
    assert step.seconds(step.given, fabric) == pytest.approx((1 + 1 + 4 + 8 + 1 + 2 + 0.5 + 4) * 1e-3, rel=1e-9)
    assert step.compute_seconds(step.given) == pytest.approx((1 + 4 + 8 + 2) * 1e-3)
    assert step.bound_seconds(1e9) == pytest.approx((1 + 4 + 8 + 2) * 1e-3, rel=1e-6)
    assert step.bound_seconds(1e8) == pytest.approx(5e6 / 1e8, rel=1e-6)
    traffic = step.traffic(step.given)
    assert traffic.pair_bytes.tolist() == [[0.0, 1e6], [1e6, 0.0]] and traffic.group_bytes == (((0, 1), 4e6),)
    assert [operation.name for operation in step.space.workload.operations] == ["A_1", "B_2"]
    assert step.given == Placement((0, 0), ((0, 1), (1,)))


def test_what_one_server_adds_up_inside_itself_may_end_the_step() -> None:
    def alone(tasks: list[FlexNetTask]) -> None:
        tasks[5] = dataclasses.replace(tasks[5], following=(4, 21, 31))

    step = given(by_hand(FlexNetTask("all_reduce", 31, 1, (100.0,), 8, (1,)), change=alone))
    fabric = networks.build("full-mesh", 2, 1, 1e9, 0.0, 0).fabric
    assert step.seconds(step.given, fabric) == pytest.approx((1 + 1 + 4 + 8 + 100) * 1e-3, rel=1e-9)


@pytest.mark.parametrize("seed", [0, 3, 8])
def test_a_plan_written_as_a_task_graph_takes_the_same_step_on_the_same_network(seed: int) -> None:
    design = designed(seed)
    graph = taskgraph_fbuf.parse(writer.content(design), "graph")
    found, step = design.entry.found, given(graph)
    assert step.seconds(step.given, found.fabric) == pytest.approx(found.seconds, rel=1e-5)
    ours, theirs = step.traffic(step.given), design.step.traffic(found.placement)
    assert np.array_equal(ours.pair_bytes, theirs.pair_bytes)
    assert sorted(ours.group_bytes) == sorted((members, float(int(n))) for members, n in theirs.group_bytes)
    assert step.compute_seconds(step.given) == pytest.approx(design.step.compute_seconds(found.placement), rel=1e-6)


def test_all_reduces_written_as_transfers_behind_a_barrier_are_played_with_fair_shares(
    small: Callable[..., Step], tmp_path: Path
) -> None:
    step = small(SMALL)
    strategy_file.write(step, data_parallel(step.space), str(tmp_path / "plan.txt"))
    design = api.codesign(
        SMALL, servers=4, degree=2, link_bandwidth="10 Gbit/s", topologies=("switch",), strategy=str(tmp_path / "plan.txt")
    )
    graph = taskgraph_fbuf.parse(writer.content(design), "graph")
    assert any(task.kind == "barrier" for task in graph.tasks)
    found = design.entry.found
    fair = design.step.seconds(found.placement, found.fabric, traffic="fair")
    played = play(graph, clusters.cluster("flat:4,bandwidth=20Gbit/s,latency=1us")).step_seconds
    assert played == pytest.approx(fair, rel=0.02)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("traffic", ["segments", "fair", "closed"])
def test_no_network_plays_a_published_graph_below_its_bound(name: str, traffic: str) -> None:
    graph = taskgraph_fbuf.parse(reference.path(f"topoopt/taskgraphs/{name}.fbuf").read_bytes(), name)
    step = given(graph, traffic)
    assert len(step.space.workload.operations) == len(graph.operators)
    for topology in ("switch", "expander"):
        fabric = networks.build(topology, 16, 4, 5e9, 1e-6, 0).fabric
        seconds = step.seconds(step.given, fabric)
        assert step.bound_seconds(fabric.injection_bytes_per_second()) <= seconds
        assert seconds < 4.0 * step.bound_seconds(fabric.injection_bytes_per_second())


def first(tasks: list[FlexNetTask], at: int, **changes: object) -> None:
    tasks[at] = dataclasses.replace(tasks[at], **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tasks: first(tasks, 0, following=(20,)), "is followed by 0 backward tasks"),
        (lambda tasks: first(tasks, 6, kind="barrier"), "is of kind barrier"),
        (lambda tasks: first(tasks, 8, following=(0,)), "joins servers [0] and waits for gradients on [0, 1]"),
        (lambda tasks: first(tasks, 6, following=(5, 2)), "must lead from one task that computes to another"),
        (lambda tasks: first(tasks, 2, following=(4, 5, 20)), "must lead from one task that computes to another"),
        (lambda tasks: tasks.append(FlexNetTask("backward", 99, 0, (1.0,), 0, ())), "4 backward tasks, 3 forward ones"),
    ],
)
def test_a_graph_that_is_no_plan_is_refused(change: Callable[[list[FlexNetTask]], None], said: str) -> None:
    with pytest.raises(InputError) as caught:
        given(by_hand(change=change))
    assert said in str(caught.value)


def test_all_reduces_of_unlike_speeds_inside_servers_are_refused() -> None:
    def two(tasks: list[FlexNetTask]) -> None:
        first(tasks, 1, following=(30, 31))
        first(tasks, 3, following=(30, 31))

    with pytest.raises(InputError, match="must be one speed"):
        given(by_hand(FlexNetTask("all_reduce", 31, 0, (0.1,), 4_000_000, (0, 1)), change=two))


def test_a_strategy_comes_back_as_it_was_written_and_numbers_are_the_order_of_the_workload(
    small: Callable[..., Step], tmp_path: Path
) -> None:
    step, path = small(), tmp_path / "plan.txt"
    rng = np.random.default_rng(5)
    for _ in range(30):
        plan = data_parallel(step.space)
        for i, options in enumerate(step.space.choices):
            k = int(rng.integers(len(options)))
            if options[k].rows == 1:
                plan = plan.with_op(i, k, tuple(rng.permutation(4)[: options[k].n_parts].tolist()))
        strategy_file.write(step, plan, str(path))
        assert strategy_file.read(str(path), step.space) == plan
        text = path.read_text()
        for i, operation in enumerate(step.space.workload.operations):
            text = text.replace(f"\n{operation.name}\n", f"\nOp_{100 + i}\n")
        path.write_text(text)
        assert strategy_file.read(str(path), step.space) == plan


def test_a_strategy_file_is_laid_out_as_flexflow_reads_it(small: Callable[..., Step]) -> None:
    step = small()
    plan = data_parallel(step.space)
    lines = strategy_file.text(step, plan).splitlines()
    assert lines[0] == str(len(plan.choice)) and len(lines) == 1 + 6 * len(plan.choice)
    names = sorted(operation.name for operation in step.space.workload.operations)
    assert lines[1::6] == names and set(lines[2::6]) == {"0"}
    at = next(i for i, operation in enumerate(step.space.workload.operations) if operation.kind == "linear")
    block = lines[1 + 6 * names.index(step.space.workload.operations[at].name) :][:6]
    assert block[2:] == ["2", "1\t4\t", "4", "0\t1\t2\t3\t"]


ONE = "Dense_1\n0\n2\n1\t2\t\n2\n0\t1\t\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "ends before the number of operators"),
        ("x", "'x' is given for the number of operators"),
        ("1\n" + ONE[:-6], "ends before"),
        ("1\n" + ONE + "9", "'9' after the last operator"),
        ("2\n" + ONE + ONE, "Dense_1 stands there twice"),
        ("1\n" + ONE, "and they differ"),
        ("1\n" + ONE.replace("\n0\n2\n", "\n1\n2\n"), "(0: GPU)"),
        ("1\n" + ONE.replace("2\n0\t1", "3\n0\t1\t1"), "has 3 devices for 2 parts"),
        ("1\n" + ONE.replace("0\t1\t\n", "0\t7\t\n"), "must be a number from 0 to 3"),
    ],
)
def test_a_strategy_file_that_is_none_is_refused(content: str, said: str, small: Callable[..., Step], tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_text(content)
    with pytest.raises(InputError) as caught:
        strategy_file.read(str(tmp_path / "plan.txt"), small().space)
    assert said in str(caught.value)


def test_a_split_without_times_is_refused_with_those_that_have_some(published: Callable[[str], Step], tmp_path: Path) -> None:
    step = published("vgg16_16node")
    plan = data_parallel(step.space)
    text = strategy_file.text(step, plan)
    (tmp_path / "plan.txt").write_text(text.replace("1\t1\t1\t16\t", "1\t1\t16\t1\t", 1))
    with pytest.raises(InputError, match="is split 1-1-16-1; there are times for"):
        strategy_file.read(str(tmp_path / "plan.txt"), step.space)
