"""Searches on measured profiles and of Piper on our models: unlike devices give the same answer however they are numbered."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright import api
from meshwright.clusters import cluster
from meshwright.core.cluster import Cluster, Links
from meshwright.core.result import Result
from meshwright.costs import analytic
from meshwright.network.numbering import links_alike, unlike_links
from meshwright.sim import simulate
from meshwright.solvers.mapping.search import pair_seconds

DATA = Path(__file__).parents[1] / "data"


def mesh(memory_bytes: tuple[float, ...], slow: frozenset[tuple[int, int]] = frozenset()) -> Cluster:
    """Return devices with these memories, joined each with each, some pairs by slow links; one node each."""
    plain = cluster(f"full-mesh:{len(memory_bytes)}")
    sizes = sorted(set(memory_bytes))
    kinds = tuple(replace(plain.kinds[0], name=f"{size:g}", memory_bytes=size, reserved_bytes=0.0) for size in sizes)
    links = plain.links
    ends = zip(links.source.tolist(), links.target.tolist(), strict=True)
    rates = np.array([1e9 if tuple(sorted(pair)) in slow else 2e10 for pair in ends])
    return replace(
        plain, kinds=kinds, kind_of_device=np.array([sizes.index(size) for size in memory_bytes]),
        links=Links(links.source, links.target, rates, links.latency_seconds), periods=(),
    )  # fmt: skip


def renumbered(asked: Cluster, order: tuple[int, ...]) -> Cluster:
    """Return a cluster without switches with device `order[i]` as device `i`."""
    place, links = np.argsort(order), asked.links
    return replace(
        asked, kind_of_device=asked.kind_of_device[list(order)], groups=asked.groups[:, list(order)],
        links=Links(place[links.source], place[links.target], links.bytes_per_second, links.latency_seconds),
    )  # fmt: skip


def profile(path: Path, held_bytes: tuple[float, ...]) -> str:
    lines = [
        f"n{i} -- L{i} -- forward_compute_time={1.0 + i}, backward_compute_time=2.0, activation_size=1e6, parameter_size={size}"
        for i, size in enumerate(held_bytes)
    ]
    path.write_text("\n".join(lines + [f"\tn{i} -- n{i + 1}" for i in range(len(lines) - 1)]) + "\n")
    return str(path)


@pytest.mark.parametrize("search", ["dapple", "pipedream"])
def test_no_numbering_changes_what_is_planned_on_devices_of_unlike_memory(search: str, tmp_path: Path) -> None:
    """The large layer fits on the large device only."""
    path, asked = profile(tmp_path / "p.txt", (4e9, 1e9, 1e9)), mesh((20e9, 6e9, 6e9), frozenset({(0, 1)}))
    settings = {"profile_batch": "1", "global_batch": "4"}

    def told(result: Result) -> tuple[object, ...]:
        bound, value = result.answer.bound, result.answer.objective
        return (
            [stage.ops for stage in result.plan.stages] if result.feasible else None, result.feasible,
            value and round(value.value, 12), bound and round(bound.value, 12),
            result.timeline and round(result.timeline.step_seconds, 12),
        )  # fmt: skip

    answers = [
        told(api.plan(path, renumbered(asked, order), search=search, settings=settings))
        for order in itertools.permutations(range(3))
    ]
    assert all(answer == answers[0] for answer in answers)
    assert search == "pipedream" or answers[0][1]


def test_pipedream_proves_nothing_where_its_two_rates_do_not_say_what_links_do(tmp_path: Path) -> None:
    path, settings = profile(tmp_path / "p.txt", (1e6, 1e6, 1e6)), {"profile_batch": "1", "global_batch": "4"}
    alike = api.plan(path, mesh((20e9,) * 3), search="pipedream", settings=settings).answer
    unlike = api.plan(path, mesh((20e9,) * 3, frozenset({(0, 1)})), search="pipedream", settings=settings).answer
    assert alike.bound is not None and alike.bound.method == "exact"
    assert unlike.bound is None and any("not proven" in note for note in unlike.notes)


@pytest.mark.parametrize("flipped", [False, True])
def test_pipers_bound_is_not_above_a_plan_played_on_devices_of_unlike_speed(flipped: bool) -> None:
    """Priced on the slow devices, the bound was above the plan of `best`, which is played on the quick ones."""
    asked = cluster(str(DATA / "two_kinds.yaml"))
    if flipped:
        asked = replace(asked, kind_of_device=asked.kind_of_device[::-1].copy())
    found, best = (api.plan("gpt2", asked, search=search, global_batch=16) for search in ("piper", "best"))
    assert found.answer.bound is not None and found.answer.objective is not None
    assert best.timeline is not None and found.timeline is not None
    assert found.answer.bound.method == "compute"
    assert 0.0 < found.answer.bound.value <= best.timeline.step_seconds
    assert found.answer.objective.value == found.timeline.step_seconds
    assert any("devices or links are unlike" in note for note in found.answer.notes)


def test_pipers_answer_on_unlike_devices_is_that_of_every_numbering() -> None:
    asked = mesh((80e9, 80e9, 40e9, 40e9), frozenset({(0, 2), (1, 3)}))
    answers = [
        api.plan("gpt2", renumbered(asked, order), search="piper", global_batch=8)
        for order in [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)]
    ]
    steps = [answer.timeline.step_seconds for answer in answers if answer.timeline is not None]
    assert steps == pytest.approx([steps[0]] * 4, rel=1e-12)
    for answer in answers:
        again = simulate(answer.problem, answer.plan, analytic.stage_costs(answer.problem, answer.plan))
        assert again.step_seconds == answer.answer.objective.value


@pytest.mark.parametrize("search", ["parmesan", "stage_mapping", "piper", "partition", "pase"])
def test_where_links_alone_are_unlike_the_answer_says_that_numbers_matter(search: str) -> None:
    slow = frozenset({(0, 1), (1, 2)})
    even, uneven = (api.plan("gpt2", mesh((80e9,) * 4, pairs), search=search, global_batch=8) for pairs in (frozenset(), slow))
    assert any("numbering" in note for note in uneven.answer.notes)
    assert not any("numbering" in note for note in even.answer.notes)


def test_links_are_alike_in_nodes_and_between_them_or_not() -> None:
    assert all(links_alike(cluster(name), pair_seconds) for name in ("dgx-a100:16", "pcie-a100:4", "flat:8", "full-mesh:5"))
    assert not any(links_alike(cluster(name), pair_seconds) for name in ("torus:2x4", "mesh:3x3"))
    assert not links_alike(cluster(str(DATA / "two_kinds.yaml")), pair_seconds)
    # a torus looks alike from each of its devices; a mesh has corners
    assert not unlike_links(cluster("torus:3x3"), pair_seconds) and unlike_links(cluster("mesh:3x3"), pair_seconds)
