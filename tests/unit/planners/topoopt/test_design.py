"""Searches: same seed, same answer; memory is a limit; bounds hold; better than where they start."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.api import codesign
from meshwright.base.errors import InputError
from meshwright.clusters.wires import device
from meshwright.planners.topoopt import alternate, bounds, moves, networks
from meshwright.planners.topoopt.alternate import NetworkParts
from meshwright.planners.topoopt.choices import Servers, space
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.step import Placement, Step, data_parallel
from meshwright.planners.topoopt.writers import codesign_json

WIRES = NetworkParts(4, 3, 1e9, 1e-6)


def test_the_same_seed_gives_the_same_answer_and_it_is_no_worse_than_the_start(small: Callable[..., Step]) -> None:
    step = small()
    runs = [alternate.improved(step, WIRES, np.random.default_rng(5), 120, placement="either") for _ in range(2)]
    assert runs[0].placement == runs[1].placement
    assert runs[0].seconds == runs[1].seconds
    assert runs[0].seconds <= runs[0].start_seconds
    assert step.seconds(runs[0].placement, runs[0].fabric) == pytest.approx(runs[0].seconds)


def test_the_published_search_is_reproducible_and_keeps_the_best(small: Callable[..., Step]) -> None:
    step = small("topoopt:dlrm,tables=3,rows=1000,width=8,bottom=16-16,top=16-16-1,batch=64", n=4, shard=False)
    runs = [
        alternate.released(step, WIRES, np.random.default_rng(2), 200, propagation=True, placement="strided", alpha_ratio=1.0)
        for _ in range(2)
    ]
    assert runs[0].placement == runs[1].placement
    assert runs[0].seconds <= runs[0].start_seconds
    assert step.seconds(runs[0].placement, runs[0].fabric) == pytest.approx(runs[0].seconds)


def test_the_bound_holds_for_every_plan_of_a_small_workload() -> None:
    from meshwright.models import read

    servers = Servers(2, 1, device("a100-sxm-40gb"), 25e9)
    choices = space(read("topoopt:candle,tower=64,top=1,batch=32").instance, servers, None, shard=False)
    step = Step(choices)
    wires = NetworkParts(2, 1, 1e9, 1e-6)
    bound = bounds.step_seconds(choices, 1e9)
    fabric = next(iter(alternate.finder.fabrics(step.traffic(data_parallel(choices)), 2, 1, 1e9, 1e-6, [(0, 1)])))
    options = []
    for op in choices.choices:
        own = [(k, tuple(servers)) for k, c in enumerate(op) for servers in itertools.combinations(range(2), c.n_parts)]
        options.append(own)
    some = list(itertools.product(*options))[:: max(len(list(itertools.product(*options))) // 400, 1)]
    best = np.inf
    for plan in some:
        placement = Placement(tuple(k for k, _ in plan), tuple(s for _, s in plan))
        seconds = step.seconds(placement, fabric)
        assert seconds >= bound * (1 - 1e-9)
        assert seconds >= bounds.cut_seconds(step.traffic(placement), 1e9)
        best = min(best, seconds)
    found = alternate.improved(step, wires, np.random.default_rng(0), 400, placement="either")
    assert found.seconds <= best * 1.02


def test_memory_is_a_limit_and_an_infeasible_answer_says_what_is_missing() -> None:
    spec = "topoopt:dlrm,tables=4,rows=40000000,width=256,bottom=16-16,top=16-1,batch=64"  # 82 GB a table with its gradient
    more = {"gpu": "a100-sxm-40gb", "gpus_per_server": "1", "shard_weights": "no"}
    answer = codesign(spec, servers=4, degree=2, link_bandwidth=1e9, budget=50, settings=more)
    assert not answer.entries
    assert answer.missing_bytes > 3e10
    split = codesign(spec, servers=16, degree=2, link_bandwidth=1e9, budget=50, settings=more | {"shard_weights": "yes"})
    assert split.entries
    peak = split.step.memory_bytes(split.entry.found.placement).max()
    assert peak <= split.step.space.servers.memory_bytes


def test_chains_are_cut_where_tensors_branch_or_join(small: Callable[..., Step]) -> None:
    chains = moves.chains(small().space.workload)
    assert sorted(i for chain in chains for i in chain) == list(range(7))
    assert chains == ((0,), (1,), (2,), (3,), (4, 5, 6))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"degree": 4}, "degree 4: must be between 1 and 3"),
        ({"degree": 0}, "--degree 4"),
        ({"servers": 1}, "--servers 1"),
        ({"link_bandwidth": "0 Gbit/s"}, "--link-bandwidth"),
        ({"link_latency": "1 GB"}, "--link-latency"),
        ({"topologies": ("star",)}, "no topology called 'star'"),
        ({"topologies": ("switch", "switch")}, "given twice"),
        ({"degree": 1}, "form no connected network"),
        ({"budget": 0}, "--budget"),
        ({"settings": {"nope": "1"}}, "no option of codesign called 'nope'"),
        ({"settings": {"node_degree": "2"}}, "same option"),
        ({"topologies": ("torus",), "degree": 2}, "form no torus"),
    ],
)
def test_a_wrong_option_is_answered_by_one_sentence(change: dict[str, object], says: str) -> None:
    options: dict[str, object] = {"servers": 4, "degree": 3, "link_bandwidth": "10 Gbit/s", "budget": 5}
    with pytest.raises(InputError, match=says) as caught:
        codesign("topoopt:moe", **(options | change))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_placement_is_changed_in_one_operator_only(small: Callable[..., Step]) -> None:
    plan = data_parallel(small().space)
    changed = plan.with_op(1, 0, (3,))
    assert changed.servers[1] == (3,)
    assert replace(changed, choice=plan.choice, servers=plan.servers) == plan


def test_two_streams_are_tried_on_halves_up_to_every_cut_and_each_operator_keeps_a_choice_it_has(
    small: Callable[..., Step],
) -> None:
    space = small("topoopt:bert,layers=2,length=8,hidden=32,heads=2,batch=32", n=4, shard=False).space
    shapes = list(moves.beside(space, "either"))
    assert len(shapes) == len(set(shapes)) > 10
    for plan in shapes:
        for options, k, servers in zip(space.choices, plan.choice, plan.servers, strict=True):
            assert options[k].n_parts == len(servers) == len(set(servers))


def test_a_descent_ends_where_no_copy_of_a_neighbour_helps(small: Callable[..., Step]) -> None:
    step = small("topoopt:bert,layers=2,length=8,hidden=32,heads=2,batch=32", n=4, shard=False)
    start = next(moves.beside(step.space, "strided"))
    fabric = next(iter(alternate.finder.fabrics(step.traffic(start), 4, 3, 1e9, 1e-6, [(0, 1, 2, 3)])))
    plan, seconds, n_played = alternate._descend(step, start, fabric, 10_000)
    assert n_played < 10_000
    assert seconds == step.seconds(plan, fabric) <= step.seconds(start, fabric)
    for i in range(len(plan.choice)):
        for k, servers in moves.near(step.space, plan, i):
            assert step.seconds(plan.with_op(i, k, servers), fabric) >= seconds * (1 - 1e-6)


@pytest.mark.parametrize("topology", ["topoopt", "random", "switch", "fat-tree", "torus"])
def test_no_rings_beat_the_bound_on_all_reduces(small: Callable[..., Step], topology: str) -> None:
    step = small("topoopt:candle,tower=64,top=64x2,batch=64", n=8)
    plan = data_parallel(step.space)
    traffic = step.traffic(plan)
    if topology == "topoopt":
        fabrics = list(
            alternate.finder.fabrics(traffic, 8, 4, 1e9, 1e-6, alternate.finder.random_cycles(8, 2, np.random.default_rng(0)))
        )
    else:
        fabrics = [networks.build(topology, 8, 4, 1e9, 1e-6, 0).fabric]
    for fabric in fabrics:
        fitted = fabric.refitted(traffic.pair_bytes, traffic.group_bytes)
        bound = bounds.collective_seconds(step.space, traffic, fitted)
        busiest = step.seconds(plan, fitted, traffic="closed") - step.compute_seconds(plan)
        assert 0 < bound <= busiest * (1 + 1e-9)


def test_the_bound_on_all_reduces_is_reached_by_a_ring(small: Callable[..., Step]) -> None:
    """Four servers in a ring, 1 GB/s each way: two rings of half the bytes take 2 * 3/4 * S / 2 GB/s, and nothing is faster."""
    step = small("topoopt:candle,tower=64,top=64,batch=64", n=4, shard=False)
    traffic = step.traffic(data_parallel(step.space))
    count = {(i, (i + way) % 4): 1.0 for i in range(4) for way in (1, 3)}
    fabric = Fabric("ring", 4, count, 1e9, 1e-6, cycles=[(0, 1, 2, 3)])
    ((members, n_bytes),) = traffic.group_bytes
    assert members == (0, 1, 2, 3)
    assert bounds.collective_seconds(step.space, traffic, fabric) == pytest.approx(1.5 * n_bytes / 2e9)


def test_an_answer_states_its_step_under_every_model_of_traffic_and_a_gap() -> None:
    asked = {"servers": 4, "degree": 2, "link_bandwidth": "10 Gbit/s", "budget": 20, "topologies": ("topoopt", "switch")}
    answers = {
        traffic: codesign_json.as_json(codesign("topoopt:moe", settings={"traffic": traffic}, **asked))  # type: ignore[arg-type]
        for traffic in ("segments", "fair", "closed")
    }
    for traffic, answer in answers.items():
        for row in answer["topologies"].values():
            assert row["iteration_seconds"] == pytest.approx(row["seconds_by_traffic"][traffic])
            assert row["gap_ratio"] >= -1e-9
            assert row["busiest_seconds"] <= min(row["seconds_by_traffic"].values()) * (1 + 1e-9)
    with pytest.raises(InputError, match="traffic"):
        codesign("topoopt:moe", settings={"traffic": "packets"}, **asked)  # type: ignore[arg-type]


def test_where_the_network_is_slow_a_small_batch_stays_on_few_servers(small: Callable[..., Step]) -> None:
    step = small("topoopt:candle,batch=16,tower=256x3,top=256x3-1", n=4, shard=False)
    plans = list(moves.fewer(step.space))
    assert [max(len(servers) for servers in plan.servers) for plan in plans] == [2, 1]
    wires = alternate.NetworkParts(4, 2, 1e6, 1e-6)
    found = alternate.improved(step, wires, np.random.default_rng(0), 4, placement="either")
    assert found.seconds <= step.compute_seconds(plans[-1]) * (1 + 1e-9) < found.start_seconds


def inside(**settings: str) -> Design:
    return codesign("topoopt:moe,batch=64", servers=2, degree=1, link_bandwidth="10 Gbit/s", budget=2, settings=settings)


MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
NCCL = """<system version="1"><cpu numaid="0">
<pci busid="a" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="80" rank="0"><nvlink target="b" count="4"/></gpu></pci>
<pci busid="b" link_speed="16.0 GT/s PCIe" link_width="16">
<gpu dev="1" sm="80" rank="1"><nvlink target="a" count="4"/></gpu></pci>
</cpu></system>"""


@pytest.mark.parametrize("text", [MATRIX, NCCL])
def test_the_network_inside_a_server_may_be_what_its_own_tools_print(text: str, tmp_path: Path) -> None:
    """Two devices on four NVLinks of 25 GB/s: a tensor goes over them once each way, so 100 GB/s."""
    path = tmp_path / "server"
    path.write_text(text)
    found = inside(server=str(path))
    servers = found.step.space.servers
    assert (servers.n_gpus, servers.gpus_contend) == (2, True)
    assert servers.gpu_bytes_per_second == pytest.approx(100e9, rel=0.05)
    assert 0 < servers.gpu_latency_seconds < 1e-4
    assert any("take turns" in note for note in found.notes)
    slower = inside(gpus_per_server="2", inter_gpu_bandwidth="1 GB/s")
    assert slower.step.inner_seconds(10**8) > found.step.inner_seconds(10**8)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"server": "dgx-a100:16"}, "must be one server"),
        ({"server": "dgx-a100:8", "gpus_per_server": "4"}, "leave one out"),
        ({"server": "nosuch"}, "no cluster called 'nosuch'"),
    ],
)
def test_a_server_that_is_none_is_refused_in_one_sentence(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        inside(**settings)
