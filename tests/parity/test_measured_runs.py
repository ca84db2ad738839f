"""What the pages state of the built-in measured runs is so: errors of time and memory, and how intervals hold on sets left
out.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from meshwright import validation
from meshwright.core import interval, peaks
from meshwright.core.interval.run_kind import ALL
from meshwright.validation import Point, Report, _intervals

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
TOLD: dict[str, str] = {
    "BLOOM's trials (A100)": "bigscience_a100",
    "NVIDIA's recipes (H100, GB200)": "dgxc_benchmarking",
    "MPT under FSDP (A100, H100)": "llm_foundry_mpt",
    "fms-fsdp (A100, H100)": "fms_fsdp",
    "NeMo 24.07 (H100)": "nemo_2407_h100",
    "NeMo 24.12 to 25.04 (H100, B200, GB200)": "nemo_2412_2504",
}
"""Sets whose rows tell the whole plan."""

TIMES |= {label: ((name, every),) for label, name in TOLD.items()}
TIMES["all, these six too"] = tuple((name, every) for name in (*STEPS, *TOLD.values()))
MEMORIES: dict[str, Part] = {
    "Korthikanti et al., Figs. 1 and 7": ("korthikanti_activation_memory", every),
    "SimuMax, 8 B200 (Megatron-LM)": ("simumax_b200", every),
    "torchtitan, H100 (FSDP2)": ("torchtitan", every),
    "Sailor, GH200, 27 runs (Megatron-DeepSpeed)": ("sailor", lambda point: point.device.startswith("GH200")),
    "BLOOM's trials, A100, 42 runs (Megatron-DeepSpeed)": ("bigscience_a100", every),
}


class Reports(dict[str, Report]):
    """Reports by set; each is made when it is first asked for."""

    def __missing__(self, name: str) -> Report:
        return self.setdefault(name, validation.validate(name))


@pytest.fixture(scope="module")
def known() -> Reports:
    """Reports that the tests share: every row is predicted once."""
    return Reports()


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
        if any(name not in reports for name, _ in parts):
            continue
        found = figures(reports, parts)
        time, held = found["time"], (found["interval"] or {}).get("held_out")
        rows, planned, bias, error, held_out, rank = stated[label]
        assert rows == str(found["n_predicted"]), label
        if time["planned_mape_ratio"] is not None:
            assert bias == f"{100.0 * time['planned_bias_ratio']:+.1f} %", label
        assert error == percent(time["mape_ratio"]), label
        assert label in ("all of these", "all, these six too") or rank == f"{time['spearman']:.2f}", label
        if label != "all, these six too":
            assert held_out == (percent(held["mape_ratio"]) if held else "not fitted"), label
        assert planned == ("" if time["planned_mape_ratio"] is None else percent(time["planned_mape_ratio"])), label


def check_table_of_memory(reports: dict[str, Report]) -> None:
    stated = table("memory.md", "Errors")
    assert set(stated) == set(MEMORIES)
    for label, part in MEMORIES.items():
        memory = figures(reports, [part])["memory"]
        planned = "" if memory["planned_mape_ratio"] is None else percent(memory["planned_mape_ratio"])
        assert stated[label][1:4] == [percent(memory["mape_ratio"]), percent(memory["max_ratio"]), planned], label


def check_verdicts_on_memory(reports: dict[str, Report]) -> None:
    """How many runs are judged wrongly, by the prediction as it is and with the room that plan leaves."""
    page = " ".join((DOCS / "memory.md").read_text().split())
    found = figures(reports, [(name, every) for name in (*STEPS, *TOLD.values())])["verdicts"]
    assert (
        f"Of {found['n_ran']:,} runs that ran {found['false_refusals']} do not fit by the prediction as it is, "
        f"{found['planned_false_refusals']} with the room that `plan` leaves "
        f"({100.0 * found['planned_false_refusals'] / found['n_ran']:.1f} %)"
    ) in page
    assert (
        f"of {found['n_failed']} that failed for memory {found['false_fits']} fit by the prediction as it is, "
        f"{found['planned_false_fits']} with that room"
    ) in page


def check_readme(reports: dict[str, Report]) -> None:
    page = " ".join((DOCS.parents[1] / "README.md").read_text().split())

    def time(label: str, error: str) -> str:
        return f"{100.0 * figures(reports, TIMES[label])['time'][error]:.0f} %"

    everything = "all, these six too"
    assert f"`plan --for` the framework predicts is {time(everything, 'planned_mape_ratio')} off in the mean" in page
    assert f"{time('MLPerf GPT-3 (H100, B200)', 'planned_mape_ratio')} for large dense models" in page
    found = _intervals.left_out({name: report.points for name, report in reports.items()}).values()
    assert (
        f"{100.0 * sum(inside for inside, _ in found) / sum(n for _, n in found):.0f} % of the runs lie in the interval" in page
    )
    assert f"99 % of the measured peaks of memory are at most {peaks.peaks().most_ratio(peaks.RISK):.2f} times" in page


def check_regret_elsewhere(reports: dict[str, Report]) -> None:
    page = " ".join((DOCS / "costs.md").read_text().split())
    for name, whose in (("mist_aceso_runs", "among Aceso's plans"), ("sailor", "among Sailor's")):
        assert f"{percent(figures(reports, [(name, every)])['regret']['mean_ratio'])} {whose}" in page


def check_regret(reports: dict[str, Report]) -> None:
    page = " ".join((DOCS / "costs.md").read_text().split())
    large = figures(reports, TIMES["vTrain, 64 to 512 A100"])["regret"]
    small = figures(reports, TIMES["vTrain, up to 8 A100"])["regret"]
    other = f"{100.0 * (2.0 * large['mean_ratio'] - large['max_ratio']):.1f}"
    assert large["n_groups"] == 2 and f"{other} and {percent(large['max_ratio'])} on vTrain's two large groups" in page
    worst = f"{100.0 * small['max_ratio']:.0f} %"
    assert f"{percent(small['mean_ratio'])} (worst {worst}) on the {small['n_groups']} small ones" in page


def check_intervals(reports: dict[str, Report]) -> None:
    """The files of the package are what the script writes from these runs, and the page says how the intervals hold on sets
    left out.
    """
    sets = {name: report.points for name, report in reports.items()}
    found, known, far = _intervals.ends(sets), interval.factors(), _intervals.far(sets)
    assert far is not None
    found |= {interval.FAR: far}
    assert {*found, interval.UNMEASURED} == set(known)
    for name, ends in found.items():
        stated = known[name]
        assert (stated.n_runs, stated.n_sets) == (ends.n_runs, ends.n_sets), name
        assert abs(stated.low_ratio - ends.low_ratio) < 1e-3 and abs(stated.high_ratio - ends.high_ratio) < 1e-3, name
        assert (stated.n_tokens, stated.n_devices, stated.precisions) == (ends.n_tokens, ends.n_devices, ends.precisions), name
        assert abs(stated.distance_ratio - ends.distance_ratio) < 1e-3, name
        assert (stated.further_low_ratio, stated.further_high_ratio) == pytest.approx(
            (ends.further_low_ratio, ends.further_high_ratio), abs=1e-3
        ), name
        assert set(stated.runs) == set(ends.runs), name
    left_out, kept_back = _intervals.left_out(sets), _intervals.kept_back(sets)
    rows = table("costs.md", "Intervals")
    assert set(rows) == {f"`{name}`" for name in left_out} | {"all"}
    means = [100.0 * sum(inside / n for inside, n in one.values()) / len(one) for one in (left_out, kept_back)]
    for one in (left_out, kept_back):
        one["all"] = sum(inside for inside, _ in one.values()), sum(n for _, n in one.values())
    for name, (inside, n) in left_out.items():
        kept = kept_back[name][0]
        stated = [str(n), str(inside), f"{100.0 * inside / n:.0f} %", str(kept), f"{100.0 * kept / n:.0f} %"]
        assert rows[name if name == "all" else f"`{name}`"] == stated, name
    page = " ".join((DOCS / "costs.md").read_text().split())
    ends = known[interval.UNMEASURED]
    assert f"between {ends.low_ratio:.2f} and {ends.high_ratio:.2f} times the prediction" in page
    assert f"lie {far.low_ratio:.2f} to {far.high_ratio:.2f} times the prediction, {far.distance_ratio:.1f} times" in page
    assert f"all measured runs, {known[ALL].low_ratio:.2f} to {known[ALL].high_ratio:.2f}" in page
    assert f"In the mean over sets {means[0]:.0f} % lie inside by the other sets, {means[1]:.0f} % by the other rows" in page


def check_peaks(reports: dict[str, Report]) -> None:
    found, known = _intervals.peak_ratios({name: report.points for name, report in reports.items()}), peaks.known_peaks()
    assert set(found) == set(known)
    for name, entry in found.items():
        assert (known[name].n_runs, known[name].n_sets) == (entry.n_runs, entry.n_sets), name
        assert known[name].below_ratio == pytest.approx(entry.below_ratio, abs=1e-3), name
        assert (known[name].low_ratio, known[name].high_ratio) == pytest.approx((entry.low_ratio, entry.high_ratio), abs=1e-3)
    rows = table("memory.md", "That it fits is a prediction")
    for name, entry in found.items():
        shares = [f"{entry.most_ratio(risk):.2f}" for risk in (0.2, 0.05, 0.01)]
        assert rows[name] == [str(entry.n_runs), str(entry.n_sets), *shares], name


def test_the_pages_state_the_errors_of_the_smaller_sets(known: Reports) -> None:
    """Every set but vTrain's, which has more than half of the runs."""
    reports = {name: known[name] for name in validation.set_names() if name not in ("vtrain_a100", "collectives")}
    check_table_of_times(reports)
    check_table_of_memory(reports)
    check_regret_elsewhere(reports)


@pytest.mark.slow
def test_the_pages_state_the_errors_of_the_measured_runs(known: Reports) -> None:
    """What it adds to the other one are vTrain's runs, collectives, and sums over all sets."""
    reports = {name: known[name] for name in validation.set_names()}
    check_table_of_times(reports)
    check_table_of_memory(reports)
    check_verdicts_on_memory(reports)
    check_regret(reports)
    check_regret_elsewhere(reports)
    check_readme(reports)
    check_intervals(reports)
    check_peaks(reports)
