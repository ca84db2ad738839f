"""One step of a placed workload: against the plain twin, by hand, and its traffic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.planners.topoopt import design, finder, moves
from meshwright.planners.topoopt.alternate import PlanOnNetwork
from meshwright.planners.topoopt.design import Entry
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Step, data_parallel

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "oracle"))
import fair_steps
import flow_simulation as twin


def ring(n: int, rate: float = 12.5e9) -> Fabric:
    count = {(i, (i + step) % n): 1.0 for i in range(n) for step in (1, n - 1)}
    return Fabric("ring", n, count, rate, 1e-6, cycles=[tuple(range(n))])


@pytest.mark.parametrize("traffic", ["queues", "segments"])
@pytest.mark.parametrize("seed", range(6))
def test_the_kernel_plays_every_plan_as_the_plain_twin_does(small: Callable[..., Step], seed: int, traffic: str) -> None:
    step = small()
    step = Step(step.space, traffic=traffic)
    rng = np.random.default_rng(seed)
    plan = data_parallel(step.space)
    groups = moves.chains(step.space.workload)
    for _ in range(12):
        plan = moves.propose(step.space, groups, plan, rng, "either")
    for fabric in (ring(4, 1e9), next(finder.fabrics(step.traffic(plan), 4, 3, 2e9, 1e-6, finder.random_cycles(4, 1, rng)))):
        assert step.seconds(plan, fabric) == pytest.approx(twin.step_seconds(step, plan, fabric), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_operators_that_are_last_are_played_as_the_plain_twin_does(small: Callable[..., Step], seed: int) -> None:
    step = small()
    rng = np.random.default_rng(seed)
    plan = data_parallel(step.space)
    for _ in range(6):
        plan = moves.propose(step.space, moves.chains(step.space.workload), plan, rng, "either")
    others = list(moves.last(step.space, plan))
    assert len(others) > 3
    for other in others:
        assert step.seconds(other, ring(4, 1e9)) == pytest.approx(twin.step_seconds(step, other, ring(4, 1e9)), rel=1e-12)
        fair = step.seconds(other, ring(4, 1e9), traffic="fair")
        assert fair == pytest.approx(fair_steps.fair_step_seconds(step, other, ring(4, 1e9)), rel=1e-6)


@pytest.mark.parametrize("traffic", ["queues", "segments"])
def test_a_step_with_too_many_segments_is_played_in_larger_ones_and_the_answer_says_so(
    small: Callable[..., Step], traffic: str
) -> None:
    space, network = small().space, ring(4, 1e9)
    plan = next(moves.beside(space, "strided"))
    fine = Step(space, 64, traffic)
    on_links = 64 * 2**21
    assert [fine.segment_bytes_of(n_bytes) for n_bytes in (0, on_links, on_links + 1, 9 * on_links)] == [64, 64, 128, 1024]
    coarse = Step(space, 64, traffic, most_segments=30)
    size = coarse.served_in(plan, network)
    assert size > fine.served_in(plan, network) == 64
    assert coarse.seconds(plan, network) == Step(space, size, traffic).seconds(plan, network) != fine.seconds(plan, network)
    entry = Entry(PlanOnNetwork(plan, network, 0.0, 0.0, 1), 0.0, 1e9)
    notes = [design.segments_of(step, [("ring", entry)]) for step in (fine, coarse)]
    assert notes[0] == [] and f"on ring is played in segments of {size} bytes" in notes[1][0]


def test_tables_that_are_last_hide_the_all_reduce_of_the_first_matrix(small: Callable[..., Step]) -> None:
    """On every server the table's backward part begins when those of the matrices are done,
    and takes longer than what they add up.
    """
    step = small("topoopt:dlrm,tables=2,rows=1000,width=512,bag=1000,bottom=512x6,top=64-1,batch=4096", n=2, shard=False)
    plan, fabric = data_parallel(step.space), ring(2, 1e12)
    late = next(moves.last(step.space, plan))
    tables = [i for i, op in enumerate(step.space.workload.operations) if op.kind == "embedding"]
    assert list(late.last) == tables
    _, tasks, played = step.play(late, fabric)
    first = int(tasks.part_first[0])
    for table in tables:
        server = late.servers[table][0]
        assert played.start[2 * int(tasks.part_first[table]) + 1] >= played.end[2 * (first + server) + 1]
    assert played.seconds == played.end.max() > played.reduce_end.max()
    assert step.seconds(late, fabric) < step.seconds(plan, fabric)


def test_all_reduces_inside_a_server_take_turns_where_its_network_is_a_real_one(small: Callable[..., Step]) -> None:
    step = small()
    real = replace(step.space.servers, gpu_latency_seconds=1e-5, gpus_contend=True)
    alone = replace(real, gpus_contend=False)
    plan, fabric = data_parallel(step.space), ring(4, 1e12)
    turns, at_once = (Step(replace(step.space, servers=servers)) for servers in (real, alone))
    for one in (turns, at_once):
        assert one.seconds(plan, fabric) == pytest.approx(twin.step_seconds(one, plan, fabric), rel=1e-12)
        fair = one.seconds(plan, fabric, traffic="fair")
        assert fair == pytest.approx(fair_steps.fair_step_seconds(one, plan, fabric), rel=1e-6)
    assert turns.seconds(plan, fabric) > at_once.seconds(plan, fabric)
    # the weights and the bias of the operator that ends last are ready at once: one is added up after the other
    _, tasks, played = turns.play(plan, fabric)
    weight, bias = np.flatnonzero(played.reduce_start == played.reduce_start.max()).tolist()
    inside = sum(turns.inner_seconds(int(tasks.reduce_bytes[r])) for r in (weight, bias))
    assert played.reduce_end[bias] >= played.reduce_start[bias] + inside


@pytest.mark.parametrize("seed", range(3))
def test_transfers_over_several_routes_are_played_as_the_plain_twin_does(small: Callable[..., Step], seed: int) -> None:
    step = small("topoopt:dlrm,tables=3,rows=1000,width=512,bottom=512-512,top=64-64-1,batch=4096", n=6)
    rng = np.random.default_rng(seed)
    plan = data_parallel(step.space)
    for _ in range(6):
        plan = moves.propose(step.space, moves.chains(step.space.workload), plan, rng, "either")
    traffic = step.traffic(plan)
    for one in finder.fabrics(traffic, 6, 4, 1e9, 1e-6, finder.random_cycles(6, 2, rng)):
        wide = one.refitted(traffic.pair_bytes, traffic.group_bytes, 4)
        assert wide.pair_ways.max() > 1
        for a, b in ((0, 1), (2, 5), (4, 3)):
            used = [link for links in wide.ways(a, b) for link in links]
            assert len(used) == len(set(used))
            for links in wide.ways(a, b):
                assert (int(wide.source[links[0]]), int(wide.target[links[-1]])) == (a, b)
                assert [int(wide.target[x]) for x in links[:-1]] == [int(wide.source[x]) for x in links[1:]]
        assert step.seconds(plan, wide) == pytest.approx(twin.step_seconds(step, plan, wide), rel=1e-12)
        assert step.tasks(plan, wide)[1].edge_bytes.sum() == traffic.pair_bytes.sum()
        return


def test_one_operator_on_two_servers_is_compute_and_one_all_reduce(small: Callable[..., Step]) -> None:
    step = small("topoopt:candle,tower=64,top=64,batch=64", n=2)
    plan = data_parallel(step.space)
    seconds = step.seconds(plan, ring(2, 1e6))
    compute = step.compute_seconds(plan)
    reduced = (
        4 * step.space.workload.n_parameters
    )  # 2 (g - 1) / g = 1 byte sent for every byte, both ways at once over one link
    assert seconds > compute
    assert seconds >= reduced / 1e6


def test_traffic_is_conserved_what_leaves_all_servers_arrives(small: Callable[..., Step]) -> None:
    step = small()
    plan = data_parallel(step.space)
    traffic = step.traffic(plan)
    assert traffic.pair_bytes.sum(axis=0).sum() == traffic.pair_bytes.sum(axis=1).sum()
    # every table's output goes to every other server once forward, and its gradient comes back
    moved = 2 * 3 * 64 * 8 * 4 * 3 // 4
    assert traffic.pair_bytes.sum() == moved
    fabric = ring(4)
    _, tasks, _ = step.play(plan, fabric)
    assert tasks.edge_bytes.sum() == moved


def test_a_limit_below_the_answer_gives_infinity_and_one_above_changes_nothing(small: Callable[..., Step]) -> None:
    step = small()
    plan, fabric = data_parallel(step.space), ring(4, 1e8)
    seconds = step.seconds(plan, fabric)
    assert step.seconds(plan, fabric, seconds * 1.001) == seconds
    assert step.seconds(plan, fabric, seconds * 0.999) == np.inf
    assert step.busy_seconds(plan, fabric) <= seconds


def test_splitting_weights_by_columns_all_reduces_less(small: Callable[..., Step]) -> None:
    step = small()
    plan = data_parallel(step.space)
    linear = next(i for i, operation in enumerate(step.space.workload.operations) if operation.kind == "linear")
    columns = next(k for k, choice in enumerate(step.space.choices[linear]) if (choice.samples, choice.columns) == (1, 4))
    halved = plan.with_op(linear, columns, (0, 1, 2, 3))
    before = sum(n_bytes for _, n_bytes in step.traffic(plan).group_bytes)
    after = sum(n_bytes for _, n_bytes in step.traffic(halved).group_bytes)
    assert before - after == 4 * sum(step.space.workload.operations[linear].weights)


def test_a_table_split_by_rows_sends_a_partial_sum_from_every_part(small: Callable[..., Step]) -> None:
    step = small()
    plan = data_parallel(step.space)
    table = next(i for i, operation in enumerate(step.space.workload.operations) if operation.kind == "embedding")
    for parts, kind, ratio in ((2, "rows", 2.0), (2, "columns", 1.0)):
        k = next(
            k
            for k, choice in enumerate(step.space.choices[table])
            if getattr(choice, kind) == parts and choice.n_parts == parts
        )
        split = plan.with_op(table, k, (0, 1))
        whole = 64 * 8 * 4
        sent = step.traffic(split).pair_bytes.sum() - step.traffic(plan).pair_bytes.sum() + 2 * whole * 3 / 4
        assert sent == 2 * ratio * whole * 3 / 4
        assert step.space.choices[table][k].memory_bytes < step.space.choices[table][0].memory_bytes


@pytest.mark.parametrize("seed", range(4))
def test_fair_shares_of_links_are_played_as_the_plain_twin_does(small: Callable[..., Step], seed: int) -> None:
    step = small("topoopt:dlrm,tables=3,rows=1000,width=64,bottom=64-64,top=64-64-1,batch=4096", n=4)
    rng = np.random.default_rng(seed)
    plan = data_parallel(step.space)
    for _ in range(8):
        plan = moves.propose(step.space, moves.chains(step.space.workload), plan, rng, "either")
    traffic = step.traffic(plan)
    for one in (ring(4, 1e9), next(finder.fabrics(traffic, 4, 3, 2e9, 1e-6, finder.random_cycles(4, 1, rng)))):
        for fabric in (one, one.refitted(traffic.pair_bytes, traffic.group_bytes, 3)):
            seconds = step.seconds(plan, fabric, traffic="fair")
            assert seconds == pytest.approx(fair_steps.fair_step_seconds(step, plan, fabric), rel=1e-6)
            assert seconds >= step.busy_seconds(plan, fabric) * (1 - 1e-9)


def test_a_lone_all_reduce_takes_its_closed_form_under_every_model_of_traffic(small: Callable[..., Step]) -> None:
    step = small("topoopt:candle,tower=64,top=4096x2,batch=64", n=2)
    plan = data_parallel(step.space)
    fabric = ring(2, 1e9)
    _, tasks, played = step.play(plan, fabric)
    fair = Step(step.space, traffic="fair").play(plan, fabric)[2]
    last = int(np.argmax(fair.reduce_end - fair.reduce_start))  # the largest tensor
    size = int(tasks.reduce_bytes[last])
    inner = (2 * size // 2) / step.space.servers.gpu_bytes_per_second
    alone = inner + size / 1e9 + 1e-6
    assert fair.reduce_end[last] - fair.reduce_start[last] >= alone * (1 - 1e-9)
    assert step.seconds(plan, fabric, traffic="closed") >= max(played.seconds, fair.seconds) * (1 - 1e-3)


def test_two_transfers_over_one_link_have_half_of_it_each(small: Callable[..., Step]) -> None:
    """Two tables on server 0 send to server 1 at once: in fair shares both end when both are through."""
    step = small("topoopt:dlrm,tables=2,rows=1000,width=512,bottom=512,top=1,batch=4096", n=2, shard=False)
    plan = data_parallel(step.space)
    tables = [i for i, op in enumerate(step.space.workload.operations) if op.kind == "embedding"]
    for table in tables:
        plan = plan.with_op(table, 0, (0,))
    fabric = ring(2, 1e9)
    fair = Step(step.space, traffic="fair")
    _, tasks, played = fair.play(plan, fabric)
    moved = [e for e in np.flatnonzero(tasks.edge_bytes).tolist() if tasks.edge_source[e] % 2 == 0]
    first, second = sorted((played.edge_start[e], played.edge_end[e], int(tasks.edge_bytes[e])) for e in moved)
    alone = first[2] * fabric.seconds_per_byte[0]
    overlap = first[0] + alone - second[0]  # what the first still has to send when the second begins
    assert overlap > 0
    assert first[1] == pytest.approx(second[0] + 2 * overlap + 1e-6, rel=1e-6)
    assert second[1] == pytest.approx(first[0] + 2 * alone + 1e-6, rel=1e-6)


def test_a_limit_stops_fair_shares_too(small: Callable[..., Step]) -> None:
    step = small()
    plan, fabric = data_parallel(step.space), ring(4, 1e9)
    seconds = step.seconds(plan, fabric, traffic="fair")
    assert step.seconds(plan, fabric, seconds * 0.99, traffic="fair") == np.inf
    assert step.seconds(plan, fabric, seconds * 1.01, traffic="fair") == seconds
