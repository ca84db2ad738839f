"""Splits typed as PaSE's tables have them cost what the search says of the same splits."""

from __future__ import annotations

import pytest

from meshwright import api
from meshwright.api import plan_files
from meshwright.base.errors import InputError


@pytest.mark.parametrize("graph", ["alexnet", "rnnlm", "transformer"])
def test_the_best_splits_typed_cost_what_the_search_found(graph: str) -> None:
    best = api.plan(f"pase:{graph}", search="pase")
    shardings = best.answer.extra["shardings"]
    assert isinstance(shardings, dict)
    text = ";".join(f"{name}={'x'.join(map(str, split))}" for name, split in shardings.items())
    found = plan_files.given(f"pase:{graph}", text)
    assert found.objective is not None and best.objective is not None
    assert found.objective.value == pytest.approx(best.objective.value, rel=1e-12)
    assert found.answer.extra["shardings"] == shardings


def test_words_and_patterns_say_the_same() -> None:
    named = plan_files.given("pase:alexnet", "one_weird_trick")
    spelled = plan_files.given("pase:alexnet", "*=b/8; fc*=n/8; softmax*=n/8")
    assert spelled.objective == named.objective == api.plan("pase:alexnet", search="one_weird_trick").objective
    assert spelled.timeline is None


def test_a_split_finer_than_the_published_ones_is_told() -> None:
    notes = plan_files.given("pase:alexnet", "*=b/64", settings={"n_processors": "64"}).answer.notes
    assert any("split finer than PaSE's configurations" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "write OPERATORS=SPLIT"),
        ("*=b/3", "3 processors do not divide axis b of conv0"),
        ("*=b/16", "conv0 is split into 16 parts; there are 8 processors"),
        ("*=", "says no split"),
        ("*=b/2 b/4", "axis b is given twice"),
        ("*=q/2", "conv0 has the axes b c h w r s n"),
        ("*=b/8;conv*=8x1x1", "gives 3 parts; conv0 has 7 axes"),
        ("conv0=b/2", "says nothing of 13 operators"),
        ("nothing=b/2", "no operator"),
    ],
)
def test_what_is_wrong_with_typed_splits_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_files.given("pase:alexnet", text)
