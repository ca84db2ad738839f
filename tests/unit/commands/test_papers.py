"""``meshwright papers``: what there is, a claim computed, what is left out and why."""

from __future__ import annotations

import time
from typing import Any

import pytest

from meshwright import papers
from meshwright.published.claims import Case


def test_without_a_name_all_papers_and_claims_are_listed(meshwright: Any) -> None:
    done = meshwright("papers")
    assert done.code == 0 and "piper: Piper: Multidimensional Planner" in done.out
    assert "gnmt:" in done.out and "(computed where named)" in done.out and "(not repeated here)" in done.out
    listed = meshwright("papers", "--json").json
    assert [entry["paper"] for entry in listed["papers"]] == list(papers.names())


def test_one_claim_is_computed_and_shown_beside_what_was_published(meshwright: Any) -> None:
    done = meshwright("papers", "dapple", "--claim", "speedups", "--json")
    (claim,) = done.json["claims"]
    assert done.code == 0 and done.json["format"] == "meshwright/papers/1" and done.json["complete"] is True
    assert claim["computed"] and len(claim["cases"]) == 5 and claim["cases"][0]["ratio"] == pytest.approx(1.0)
    assert claim["cases"][0]["bound"] is None and claim["source"]
    assert done.err.count("dapple speedups: ") == 5
    text = meshwright("papers", "dapple", "--claim", "speedups").out
    assert "ours as published" in text and "vgg-19-pbs-32, 1024 samples" in text and "bound" not in text


def test_a_claim_that_cannot_be_repeated_says_why(meshwright: Any) -> None:
    done = meshwright("papers", "parmesan", "--claim", "table-1")
    assert done.code == 0 and "not repeated: the operator times" in done.out
    entry = meshwright("papers", "parmesan", "--claim", "table-1", "--json").json["claims"][0]
    assert entry["computed"] is False and "Titan V" in entry["reason"] and entry["cases"] == []


def test_what_takes_long_is_left_out_unless_named(meshwright: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def repeat(paper: Any, claim: Any, tell: Any) -> papers.ClaimRepeated:
        asked.append(claim.id)
        return papers.ClaimRepeated(claim, (Case("one", 1.0, 2.0),), 0.1)

    monkeypatch.setattr(papers, "repeat", repeat)
    done = meshwright("papers", "piper")
    assert done.code == 0 and "gnmt" not in asked and "figure-1" in asked
    assert "takes long; name it: --claim gnmt" in done.out
    meshwright("papers", "piper", "--claim", "gnmt")
    assert asked[-1] == "gnmt"


def test_an_interrupt_keeps_what_was_computed(meshwright: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def repeat(paper: Any, claim: Any, tell: Any) -> papers.ClaimRepeated:
        if claim.id == "optima":
            raise KeyboardInterrupt
        return papers.ClaimRepeated(claim, (Case("one", 1.0, 2.0),), 0.1)

    monkeypatch.setattr(papers, "repeat", repeat)
    done = meshwright("papers", "pase", "--json")
    assert done.code == 0 and done.json["complete"] is False
    assert [claim["computed"] for claim in done.json["claims"]][:2] == [True, False]
    assert "interrupted; not computed: optima, figure-6-1080ti" in done.err


def test_cases_computed_before_time_was_up_are_shown_and_a_claim_in_part_says_so(
    meshwright: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeat(paper: Any, claim: Any, tell: Any) -> papers.ClaimRepeated:
        tell(Case("one", 1.0, 2.0))
        time.sleep(60.0)
        raise AssertionError("time was not up")

    monkeypatch.setattr(papers, "repeat", repeat)
    done = meshwright("papers", "pase", "--time-limit", "0.1", "--json")
    first, second = done.json["claims"][:2]
    assert done.code == 0 and not done.json["complete"]
    assert first["computed"] and not first["complete"] and [case["case"] for case in first["cases"]] == ["one"]
    assert not second["computed"] and not second["complete"]
    assert f"time was up; not computed: {first['id']} (in part), {second['id']}" in done.err
    for limit in ("1ns", "1us", "10us", "100us"):  # wherever it is when time is up
        done = meshwright("papers", "pase", "--time-limit", limit)
        assert done.code in (0, 2) and "time was up" in done.err
    out = meshwright("papers", "pase", "--time-limit", "0.1").out
    assert "stopped before its other cases" in out and "not computed: stopped before" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("alpa",), "no paper called 'alpa'"),
        (("pase", "--claim", "x"), "no claim of pase"),
        (("--claim", "optima"), "of which paper"),
    ],
)
def test_wrong_words_are_answered_in_one_line(meshwright: Any, words: tuple[str, ...], why: str) -> None:
    done = meshwright("papers", *words)
    assert done.code == 2 and done.out == "" and why in done.err and len(done.err.splitlines()) == 1
