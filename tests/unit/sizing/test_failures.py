"""Failure rates: worked out of the published counts, told in part or whole, refused where they are none."""

from __future__ import annotations

import math

import pytest

from meshwright.base.errors import InputError
from meshwright.sizing.failures import FailureRates, published, rates


def test_the_published_rates_give_back_the_published_count() -> None:
    found = published()
    per_second = found.per_second(16384, 8)
    assert math.isclose(per_second * 54 * 86400, 419)  # Llama 3 paper, sec. 3.3.4
    assert math.isclose(found.device_seconds / 3600, 54 * 24 * 16384 / 268)  # causes that are the GPU's own
    assert "419" in found.source and "2407.21783" in found.source


def test_rates_of_parts_add_up() -> None:
    found = FailureRates(1000.0, 500.0, 200.0, 4000.0, devices_per_switch=16)
    assert math.isclose(found.per_second(20, 8), 20 / 1000 + 3 / 500 + 2 / 200 + 20 / 4000)
    assert math.isclose(found.hardware_per_second(20, 8), 20 / 1000 + 3 / 500)


def test_one_time_is_that_of_a_device_whatever_interrupts_it() -> None:
    found = rates("50000h")
    assert math.isclose(1 / found.per_second(1000, 8), 50 * 3600)
    assert found.hardware_per_second(1000, 8) == found.per_second(1000, 8)


def test_parts_that_are_not_told_are_as_published() -> None:
    told, known = rates("device=80000h,switch=none"), published()
    assert told.device_seconds == 80000 * 3600 and told.switch_seconds == math.inf
    assert told.node_seconds == known.node_seconds and told.software_seconds == known.software_seconds
    assert rates("") == known and rates("none").per_second(10**6, 8) == 0.0


@pytest.mark.parametrize(
    "text", ["50000", "0h", "device", "device=", "device=3", "gpu=3h", "device=3h,device=4h", "often", "-3h"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InputError, match="mtbf"):
        rates(text)
