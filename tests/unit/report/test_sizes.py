"""What ``size`` answers in words and as a page: made-up answers, so that every sentence is seen without planning anything."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.report import size_page, sizes
from meshwright.sizing.answer import Sizing
from meshwright.sizing.failures import published
from meshwright.sizing.goodput import Goodput, Upkeep
from meshwright.sizing.kinds import kinds
from meshwright.sizing.points import LeftOut, Outlay, SizePoint
from meshwright.sizing.tariffs import tariffs

GOOD = Goodput(0.9, (("checkpoints", 0.02), ("restarts", 0.08)), 36000.0, 600.0, 2.0**30, 1.0, 600.0)
CAUSES = (
    ("compute", 0.5), ("recomputation", 0.1), ("communication", 0.2), ("bubble", 0.06), ("imbalance", 0.04), ("failures", 0.1),
)  # fmt: skip
DAY = 86400.0


def point(name: str, days: float, money: float | None) -> SizePoint:
    outlay = Outlay(name.partition(":")[0], days * DAY, days * DAY * 8, money, None)
    return SizePoint(name, 8, outlay, 0.9 * days * DAY, 1.1 * days * DAY, 1.0, GOOD, CAUSES, "data 8 <b>")


def answer(front: tuple[SizePoint, ...], nearest: SizePoint | None = None, others: tuple[SizePoint, ...] = ()) -> Sizing:
    chosen = kinds(["h100", "3090"])
    left_out = tuple(LeftOut(f"dgx-h100:{n}", f"takes at least {n / 7:.4g} days, shared evenly") for n in (1, 2, 4))
    return Sizing(
        "tiny <i>", 10**9, 2048, 64, 100, front, others, left_out, nearest, 20 * DAY, math.inf, chosen, tariffs(chosen),
        Upkeep.usual(published()), ("a note",), 0, (), 1.0,
    )  # fmt: skip


def test_the_verdict_names_the_quickest_and_the_cheapest() -> None:
    both = answer((point("dgx-h100:16", 3.0, 900.0), point("dgx-h100:8", 5.0, 500.0)))
    assert sizes.verdict(both) == "Quickest: dgx-h100:16 in 3 days for $900. Cheapest: dgx-h100:8 in 5 days for $500."
    assert sizes.verdict(answer((point("dgx-h100:8", 5.0, 500.0),))).endswith("It is the cheapest too.")
    assert sizes.verdict(answer((point("rtx-3090:8", 5.0, None),))) == "Quickest: rtx-3090:8 in 5 days."
    assert "Nearest of those planned: dgx-h100:8 in 50 days and $500." in sizes.verdict(
        answer((), point("dgx-h100:8", 50.0, 500.0))
    )
    assert sizes.verdict(answer(())) == "No size has a plan."


def test_reasons_that_differ_in_numbers_only_are_one_line() -> None:
    text = sizes.explain(answer((point("dgx-h100:8", 5.0, 500.0),), others=(point("dgx-h100:16", 6.0, 900.0),)))
    assert text.count("left out:") == 1 and "(and 2 more of this kind, for the same reason)" in text
    assert "1 more size was planned that is dominated" in text and "within 20 days" in text and "note: a note" in text


def test_the_nearest_size_is_not_counted_among_the_others() -> None:
    near, far = point("dgx-h100:8", 50.0, 500.0), point("dgx-h100:16", 40.0, 900.0)
    alone, both = answer((), near, others=(near,)), answer((), near, others=(near, far))
    assert "planned," not in sizes.explain(alone) and "<p>None.</p>" in size_page.page(alone)
    assert "1 more size was planned, beyond a limit too: --json and --out have it" in sizes.explain(both)
    assert size_page.page(both).count("<td>dgx-h100:8</td>") == 1 == size_page.page(both).count("<td>dgx-h100:16</td>")


def test_the_page_holds_every_size_and_escapes_names() -> None:
    page = size_page.page(answer((point("dgx-h100:16", 3.0, 900.0), point("dgx-h100:8", 25.0, 500.0))))
    assert page.count("<circle") == 2 and "<polyline" in page and page.count('class="limit"') == 1  # at 20 days
    assert "tiny &lt;i&gt;" in page and "<i>" not in page.replace("<i style", "") and "data 8 &lt;b&gt;" in page
    assert "compute 50.0% ($450)" in page and "not known" in page
    unpriced = size_page.page(answer((point("rtx-3090:16", 3.0, None), point("rtx-3090:8", 5.0, None))))
    assert unpriced.count("<circle") == 2 and "device-hours" in unpriced
    assert "nothing to draw" in size_page.page(answer(()))


def test_effective_seconds_in_words() -> None:
    from meshwright.sizing.points import goodput_json

    text = sizes.goodput_lines(0.9, goodput_json(GOOD))
    assert "effective step 1 s: 90.0% of the time trains (checkpoints 2.00%, restarts 8.00%)" in text
    assert "interrupted every 10 h, restart 10 min; a checkpoint of 1 GiB every 10 min stops training for 1 s" in text
    never = Goodput(1.0, (), math.inf, math.inf, 1.0, 1.0, 600.0)
    assert sizes.goodput_lines(1.0, goodput_json(never)) == "nothing fails: the effective step is the step"


@pytest.mark.parametrize(
    ("low", "high"), [(11_200.0, 17_600.0), (0.8, 1.25), (3.0, 4.7), (1.0, 1e6), (9.9, 10.1), (0.02, 0.03)]
)
def test_an_axis_has_two_round_numbers_at_least_and_all_lie_between_its_ends(low: float, high: float) -> None:
    ticks = size_page._ticks(low, high)
    assert 2 <= len(ticks) <= 12 and ticks == sorted(set(ticks)) and low <= ticks[0] and ticks[-1] <= high
    assert all(float(f"{tick:.4g}") == pytest.approx(tick) for tick in ticks)


def test_a_price_that_is_not_known_makes_nothing_the_cheapest_of_all() -> None:
    said = sizes.verdict(answer((point("dgx-h100:8", 5.0, 500.0), point("rtx-3090:8", 15.0, None))))
    assert said == "Quickest: dgx-h100:8 in 5 days for $500. It is the cheapest with a known price too."


def test_short_runs_are_told_in_hours_and_minutes() -> None:
    assert sizes.verdict(answer((point("dgx-h100:8", 0.03125, 5.0),))).startswith("Quickest: dgx-h100:8 in 45 min for $5.")


def test_the_line_of_the_chart_goes_down_only() -> None:
    """A size that is on the front for its energy lies above the line."""
    front = (point("dgx-h100:32", 1.0, 900.0), point("dgx-h100:16", 2.0, 500.0), point("dgx-h100:12", 3.0, 700.0))
    page = size_page.page(answer((*front, point("dgx-h100:8", 5.0, 400.0), point("rtx-3090:8", 9.0, None))))
    line = page.split('<polyline class="front" points="')[1].split('"')[0].split()
    heights = [float(pair.split(",")[1]) for pair in line]
    assert len(line) == 3 and heights == sorted(heights) and page.count("<circle") == 4
    assert "1 size without a known price is in the tables only" in page


def test_what_is_not_known_is_not_said_to_be_better() -> None:
    left_out = tuple(LeftOut(f"g6-l4:{n}", "x:8 is better in all that is known, whatever its plan") for n in (8, 16))
    text = sizes.explain(replace(answer((point("dgx-h100:8", 5.0, 500.0),)), left_out=left_out))
    assert "a size that was planned is better in all that is known, whatever their plan (and 1 more" in " ".join(text.split())
