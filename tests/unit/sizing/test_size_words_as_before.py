"""Prices, powers, failures and recovery as they are typed; sizes compared, split by cause and said, by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from edited import answer
from meshwright.base.errors import InputError
from meshwright.sizing import answer as answers
from meshwright.sizing import failures, kinds, points, tariffs, told
from meshwright.sizing.failures import FailureRates
from meshwright.sizing.goodput import Goodput
from meshwright.sizing.points import LeftOut, Outlay, SizePoint
from meshwright.sizing.tariffs import Tariff
from recorded import Recorded

CHOSEN = kinds.kinds(("dgx-h100", "gb200", "l4"))
AMOUNTS = (
    "2.5",
    "h100=2.5",
    "h100=2.5,l4=1",
    "h100=2.5,dgx-h100=3",
    "2.5,h100=3",
    "=2",
    "h100=",
    "a100=2",
    "nothing=2",
    "h100=x",
    "h100 = 2",
    "-1",
    "h100=0",
    "gb200=1.3kW",
    "l4=72W",
)


def test_amounts_of_kinds_are_read_as_before(recorded: Recorded) -> None:
    found = {}
    for option, text in itertools.product(("--price", "--power"), AMOUNTS):
        found[f"{option} {text}"] = answer(lambda _, o=option, t=text: tariffs.told_of_kinds((t,), o, CHOSEN), "")[:100]
    found["several"] = str(tariffs.told_of_kinds(("h100=1", "l4=2"), "--price", CHOSEN))
    found["none"] = str(tariffs.told_of_kinds((), "--price", CHOSEN))
    recorded(found)
    words = ("h100", "DGX_H100", "dgx-h100:64", "gb200", "l4", "a100", "nothing", "", "v100", "200", "h200")
    recorded({word: answer(lambda _, w=word: kinds.kind(w, "--kinds"), "")[:75] for word in words}, "kinds")
    with pytest.raises(InputError, match="--kinds dgx-h100: dgx-h100 is named twice"):
        kinds.kinds(("h100", "dgx-h100"))
    with pytest.raises(InputError, match="--pricing monthly: must be one of on-demand, reserved"):
        tariffs.tariffs(CHOSEN, pricing="monthly")


def test_tariffs_take_what_is_told_before_what_is_known() -> None:
    known = tariffs.tariffs(CHOSEN)
    both = tariffs.tariffs(CHOSEN, prices={"dgx-h100": 2.0}, powers={"dgx-h100": 1000.0}, pue_ratio=1.5)
    assert (both[0].dollars_per_hour, both[0].price_source, both[0].watts, both[0].power_source) == (
        2.0,
        "told",
        1000.0,
        "told",
    )
    assert both[0].device_watts == known[0].device_watts and both[0].kilowatts == 1.5
    assert both[1:] == tuple(replace(one, pue_ratio=1.5) for one in known[1:])
    assert all(one.pue_ratio == tariffs.usual_pue()[0] for one in known) and Tariff().kilowatts is None
    for pricing in tariffs.PRICINGS:
        listed = tariffs.priced_kinds(pricing)
        assert listed and all(one.dollars_per_hour for one in tariffs.tariffs(listed, pricing=pricing))


def test_failures_and_recovery_are_read_as_before(recorded: Recorded) -> None:
    words = (
        "none",
        " None ",
        "50000h",
        "2d",
        "x",
        "0h",
        "device=80000h",
        "device=80000h,node=50000h",
        "device=none",
        "device=1h,device=2h",
        "disk=1h",
        "device=",
        "device=1h,5h",
        "switch=1h,software=2h",
    )
    found: dict[str, Any] = {}
    for text in words:
        said = answer(
            lambda _, t=text: [f"{getattr(failures.rates(t), f'{part}_seconds') / 3600:.6g}" for part in failures.PARTS], ""
        )
        found[text] = said if "refused" in said or "=" not in text else said.count("inf")
    recovery = (
        {},
        {"restart": "5m"},
        {"restart": "x"},
        {"storage": "10 GB/s"},
        {"storage": "0 GB/s"},
        {"checkpoint": "async"},
        {"checkpoint": "blocking"},
        {"checkpoint": "never"},
        {"repair": "24h"},
        {"repair": "24h", "spares": "3"},
        {"repair": "24h", "spares": "100001"},
        {"repair": "24h", "spares": "100000"},
        {"spares": "3"},
        {"replan": "1m"},
        {"repair": "24h", "replan": "1m"},
        {"disk": "1"},
        {"restart": ""},
    )
    usual = told.upkeep()
    for given in recovery:

        def read(_: str, given: Any = given) -> str:
            own = told.upkeep("", given)
            names = [field.name for field in fields(own.recovery)]
            changed = {
                name: getattr(own.recovery, name)
                for name in names
                if getattr(own.recovery, name) != getattr(usual.recovery, name)
            }
            return f"{changed} {own.storage_per_device}"

        found[str(given)] = answer(read, "")
    recorded(found)
    rates = FailureRates(100.0, 50.0, 25.0, 400.0, 16)
    assert rates.per_second(17, 8) == pytest.approx(17 / 100 + 3 / 50 + 2 / 25 + 17 / 400)
    assert (
        rates.hardware_per_second(17, 8) == pytest.approx(17 / 100 + 3 / 50) and FailureRates(math.inf).per_second(9, 8) == 0.0
    )
    table = {"a": {"value": 3, "source": "s", "date": "d"}}
    assert failures.figure(table, "a", "here") == 3
    for key in ("value", "source", "date"):
        with pytest.raises(InputError, match=f"here: a has no {key}; every figure has value, source and date"):
            failures.figure({"a": {**table["a"], key: ""}}, "a", "here")


def good(ratio: float = 0.8, **said: Any) -> Goodput:
    plain: dict[str, Any] = {}
    for field in fields(Goodput):
        plain[field.name] = (("x", 0.1),) if field.name == "lost" else 3 if field.type == "int" else 7.0
    return Goodput(**{**plain, "effective_ratio": ratio, **said})


def point(
    cluster: str, seconds: float, money: float | None = 5.0, energy: float | None = 2.0, kind: str = "k", **said: Any
) -> SizePoint:
    outlay = Outlay(kind, seconds, seconds * 8, money, energy)
    return SizePoint(
        cluster,
        8,
        outlay,
        said.pop("low", 0.0),
        said.pop("high", 0.0),
        1.5,
        good(),
        (("compute", 0.75), ("failures", 0.25)),
        "a plan",
        plan=said.pop("plan", {}),
        **said,
    )


def test_sizes_dominate_as_their_definition_says() -> None:
    values = (None, 1.0, 2.0)
    outlays = [
        Outlay(kind, s, d, m, e) for kind in "ab" for s in (1.0, 2.0) for d in (1.0, 2.0) for m in values for e in values
    ]
    for one, other in itertools.product(outlays, outlays):
        if one.money is None or other.money is None:
            comparable = one.money is None and other.money is None and one.kind == other.kind
        else:
            comparable = True
        mine, theirs = (
            [
                o.seconds,
                o.device_seconds if o.money is None else o.money,
                math.inf if o.kilowatt_hours is None else o.kilowatt_hours,
            ]
            for o in (one, other)
        )
        expected = comparable and mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))
        assert points.dominates(one, other) == expected
    some = [point("b", 2.0, 4.0), point("a", 2.0, 4.0), point("c", 1.0, 9.0), point("d", 3.0, 4.0)]
    assert [one.cluster for one in points.front(some)] == ["c", "a", "b"]
    assert points.excess_ratio(some[0].outlay, 4.0, math.inf) == 0.5 and points.excess_ratio(some[0].outlay, 4.0, 2.0) == 2.0
    assert points.excess_ratio(point("x", 2.0, None).outlay, 4.0, 2.0) == math.inf
    tariff = Tariff(2.0, "", None, 500.0, "", 1.2)
    assert Outlay.of("k", 7200.0, 4, tariff) == Outlay("k", 7200.0, 28800.0, 16.0, pytest.approx(4.8))
    assert Outlay.of("k", 7200.0, 4, Tariff()) == Outlay("k", 7200.0, 28800.0, None, None)
    causes = (
        ("compute", 1.0),
        ("optimizer", 0.5),
        ("recompute", 0.25),
        ("bubble", 0.5),
        ("imbalance", 0.25),
        ("tensor", 1.0),
        ("x", 0.5),
    )
    assert points.shares(causes, 4.0, good(0.5)) == (
        ("compute", 0.1875),
        ("recomputation", 0.03125),
        ("communication", 0.1875),
        ("bubble", 0.0625),
        ("imbalance", 0.03125),
        ("failures", 0.5),
    )


def test_answers_are_said_as_before(recorded: Recorded) -> None:
    some = [
        point(f"c:{i}", 1e5 * i, None if i == 2 else 3e4 * i, None, low=i * 1e4, high=i * 2e5 * (i > 1), plan={"p": i})
        for i in range(1, 11)
    ]
    recorded([one.to_dict() for one in some[:2]] + [some[1].without_plan().to_dict().get("plan")], "points")
    never = good(mtbf_seconds=math.inf, interval_seconds=math.inf)
    recorded([points.goodput_json(never), points.goodput_json(good())], "goodput")
    upkeep = told.upkeep(
        "none", {"restart": "5m", "storage": "10 GB/s", "repair": "24h", "replan": "1m", "checkpoint": "async"}
    )
    plain = told.upkeep("1000h", {"restart": "5m", "checkpoint": "blocking", "storage": "1 GB/s"})
    for key, front, near, limits, own in (
        ("all", tuple(some), None, (math.inf, math.inf), upkeep),
        ("two", tuple(some[:2]), None, (1e5, 3e4), plain),
        ("none", (), some[3], (1e4, 1e3), plain),
        ("nothing", (), None, (1e4, math.inf), upkeep),
    ):
        found = answers.Sizing(
            "m",
            10**12,
            2048,
            512,
            1000,
            front,
            tuple(some[4:6]),
            (LeftOut("x:8", "too small"),),
            near,
            *limits,
            CHOSEN[:2],
            (Tariff(2.0, "s", 700.0, 1000.0, "p", 1.2), Tariff()),
            own,
            ("a note",),
            3,
            (("a", "b"),),
            1.5,
        )
        entry = found.to_dict()
        entry["recovery"].pop("copy_bytes_per_second")
        recorded(
            [
                repr(found).splitlines(),
                {name: entry[name] for name in entry if name not in ("front", "others")},
                found.feasible,
                len(entry["front"]),
                len(entry["others"]),
            ],
            key,
        )
