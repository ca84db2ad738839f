"""What documents of unlike length cost, in a table and a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.report import lengths

WAYS = ("pad", "bucket", "pack", "mask", "mask_dealt")


def varied(n_cut: int, batching: str = "pack", **tokens: float) -> dict[str, Any]:
    """Return what `plan` says of lengths, by hand: every way at 1,000 tokens a second but those that are told."""
    row = {"step_seconds": 2.0, "padding_ratio": 0.25, "waiting_ratio": 0.125}
    best = max(WAYS, key=lambda name: tokens.get(name, 1000.0))
    return {
        "source": "docs.txt", "sequence_length": 4096, "n_documents": 1500, "n_cut": n_cut, "mean_tokens": 1234.6,
        "pairs_ratio": 0.375, "n_steps_drawn": 32, "batching": batching, "recommended": best, "notes": ("seen once",),
        "ways": {name: {**row, "real_tokens_per_second": tokens.get(name, 1000.0)} for name in WAYS},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("n_cut", "told"),
    [(0, "none is longer than a sample;"), (1200, "1,200 of 1,500 documents are longer than a sample and are cut;")],
)  # fmt: skip
def test_how_many_documents_are_cut_is_said(n_cut: int, told: str) -> None:
    said = lengths.lengths_lines(varied(n_cut))
    assert told in " ".join(said.split()) and said.count("longer than a sample") == 1


def test_the_table_has_a_row_for_every_way_and_marks_that_of_the_plan() -> None:
    lines = lengths.lengths_lines(varied(0, batching="bucket", mask=3000.0)).splitlines()
    assert "documents of docs.txt in samples of 4,096 tokens" in lines[0]
    rows = {
        name: next(line for line in lines if line.strip().startswith(f"{name}:")) for name in ("pad", "bucket", "pack", "mask")
    }
    assert [name for name, line in rows.items() if " * " in line] == ["bucket"]
    assert rows["mask"].split()[-6:] == ["3", "k", "2", "s", "25.0%", "12.5%"]
    text = " ".join(" ".join(lines).split())
    assert "mean length 1,235" in text and "37.5% of the pairs" in text and "the mean of 32 drawn steps" in text
    assert text.endswith("note: seen once")


@pytest.mark.parametrize(
    ("gained", "told"),
    [
        (1001.0, "no other way is quicker by more than half a per cent."),
        (1200.0, "+20.0% real tokens/s over pack on this plan."), (2500.0, "2.5 times the real tokens/s of pack on this plan."),
    ],
)  # fmt: skip
def test_the_advice_says_what_is_gained(gained: float, told: str) -> None:
    assert lengths.advice(varied(0, mask=gained)).endswith(told)
    assert lengths.advice(varied(0)).endswith("as planned.") == (varied(0)["recommended"] == "pack")
