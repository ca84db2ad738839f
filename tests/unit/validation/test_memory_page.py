"""The worked example on the page about memory: its arithmetic and its figures are those of the model."""

from __future__ import annotations

import pathlib
import re

import pytest

from meshwright import clusters, sim
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.validation._runs import built_in

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "explanation" / "memory.md"
GIB = 2.0**30
WEIGHTS, HEAD, TOKENS = 8_030_261_248, 525_340_672, 8192


def _page() -> dict[str, tuple[str, float]]:
    """Return what the example says of each part: how, and GiB."""
    section = PAGE.read_text().partition("## By hand")[2].partition("## Errors")[0]
    return {name: (how, float(gib)) for name, how, gib in re.findall(r"^\| (\w+) \| (.*?) \| ([\d.]+) \|$", section, re.M)}


def test_the_example_is_what_the_model_says_and_what_the_arithmetic_says() -> None:
    graph = built_in("llama-3.1-8b", TOKENS)
    assert graph.n_parameters == WEIGHTS and graph.ops[-1].n_parameters == HEAD
    plan = Plan((Stage(tuple(range(len(graph.ops))), tuple(range(8)), Strategy(8, shard=3)),), 8, 1, "1f1b", 64)
    problem = Problem(ModelSpec("llama", "test", "llama", graph), clusters.cluster("dgx-h100:8"))
    timeline = sim.simulate(problem, plan, analytic.stage_costs(problem, plan))
    by_hand = {
        "weights": 4 * WEIGHTS / 8, "gradients": 4 * WEIGHTS / 8, "optimizer": 8 * WEIGHTS / 8,
        "activations": TOKENS * (32 * (2 * 69_632 + 128) + 16_384 + 4 * 128_256),
        "working": TOKENS * 2 * (4096 + 128_256) + 6 * HEAD, "communication": 6 * HEAD, "context": 1.5 * GIB,
    }  # fmt: skip
    by_hand["allocator"] = 0.05 * (by_hand["activations"] + by_hand["working"])
    found = dict(timeline.memory_causes[0])
    page = _page()
    assert set(page) == set(by_hand) == set(found)
    for cause, n_bytes in by_hand.items():
        assert found[cause] == pytest.approx(n_bytes, rel=1e-6), cause
        assert page[cause][1] == pytest.approx(n_bytes / GIB, abs=5e-4), cause
    totals = [timeline.allocated_bytes[0], timeline.reserved_bytes[0], timeline.peak_bytes[0]]
    said = re.search(r"Allocated ([\d.]+), reserved ([\d.]+), peak ([\d.]+) of", PAGE.read_text())
    assert said and [float(word) for word in said.groups()] == pytest.approx([total / GIB for total in totals], abs=5e-3)
