"""Quantities with units: parsed into base units, refused with a reason, printed for people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base import units
from meshwright.base.errors import InputError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GB", "bytes", 80e9),
        ("25 GB/s", "bytes_per_second", 25e9),
        ("100 Gbit/s", "bytes_per_second", 12.5e9),
        ("100 Gbps", "bytes_per_second", 12.5e9),
        ("1 us", "seconds", 1e-6),
        ("1 µs", "seconds", 1e-6),
        ("1.5 ms", "seconds", 1.5e-3),
        ("2 min", "seconds", 120),
        ("312 TFLOP/s", "flops_per_second", 312e12),
        ("312 TFLOPs/s", "flops_per_second", 312e12),
        ("1e3", "bytes", 1000),
        (".5 kB", "bytes", 500),
        (7, "seconds", 7),
        (7.5, "bytes", 7.5),
    ],
)
def test_a_quantity_is_read_in_base_units(text: str | float, dimension: str, value: float) -> None:
    assert units.parse(text, dimension, place="here") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many",
        "3 parsecs",
        "GiB",
        "3 4",
        "nan",
        "inf",
        "1e999",
        "-1",
        "3 GB/s",
        "0x10",
        "1,000",
        "3 gib",
        True,
        math.nan,
        math.inf,
        -1.0,
    ],
)
def test_anything_else_is_refused_with_place_and_an_example(text: str | float) -> None:
    with pytest.raises(InputError, match=r"lab\.yaml: memory"):
        units.parse(text, "bytes", place="lab.yaml: memory")


def test_a_unit_of_another_dimension_is_named() -> None:
    with pytest.raises(InputError, match="is in bytes, but seconds is needed; write for example '10 us'"):
        units.parse("3 GiB", "seconds", place="--link-latency")


def test_zero_is_refused_only_where_it_means_nothing() -> None:
    assert units.parse("0 s", "seconds", place="x") == 0.0
    with pytest.raises(InputError, match="must be finite and > 0"):
        units.parse("0 B/s", "bytes_per_second", place="x", exclusive=True)


@settings(deadline=None)  # a busy machine is no failure
@given(st.floats(min_value=1e-9, max_value=1e15))
def test_a_printed_time_reads_back_to_three_digits(seconds: float) -> None:
    assert units.parse(units.format_seconds(seconds), "seconds", place="x") == pytest.approx(seconds, rel=6e-3)


@settings(deadline=None)  # a busy machine is no failure
@given(st.floats(min_value=1, max_value=1e18))
def test_printed_bytes_read_back_to_four_digits(n_bytes: float) -> None:
    assert units.parse(units.format_bytes(n_bytes), "bytes", place="x") == pytest.approx(n_bytes, rel=6e-4, abs=0.51)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (70.55e9, "70.55 B"), (1.2e12, "1.2 T"), (5e16, "5e+04 T")]
)
def test_counts_have_decimal_prefixes(count: float, text: str) -> None:
    assert units.format_count(count) == text
