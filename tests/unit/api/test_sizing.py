"""Sizes: the front is that of planning everything, whoever plans; limits, unknown figures and impossible sizes are said."""

from __future__ import annotations

import json
import math
import pathlib
import warnings
from typing import Any

import pytest

import meshwright as mw
from meshwright import api
from meshwright.api.sizes import size_search, sizing
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch
from meshwright.sizing.answer import Sizing
from meshwright.sizing.points import Outlay

TINY = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "tiny_llama.json")
ASKED = {"kinds": "h100,a100,l4", "devices": "4,8,16", "global_batch": 64}


@pytest.fixture(scope="module")
def answer() -> Sizing:
    return sizing.size(TINY, "10B", **ASKED)


def same(answer: Sizing) -> dict[str, object]:
    return answer.to_dict() | {"planning_seconds": 0}


def test_every_size_is_on_the_front_or_somewhere_else_with_a_reason(answer: Sizing) -> None:
    names = [point.cluster for point in (*answer.front, *answer.others)] + [entry.cluster for entry in answer.left_out]
    assert sorted(names) == sorted(f"{kind}:{n}" for kind in ("dgx-h100", "dgx-a100", "g6-l4") for n in (4, 8, 16))
    assert all(entry.reason for entry in answer.left_out) and answer.feasible and answer.nearest is None


def test_pruning_changes_no_front(answer: Sizing, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer.left_out, "nothing was pruned, so this test would say nothing"
    monkeypatch.setattr(size_search.points, "dominates", lambda one, other: False)
    told: list[tuple[int, int]] = []
    everything = sizing.size(TINY, "10B", **ASKED, done=lambda done, n: told.append((done, n)))
    monkeypatch.undo()
    assert told == [(done, 9) for done in range(1, 10)], "progress is over the sizes of all kinds"
    assert not everything.left_out and len(everything.front) == 9
    from meshwright.sizing.points import front

    assert [point.to_dict() for point in front(everything.front)] == [point.to_dict() for point in answer.front]


@pytest.mark.parametrize("backend", ["loky", "dask"])
def test_the_answer_does_not_depend_on_who_plans(answer: Sizing, backend: str) -> None:
    if backend == "dask":
        pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(sizing.size(TINY, "10B", **ASKED, jobs=2, backend=backend)) == same(answer)


def test_figures_of_a_point_go_together(answer: Sizing) -> None:
    point = answer.front[0]
    good, tariff = point.goodput, answer.tariffs[[kind.name for kind in answer.kinds].index(point.outlay.kind)]
    assert answer.n_steps == math.ceil(10e9 / (64 * answer.sequence_length))
    assert point.outlay.seconds == pytest.approx(answer.n_steps * point.step_seconds / good.effective_ratio)
    hours = point.n_devices * point.outlay.seconds / 3600
    assert tariff.dollars_per_hour and point.money == pytest.approx(hours * tariff.dollars_per_hour)
    assert point.outlay.kilowatt_hours == pytest.approx(hours * tariff.kilowatts)
    assert sum(share for _, share in point.causes) == pytest.approx(1.0)
    assert sum(point.to_dict()["money_by_cause"].values()) == pytest.approx(point.money)
    assert point.days_interval is not None and point.days_interval[0] < point.days < point.days_interval[1]


def test_the_plan_of_a_point_is_a_plan_file(answer: Sizing, tmp_path: pathlib.Path) -> None:
    from meshwright.api import plan_files

    point = answer.front[0]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(dict(point.plan)))
    result = plan_files.load(str(path))
    assert result.problem.cluster is not None and result.problem.cluster.name == point.cluster
    assert result.step_seconds == pytest.approx(point.step_seconds)
    alone = api.plan(TINY, point.cluster, batch=Batch(64))
    assert alone.step_seconds is not None and point.step_seconds <= alone.step_seconds * (1 + point.gap_ratio + 1e-9)


def test_limits_leave_out_what_cannot_be_and_what_is_not(answer: Sizing) -> None:
    days = sorted(point.days for point in (*answer.front, *answer.others))
    within = sizing.size(TINY, "10B", **ASKED, within=f"{days[0] * 1.01 * 24:.6f}h")
    assert [point.days for point in within.front] == [days[0]]
    assert any("takes at least" in entry.reason for entry in within.left_out)
    cheapest = min(point.money or math.inf for point in answer.front)
    cheap = sizing.size(TINY, "10B", **ASKED, budget=cheapest * 1.001)
    assert all(point.money is not None and point.money <= cheapest * 1.001 for point in cheap.front) and cheap.front


def test_a_notebook_shows_the_front_as_a_table(answer: Sizing) -> None:
    shown = answer._repr_html_()
    assert shown.count("<tr>") == len(answer.front) + 1 and all(point.cluster in shown for point in answer.front)
    assert "<i>" not in Sizing(**{name: getattr(answer, name) for name in answer.__slots__} | {"model": "<i>"})._repr_html_()


def test_nothing_within_the_limits_has_a_nearest(answer: Sizing) -> None:
    none = sizing.size(TINY, "10B", **ASKED, within="1s", budget="1$")
    assert not none.feasible and none.nearest is not None and "nothing within" in repr(none)
    assert "nothing within" in none._repr_html_()
    excess = {point.cluster: max(point.outlay.seconds, point.money or math.inf) for point in (*answer.front, *answer.others)}
    assert none.nearest.cluster == min(excess, key=lambda name: excess[name])


def test_unknown_prices_and_powers_are_said_and_left_out() -> None:
    found = sizing.size(TINY, "1B", kinds="3090,v100", devices=[8], global_batch=64)
    assert all(point.money is None for point in found.front)
    assert {point.outlay.kind: point.outlay.kilowatt_hours is None for point in found.front} == {
        "rtx-3090": True,
        "dgx-v100": False,
    }
    said = " ".join(found.notes)
    assert "price of rtx-3090, dgx-v100 is not known" in said and "power of rtx-3090 is not known" in said
    bounded = sizing.size(TINY, "1B", kinds="3090,v100", devices=[8], global_batch=64, budget="1 M$", prices=["v100=1"])
    assert [point.cluster for point in bounded.front] == ["dgx-v100:8"]
    assert [(entry.cluster, "price" in entry.reason) for entry in bounded.left_out] == [("rtx-3090", True)]


def test_sizes_that_cannot_hold_the_state_and_kinds_without_the_precision() -> None:
    found = sizing.size("llama-3.1-70b", "1B", kinds="h100", devices=[1, 8])
    assert not found.feasible and found.nearest is None
    assert ["weights and optimizer state alone" in entry.reason for entry in found.left_out] == [True, True]
    eight = sizing.size(TINY, "1B", kinds="a100", devices=[8], training=api.training("fp8"))
    assert [entry.cluster for entry in eight.left_out] == ["dgx-a100"] and "fp8" in eight.left_out[0].reason


def test_failures_slow_sizes_down_and_spares_are_paid_for() -> None:
    asked = {"kinds": "h100", "devices": [16], "global_batch": 64}
    (never,) = sizing.size(TINY, "10B", **asked, mtbf="none").front
    (often,) = sizing.size(TINY, "10B", **asked, mtbf="100h", recovery={"repair": "10h", "spares": "2"}).front
    assert never.goodput.effective_ratio == 1.0 > often.goodput.effective_ratio
    assert often.outlay.device_hours == pytest.approx((16 + 2 * 8) * often.outlay.seconds / 3600)
    assert dict(often.causes)["failures"] == pytest.approx(1 - often.goodput.effective_ratio)


def test_a_gap_that_few_plans_leave_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []
    plan = api.plan

    def counted(problem: object, **options: object) -> object:
        asked.append(dict(options["settings"]))  # type: ignore[call-overload]
        return plan(problem, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(size_search.api, "plan", counted)
    monkeypatch.setattr(size_search, "ENOUGH", -1.0)
    sizing.size(TINY, "1B", kinds="h100", devices=[8], global_batch=64)
    assert [one["evaluations"] for one in asked] == ["8", size_search.MORE_PLANS]
    asked.clear()
    sizing.size(TINY, "1B", kinds="h100", devices=[8], global_batch=64, settings={"evaluations": "3"})
    assert [one["evaluations"] for one in asked] == ["3"]


def test_numbers_of_devices() -> None:
    assert sizing.device_counts("8,64:192:64,1k") == (8, 64, 128, 192, 1024)
    for text in ("", "x", "8:4:1", "8:16", "1:2:0", "1:1000000:1"):
        with pytest.raises(InputError, match="--devices"):
            sizing.device_counts(text)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tokens": "x"}, "--tokens"),
        ({"within": "30"}, "--within"),
        ({"budget": "3€"}, "--budget"),
        ({"devices": [0]}, "--devices"),
        ({"devices": [8.5]}, "--devices"),
        ({"devices": range(1, 3000)}, "--devices"),
        ({"kinds": "h1"}, "--kinds"),
        ({"pue": 0.5}, "--pue"),
        ({"global_batch": -1}, "--global-batch"),
        ({"sequence_length": -1}, "--sequence-length"),
        ({"settings": {"foo": "1"}}, "foo"),
        ({"framework": "none of ours"}, "framework"),
        ({"jobs": 0}, "--jobs"),
        ({"backend": "x"}, "--backend"),
        ({"mtbf": "often"}, "--mtbf"),
        ({"model": "pase:alexnet"}, "sized"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, object], said: str) -> None:
    asked: dict[str, object] = {"model": TINY, "tokens": "1B", "kinds": "h100", "devices": [8]} | wrong
    with pytest.raises(InputError, match=said):
        sizing.size(**asked)  # type: ignore[arg-type]


def test_the_front_door() -> None:
    assert "size" in dir(mw) and mw.size is sizing.size and mw.Sizing is Sizing
    assert Outlay.__doc__


@pytest.mark.parametrize(
    "wrong",
    [{"mtbf": 7}, {"lora": 7}, {"settings": 7}, {"freeze": 7}, {"prices": 7}, {"seed": [1]}, {"training": 7},
     {"global_batch": [1]}, {"recovery": 7}, {"kinds": []}, {"devices": []}, {"scheduler": 7}],
    ids=str,
)  # fmt: skip
def test_arguments_of_the_wrong_kind_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(wrong))} "):
        mw.size("gpt2", "1B", **({"kinds": "h100", "devices": 8} | wrong))
