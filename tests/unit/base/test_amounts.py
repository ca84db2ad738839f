"""Amounts as people type them: tokens of a run, days, dollars, watts; nonsense is refused with the option's name."""

from __future__ import annotations

import math

import pytest

from meshwright.base import amounts
from meshwright.base.errors import InputError


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("15T", 15 * 10**12),
        ("300B", 3 * 10**11),
        ("300G", 3 * 10**11),
        ("1.5e12", 15 * 10**11),
        ("2 M", 2_000_000),
        ("1_000", 1000),
        (1e12, 10**12),
        ("1.4T", 14 * 10**11),
    ],
)
def test_tokens(text: str | float, tokens: int) -> None:
    assert amounts.total_tokens(text, "--tokens") == tokens


@pytest.mark.parametrize("text", ["", "x", "0", "1.5", "-3T", "3TT", "nan", "1e400", "15 tokens"])
def test_what_is_no_number_of_tokens(text: str) -> None:
    with pytest.raises(InputError, match="--tokens"):
        amounts.total_tokens(text, "--tokens")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 30 * 86400.0),
        ("2 weeks", 14 * 86400.0),
        ("50000h", 1.8e8),
        ("10 min", 600.0),
        ("1.5 days", 129600.0),
        ("90s", 90.0),
        ("5y", 5 * 365.25 * 86400.0),
        ("2 years", 2 * 365.25 * 86400.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert math.isclose(amounts.duration(text, "--within"), seconds)


@pytest.mark.parametrize("text", ["30", "", "d", "0d", "-3d", "3 parsecs", "1e999d", "3 GB"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InputError, match="--within"):
        amounts.duration(text, "--within")


def test_an_unknown_unit_of_time_names_those_that_people_type() -> None:
    with pytest.raises(InputError, match="unknown unit 'parsecs'; write for example 30d, 50000h, 5y or 10min"):
        amounts.duration("3 parsecs", "--mtbf")


@pytest.mark.parametrize(
    ("text", "dollars"),
    [
        ("2 M$", 2e6),
        ("2M$", 2e6),
        ("$2M", 2e6),
        ("500k", 5e5),
        ("2000000 USD", 2e6),
        ("$2.49", 2.49),
        (1000, 1000.0),
        ("1.5B", 1.5e9),
    ],
)
def test_money(text: str | float, dollars: float) -> None:
    assert math.isclose(amounts.money(text, "--budget"), dollars)


@pytest.mark.parametrize("text", ["3 €", "£5", "5 EUR", "", "much", "0", "-5", "$5$", "5 USD USD"])
def test_what_is_no_money(text: str) -> None:
    with pytest.raises(InputError, match="--budget"):
        amounts.money(text, "--budget")


@pytest.mark.parametrize(
    ("dollars", "text"), [(2.5, "$2.5"), (999.4, "$999"), (1000.0, "$1k"), (26_800_000.0, "$26.8M"), (1e12, "$1,000B")]
)
def test_money_is_shown_with_three_digits(dollars: float, text: str) -> None:
    assert amounts.money_text(dollars) == text


def test_watts() -> None:
    assert [amounts.watts(text, "--power") for text in ("700W", "1.3 kW", "700")] == [700.0, 1300.0, 700.0]
    for text in ("", "0", "700 V", "-1W", "1 w"):
        with pytest.raises(InputError, match="--power"):
            amounts.watts(text, "--power")


@pytest.mark.parametrize(
    ("seconds", "text"), [(60.0, "60 s"), (600.0, "10 min"), (86400.0, "24 h"), (30 * 86400.0, "30 days"), (math.inf, "never")]
)
def test_durations_are_shown_in_a_fitting_unit(seconds: float, text: str) -> None:
    assert amounts.duration_text(seconds) == text
