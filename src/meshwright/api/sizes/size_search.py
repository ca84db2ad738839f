"""The sizes of one question: planned kind after kind where a bound does not rule them out, or left out with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright import api, sim
from meshwright.api import executors
from meshwright.base import amounts, units
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem, Stop
from meshwright.sim import fits
from meshwright.sizing import lower_bounds, points
from meshwright.sizing.goodput import checkpoint_bytes
from meshwright.sizing.points import NOT_PLANNED, LeftOut, Outlay, SizePoint

if TYPE_CHECKING:
    from meshwright.core.result import Result
    from meshwright.sizing.goodput import Goodput, Upkeep
    from meshwright.sizing.kinds import ClusterKind
    from meshwright.sizing.tariffs import Tariff

__all__ = ["ENOUGH", "MORE_PLANS", "SizeCandidate", "SizeSearch"]

ENOUGH = 0.05
"""Gap up to which a plan is good enough to compare sizes by; beyond it the search plays more plans, once."""

MORE_PLANS = "40"
"""How many."""

_MOST_NEAREST = 6  # sizes planned to find the nearest one where bounds rule out all


@dataclass(frozen=True, slots=True)
class SizeCandidate:
    """A size of a kind, what is known before it is planned, and what it costs at least (`least`)."""

    kind: ClusterKind
    tariff: Tariff
    n_devices: int
    problem: Problem
    good: Goodput
    least: Outlay

    @property
    def cluster(self) -> str:
        """The cluster as ``--cluster`` takes it."""
        return f"{self.kind.name}:{self.n_devices}"


class SizeSearch:
    """Candidates, what was planned of them, and what was left out; limits are infinite where there are none."""

    def __init__(
        self,
        within_seconds: float,
        budget: float,
        n_steps: int,
        settings: dict[str, str],
        seed: int,
        once: bool,
        limit_seconds: float = 0.0,
        keep: bool = False,
    ) -> None:
        self.within_seconds, self.budget, self.n_steps = within_seconds, budget, n_steps
        self.settings, self.seed, self.once, self.limit_seconds = settings, seed, once, limit_seconds
        self.keep = keep
        self.waves: list[tuple[tuple[float, float, str], list[SizeCandidate]]] = []
        self.planned: list[SizePoint] = []
        self.beyond: list[SizeCandidate] = []
        self.left_out: list[LeftOut] = []
        self.stopped: list[str] = []
        self._n_through = 0
        self.interrupted = False

    def consider(
        self, kind: ClusterKind, tariff: Tariff, counts: Sequence[int], first: Problem, least_seconds: float, upkeep: Upkeep
    ) -> None:
        """Take up the sizes of a kind that can be within the limits and hold their state."""
        if self.budget < math.inf and tariff.dollars_per_hour is None:
            self.left_out.append(LeftOut(kind.name, "its price is not known, so no budget can be kept; tell it: --price"))
            return
        wave: list[SizeCandidate] = []
        device, whole = first.required_cluster.kinds[0], checkpoint_bytes(first)
        state = lower_bounds.least_state_bytes(first.graph, first.training)
        for n_devices in counts:
            name = f"{kind.name}:{n_devices}"
            if fits.shared_excess_bytes(state, device, n_devices) > 0.0:
                need = f"weights and optimizer state alone take {units.format_bytes(state / n_devices)} a device"
                self.left_out.append(LeftOut(name, f"{need}, which has {units.format_bytes(device.memory_bytes)}"))
                continue
            good = upkeep.of(whole, n_devices, kind.devices_per_node)
            if good.effective_ratio <= 0.0:
                self.left_out.append(LeftOut(name, "failures leave less than 1% of the time to train"))
                continue
            seconds = self.n_steps * first.batch.global_batch * least_seconds / n_devices / good.effective_ratio
            n_paid = n_devices + good.spare_nodes * kind.devices_per_node
            candidate = SizeCandidate(kind, tariff, n_devices, first, good, Outlay.of(kind.name, seconds, n_paid, tariff))
            if self._beyond(candidate):
                self.beyond.append(candidate)
            else:
                wave.append(candidate)
        price = math.inf if tariff.dollars_per_hour is None else tariff.dollars_per_hour * least_seconds
        self.waves.append(((price, least_seconds, kind.name), wave))

    def _beyond(self, candidate: SizeCandidate) -> bool:
        """Say, where even the bound is beyond a limit, that this size is left out."""
        least = candidate.least
        if least.seconds > self.within_seconds:
            reason = f"takes at least {least.seconds / 86400.0:.4g} days, the work of its products shared evenly"
        elif least.money is not None and least.money > self.budget:
            reason = f"costs at least {amounts.money_text(least.money)}, the work of its products shared evenly"
        else:
            return False
        self.left_out.append(LeftOut(candidate.cluster, reason))
        return True

    def told(self, done: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """Return what is told of calls of one kind, and tells `done` of how many sizes of all kinds are planned or left out."""
        n_sizes = sum(len(wave) for _, wave in self.waves)
        return lambda n_done, n_calls: done(self._n_through + n_done, max(n_sizes, self._n_through + n_calls))

    def plan_all(self, run: executors.Runner) -> None:
        """Plan kind after kind, the cheapest first; sizes that something planned dominates whatever their plan are left out,
        and those that Ctrl-C leaves unplanned.
        """
        for _, wave in sorted(self.waves, key=lambda entry: entry[0]):
            going: list[SizeCandidate] = []
            for candidate in wave:
                better = [point for point in self.planned if points.dominates(point.outlay, candidate.least)]
                if better:
                    known = "" if candidate.least.kilowatt_hours is not None else " that is known"
                    why = f"{better[0].cluster} is better in all{known}, whatever its plan"
                    self.left_out.append(LeftOut(candidate.cluster, why))
                else:
                    going.append(candidate)
            self._n_through += len(wave) - len(going)
            self._plan(run, going)
            self._n_through += len(going)
            if self.interrupted:
                break
        settled = {point.cluster for point in self.planned} | {entry.cluster for entry in self.left_out}
        unplanned = [one.cluster for _, wave in self.waves for one in wave if one.cluster not in settled]
        self.left_out += [LeftOut(cluster, NOT_PLANNED) for cluster in unplanned]

    def _plan(self, run: executors.Runner, going: Sequence[SizeCandidate]) -> None:
        """Plan sizes; take up those that have a plan."""
        calls = [(one.problem, one.cluster, self.settings, self.seed, self.once, self.limit_seconds) for one in going]
        for candidate, found in zip(going, self._run(run, calls), strict=True):
            if found is None:
                self.interrupted = True
            elif isinstance(found, str):
                self.left_out.append(LeftOut(candidate.cluster, found))
            else:
                self.planned.append(_point(candidate, found, self.n_steps))
                if found["plan"].get("stopped_early"):
                    self.stopped.append(candidate.cluster)

    def _run(self, run: executors.Runner, calls: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """Return what calls return; None for all where Ctrl-C came before the first of them, but not before all others."""
        try:
            return run(_planned, calls)
        except KeyboardInterrupt:
            if not self.keep or not self.planned:
                raise
            return [None] * len(calls)

    def nearest(self, run: executors.Runner) -> SizePoint | None:
        """Return the size that is beyond the limits by least; those that bounds ruled out are planned where one may be it."""
        queue = sorted(self.beyond, key=lambda one: (self._excess(one.least), one.cluster))
        inside = self.interrupted or any(self._excess(point.outlay) <= 1.0 for point in self.planned)
        for candidate in () if inside else queue[:_MOST_NEAREST]:
            so_far = min((self._excess(point.outlay) for point in self.planned), default=math.inf)
            if so_far <= self._excess(candidate.least):
                break
            self.left_out = [entry for entry in self.left_out if entry.cluster != candidate.cluster]
            self._plan(run, [candidate])
            if self.interrupted:
                self.left_out.append(LeftOut(candidate.cluster, NOT_PLANNED))
                break
        return min(self.planned, key=lambda point: (self._excess(point.outlay), point.cluster), default=None)

    def _excess(self, outlay: Outlay) -> float:
        return points.excess_ratio(outlay, self.within_seconds, self.budget)


def _gap_ratio(result: Result) -> float:
    """Return by how much a plan may be slower than the best, as proven."""
    bound, objective = result.answer.bound, result.answer.objective
    return 0.0 if bound is None or objective is None else bound.gap_ratio(objective)


def _planned(
    problem: Problem, cluster: str, settings: dict[str, str], seed: int, once: bool, limit_seconds: float
) -> dict[str, Any] | str:
    """Plan one size, and once more with more plans played where few proved too little (but `once`, or where time was up);
    return what a point needs, or why there is no plan. Runs in a worker.
    """
    from meshwright import clusters
    from meshwright.core.formatting import describe, step_interval, utilization
    from meshwright.writers import plan_json

    try:
        question = replace(problem, cluster=clusters.cluster(cluster))
        stop = Stop(seconds=limit_seconds)
        result = api.plan(question, search="best", settings=settings, seed=seed, stop=stop)
        more = not once and result.feasible and _gap_ratio(result) > ENOUGH and not result.answer.extra.get("stopped_early")
        if more:
            more_plans = settings | {"evaluations": MORE_PLANS}
            result = api.plan(question, search="best", settings=more_plans, seed=seed, stop=stop)
    except InputError as error:
        return str(error)
    if not result.feasible or result.timeline is None:
        nothing = "nothing fits" if result.answer.infeasible_proven else "no plan that fits was found"
        missing = units.format_bytes(result.answer.missing_bytes)
        return f"{nothing}: the nearest plan needs {missing} more on its fullest device"
    interval = step_interval(result)
    entry = plan_json.as_json(result)
    entry["planning_seconds"] = 0.0  # wall time differs from run to run
    entry.pop("certificate", None)  # as long as ten plans
    return {
        "step_seconds": result.timeline.step_seconds,
        "interval": None if interval is None else (interval.low_seconds, interval.high_seconds),
        "causes": sim.device_causes(result.problem, result.plan, result.stage_costs),
        "description": describe(result.plan),
        "gap_ratio": _gap_ratio(result),
        "utilization": utilization(result) or 0.0,
        "plan": entry,
    }


def _point(candidate: SizeCandidate, found: Mapping[str, Any], n_steps: int) -> SizePoint:
    """Return a planned size as a point."""
    good, step = candidate.good, found["step_seconds"]
    longer = n_steps / good.effective_ratio
    n_paid = candidate.n_devices + good.spare_nodes * candidate.kind.devices_per_node
    low, high = (0.0, 0.0) if found["interval"] is None else found["interval"]
    return SizePoint(
        candidate.cluster, candidate.n_devices, Outlay.of(candidate.kind.name, step * longer, n_paid, candidate.tariff),
        low * longer, high * longer, step, good, points.shares(found["causes"], step, good), found["description"],
        found["gap_ratio"], found["utilization"], found["plan"],
    )  # fmt: skip
