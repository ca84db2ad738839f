"""Sizes that were planned, what they cost, and which of them are worth having: the Pareto front of time, money and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.sizing.goodput import Goodput
from meshwright.sizing.tariffs import CURRENCY, Tariff

__all__ = [
    "CAUSES",
    "NOT_PLANNED",
    "LeftOut",
    "Outlay",
    "SizePoint",
    "dominates",
    "excess_ratio",
    "front",
    "goodput_json",
    "shares",
]

CAUSES = ("compute", "recomputation", "communication", "bubble", "imbalance", "failures")
"""Where the time of devices and the money for them go: computing (and the optimizer), computing again, what is exposed of
communication, waits in pipelines, waits of devices that have less to do than the busiest, and everything that failures cost.
"""

_OF_CAUSES = {"compute": 0, "optimizer": 0, "recompute": 1, "bubble": 3, "imbalance": 4}.items()


@dataclass(frozen=True, slots=True)
class Outlay:
    """What sizes are compared by: seconds of the whole run, money and energy where they are known.

    Parameters
    ----------
    kind : str
        The kind of cluster.
    seconds : float
        From start to end.
    device_seconds : float
        Of all devices that are paid for.
    money : float or None
        US dollars; None where the price of the kind is not known.
    kilowatt_hours : float or None
        None where the power of the kind is not known.
    """

    kind: str
    seconds: float
    device_seconds: float
    money: float | None
    kilowatt_hours: float | None

    @property
    def device_hours(self) -> float:
        """Hours of all devices that are paid for."""
        return self.device_seconds / 3600.0

    @classmethod
    def of(cls, kind: str, seconds: float, n_paid: int, tariff: Tariff) -> Outlay:
        """Return what so many devices of a kind cost for so long.

        Parameters
        ----------
        kind : str
            The kind of cluster.
        seconds : float
            From start to end.
        n_paid : int
            Devices, spare ones included.
        tariff : Tariff
            Of one device.
        """
        device_seconds = n_paid * seconds
        hours = device_seconds / 3600.0
        money = None if tariff.dollars_per_hour is None else hours * tariff.dollars_per_hour
        return cls(kind, seconds, device_seconds, money, None if tariff.kilowatts is None else hours * tariff.kilowatts)


@dataclass(frozen=True, slots=True)
class SizePoint:
    """One size of one kind of cluster, planned.

    Parameters
    ----------
    cluster : str
        As ``--cluster`` takes it.
    n_devices : int
        Devices that train.
    outlay : Outlay
        Time, money and energy of the whole run.
    low_seconds, high_seconds : float
        Ends of the 80 % prediction interval of the run's time; both 0 where nothing like it was measured.
    step_seconds : float
        Of one step, nothing failing.
    goodput : Goodput
        What failures make of it.
    causes : tuple of (str, float)
        Shares of the time of all devices and of the money, by `CAUSES`; they add up to 1.
    description : str
        The plan in words.
    gap_ratio : float
        By how much the plan may be slower than the best of the search's space, as proven.
    utilization_ratio : float
        Model FLOPs utilization of the step; 0 where it is not known.
    plan : mapping
        The plan, as ``meshwright plan --json`` has it; empty for sizes that are not on the front.
    """

    cluster: str
    n_devices: int
    outlay: Outlay
    low_seconds: float
    high_seconds: float
    step_seconds: float
    goodput: Goodput
    causes: tuple[tuple[str, float], ...]
    description: str
    gap_ratio: float = 0.0
    utilization_ratio: float = 0.0
    plan: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def days(self) -> float:
        """Days of the whole run."""
        return self.outlay.seconds / 86400.0

    @property
    def days_interval(self) -> tuple[float, float] | None:
        """The 80 % prediction interval of `days`; None where nothing like it was measured."""
        return (self.low_seconds / 86400.0, self.high_seconds / 86400.0) if self.high_seconds else None

    @property
    def money(self) -> float | None:
        """US dollars of the whole run; None where the price is not known."""
        return self.outlay.money

    def without_plan(self) -> SizePoint:
        """Return the point without the plan's own fields."""
        return replace(self, plan={})

    def to_dict(self) -> dict[str, Any]:
        """Return the point as ``meshwright size --json`` has it."""
        good, outlay = self.goodput, self.outlay
        interval = self.days_interval
        entry: dict[str, Any] = {
            "cluster": self.cluster,
            "kind": outlay.kind,
            "n_devices": self.n_devices,
            "spare_nodes": good.spare_nodes,
            "days": self.days,
            "days_interval": None if interval is None else list(interval),
            "money": outlay.money,
            "currency": CURRENCY,
            "kwh": outlay.kilowatt_hours,
            "device_hours": outlay.device_hours,
            "goodput_ratio": good.effective_ratio,
            "goodput": goodput_json(good),
            "step_seconds": self.step_seconds,
            "causes_ratio": dict(self.causes),
            "money_by_cause": None if outlay.money is None else {name: share * outlay.money for name, share in self.causes},
            "model_flops_utilization_ratio": self.utilization_ratio or None,
            "gap_ratio": self.gap_ratio,
            "description": self.description,
        }
        return entry | ({"plan": dict(self.plan)} if self.plan else {})


def goodput_json(good: Goodput) -> dict[str, Any]:
    """Return a goodput JSON-ready; infinite times are null."""
    never = float("inf")
    return {
        "effective_ratio": good.effective_ratio,
        "lost_ratio": dict(good.lost),
        "mtbf_seconds": None if good.mtbf_seconds == never else good.mtbf_seconds,
        "checkpoint_interval_seconds": None if good.interval_seconds == never else good.interval_seconds,
        "checkpoint_bytes": good.checkpoint_bytes,
        "checkpoint_seconds": good.checkpoint_seconds,
        "restart_seconds": good.restart_seconds,
        "spare_nodes": good.spare_nodes,
    }


NOT_PLANNED = "not planned: stopped by Ctrl-C"
"""Why a size is left out whose plan had not been found when Ctrl-C came."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A size that is not among the points, and why."""

    cluster: str
    reason: str


def shares(causes: Sequence[tuple[str, float]], step_seconds: float, good: Goodput) -> tuple[tuple[str, float], ...]:
    """Return where the time goes, by `CAUSES`.

    Parameters
    ----------
    causes : sequence of (str, float)
        Seconds of a step by cause, as `meshwright.sim.device_causes`; what is not known is communication.
    step_seconds : float
        Their sum.
    good : Goodput
        What failures cost.
    """
    found = [0.0] * (len(CAUSES) - 1)
    places = dict(_OF_CAUSES)
    for name, seconds in causes:
        found[places.get(name, 2)] += seconds / step_seconds * good.effective_ratio
    return (*zip(CAUSES[:-1], found, strict=True), (CAUSES[-1], 1.0 - good.effective_ratio))


def dominates(one: Outlay, other: Outlay) -> bool:
    """Return whether one is no worse than the other in time, money and energy, and better in something.

    Money that is not known is compared within a kind only, by device-hours, which it grows with; a kind whose price is not
    known neither dominates others nor is dominated by them. Energy that is not known counts as more than any that is.

    Parameters
    ----------
    one, other : Outlay
        What two sizes cost; bounds from below do for `other`.

    Notes
    -----
    A strict partial order (priced kinds are one class, every other kind a class of its own): what a size that was left out
    dominates, the size that ruled it out dominates too.
    """
    if (one.money is None) != (other.money is None) or (one.money is None and one.kind != other.kind):
        return False
    never = float("inf")
    mine, theirs = (
        (
            outlay.seconds,
            outlay.device_hours if outlay.money is None else outlay.money,
            never if outlay.kilowatt_hours is None else outlay.kilowatt_hours,
        )
        for outlay in (one, other)
    )
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


def front(points: Sequence[SizePoint]) -> tuple[SizePoint, ...]:
    """Return the points that no other dominates, the quickest first."""
    found = [point for point in points if not any(dominates(other.outlay, point.outlay) for other in points)]
    return tuple(sorted(found, key=lambda point: (point.outlay.seconds, point.cluster)))


def excess_ratio(outlay: Outlay, within_seconds: float, budget: float) -> float:
    """Return how far a size is beyond the limits: 1 and less is within.

    Parameters
    ----------
    outlay : Outlay
        What it costs.
    within_seconds, budget : float
        The limits; infinite for none. A size whose price is not known is beyond any budget.
    """
    over = outlay.seconds / within_seconds
    if budget == float("inf"):
        return over
    return max(over, float("inf") if outlay.money is None else outlay.money / budget)
