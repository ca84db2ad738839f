"""Goodput: the closed form against played failures, the interval against the best one, spare nodes against counting."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.sizing.failures import FailureRates, published
from meshwright.sizing.goodput import Recovery, Upkeep, daly_interval, effective, goodput, spares_needed
from meshwright.sizing.told import upkeep

HOUR = 3600.0
RATES = FailureRates(1000 * HOUR)


def played(interval: float, stops: float, restart: float, mtbf: float, late: float = 0.0, n_failures: int = 20000) -> float:
    """Return the share of time that trains, by playing one failure after the other: the slow twin of the closed form."""
    rng = np.random.default_rng(3)
    clock = kept = 0.0
    for until in rng.exponential(mtbf, n_failures):
        left = until
        while left < restart:  # a failure during a restart starts it again
            clock += left
            left = rng.exponential(mtbf)
        clock += left
        ran = left - restart
        whole = math.floor(ran / (interval + stops))
        if late and whole and ran - whole * (interval + stops) < late:
            whole -= 1  # the last checkpoint was not written yet
        kept += whole * interval
    return kept / clock


@pytest.mark.parametrize(("stops", "restart", "mtbf"), [(30.0, 600.0, 3 * HOUR), (300.0, 1200.0, HOUR), (3.0, 60.0, 50 * HOUR)])
def test_the_closed_form_is_what_playing_failures_gives(stops: float, restart: float, mtbf: float) -> None:
    interval = daly_interval(stops, mtbf)
    shares = effective(interval, stops, restart, mtbf)
    assert math.isclose(sum(shares), 1.0) and min(shares) >= 0.0
    assert shares[0] == pytest.approx(played(interval, stops, restart, mtbf), rel=0.01)


@pytest.mark.parametrize(("stops", "mtbf"), [(1.0, HOUR), (60.0, 3 * HOUR), (600.0, HOUR), (300.0, 100 * HOUR)])
def test_no_interval_is_much_better_than_dalys(stops: float, mtbf: float) -> None:
    best = max(effective(float(tau), stops, 300.0, mtbf)[0] for tau in np.geomspace(1.0, 10 * mtbf, 4000))
    assert effective(daly_interval(stops, mtbf), stops, 300.0, mtbf)[0] > best * (1 - 2e-4)
    assert daly_interval(3 * mtbf, mtbf) == mtbf and daly_interval(1.0, math.inf) == math.inf


def test_an_asynchronous_checkpoint_costs_the_copy_and_the_work_until_it_is_written() -> None:
    recovery = Recovery(600.0, 1e9, 1e9, asynchronous=True)
    found = goodput(RATES, recovery, 60e9, 1000, 8)
    assert found.checkpoint_seconds == pytest.approx(0.06) and found.restart_seconds == 660.0
    assert found.interval_seconds == pytest.approx(60.0)  # Daly's would be shorter than the writing
    played_share = played(found.interval_seconds, 0.06, 660.0, found.mtbf_seconds, late=60.0)
    assert found.effective_ratio == pytest.approx(played_share, rel=0.005)
    blocking = goodput(RATES, replace(recovery, asynchronous=False), 60e9, 1000, 8)
    assert blocking.checkpoint_seconds == 60.0 and blocking.effective_ratio < found.effective_ratio


def test_shares_add_up_and_are_by_cause() -> None:
    found = goodput(RATES, Recovery(600.0, 1e9, 1e9, repair_seconds=48 * HOUR, spare_nodes=1), 60e9, 1000, 8)
    lost = dict(found.lost)
    assert list(lost) == ["checkpoints", "lost_work", "restarts", "waiting"] and min(lost.values()) > 0.0
    assert found.effective_ratio + sum(lost.values()) == pytest.approx(1.0)
    assert found.mtbf_seconds == pytest.approx(HOUR)


def test_nothing_fails() -> None:
    found = goodput(FailureRates(math.inf), Recovery(600.0, 1e9, 1e9), 60e9, 1000, 8)
    assert found.effective_ratio == 1.0 and found.interval_seconds == math.inf and dict(found.lost)["checkpoints"] == 0.0


def test_failures_faster_than_restarts_leave_nothing() -> None:
    assert goodput(FailureRates(10.0), Recovery(600.0, 1e9, 1e9), 60e9, 1000, 8).effective_ratio == 0.0


def test_waiting_is_as_likely_as_more_nodes_being_away_than_there_are_spares() -> None:
    n_devices, repair = 1000, 48 * HOUR  # one node an hour: 48 are away in the mean
    counts = np.random.default_rng(1).poisson(48.0, 200_000)
    for spares in (40, 48, 60):
        recovery = Recovery(600.0, 1e9, 1e9, repair_seconds=repair, spare_nodes=spares)
        whole = goodput(RATES, replace(recovery, repair_seconds=0.0), 60e9, n_devices, 8).effective_ratio
        waits = goodput(RATES, recovery, 60e9, n_devices, 8).effective_ratio / whole
        assert waits == pytest.approx(float(np.mean(counts <= spares)), abs=0.005)
        goes_on = goodput(RATES, replace(recovery, replan_seconds=1e-9), 60e9, n_devices, 8)
        left = np.mean(1 - np.clip(counts - spares, 0, 125) / 125)
        short = float(np.mean(counts >= spares)) * goes_on.restart_seconds / HOUR  # restarts when nodes come back
        assert goes_on.effective_ratio / whole == pytest.approx(float(left) - short, abs=0.005)


def test_as_many_spares_as_it_takes() -> None:
    counts = np.random.default_rng(2).poisson(5.0, 400_000)
    k = spares_needed(5.0)
    assert np.mean(counts > k) < 0.011 and np.mean(counts > k - 1) > 0.009
    assert spares_needed(0.0) == 0
    told = upkeep("1000h", {"repair": "5h"}).of(60e9, 1000, 8)
    assert told.spare_nodes == k and dict(told.lost)["waiting"] < 0.01


def test_storage_grows_with_the_devices_unless_it_is_told() -> None:
    usual = Upkeep.usual(published())
    small, large = usual.of(1e12, 1024, 8), usual.of(1e12, 16384, 8)
    assert small.checkpoint_seconds == pytest.approx(
        16 * large.checkpoint_seconds
    ) and large.checkpoint_seconds == pytest.approx(0.5)
    told = upkeep("", {"storage": "100 GB/s", "restart": "5min", "checkpoint": "blocking"})
    assert told.of(1e12, 1024, 8).checkpoint_seconds == told.of(1e12, 64, 8).checkpoint_seconds == 10.0
    assert told.of(1e12, 64, 8).restart_seconds == 310.0


@pytest.mark.parametrize(
    "told",
    [{"spares": "3"}, {"replan": "60s"}, {"checkpoint": "often"}, {"storage": "3 GB"}, {"restart": "3"}, {"repair": "0h"},
     {"repair": "1h", "spares": "-1"}, {"repair": "1h", "spares": "1000000"}, {"speed": "3"},
     {"storage": "5"}],
)  # fmt: skip
def test_what_cannot_be_told(told: dict[str, str]) -> None:
    with pytest.raises(InputError, match=next(iter(set(told) - {"repair"}), "repair")):
        upkeep("", told)


def test_more_nodes_away_than_can_be_counted_is_refused() -> None:
    with pytest.raises(InputError, match="--repair"):
        upkeep("10h", {"repair": "1000d"}).of(1e12, 1024, 8)
