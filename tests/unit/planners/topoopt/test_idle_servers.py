"""Servers that do not divide the samples of a step: operators lie on as many as do, and what is said of the rest."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest

from meshwright import api
from meshwright.models import read as read_model
from meshwright.planners.topoopt import bounds, networks, text
from meshwright.planners.topoopt.check.designs import check_design
from meshwright.planners.topoopt.design import Design
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.moves import fewer
from meshwright.planners.topoopt.step import Placement, Step, data_parallel
from meshwright.planners.topoopt.writers import codesign_json

MODEL = "topoopt:candle,batch={},tower=2048x2,top=1024x1-1"


def designed(batch: int, n_servers: int) -> Design:
    return api.codesign(
        MODEL.format(batch), servers=n_servers, degree=2, link_bandwidth="100 GB/s", budget=4,
        settings={"shard_weights": "no"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "n", "parts", "says"),
    [
        (64, 5, (1, 2, 4), "leaves 1 server or more idle; 60 or 65 samples divide over 5 servers, 64 samples over 4 or 8"),
        (3, 8, (1, 3), "leaves 5 servers or more idle; 8 samples divide over 8 servers, 3 samples over 3"),
        (67, 5, (1,), "in 1 part along samples, and each leaves 4 servers or more idle; 65 or 70 samples"),
        (60, 7, (1, 2, 3, 4, 5, 6), "56 or 63 samples divide over 7 servers, 60 samples over 6 or 10"),
        (24, 12, (1, 2, 3, 4, 6, 12), ""),  # not 8: all servers divide the samples
    ],
)
def test_parts_divide_the_samples_and_what_would_divide_is_said(
    small: Callable[..., Step], batch: int, n: int, parts: tuple[int, ...], says: str
) -> None:
    step = small(MODEL.format(batch), n=n, shard=False)
    assert step.space.parts == parts
    said = [note for note in step.space.notes if "do not divide" in note]
    assert [says in note for note in said] == [True] * bool(says)
    starts = [data_parallel(step.space), *fewer(step.space)]
    assert all(len(set(own)) == len(own) <= n for plan in starts for own in plan.servers)
    assert len(starts[0].servers[0]) == parts[-1]
    assert {len(plan.servers[0]) for plan in starts} == set(parts)


def test_five_servers_are_used_as_four_are_and_the_bound_says_of_what_it_is_one() -> None:
    five, four = designed(6400 + 4, 5), designed(6400 + 4, 4)
    assert five.entry.found.seconds <= four.entry.found.seconds * 1.02
    said = text.explain(five)
    assert "no plan with operators in 1, 2 or 4 parts beats" in said and "1 of 5 servers computes nothing: 4" in said
    assert "6400 or 6405 samples divide over 5 servers" in said and five.gap_ratio is not None and five.gap_ratio > 0.2
    assert "computes nothing" not in text.explain(four) and "do not divide" not in text.explain(four)


@pytest.mark.parametrize(("n", "degree", "batch"), [(5, 3, 64), (5, 4, 64), (2, 1, 32)])
def test_rings_stay_with_their_members_and_cables_with_their_interfaces(n: int, degree: int, batch: int) -> None:
    """Stored paths are of groups that are spread evenly; a published network may ask for more interfaces than there are."""
    design = api.codesign(
        "gpt2", servers=n, degree=degree, link_bandwidth="100 Gbit/s", budget=3, settings={"global_batch": str(batch)}
    )
    entry = json.loads(json.dumps(codesign_json.as_json(design)))
    assert check_design(entry, read_model("gpt2")).reason == ""


def test_a_file_that_calls_one_server_unbeatable_is_refused() -> None:
    entry = json.loads(json.dumps(codesign_json.as_json(designed(6404, 5))))
    spec = read_model(MODEL.format(6404))
    verdict = check_design(entry, spec)
    assert verdict.valid and any("operators in 1, 2 or 4 parts" in line for line in verdict.checked)
    raised = copy.deepcopy(entry)
    raised["bound"] |= {"value": entry["iteration_seconds"], "gap_ratio": 0.0}
    assert "bound.value" in check_design(raised, spec).reason


def test_the_bound_holds_for_plans_on_some_of_three_servers(small: Callable[..., Step]) -> None:
    step = small("topoopt:candle,tower=64,top=1,batch=32", n=3, shard=False)
    fabric = networks.build("full-mesh", 3, 2, 1e9, 1e-6, 0).fabric
    bound = bounds.step_seconds(step.space, fabric.injection_bytes_per_second())
    options = [
        [(k, own) for k, choice in enumerate(row) for own in itertools.combinations(range(3), choice.n_parts)]
        for row in step.space.choices
    ]
    dice = np.random.default_rng(0)
    for _ in range(60):
        chosen, servers = zip(*(own[int(dice.integers(len(own)))] for own in options), strict=True)
        assert step.seconds(Placement(chosen, servers), fabric) >= bound * (1 - 1e-9)


@pytest.mark.parametrize(("server", "n_links"), [(1, 1), (2, 2), (4, 2)])
def test_without_overlap_only_routes_that_carry_something_take_latency(
    small: Callable[..., Step], server: int, n_links: int
) -> None:
    """On a ring of six, whose longest route is of three links."""
    step = small("topoopt:candle,tower=64,top=1,batch=32", n=6, shard=False)
    count = {(i, (i + way) % 6): 1.0 for i in range(6) for way in (1, -1)}
    n = len(step.space.choices)
    plan = Placement((0,) * n, (*((0,),) * (n - 1), (server,)))
    quick, slow = (step.seconds(plan, Fabric("ring", 6, count, 1e9, latency), traffic="closed") for latency in (0.0, 1e-3))
    assert slow - quick == pytest.approx(n_links * 1e-3)
