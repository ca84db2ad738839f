"""Figures of the data files that are said to be fitted are what `benchmarks/fit_costs.py` finds, and those said to be as
another one's are that one's.

The whole fit takes minutes of a core: ``make constants`` compares all of them. Here one group is fitted, and notes are read.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import meshwright
from meshwright import frameworks
from meshwright.core.problem import Framework

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(meshwright.__file__).parent
FITTED = "fitted by benchmarks/fit_costs.py"
DEVICES = {"A100": "a100_sxm_80gb", "A100-SXM-80GB": "a100_sxm_80gb", "H100": "h100_sxm_80gb"}
"""Kinds that notes name otherwise than their files."""


@pytest.fixture(scope="module")
def fit_costs() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fit_costs", ROOT / "benchmarks" / "fit_costs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_costs"] = module  # its dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["fit_costs"]


def _figures(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield key, value and source of every figure of a data file."""
    for name, value in table.items():
        if isinstance(value, dict) and "source" in value and "value" in value:
            yield f"{path}{name}", value["value"], value["source"]
        elif isinstance(value, dict):
            yield from _figures(value, f"{path}{name}.")


def _notes() -> dict[tuple[str, str], tuple[Any, str]]:
    """Return value and source of every figure, by file and key."""
    files = [*(DATA / "clusters/data").rglob("*.toml"), *(DATA / "frameworks/data").glob("*.toml")]
    return {
        (file.relative_to(DATA).as_posix(), key): (value, source)
        for file in files
        for key, value, source in _figures(tomllib.loads(file.read_text(encoding="utf-8")))
    }


def test_what_is_said_to_be_fitted_is_a_constant_of_the_script_and_the_other_way_round(fit_costs: ModuleType) -> None:
    notes, constants = _notes(), [constant for group in fit_costs.GROUPS for constant in group.constants]
    said = {place for place, (_, source) in notes.items() if source.startswith(FITTED)}
    assert said == {constant.places[0] for constant in constants}
    for constant in constants:
        for place in constant.also:
            assert notes[place][0] == notes[constant.places[0]][0], place
            assert re.match(r"as |half of", notes[place][1]), (place, notes[place][1])


def test_what_is_said_to_be_as_another_kind_of_device_is_that_kinds_and_estimates_name_what_it_has() -> None:
    notes, n_read = _notes(), 0
    kinds = {pathlib.Path(file).stem: file for file, _ in notes if "/devices/" in file}
    short = {stem.split("_")[0].upper(): stem for stem in ("b200_sxm_180gb", "gb200_186gb", "gb300_279gb")} | DEVICES
    for (file, key), (value, source) in notes.items():
        alike = re.match(r"as ([A-Z0-9-]+?)(?=$|[;:])", source)
        near = re.match(r"estimate near the ([\d.]+) of ([A-Z0-9-]+?)(?=$|[;:])", source)
        if "/devices/" not in file or key.split(".")[0] not in ("achieved", "attention") or not (alike or near):
            continue
        other, stated = (near[2], float(near[1])) if near else (alike[1] if alike else "", value)
        assert stated == notes[kinds[short[other]], key][0], (file, key)
        n_read += 1
    assert n_read > 40


def test_what_is_said_to_be_as_another_framework_is_that_ones_and_estimates_name_what_it_has() -> None:
    notes, n_read = _notes(), 0
    word = r"([a-z0-9_]+)(?::([a-z0-9_]+))?(?=$|[;:,])"
    for (file, key), (value, source) in notes.items():
        alike, near = re.match(f"as {word}", source), re.match(rf"estimate near the ([\d.]+(?: us)?) fitted to {word}", source)
        if "frameworks/" not in file or key.split(".")[-2:-1] != ["how"] or not (alike or near):
            continue
        name, variant = (near[2], near[3]) if near else (alike[1], alike[2]) if alike else ("", "")
        stated, last = str(value) if near is None else near[1], key.split(".")[-1]
        own = f"frameworks/data/{name}.toml"
        if not (DATA / own).is_file():  # a variant of the same framework
            own, variant = file, name
        place = (own, f"variants.{variant}.how.{last}" if variant else f"how.{last}")
        plain = notes.get((own, f"how.{last}"), (getattr(Framework(), last), ""))  # what a variant leaves as it is
        found = notes.get(place, plain)[0]
        assert stated == str(found) or float(stated) == found, (file, key, place)
        n_read += 1
    assert n_read > 20


def test_constants_of_a_group_are_what_the_script_finds(fit_costs: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A constant that is a step of its grid away would be found."""
    (group,) = (group for group in fit_costs.GROUPS if group.name == "zero3")
    sets = fit_costs.read(["megatron_sc21_zero3_vs_ptd"])
    before = [(frameworks.load(name).FRAMEWORK, frameworks.load(name).VARIANTS) for name in frameworks.names()]
    with fit_costs.edited() as folder, fit_costs.replaced(fit_costs.quick()):
        fit_costs.fit_all([group], sets, folder, fit_costs.fitted_row)
        found = {constant.key: fit_costs.get(folder, *constant.places[0]) for constant in group.constants}
    assert found == {constant.key: fit_costs.get(fit_costs.DATA, *constant.places[0]) for constant in group.constants}
    assert "zero3: mean |log error|" in capsys.readouterr().out
    after = [(frameworks.load(name).FRAMEWORK, frameworks.load(name).VARIANTS) for name in frameworks.names()]
    assert after == before, "what was lent is given back, frameworks that rest on others' figures too"
