"""Bounds and refusals of search best on inputs for which earlier ones were false; `tests/data/proofs/README.md` says what they
are.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from meshwright import api, clusters, schedules
from meshwright.core.problem import Batch, Problem
from meshwright.planners.best import bounds
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.memory import least_peaks, peaks_of
from meshwright.planners.best.ranks import MOST_PRICED, SILENT
from meshwright.planners.best.space import ANY, Config, MeshDegrees, pools
from questions import fused

CASES = pathlib.Path(__file__).resolve().parents[3] / "data" / "proofs"


def _pose(model: str, cluster: str, batch: int, sequence: int, memory_bytes: float = 0.0) -> Problem:
    """The question on devices of another memory."""
    model = str(CASES / model) if model.endswith(".json") else model
    cluster = str(CASES / cluster) if cluster.endswith(".yaml") else cluster
    problem = fused(api.make_problem(model, cluster, batch=Batch(batch, sequence_length=sequence), memory_risk=0.5))
    if not memory_bytes:
        return problem
    kinds = tuple(dataclasses.replace(kind, memory_bytes=memory_bytes) for kind in problem.cluster.kinds)
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, kinds=kinds))


@pytest.mark.parametrize(
    ("problem", "settings", "known_seconds"),
    [
        (("m39.json", "rail-only:16,device=v100-pcie-16gb,bandwidth=1 GB/s", 16, 2048, 2.19e9), {}, 0.0319),
        (("m54.json", "c54.yaml", 6, 2048, 2.52e9), {"micro_batch": "1"}, 0.829),
        (("llama-3.2-1b", "hetnet.yaml", 32, 2048), {"tensor": "4", "pipeline": "2"}, 0.925),
        (("llama-3.2-1b", "hetnet.yaml", 32, 2048), {"tensor": "4", "pipeline": "2", "schedules": "1f1b"}, 0.925),
        (
            ("m32.json", "two-level:8,per_node=2,device=a100-pcie-80gb,bandwidth=0.2 GB/s", 8, 8192, 25.03e9),
            {"schedules": "zb_v"},
            0.2819,
        ),
        (("m101.json", "c101.yaml", 12, 2048, 10.36e9), {"schedules": "interleaved_1f1b"}, 0.1593),
    ],
)
def test_a_plan_known_to_be_quicker_than_an_earlier_bound_is_found_and_bounded(
    problem: tuple[object, ...], settings: dict[str, str], known_seconds: float
) -> None:
    result = api.plan(_pose(*problem), search="best", settings=settings)
    limit = result.problem.cluster.device(0).memory_bytes
    assert max(result.timeline.peak_bytes) <= limit
    assert result.answer.objective.value <= known_seconds * 1.001  # as many digits as are known
    assert result.answer.bound.value <= known_seconds * 1.001


@pytest.mark.parametrize("memory_bytes", [9.4e9, 9.0e9, 8.7e9, 8.4e9])
def test_buffers_of_the_ends_are_not_charged_to_the_middle(memory_bytes: float) -> None:
    settings = {
        "pipeline": "3",
        "data": "2",
        "shard": "3",
        "schedules": "1f1b",
        "micro_batch": "1",
        "tensor": "1",
        "context": "1",
    }
    result = api.plan(_pose("l60v.json", "dgx-a100:6", 8, 512, memory_bytes), search="best", settings=settings)
    assert max(result.timeline.peak_bytes) <= memory_bytes
    ends, middle = [len(result.plan.stages[i].ops) for i in (0, 2)], len(result.plan.stages[1].ops)
    assert max(ends) < middle


def test_a_quick_answer_is_found_where_links_are_slow() -> None:
    result = api.plan(
        _pose("m17.json", "two-level:12,per_node=3,device=a100-pcie-80gb,bandwidth=0.2 GB/s", 8, 8192),
        search="best", settings={"pipeline": "3"},
    )  # fmt: skip
    assert result.answer.objective.value <= 0.1811


@pytest.mark.parametrize("layout", ["pipeline", "data"])
@pytest.mark.parametrize("cluster", ["dgx-v100:8", "dgx-h100:24", "mesh:2x4", "hetnet.yaml"])
def test_every_rank_is_priced_as_the_cost_model_prices_it(cluster: str, layout: str) -> None:
    problem = _pose("l7.json", cluster, 8, 2048)
    config = Config(MeshDegrees(2, 2, 1, 2, 1, 1), 1, 0, "1f1b", 1, layout)
    costs = Costs(problem, pools(problem.cluster)[0], chain_of(problem.graph))
    classes, rows = costs.classes(config), costs.rows(config)
    for devices, own in zip(costs.pool.ranks(config), classes.of_rank, strict=True):
        alone = costs.model.row_costs(problem, config.strategy, devices.tolist(), 1)
        for key, load in alone.items():
            mine = rows[own][key]
            for name in ("forward_total_seconds", "backward_total_seconds", "reduce_seconds", "gather_seconds"):
                assert getattr(mine, name) == pytest.approx(getattr(load, name), rel=1e-12), (name, devices)


def test_ranks_that_see_other_links_are_other_classes_and_periodic_ones_are_alike() -> None:
    def n_classes(cluster: str, mesh: MeshDegrees) -> int:
        problem = _pose("l7.json", cluster, 64, 2048)
        costs = Costs(problem, pools(problem.cluster)[0], chain_of(problem.graph))
        return len(costs.classes(Config(mesh, 1, 0, "1f1b", 1, "pipeline")).keys)

    assert n_classes("hetnet.yaml", MeshDegrees(2, 2, 1, 2, 1, 1)) == 2
    assert n_classes("dgx-h100:64", MeshDegrees(4, 4, 1, 4, 1, 1)) == 1
    assert n_classes("dgx-h100:64", MeshDegrees(7, 1, 1, 1, 1, 1)) == 1


def test_ranks_beyond_those_that_are_priced_communicate_in_no_time() -> None:
    problem = _pose("l60v.json", "mesh:5x8", 40, 512)
    costs = Costs(problem, pools(problem.cluster)[0], chain_of(problem.graph))
    config = Config(MeshDegrees(MOST_PRICED + 4, 2, 1, 1, 1, 1), 0, 0, "1f1b", 1, "pipeline")
    classes, rows = costs.classes(config), costs.rows(config)
    assert [key[-1] == SILENT for key in classes.keys] == [False] * (len(classes.keys) - 1) + [True]
    assert len(classes.keys) <= MOST_PRICED + 1
    assert all(load.reduce_seconds == 0.0 for load in rows[-1].values())
    assert all(load.reduce_seconds > 0.0 for load in rows[0].values())


@pytest.mark.parametrize("shard", [0, 1, 2, 3])
@pytest.mark.parametrize("model", ["l7.json", "m39.json", "qwen3-30b-a3b"])
def test_what_all_shardings_cost_at_least_is_below_each_of_them(model: str, shard: int) -> None:
    problem = _pose(model, "dgx-h100:12", 12, 2048)
    costs = Costs(problem, pools(problem.cluster)[0], chain_of(problem.graph))
    mesh = MeshDegrees(2, 6, 1, 1, 2 if model.startswith("qwen") else 1, 1)
    least = costs.rows(Config(mesh, ANY, 0, "1f1b", 1, ""), light=True)[0]
    for layout in ("pipeline", "data"):
        for rows in costs.rows(Config(mesh, shard, 0, "1f1b", 1, layout)):
            for key, load in rows.items():
                for name in (
                    "forward_total_seconds",
                    "backward_total_seconds",
                    "static_bytes",
                    "working_bytes",
                    "reserved_bytes",
                ):
                    assert getattr(least[key], name) <= getattr(load, name) * (1 + 1e-12), (name, layout, key)


@pytest.mark.parametrize(
    ("schedule", "n_chunks"), [
        ("interleaved_1f1b", 2), ("interleaved_1f1b", 3), ("zb_v", 2), ("v_half", 2), ("v_min", 2), ("looped_bfs", 3),
        ("dualpipe_v", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_the_moments_that_bounds_count_are_gone_through_by_orders_of_many_micro_batches(
    schedule: str, n_chunks: int, n_ranks: int
) -> None:
    n_microbatches = 7 * n_ranks
    least = least_peaks(schedule, n_ranks, n_chunks, n_microbatches)
    dice = np.random.default_rng(n_ranks)
    n_stages = n_ranks * n_chunks
    for _ in range(5):
        times = schedules.Durations(*(dice.uniform(0.5, 2.0, n_stages) for _ in range(3)), dice.uniform(0.0, 1.0, n_stages - 1))
        own = peaks_of(schedules.load(schedule).order(n_ranks, n_chunks, n_microbatches, times))
        for rank in range(n_ranks):
            for held, at in zip(least.held[rank], least.at[rank], strict=True):
                same = own.at[rank] == at
                assert (own.held[rank][same] >= held).all(axis=1).any(), (rank, held, at)
            if schedule == "dualpipe_v":  # an order that is given goes through no others
                assert {(*held, at) for held, at in zip(own.held[rank].tolist(), own.at[rank].tolist(), strict=True)} == {
                    (*held, at) for held, at in zip(least.held[rank].tolist(), least.at[rank].tolist(), strict=True)
                }


def test_the_order_in_which_recomputation_is_named_does_not_matter() -> None:
    problem = _pose("l7.json", "dgx-a100:8", 16, 2048)
    answers = [
        api.plan(problem, search="best", settings={"recompute": words, "pipeline": "2"}).answer
        for words in ("none,full", "full,none")
    ]
    assert answers[0].objective == answers[1].objective
    assert answers[0].bound == answers[1].bound


def test_no_kind_of_device_is_taken_to_be_quicker_at_everything(tmp_path: pathlib.Path) -> None:
    """One kind has the products, the other the memory bandwidth: together they beat what either share of whole models says."""
    text = """
format: meshwright/cluster/1
name: unlike
kinds:
  products: {flops: {bf16: 400 TFLOP/s, fp32: 50 TFLOP/s}, memory: 80 GB, memory_bandwidth: 50 GB/s, source: made up}
  bandwidth: {flops: {bf16: 2 TFLOP/s, fp32: 1 TFLOP/s}, memory: 80 GB, memory_bandwidth: 9000 GB/s, source: made up}
nodes:
  - {name: a, devices: [products]}
  - {name: b, devices: [bandwidth]}
switches: [core]
links:
  - {from: "*/*", to: core, bandwidth: 1000 GB/s, latency: 0 s}
"""
    (tmp_path / "unlike.yaml").write_text(text)
    problem = api.make_problem(
        str(CASES / "m101.json"),
        clusters.cluster(str(tmp_path / "unlike.yaml")),
        batch=Batch(8, sequence_length=512),
        memory_risk=0.5,
    )
    for pool in pools(problem.cluster):
        if len(pool.devices) < 2:
            continue
        costs = Costs(problem, pool, chain_of(problem.graph))
        mesh = MeshDegrees(2, 1, 1, 1, 1, 1)
        config = Config(mesh, 0, 0, "1f1b", 1, "pipeline")
        rows = costs.rows(config)
        everything = (*costs.chain.prefix, *costs.chain.rows, *costs.chain.suffix)
        kinds = costs.classes(config).of_rank

        def work(row: int, rank: int, rows: list = rows, kinds: np.ndarray = kinds) -> float:
            load = rows[kinds[rank]][row, "none"]
            return load.forward_total_seconds + load.backward_total_seconds

        # the best way to share layers out over both devices, the order of layers not asked for
        best = min(
            max(sum(work(row, 0) for row in everything[:i]), sum(work(row, 1) for row in everything[i:]))
            for i in range(len(everything) + 1)
        )
        assert bounds.of_mesh(costs, mesh, 8) <= 8 * best * (1 + 1e-9)
        assert bounds.of_mesh(costs, mesh, 8, with_communication=True) <= 8 * best * (1 + 1e-9)


def test_the_slow_node_may_stay_idle() -> None:
    settings = {"tensor": "4", "pipeline": "1", "data": "1", "context": "1"}
    result = api.plan(_pose("l7.json", "hetnet.yaml", 8, 2048), search="best", settings=settings)
    assert set(result.plan.stages[0].devices) == {4, 5, 6, 7}  # behind the switch of 200 GB/s
