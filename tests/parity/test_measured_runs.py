"""The errors that the pages state are those of the built-in measured runs: every row of the tables on time and on memory."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright import validation
from meshwright.validation import Point, Report

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "explanation"
STEPS = (
    "vtrain_a100", "korthikanti_iteration", "megatron_sc21_weak_scaling", "megatron_sc21_zero3_vs_ptd", "simumax_b200",
    "mlperf_llm_pretrain", "megatron_bridge_perf", "torchtitan", "sailor", "mist_aceso_runs", "mist_tuned_l4",
)  # fmt: skip
"""Sets that measure steps."""

Part = tuple[str, Callable[[Point], bool]]


def every(point: Point) -> bool:
    return True


def on_many(point: Point) -> bool:
    """Tell whether a run of vTrain's had more than eight devices; its group names model, tokens, devices and batch."""
    return int(point.group.split()[2]) > 8


def on_device(device: str, point: Point) -> bool:
    """Tell whether a run's devices are of the kind whose name begins so."""
    return point.device.startswith(device)


TIMES: dict[str, tuple[Part, ...]] = {
    "vTrain, 64 to 512 A100": (("vtrain_a100", on_many),),
    "vTrain, up to 8 A100": (("vtrain_a100", lambda point: not on_many(point)),),
    "both": (("vtrain_a100", every),),
    "Korthikanti et al., Table 5 (A100)": (("korthikanti_iteration", every),),
    "SC 2021, Table 1 (A100)": (("megatron_sc21_weak_scaling", every),),
    "SC 2021, Table 2 (A100), with ZeRO-3": (("megatron_sc21_zero3_vs_ptd", every),),
    "SimuMax, 8 B200": (("simumax_b200", every),),
    "MLPerf GPT-3 (H100, B200)": (("mlperf_llm_pretrain", every),),
    "Megatron-Bridge, dense and mixtures": (("megatron_bridge_perf", every),),
    "torchtitan (H100 96 GB)": (("torchtitan", every),),
    "Sailor (27 runs on GH200, 9 on unlike machines)": (("sailor", every),),
    "Aceso's plans (A100, A10G, L4), completed": (("mist_aceso_runs", every),),
    "Mist's plans (L4), completed": (("mist_tuned_l4", every),),
    "all of these": tuple((name, every) for name in STEPS),
    "collectives inside a node (A100, V100)": (("collectives", every),),
}
MEMORIES: dict[str, Part] = {
    "Korthikanti et al., Figs. 1 and 7": ("korthikanti_activation_memory", every),
    "SimuMax, 8 B200 (Megatron-LM)": ("simumax_b200", every),
    "torchtitan, H100 (FSDP2)": ("torchtitan", every),
    "Sailor, GH200, 27 runs (Megatron-DeepSpeed)": ("sailor", lambda point: point.device.startswith("GH200")),
}


def table(page: str, section: str) -> dict[str, list[str]]:
    """Return the cells of the table under a title by those of its first column."""
    text = (DOCS / page).read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines[1:]}


def figures(reports: dict[str, Report], parts: Iterable[Part]) -> dict[str, Any]:
    """Return the errors over parts of sets, rows numbered on."""
    points: list[Point] = []
    held_out: set[int] = set()
    for name, counts in parts:
        for point in reports[name].points:
            if counts(point):
                points.append(replace(point, row=len(points) + 1))
                held_out |= {len(points)} if point.row in reports[name].held_out else set()
    (found,) = validation.as_json([Report("", "", tuple(points), (), frozenset(held_out))])["sets"]  # type: ignore[misc]
    return found


def percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"


def check_table_of_times(reports: dict[str, Report]) -> None:
    stated = table("costs.md", "What was calibrated, and on what")
    assert set(stated) == set(TIMES)
    for label, parts in TIMES.items():
        found = figures(reports, parts)
        time, held = found["time"], (found["interval"] or {}).get("held_out")
        rows, error, held_out, _swapped, inside, bias, rank = stated[label]
        assert rows == str(found["n_predicted"]), label
        assert (error, bias) == (percent(time["mape_ratio"]), f"{100.0 * time['bias_ratio']:+.1f} %"), label
        assert label == "all of these" or rank == f"{time['spearman']:.2f}", label
        assert held_out == (percent(held["mape_ratio"]) if held else "not fitted"), label
        assert inside == (f"{100.0 * held['coverage_ratio']:.0f} %" if held else ""), label


def check_table_of_memory(reports: dict[str, Report]) -> None:
    stated = table("memory.md", "Errors")
    assert set(stated) == set(MEMORIES)
    for label, part in MEMORIES.items():
        memory = figures(reports, [part])["memory"]
        assert stated[label][1:3] == [percent(memory["mape_ratio"]), percent(memory["max_ratio"])], label


def check_verdicts_on_memory(reports: dict[str, Report]) -> None:
    verdicts = figures(reports, TIMES["all of these"])["verdicts"]
    said = re.search(r"Of ([\d,]+) runs that ran (\d+) are missed", (DOCS / "memory.md").read_text())
    assert said and said[1].replace(",", "") == str(verdicts["n_ran"]) and said[2] == str(verdicts["false_refusals"])


def check_regret(reports: dict[str, Report]) -> None:
    page = " ".join((DOCS / "costs.md").read_text().split())
    large = figures(reports, TIMES["vTrain, 64 to 512 A100"])["regret"]
    small = figures(reports, TIMES["vTrain, up to 8 A100"])["regret"]
    assert large["n_groups"] == 2 and f"0 and {percent(large['max_ratio'])} on vTrain's two large groups" in page
    worst = f"{100.0 * small['max_ratio']:.0f} %"
    assert f"{percent(small['mean_ratio'])} (worst {worst}) on the {small['n_groups']} small ones" in page
    for name, whose in (("mist_aceso_runs", "among Aceso's plans"), ("sailor", "among Sailor's")):
        assert f"{percent(figures(reports, [(name, every)])['regret']['mean_ratio'])} {whose}" in page


def check_coverage_by_device(reports: dict[str, Report]) -> None:
    page = " ".join((DOCS / "costs.md").read_text().split())
    sentence = page.partition("Of the held-out rows of each kind there lie inside: ")[2].partition(". The interval")[0]
    known = {"A100": "A100-SXM-80GB", "H100": "H100-SXM-80GB", "H100 of 96 GB": "H100-SXM-96GB", "L4": "L4-24GB"}
    stated = re.findall(r"([A-Z]+\d+(?: of 96 GB)?) (\d+)( %)? of (\d+)", sentence)
    assert len(stated) == 8
    for kind, inside, share, of in stated:
        held = figures(reports, [(name, partial(on_device, known.get(kind, kind))) for name in STEPS])["interval"]["held_out"]
        assert str(held["n_rows"]) == of, kind
        assert int(inside) == round(held["coverage_ratio"] * (100 if share else held["n_rows"])), kind


def test_the_pages_state_the_errors_of_the_measured_runs() -> None:
    """One test, because predicting all runs takes most of its time."""
    reports = {name: validation.validate(name) for name in validation.set_names()}
    check_table_of_times(reports)
    check_table_of_memory(reports)
    check_verdicts_on_memory(reports)
    check_regret(reports)
    check_coverage_by_device(reports)
