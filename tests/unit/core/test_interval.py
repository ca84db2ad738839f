"""Intervals around predictions: by how near the question is to a measured run, said in words, and where they are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api, frameworks
from meshwright.base.units import format_bytes
from meshwright.clusters.wires import device, device_names
from meshwright.core import interval, peaks
from meshwright.core.formatting import fullest, step_interval
from meshwright.core.interval import NearRun, TimeInterval
from meshwright.core.interval.run_kind import ALL as EVERY
from meshwright.core.interval.run_kind import Kind, kind_of
from meshwright.core.problem import Batch
from meshwright.core.result import Result
from meshwright.report import screen
from meshwright.report.text import explain
from meshwright.writers import plan_json, report_html

KIND = Kind(("A",), mixture=False, shard=1, n_tokens=2048, layer_seconds=5e-3)
NEAR, WORK, ALL = KIND.classes


@pytest.fixture(scope="module")
def result() -> Result:
    return api.plan("gpt3-125m", "dgx-a100:2", batch=Batch(global_batch=8, sequence_length=256))


def test_every_class_of_the_file_is_one_that_runs_fall_into_and_all_runs_is_there() -> None:
    known = interval.factors()
    names = {device(name).name for name in device_names()}
    works = {
        Kind(("A",), mixture, shard, n_tokens, seconds).work
        for mixture in (False, True) for shard in (0, 3) for n_tokens in (2048, 16384) for seconds in (1e-4, 1e-2)
    }  # fmt: skip
    assert len(works) == 9 and EVERY in known
    near = {name for name in known if " on " in name and ", on " not in name}
    for name, ends in known.items():
        assert 0.0 < ends.low_ratio <= ends.high_ratio and ends.n_runs >= ends.n_sets > 0
        if name in near:
            framework, _, rest = name.partition(" on ")
            assert framework in frameworks.names() and rest.partition(", ")[2] in ("dense", "mixture"), name
            assert 0.0 < ends.further_low_ratio <= ends.low_ratio and ends.high_ratio <= ends.further_high_ratio, name
            assert ends.runs and {run.framework.partition(":")[0] for run in ends.runs} == {framework}, name
            continue
        if name == interval.FAR:
            assert ends.distance_ratio > interval.NEAR_RATIO and ends.high_ratio > known[EVERY].high_ratio
            continue
        assert name == interval.UNMEASURED or (0 < ends.n_tokens[0] <= ends.n_tokens[1] and ends.precisions), name
        if name == interval.UNMEASURED:
            assert ends.low_ratio < known[EVERY].low_ratio and ends.high_ratio > known[EVERY].high_ratio
            continue
        work, _, devices = name.partition(", on ")
        assert work in works | {EVERY} and set(devices.split(" and ")) <= names | {""}, name


def test_the_nearest_class_stands_alone_where_enough_sets_measured_it() -> None:
    known = {NEAR: TimeInterval(0.9, 1.1, 40, 4), WORK: TimeInterval(0.5, 2.0, 90, 9), ALL: TimeInterval(0.4, 3.0, 99, 10)}
    found = interval.around(10.0, KIND, known)
    assert (found.low_seconds, found.high_seconds, found.n_runs, found.n_sets) == (9.0, 11.0, 40, 4)
    assert found.basis == f"40 runs of 4 sets ({NEAR})"


def test_runs_of_the_framework_on_the_kind_of_cluster_come_before_all_wider_classes() -> None:
    kind = replace(KIND, framework="megatron", cluster="dgx-h100", n_devices=8, precision="bf16")
    assert kind.near == "megatron on dgx-h100, dense" and replace(kind, mixture=True).near == "megatron on dgx-h100, mixture"
    assert KIND.near == replace(kind, framework="").near == replace(kind, cluster="").near == ""
    runs = (LIKE, replace(LIKE, n_devices=64))
    own = TimeInterval(1.1, 1.3, 40, 1, further_low_ratio=1.0, further_high_ratio=1.4, runs=runs)
    known = {kind.near: own, NEAR: TimeInterval(0.9, 1.1, 40, 4), ALL: TimeInterval(0.4, 3.0, 99, 10)}
    found = interval.around(10.0, kind, known)
    assert (found.low_seconds, found.high_seconds) == (11.0, 13.0)
    assert found.basis == "40 runs of 1 set (megatron on dgx-h100, dense)"
    assert interval.around(10.0, replace(kind, cluster="dgx-a100"), known).high_seconds == 11.0


LIKE = NearRun("megatron", "bf16", 2048, 8, 5e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_devices": 11}, "no run of megatron like this on dgx-h100 was measured (the nearest: 8 devices, 2,048 tokens"),
        ({"n_tokens": 1500}, "the nearest: 8 devices, 2,048 tokens a sample, layers of 5 ms)"),
        ({"layer_seconds": 7e-3}, "no run of megatron like this on dgx-h100"),
        ({"n_devices": 50}, "(the nearest: 64 devices, "),
        ({"framework": "megatron:plain"}, "no run of megatron:plain on dgx-h100 was measured; interval from 40 runs of 1 set"),
        ({"precision": "fp32"}, "no run of megatron on dgx-h100 was measured in fp32; interval from 40"),
        ({"offload": "activations"}, ""),
    ],
)
def test_where_no_run_is_like_it_few_sets_widen_the_classes_of_more(changes: dict[str, object], said: str) -> None:
    """A further set is expected beyond what rows of this one show; within 1.25 times in all a run is like the question."""
    kind = replace(KIND, framework="megatron", cluster="dgx-h100", n_devices=8, precision="bf16")
    ends = TimeInterval(
        1.1, 1.3, 40, 1, further_low_ratio=1.0, further_high_ratio=1.4, runs=(LIKE, replace(LIKE, n_devices=64))
    )
    known = {kind.near: ends, NEAR: TimeInterval(0.9, 1.1, 40, 4), ALL: TimeInterval(0.4, 3.0, 99, 10)}
    alike = replace(kind, n_devices=10, n_tokens=1700, layer_seconds=6e-3, precision="fp16")
    assert interval.around(1.0, alike, known).low_seconds == 1.1
    found = interval.around(1.0, replace(kind, **changes), known)
    assert (found.low_seconds, found.high_seconds) == (0.9, 1.4) and found.n_sets == 4
    assert said in found.basis and "(dense, gradients whole, under 16,384 tokens, on A)" in found.basis
    few = known | {kind.near: replace(ends, n_runs=interval.FEWEST_NEAR_RUNS - 1)}
    assert interval.around(1.0, kind, few).high_seconds == 1.4  # too few to speak of others like them


def test_enough_sets_of_the_framework_on_the_kind_of_cluster_speak_of_a_further_one_within_their_reach() -> None:
    kind = replace(KIND, framework="megatron", cluster="dgx-h100", n_devices=8, precision="bf16")
    ends = TimeInterval(1.1, 1.3, 40, 4, (2048, 2048), (8, 64), (5e-3, 5e-3), ("bf16",), 1.0, 1.0, 1.4, (LIKE,))
    known = {kind.near: ends, NEAR: TimeInterval(0.9, 1.1, 40, 4), ALL: TimeInterval(0.4, 3.0, 99, 10)}
    between = interval.around(1.0, replace(kind, n_devices=40), known)
    assert (between.low_seconds, between.high_seconds) == (1.0, 1.4)
    beyond = interval.around(1.0, replace(kind, n_devices=128), known)
    assert (beyond.low_seconds, beyond.high_seconds) == (0.9, 1.4)


def _kinds() -> list[Kind]:
    """Return questions of every framework, kind of cluster and model that was measured: like the run on the most devices."""
    on = {name.removesuffix("-40"): ("A100-SXM-40GB" if name.endswith("-40") else "A100-SXM-80GB",) for name in ("dgx-a100",)}
    on |= {"dgx-h100": ("H100-SXM-80GB",), "dgx-b200": ("B200-SXM-180GB",), "gb200-nvl72": ("GB200-186GB",)}
    found = []
    for name, ends in interval.factors().items():
        cluster = name.partition(" on ")[2].partition(",")[0]
        if ends.runs and cluster in on:
            run, mixture = max(ends.runs, key=lambda run: run.n_devices), name.endswith("mixture")
            place = (run.framework, cluster, run.n_devices, run.precision)
            found.append(Kind(on[cluster], mixture, 1, run.n_tokens, run.layer_seconds, *place))
    return found


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: f"{kind.near} {kind.n_devices}")
def test_no_interval_narrows_as_a_question_moves_away_from_what_was_measured(kind: Kind) -> None:
    """More devices than any run, another variant, framework, cluster, device or precision: each holds the nearer one."""

    def ends(**changes: object) -> tuple[float, float]:
        found = interval.around(1.0, replace(kind, **changes))
        return found.low_seconds, found.high_seconds

    low, high = before = ends()
    for times in (1, 1.2, 2, 4, 16, 64, 256, 2048):
        far = ends(n_devices=int(kind.n_devices * times))
        assert far[0] <= before[0] + 1e-12 and far[1] >= before[1] - 1e-12, times
        before = far
    others = {"framework": ("nanotron", f"{kind.framework}+plain"), "cluster": ("a-site",), "devices": (("X",),)}
    others |= {"offload": ("optimizer",), "precision": ("fp32",)}
    for changes in ({name: value} for name, values in others.items() for value in values):
        far = ends(**changes)
        assert far[0] <= low + 1e-12 and far[1] >= high - 1e-12, changes
    before = ends(framework="nanotron")  # a framework that nobody measured
    for n_tokens in (2**15, 2**19, 2**20, 2**24):
        if n_tokens > kind.n_tokens:
            far = ends(framework="nanotron", n_tokens=n_tokens)
            assert far[0] <= before[0] + 1e-12 and far[1] >= before[1] - 1e-12, n_tokens
            before = far


def test_a_kind_of_device_that_nobody_measured_is_as_far_off_as_others_would_be() -> None:
    known = {ALL: TimeInterval(0.9, 1.2, 99, 10), f"{WORK}, on B": TimeInterval(0.9, 1.1, 9, 5)}
    known |= {WORK: TimeInterval(0.95, 1.1, 40, 6), interval.UNMEASURED: TimeInterval(0.7, 1.6, 90, 8)}
    found = interval.around(1.0, KIND, known)
    assert (found.low_seconds, found.high_seconds) == (0.7, 1.6)
    assert found.basis.startswith("no run on A was measured; interval from 40 runs of 6 sets")
    assert found.basis.endswith("90 runs of 8 sets (kinds of device taken as not measured)") and found.unmeasured == "A"
    measured = interval.around(1.0, replace(KIND, devices=("B",)), known)
    assert (measured.low_seconds, measured.high_seconds, measured.unmeasured) == (0.9, 1.1, "")


@pytest.mark.parametrize(("changes", "low", "high", "said"), [
    ({"n_tokens": 6000}, 0.95, 1.05, ""),
    ({"n_tokens": 16_000}, 0.8, 1.25, "16,000 tokens a sample, not 2,048 to 4,096"),
    ({"n_tokens": 16_380, "n_devices": 128 * 16}, 0.8**2, 1.25**2,
     "16,380 tokens a sample, not 2,048 to 4,096; 2,048 devices, not 8 to 128"),
    ({"n_devices": 1}, 0.8**1.5, 1.25**1.5, "1 device, not 8 to 128"),
    ({"layer_seconds": 1.1e-3}, 0.8, 1.25, "layers of 1.1 ms, not 4 ms to 9 ms"),
    ({"precision": "fp32"}, 0.5, 3.0, "fp32, not bf16"), ({"precision": "fp16"}, 0.95, 1.05, ""),
    ({"offload": "optimizer"}, 0.5, 3.0, "optimizer on the host"),
])  # fmt: skip
def test_a_question_far_from_all_measured_runs_is_wide_and_says_in_what(
    changes: dict[str, object], low: float, high: float, said: str
) -> None:
    """The class reached 2,048 to 4,096 tokens and 8 to 128 devices; left-out runs 4 times beyond were 0.8 to 1.25 times off."""
    kind = replace(KIND, framework="megatron", cluster="dgx-h100", n_devices=8, precision="bf16")
    reach = {"n_tokens": (2048, 4096), "n_devices": (8, 128), "layer_seconds": (4e-3, 9e-3), "precisions": ("bf16",)}
    known = {name: TimeInterval(0.95, 1.05, 40, 6, **reach) for name in (kind.near, NEAR, WORK, ALL)}
    known |= {
        interval.FAR: TimeInterval(0.8, 1.25, 30, 5, distance_ratio=4.0),
        interval.UNMEASURED: TimeInterval(0.5, 3.0, 9, 5),
    }
    found = interval.around(1.0, replace(kind, **changes), known)
    assert (found.low_seconds, found.high_seconds) == pytest.approx((low, high))
    assert found.unlike == said and (f"({said}); interval from" in found.basis) == bool(said)


def test_a_class_that_few_sets_measured_is_widened_by_the_next_one_and_never_narrowed() -> None:
    known = {NEAR: TimeInterval(0.9, 2.5, 40, 3), WORK: TimeInterval(0.5, 2.0, 90, 9), ALL: TimeInterval(0.1, 9.0, 99, 10)}
    found = interval.around(1.0, KIND, known)
    assert (found.low_seconds, found.high_seconds) == (0.5, 2.5)
    assert found.basis == f"40 runs of 3 sets ({NEAR}); 90 runs of 9 sets ({WORK})"


def test_a_precision_that_nobody_measured_on_the_kind_of_device_is_wide_and_says_so() -> None:
    """Others measured it, on other devices: what this one reaches in it is as little known as a kind that nobody measured."""
    here = TimeInterval(0.95, 1.05, 80, 5, precisions=("bf16",))
    anywhere = TimeInterval(0.6, 1.1, 90, 9, precisions=("bf16", "fp32"))
    known = {NEAR: here, WORK: anywhere, ALL: anywhere, interval.UNMEASURED: TimeInterval(0.7, 1.6, 90, 8)}
    for precision, ends in (("fp16", (0.95, 1.05)), ("fp32", (0.6, 1.6))):
        found = interval.around(1.0, replace(KIND, precision=precision), known)
        assert (found.low_seconds, found.high_seconds) == ends
    assert found.unlike == "fp32 on A, not bf16" and "no run like this was measured (fp32 on A, not bf16)" in found.basis


def test_a_model_that_is_trained_in_part_has_no_interval_and_says_why() -> None:
    found = api.plan("gpt3-125m", "dgx-a100:1", batch=Batch(global_batch=2, sequence_length=256), freeze=("layers.0",))
    assert step_interval(found) is None
    said = "(no interval: no run that trains a part of the weights was measured)"
    assert said in explain(found) and said in " ".join(" ".join(screen.lines(found)).split())


def test_what_was_never_measured_gets_the_interval_of_all_runs_and_says_so() -> None:
    known = {ALL: TimeInterval(0.4, 3.0, 99, 10), f"{WORK}, on B": TimeInterval(0.9, 1.1, 1, 1)}
    found = interval.around(1.0, KIND, known)
    assert (found.low_seconds, found.high_seconds) == (0.4, 3.0)
    assert found.basis == "no run on A was measured; interval from 99 runs of 10 sets (all runs)"
    wide = interval.around(
        1.0, KIND, known | {WORK: TimeInterval(0.3, 1.1, 50, 5)}
    )  # enough sets, but none on this kind of device
    assert (wide.low_seconds, wide.high_seconds, wide.n_runs) == (0.3, 3.0, 99)
    other = interval.around(1.0, replace(KIND, devices=("B",), mixture=True), known)
    assert other.basis.startswith("no run like this on B was measured; interval from 99 runs")


def test_runs_are_told_apart_by_model_sharding_tokens_and_short_layers() -> None:
    assert KIND.work == "dense, gradients whole, under 16,384 tokens"
    assert replace(KIND, mixture=True, shard=2, n_tokens=16384).work == "mixture, gradients sharded, 16,384 tokens and more"
    assert replace(KIND, mixture=True, shard=3, layer_seconds=0.9e-3).work == "layers under 1 ms"


def test_a_plan_knows_its_kind(result: Result) -> None:
    assert result.problem.cluster is not None
    kind = kind_of(result.problem.graph, result.problem.cluster, result.plan, result.stage_costs)
    n_layers = len(result.problem.graph.ops)
    assert kind.devices == ("A100-SXM-80GB",) and not kind.mixture and kind.n_tokens == 256
    assert (kind.framework, kind.cluster) == ("", "dgx-a100")
    told = kind_of(result.problem.graph, result.problem.cluster, result.plan, result.stage_costs, "fsdp2")
    assert told == replace(kind, framework="fsdp2")
    assert kind.layer_seconds == pytest.approx(sum(load.forward_seconds for load in result.stage_costs) / n_layers)


def test_an_answer_of_our_cost_model_shows_its_intervals(result: Result) -> None:
    found, peak = step_interval(result), fullest(result)
    assert found is not None and peak is not None and result.timeline is not None
    text = " ".join(explain(result).split())
    assert "80%: " in text and f"80% interval: {found.basis}" in text
    written = plan_json.as_json(result)
    for name in ("step_interval", "step_seconds_interval"):
        assert written[name]["coverage_ratio"] == 0.8
        assert written[name]["low_seconds"] == found.low_seconds < written["step_seconds"] < written[name]["high_seconds"]
    assert written["step_seconds_interval"]["basis"] == found.basis
    assert peak == (max(result.timeline.peak_bytes), device("a100_sxm_80gb").memory_bytes)
    assert written["peak_bytes_interval"]["most_bytes"] == pytest.approx(peaks.peaks().most_ratio(peaks.RISK) * peak[0])
    page = report_html.page(result)
    assert "of measured steps" in page and "99% below" in page and "may not fit" not in page


def test_a_plan_whose_peak_may_be_too_large_is_warned_of_with_the_share_that_leaves_room(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "may not fit" not in explain(result)
    peak, limit = fullest(result) or (0.0, 0.0)
    short = peaks.PeakRoom(0.9, 1.1, (1.0,) * 5 + (1.01 * limit / peak,) * 2, 100, 2, "a framework")
    monkeypatch.setattr(peaks, "peaks", lambda name: short)
    text = " ".join(explain(result).split())
    assert f"peak {format_bytes(peak)}, 99% below {format_bytes(1.01 * limit)} of {format_bytes(limit)}" in text
    assert "(100 measured runs of a framework, 2 sets)" in text and f"may not fit: the device has {format_bytes(limit)}" in text
    assert ": may not fit" in report_html.page(result)
    few = replace(short, n_runs=99)
    assert few.claim(0.01) == "largest of 99 measured runs at" and short.claim(0.01) == "99% below" and "98%" in few.claim(0.02)
    none = replace(short, n_ran=30, n_runs=0, n_sets=0)
    assert none.claim(0.01) == "room kept up to" and none.words.startswith(
        "no measured peak of a framework; 97% of its 30 runs"
    )


def test_an_answer_of_a_published_model_has_no_intervals(result: Result) -> None:
    published = replace(result, problem=replace(result.problem, costs="pase"))
    written = plan_json.interval_json(published)
    assert set(written.values()) == {None} and step_interval(published) is None
    assert "(80%" not in explain(published) and "may not fit" not in explain(published)
