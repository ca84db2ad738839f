"""Pages and tables of sizes and sweeps as they were when this was written; every figure in them is the test's own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from meshwright.report import size_page, sizes, sweep_table
from meshwright.report.text import render
from meshwright.sizing.answer import Sizing
from meshwright.sizing.failures import FailureRates
from meshwright.sizing.goodput import Goodput, Recovery, Upkeep
from meshwright.sizing.kinds import kinds
from meshwright.sizing.points import LeftOut, Outlay, SizePoint, goodput_json
from meshwright.sizing.tariffs import Tariff
from recorded import Recorded

DAY = 86400.0
GOOD = Goodput(0.9, (("checkpoints", 0.02), ("restarts", 0.08)), 36000.0, 600.0, 2.0**30, 1.0, 600.0)
CAUSES = (
    ("compute", 0.5), ("recomputation", 0.1), ("communication", 0.2), ("bubble", 0.06), ("imbalance", 0.04), ("failures", 0.1),
)  # fmt: skip
UPKEEP = Upkeep(FailureRates(1e9, source="own"), Recovery(300.0, 1e9, 1e10))


def words(text: str) -> str:
    """Return a text without the blanks and rules by which tables are laid out."""
    return " ".join(text.replace("\N{BOX DRAWINGS LIGHT HORIZONTAL}", " ").split())


def point(name: str, days: float, money: float | None, **changes: Any) -> SizePoint:
    n_devices = int(name.partition(":")[2])
    outlay = Outlay(name.partition(":")[0], days * DAY, days * DAY * n_devices, money, changes.pop("energy", None))
    made = SizePoint(name, n_devices, outlay, 0.9 * days * DAY, 1.2 * days * DAY, 1.5, GOOD, CAUSES, "data 8 <b>")
    return replace(made, **changes)


def answers() -> dict[str, Sizing]:
    """Return answers that differ in what there is to show."""
    chosen = kinds(["h100", "3090"])
    priced = (Tariff(2.5, "a list", 1000.0, 1250.0, "a sheet", 1.5), Tariff())
    two = (point("dgx-h100:16", 3.0, 900.0, energy=1234.5), point("dgx-h100:8", 25.0, 500.0, gap_ratio=0.07))
    unmeasured = point("rtx-3090:72", 4.1, 2.05e6, low_seconds=0.0, high_seconds=0.0)
    near = (point("rtx-3090:64", 4.0, 2e6, utilization_ratio=0.4321), unmeasured)
    free = tuple(point(f"rtx-3090:{2**i}", 30.0 / 2**i, None) for i in range(1, 4))
    left_out = tuple(LeftOut(f"dgx-h100:{n}", f"takes at least {n / 7:.4g} days, shared evenly") for n in (1, 2, 4))
    left_out += (LeftOut("rtx-3090:1", "nothing fits"),)
    plain = Sizing(
        "tiny <i>", 10**9, 2048, 64, 100, two, (), left_out, None, 20 * DAY, math.inf, chosen, priced, UPKEEP, ("a & b", "c"),
        0, (), 1.0,
    )  # fmt: skip
    return {
        "two": plain, "nothing": replace(plain, front=(), left_out=()), "others": replace(plain, others=near[:1]),
        "near": replace(plain, front=near, budget_value=2.02e6, within_seconds=math.inf), "free": replace(plain, front=free),
        "nearest": replace(plain, front=(), nearest=two[0]), "some free": replace(plain, others=(*free, *near)),
        "many": replace(plain, front=tuple(point(f"dgx-h100:{i}", 100.0 / i, 1e5 * i) for i in range(1, 11)), budget_value=3e5),
    }  # fmt: skip


def test_sizes_are_shown_as_before(recorded: Recorded) -> None:
    for name, answer in answers().items():
        recorded(
            {
                "chart": size_page._chart(answer), "where": size_page._where(answer.front),
                "text": words(sizes.explain(answer)),
                "verdict": sizes.verdict(answer), "cells": [sizes.cells(one) for one in (*answer.front, *answer.others)],
                "figures": size_page._figures(answer) if name == "two" else "", "repr": repr(answer),
            },
            name,
        )  # fmt: skip
        page = size_page.page(answer)
        assert size_page._chart(answer) in page and size_page._figures(answer) in page
    spans = ((1.0, 10.0), (1.1, 1.9), (3.0, 4.7), (0.5, 2e3), (0.5, 2e5), (9.9, 10.1), (1.0, 999.0), (1.0, 1001.0), (2.0, 5.0))
    recorded([[float(f"{tick:.6g}") for tick in size_page._ticks(*span)] for span in spans], "ticks")
    odd = replace(GOOD, lost=(("checkpoints", 0.0), ("waiting", 0.05)), spare_nodes=3, mtbf_seconds=30.0)
    recorded(
        [sizes.goodput_lines(0.9, goodput_json(good)) for good in (GOOD, odd, replace(odd, effective_ratio=0.0))], "goodput"
    )
    recorded({name: answer.to_dict() for name, answer in answers().items() if name == "nearest"}, "json")


def test_sweeps_are_shown_as_before(recorded: Recorded) -> None:
    def row(batch: int, *ratios: float | None, **more: Any) -> dict[str, Any]:
        names = [name for name, _, _ in sweep_table.LINES]
        plain = {"global_batch": batch, **dict(zip(names, ratios, strict=True)), "step_seconds": 0.125 * batch}
        plain |= {"n_microbatches": 4, "schedule": "1f1b", "plan": "4@2, 5@1", "note": ""}
        return {**plain, "samples_per_second": 8.0, "description": "pipeline 2", **more}

    less = {"samples_per_second": None, "description": ""}
    nothing = row(48, None, None, None, step_seconds=None, n_microbatches=0, plan="", note="nothing, fits", **less)
    several = [row(8, 1.5, 2.25, 3.0), row(16, 1.75, None, 3.5), nothing]
    for name, rows in {
        "several": several, "one": several[:1], "none": [nothing], "four": [row(2, 3.6, 3.7, 3.71), row(3, 3.0, 3.1, 3.2)],
        "steep": [row(1, 0.5, 0.9, 1.0), row(1024, 90.0, 95.0, 120.0)],
    }.items():  # fmt: skip
        shown = words(render(sweep_table.table("t", rows)))
        recorded({"csv": sweep_table.csv(rows), "svg": sweep_table.svg("a <b>", rows), "table": shown}, name)
