"""Claims of the papers: each with place and source, each computed or with a reason; what is reproduced is what was said."""

from __future__ import annotations

import importlib
import itertools

import pytest

from meshwright import api, papers
from meshwright.base.errors import UnknownNameError
from meshwright.papers import ClaimRepeated, Paper
from meshwright.published.claims import Case, Claim

NAMES = ("dapple", "parmesan", "pase", "piper", "topoopt")


def cases(name: str, claim_id: str) -> tuple[Case, ...]:
    paper = papers.read(name)
    return papers.repeat(paper, papers.chosen(paper, claim_id)[0]).cases


def test_there_are_five_papers() -> None:
    assert papers.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_has_place_and_source_and_is_computed_or_has_a_reason(name: str) -> None:
    paper = papers.read(name)
    computed = importlib.import_module(f"meshwright.planners.{name}.papers.{name}").CASES
    assert paper.title and paper.reference and len({claim.id for claim in paper.claims}) == len(paper.claims)
    for claim in paper.claims:
        assert claim.says and claim.place and claim.source, claim.id
        assert bool(claim.reason) != (claim.id in computed), claim.id
        assert claim.reason or (claim.unit and claim.ours), claim.id
        assert "\n" not in claim.reason and all(value > 0.0 for value in claim.values.values())
    assert set(computed) <= {claim.id for claim in paper.claims}


def test_names_that_are_none_are_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"no paper called 'alpa'.*topoopt"):
        papers.read("alpa")
    with pytest.raises(UnknownNameError, match=r"no claim of pase called 'x'.*optima"):
        papers.chosen(papers.read("pase"), "x")


def test_the_optima_of_pase_are_the_published_ones_and_proven() -> None:
    found = cases("pase", "optima")
    assert len(found) == 15
    for case in found:
        assert case.claimed_value == case.published_value == case.improved_value
        assert case.best_value in (None, case.claimed_value)
        assert case.bound_value == pytest.approx(case.claimed_value, rel=1e-13)
    assert sum("breadth-first" in case.note for case in found) == 6  # of the two graphs that are paths


def test_given_plans_of_piper_have_the_published_times_and_the_best_is_no_slower() -> None:
    found = cases("piper", "figure-4")
    assert len(found) == 16
    for case in found:
        assert case.published_value == pytest.approx(case.claimed_value, rel=1e-9)
        assert case.best_value == case.improved_value
        assert case.improved_value is not None and case.published_value is not None and case.bound_value is not None
        assert case.bound_value <= case.improved_value <= case.published_value


def test_the_gain_of_pipers_dimensions_is_the_published_one() -> None:
    for case in itertools.islice(
        importlib.import_module("meshwright.planners.piper.papers.piper").CASES["figure-1-gains"](None, api), 5
    ):
        assert case.published_value == pytest.approx(case.claimed_value, rel=1e-9) and case.published_value >= 1.0 - 1e-12


def test_speedups_of_dapple_are_those_of_the_released_planner() -> None:
    found = cases("dapple", "speedups")
    assert len(found) == 5
    assert all(case.published_value == pytest.approx(case.claimed_value, rel=1e-12) for case in found)


def test_dapples_plan_over_pipedreams_is_that_of_the_authors_simulation() -> None:
    """3.10 and 1.72 come from the authors' own program on the plans of their example."""
    vgg, xlnet, largest = cases("dapple", "vs-pipedream")
    assert (vgg.published_value, xlnet.published_value) == (pytest.approx(3.101, abs=1e-3), pytest.approx(1.716, abs=1e-3))
    assert largest.claimed_value == 3.23 and largest.published_value == vgg.published_value
    assert vgg.best_value is not None and vgg.improved_value is not None and vgg.best_value >= vgg.improved_value


def test_task_graphs_of_topoopt_take_what_the_packet_simulator_says() -> None:
    found = importlib.import_module("meshwright.planners.topoopt.papers.topoopt").CASES["packets"](None, api)
    for case in itertools.islice(found, 2):
        assert case.published_value == pytest.approx(case.claimed_value, rel=0.01)


def test_ratio_and_gain_go_the_way_of_the_better_value() -> None:
    less = Claim("a", "says", "place", "source", "s", False, "ours", "", False, {})
    more = Claim("b", "says", "place", "source", "x", True, "ours", "", False, {})
    case = Case("one", claimed_value=2.0, published_value=4.0, improved_value=1.0)
    entry = papers.as_json(
        Paper("p", "t", "r", (less, more)),
        (ClaimRepeated(less, (case,), 0.5), ClaimRepeated(more, (case,)), ClaimRepeated(less)),
    )
    first, second, third = entry["claims"]
    assert first["cases"][0]["ratio"] == 2.0 and first["cases"][0]["gain_ratio"] == 4.0 and first["cpu_seconds"] == 0.5
    assert second["cases"][0]["gain_ratio"] == 0.25 and first["cases"][0]["bound"] is None
    assert third["computed"] is False and third["cases"] == []
