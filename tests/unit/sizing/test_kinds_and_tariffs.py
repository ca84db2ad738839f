"""Short names of kinds, and what their devices cost and draw: every figure with source and date, unknown ones left out."""

from __future__ import annotations

import pathlib
import re

import pytest

from meshwright.base import files
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.clusters import built_in
from meshwright.sizing.failures import DATA, figure
from meshwright.sizing.kinds import kind, kinds
from meshwright.sizing.points import Outlay
from meshwright.sizing.tariffs import Tariff, priced_kinds, tariffs, told_of_kinds, usual_pue


@pytest.mark.parametrize(
    ("word", "name"),
    [("h100", "dgx-h100"), ("dgx-h100", "dgx-h100"), ("HGX_H100", "dgx-h100"), ("l4", "g6-l4"), ("gb200", "gb200-nvl72"),
     ("p5-h100", "p5-h100"), ("gh200", "gh200"), ("3090", "rtx-3090"), ("dgx-h100:64", "dgx-h100")],
)  # fmt: skip
def test_short_names(word: str, name: str) -> None:
    found = kind(word, "--kinds")
    assert found.name == name and found.devices_per_node == built_in.figures(found.stem)["devices_per_node"]


def test_what_is_no_kind() -> None:
    for word in ("", "h1000", "torus"):
        with pytest.raises(UnknownNameError, match="--kinds"):
            kind(word, "--kinds")
    with pytest.raises(InputError, match="named twice"):
        kinds(["h100", "hgx-h100"])


@pytest.mark.parametrize("name", ["prices.toml", "power.toml", "reliability.toml"])
def test_every_figure_has_source_and_date(name: str) -> None:
    def look(entry: object, place: str) -> int:
        if not isinstance(entry, dict):
            return 0
        if (any(key in entry for key in ("value", "node", "watts")) and "source" in entry) or "date" in entry:
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", entry["date"]) and len(entry["source"]) > 10, place
            return 1
        return sum(look(value, f"{place}.{key}") for key, value in entry.items())

    assert look(files.read_toml(DATA / name), name) >= 5
    with pytest.raises(InputError, match="has no date"):
        figure({"x": {"value": 1, "source": "somewhere"}}, "x", "here")


def test_the_data_name_built_in_kinds_and_nodes_are_no_less_than_their_devices() -> None:
    stems = set(built_in.stems().values())
    power = files.read_toml(DATA / "power.toml")
    assert set(files.read_toml(DATA / "prices.toml")) - {"currency"} <= stems and set(power) - {"pue"} <= stems
    for stem in set(power) - {"pue"}:
        assert power[stem]["node"]["watts"] >= built_in.figures(stem)["devices_per_node"] * power[stem]["device"]["watts"], stem


def test_a_device_costs_its_share_of_the_node() -> None:
    (h100,) = tariffs(kinds(["h100"]))
    assert h100.dollars_per_hour == pytest.approx(49.24 / 8) and "CoreWeave" in h100.price_source
    assert h100.watts == pytest.approx(10200 / 8) and h100.device_watts == 700.0
    assert h100.kilowatts == pytest.approx(10.2 / 8 * usual_pue()[0])
    reserved = tariffs(kinds(["b200", "h100"]), pricing="reserved", pue_ratio=1.0)
    assert reserved[0].dollars_per_hour == pytest.approx(297840 / 8 / 8760) and reserved[1].dollars_per_hour is None
    assert reserved[0].kilowatts == pytest.approx(14.3 / 8)
    with pytest.raises(InputError, match="--pricing"):
        tariffs(kinds(["h100"]), pricing="spot")


def test_unknown_figures_stay_unknown_and_told_ones_replace_known_ones() -> None:
    chosen = kinds(["rtx-3090", "h100"])
    unknown = tariffs(chosen)[0]
    assert unknown.dollars_per_hour is unknown.watts is unknown.kilowatts is None
    prices, powers = told_of_kinds(["h100=2.49,3090=$0.2"], "--price", chosen), told_of_kinds(["1.3kW"], "--power", chosen)
    found = tariffs(chosen, prices=prices, powers=powers)
    assert [one.dollars_per_hour for one in found] == [0.2, 2.49] and [one.watts for one in found] == [1300.0, 1300.0]
    assert {one.price_source for one in found} == {"told"}


@pytest.mark.parametrize("entry", ["h100=", "=3", "b200=3", "h100=3,h100=4", "h100=x", "3,4", ""])
def test_what_cannot_be_told_of_kinds(entry: str) -> None:
    with pytest.raises(InputError, match="--price"):
        told_of_kinds([entry], "--price", kinds(["h100"]))


def test_priced_kinds_are_those_of_the_data() -> None:
    assert {"dgx-h100", "dgx-b200", "g6-l4"} <= {one.name for one in priced_kinds("on-demand")}
    assert "dgx-h100" not in {one.name for one in priced_kinds("reserved")}


def test_an_outlay_is_hours_times_rates() -> None:
    found = Outlay.of("k", 7200.0, 10, Tariff(3.0, "", 1.0, 500.0, "", 1.2))
    assert (found.device_hours, found.money) == (20.0, 60.0) and found.kilowatt_hours == pytest.approx(12.0)
    assert pathlib.Path(DATA).is_dir()


def test_json_has_no_source_of_a_price_that_is_not_known() -> None:
    from meshwright.sizing import answer

    h100, l4 = kinds(["h100", "l4"])
    told, unknown = Tariff(3.0, "a list", 700.0, 1000.0, "a sheet", 1.2), Tariff(None, "", None, None, "", 1.2)
    assert answer._kind_json(h100, told)["price_source"] == "a list"
    entry = answer._kind_json(l4, unknown)
    assert entry["price_source"] is None and entry["power_source"] is None and entry["kind"] == l4.name
