"""How many devices of which kind, for how long and for how much: sizes planned where a bound does not rule them out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright import api
from meshwright.api import executors
from meshwright.base import amounts, units
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, MixedPrecision, ModelSpec, Problem
from meshwright.sizing import kinds as kinds_of
from meshwright.sizing import lower_bounds, points, tariffs
from meshwright.sizing.answer import Sizing
from meshwright.sizing.goodput import checkpoint_bytes
from meshwright.sizing.points import LeftOut, Outlay, SizePoint
from meshwright.sizing.told import upkeep as told_upkeep

if TYPE_CHECKING:
    from meshwright.sizing.goodput import Goodput, Upkeep
    from meshwright.sizing.kinds import ClusterKind
    from meshwright.sizing.tariffs import Tariff

__all__ = ["USUAL_SETTINGS", "device_counts", "size"]

USUAL_SETTINGS = (("alternatives", "1"), ("evaluations", "8"))
"""Options of the search for every size: no runners-up, and few plans played before the answer is given with the gap reached."""

USUAL_TOKENS = 4 * 2**20
"""Tokens of a step where no global batch is told: what Llama 2 trained with at every size (arXiv 2307.09288, sec. 2.2)."""

USUAL_COUNTS = tuple(2**i for i in range(3, 15))
"""Devices that are tried where none are told."""

MOST_SIZES = 2000
"""Sizes of all kinds that are looked at in one call."""

_MOST_NEAREST = 6  # sizes planned to find the nearest one where bounds rule out all


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A size of a kind, what is known before it is planned, and what it costs at least."""

    kind: ClusterKind
    tariff: Tariff
    n_devices: int
    problem: Problem
    good: Goodput
    least: Outlay

    @property
    def cluster(self) -> str:
        return f"{self.kind.name}:{self.n_devices}"


def size(  # noqa: PLR0913  as many as the command line has
    model: str | ModelSpec,
    tokens: str | float,
    *,
    within: str = "",
    budget: str | float = "",
    devices: Sequence[int] = (),
    kinds: Sequence[str] = (),
    global_batch: int = 0,
    sequence_length: int = 0,
    training: MixedPrecision | None = None,
    framework: str = "",
    file_format: str = "",
    freeze: Sequence[str] = (),
    lora: str = "",
    prices: Sequence[str] = (),
    pricing: str = "on-demand",
    powers: Sequence[str] = (),
    pue: float = 0.0,
    mtbf: str = "",
    recovery: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    jobs: int = 1,
    backend: str = "loky",
    scheduler: str = "",
) -> Sizing:
    """Return which sizes of which clusters are worth having for a training run: the Pareto front of days, money and energy.

    Parameters
    ----------
    model : str or ModelSpec
        As on the command line, or already read.
    tokens : str or float
        Of the whole run: ``"15T"``, ``"300B"``.
    within : str
        The longest it may take: ``"30d"``; empty for no limit.
    budget : str or float
        The most it may cost: ``"2 M$"``; empty for no limit.
    devices : sequence of int
        Numbers of devices; empty for powers of two from 8 to 16,384.
    kinds : sequence of str
        Built-in kinds of cluster, in full or short (``"h100"``); empty for all whose price is known.
    global_batch : int
        Samples of a step, the same on every size; 0 for as many as make about 4 Mi tokens.
    sequence_length : int
        Tokens of a sample; 0 for the model's own.
    training, framework, file_format, freeze, lora
        As of `meshwright.api.make_problem`.
    prices, powers : sequence of str
        Dollars per device and hour, watts of a device with its share of the node, as told: ``"h100=2.49"``, ``"h100=1.3kW"``.
    pricing : str
        ``on-demand`` or ``reserved``: which built-in price.
    pue : float
        What the site draws for each watt of its machines; 0 for the usual one.
    mtbf : str
        As of `meshwright.sizing.failures.rates`; empty for those of a published run.
    recovery : mapping of str to str or None
        As of `meshwright.sizing.told.upkeep`.
    settings : mapping of str to str or None
        Options of search `best`, beside and before `USUAL_SETTINGS`.
    seed : int
        Seed of everything random.
    jobs, backend, scheduler
        What plans the sizes, as of `meshwright.api.executors.workers`; the answer is the same whoever does.

    Returns
    -------
    Sizing
        The front, what is not on it, and what it rests on.

    Raises
    ------
    InputError
        When anything in the question is wrong.

    Notes
    -----
    A size is left out unplanned where it cannot be on the front: its least time and money (`lower_bounds.device_seconds`, over its
    goodput, which no plan changes) are beyond a limit, or dominated by a size that was planned. Kinds are planned one after the
    other, the cheapest by that bound first, so that what is left out does not depend on who plans.
    """
    started = time.perf_counter()
    executors.check(jobs, backend)
    n_tokens = amounts.total_tokens(tokens, "--tokens")
    limit = amounts.duration(within, "--within") if within else math.inf
    most = amounts.money(budget, "--budget") if budget != "" else math.inf
    if pue and not 1.0 <= pue <= 10.0:
        raise InputError(f"--pue {pue:g}: must be between 1 and 10")
    upkeep = told_upkeep(mtbf, recovery)
    spec = api.read(model, file_format=file_format, sequence_length=sequence_length, freeze=freeze, lora=lora) if isinstance(
        model, str
    ) else model  # fmt: skip
    if spec.instance is not None or spec.costs != "analytic" or not spec.graph.n_parameters:
        raise InputError(f"model {spec.name}: only what is read as layers can be sized; {spec.format} brings its own costs")
    chosen = kinds_of.kinds(kinds) or tariffs.priced_kinds(pricing)
    prices_told, powers_told = (tariffs.told_of_kinds(told, option, chosen) for told, option in ((prices, "--price"), (powers, "--power")))  # noqa: E501
    paid = tariffs.tariffs(chosen, pricing=pricing, prices=prices_told, powers=powers_told, pue_ratio=pue)
    counts = _counts(devices, len(chosen))
    batch = Batch(_global_batch(global_batch, spec.graph.sequence_length), 0, spec.graph.sequence_length)
    n_steps = math.ceil(n_tokens / (batch.global_batch * batch.sequence_length))
    state = _Search(limit, most, n_steps, dict(USUAL_SETTINGS) | dict(settings or {}), seed)
    for kind, tariff in zip(chosen, paid, strict=True):
        try:
            first = api.make_problem(
                spec, f"{kind.name}:{kind.devices_per_node}", batch=batch, training=training, framework=framework
            )
            least = lower_bounds.device_seconds(spec.graph, first.required_cluster.kinds[0], first.training)
        except InputError as error:
            state.left_out.append(LeftOut(kind.name, str(error)))
            continue
        state.consider(kind, tariff, counts, first, least, upkeep)
    with executors.workers(jobs, backend, scheduler) as run:
        state.plan_all(run)
        near = state.nearest(run)
    inside = [point for point in state.planned if points.excess_ratio(point.outlay, limit, most) <= 1.0]
    best = points.front(inside)
    on_front = {point.cluster for point in best}
    others = sorted(
        (point.without_plan() for point in state.planned if point.cluster not in on_front),
        key=lambda point: (point.outlay.seconds, point.cluster),
    )
    notes = _notes(spec, chosen, paid, upkeep, batch, pricing, told_batch=bool(global_batch))
    return Sizing(
        spec.name, n_tokens, batch.sequence_length, batch.global_batch, n_steps, best, tuple(others),
        tuple(sorted(state.left_out, key=lambda entry: entry.cluster)), None if best else near, limit, most, chosen, paid,
        upkeep, notes, seed, tuple(state.settings.items()), time.perf_counter() - started,
    )  # fmt: skip


def device_counts(text: str) -> tuple[int, ...]:
    """Return numbers of devices from text: ``256,512``, ``64:1024:64``, ``1k``; parts joined by commas.

    Parameters
    ----------
    text : str
        As typed after ``--devices``.

    Raises
    ------
    InputError
        When a part is none, or there are too many.
    """
    found: list[int] = []
    for part in text.split(","):
        ends = [units.parse_count(word, place="--devices", binary=True) for word in part.split(":")]
        if len(ends) not in (1, 3) or (len(ends) == 3 and (ends[2] < 1 or ends[1] < ends[0])):
            raise InputError(f"--devices {part.strip()}: write 256,512 or FIRST:LAST:STEP, for example 64:1024:64")
        if len(ends) == 3 and (ends[1] - ends[0]) // ends[2] >= MOST_SIZES:
            raise InputError(f"--devices {part.strip()}: more than {MOST_SIZES} sizes; give a larger step")
        found += ends if len(ends) == 1 else range(ends[0], ends[1] + 1, ends[2])
    return tuple(found)


def _counts(devices: Sequence[int], n_kinds: int) -> tuple[int, ...]:
    """Return the numbers of devices to look at, rising."""
    counts = tuple(sorted(set(devices))) or USUAL_COUNTS
    for n_devices in counts:
        if isinstance(n_devices, bool) or not isinstance(n_devices, int) or not 1 <= n_devices <= 10**6:
            raise InputError(f"--devices {n_devices}: must be a whole number between 1 and 1000000")
    if len(counts) * n_kinds > MOST_SIZES:
        raise InputError(f"--devices: {len(counts)} sizes of {n_kinds} kinds are more than {MOST_SIZES}; name fewer")
    return counts


def _global_batch(told: int, sequence_length: int) -> int:
    """Return samples of a step: as told, or the power of two that makes at most the usual tokens."""
    if not 0 <= told <= 10**9:
        raise InputError(f"--global-batch {told}: must be between 0 and {10**9} (0: about 4 Mi tokens a step)")
    return told or 2 ** int(math.log2(max(1, USUAL_TOKENS // sequence_length)))


class _Search:
    """Candidates, what was planned of them, and what was left out; limits are infinite where there are none."""

    def __init__(self, within_seconds: float, budget: float, n_steps: int, settings: dict[str, str], seed: int) -> None:
        self.within_seconds, self.budget, self.n_steps, self.settings, self.seed = (
            within_seconds, budget, n_steps, settings, seed
        )  # fmt: skip
        self.waves: list[tuple[tuple[float, float, str], list[_Candidate]]] = []
        self.planned: list[SizePoint] = []
        self.beyond: list[_Candidate] = []
        self.left_out: list[LeftOut] = []

    def consider(
        self, kind: ClusterKind, tariff: Tariff, counts: Sequence[int], first: Problem, least_seconds: float, upkeep: Upkeep
    ) -> None:
        """Take up the sizes of a kind that can be within the limits and hold their state."""
        if self.budget < math.inf and tariff.dollars_per_hour is None:
            self.left_out.append(LeftOut(kind.name, "its price is not known, so no budget can be kept; tell it: --price"))
            return
        wave: list[_Candidate] = []
        device, whole = first.required_cluster.kinds[0], checkpoint_bytes(first)
        state = lower_bounds.least_state_bytes(first.graph, first.training)
        for n_devices in counts:
            name = f"{kind.name}:{n_devices}"
            if state > n_devices * device.memory_bytes:
                need = f"weights and optimizer state alone take {units.format_bytes(state / n_devices)} a device"
                self.left_out.append(LeftOut(name, f"{need}, which has {units.format_bytes(device.memory_bytes)}"))
                continue
            good = upkeep.of(whole, n_devices, kind.devices_per_node)
            if good.effective_ratio <= 0.0:
                self.left_out.append(LeftOut(name, "failures come faster than a restart takes: no step is ever kept"))
                continue
            seconds = self.n_steps * first.batch.global_batch * least_seconds / n_devices / good.effective_ratio
            n_paid = n_devices + good.spare_nodes * kind.devices_per_node
            candidate = _Candidate(kind, tariff, n_devices, first, good, Outlay.of(kind.name, seconds, n_paid, tariff))
            if self._beyond(candidate):
                self.beyond.append(candidate)
            else:
                wave.append(candidate)
        price = math.inf if tariff.dollars_per_hour is None else tariff.dollars_per_hour * least_seconds
        self.waves.append(((price, least_seconds, kind.name), wave))

    def _beyond(self, candidate: _Candidate) -> bool:
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

    def plan_all(self, run: executors.Runner) -> None:
        """Plan kind after kind, the cheapest first; sizes that something planned dominates whatever their plan are left out."""
        for _, wave in sorted(self.waves, key=lambda entry: entry[0]):
            going: list[_Candidate] = []
            for candidate in wave:
                better = [point for point in self.planned if points.dominates(point.outlay, candidate.least)]
                if better:
                    self.left_out.append(LeftOut(candidate.cluster, f"{better[0].cluster} is better in all, whatever its plan"))
                else:
                    going.append(candidate)
            self._plan(run, going)

    def _plan(self, run: executors.Runner, going: Sequence[_Candidate]) -> None:
        """Plan sizes; take up those that have a plan."""
        calls = [(one.problem, one.cluster, self.settings, self.seed) for one in going]
        for candidate, found in zip(going, run(_planned, calls), strict=True):
            if isinstance(found, str):
                self.left_out.append(LeftOut(candidate.cluster, found))
            else:
                self.planned.append(_point(candidate, found, self.n_steps))

    def nearest(self, run: executors.Runner) -> SizePoint | None:
        """Return the size that is beyond the limits by least; plans those that the bound has least against, where it may be one."""
        queue = sorted(self.beyond, key=lambda one: (self._excess(one.least), one.cluster))
        inside = any(self._excess(point.outlay) <= 1.0 for point in self.planned)
        for candidate in () if inside else queue[:_MOST_NEAREST]:
            so_far = min((self._excess(point.outlay) for point in self.planned), default=math.inf)
            if so_far <= self._excess(candidate.least):
                break
            self.left_out = [entry for entry in self.left_out if entry.cluster != candidate.cluster]
            self._plan(run, [candidate])
        return min(self.planned, key=lambda point: (self._excess(point.outlay), point.cluster), default=None)

    def _excess(self, outlay: Outlay) -> float:
        return points.excess_ratio(outlay, self.within_seconds, self.budget)


def _planned(problem: Problem, cluster: str, settings: dict[str, str], seed: int) -> dict[str, Any] | str:
    """Plan one size; return what a point needs, or why there is no plan. Runs in a worker."""
    from meshwright import clusters
    from meshwright.core.formatting import describe, step_interval, utilization
    from meshwright.writers import plan_json

    try:
        result = api.plan(replace(problem, cluster=clusters.cluster(cluster)), search="best", settings=settings, seed=seed)
    except InputError as error:
        return str(error)
    if not result.feasible or result.timeline is None:
        nothing = "nothing fits" if result.answer.infeasible_proven else "no plan that fits was found"
        missing = units.format_bytes(result.answer.missing_bytes)
        return f"{nothing}: the nearest plan needs {missing} more on its fullest device"
    interval, bound, objective = step_interval(result), result.answer.bound, result.answer.objective
    entry = plan_json.as_json(result)
    for name in ("planning_seconds", "certificate"):  # wall time differs from run to run; a proof is as long as ten plans
        entry.pop(name, None)
    return {
        "step_seconds": result.timeline.step_seconds,
        "interval": None if interval is None else (interval.low_seconds, interval.high_seconds),
        "causes": result.timeline.causes,
        "description": describe(result.plan),
        "gap_ratio": 0.0 if bound is None or objective is None else bound.gap_ratio(objective),
        "utilization": utilization(result) or 0.0,
        "plan": entry,
    }


def _point(candidate: _Candidate, found: Mapping[str, Any], n_steps: int) -> SizePoint:
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


def _notes(
    spec: ModelSpec, chosen: Sequence[ClusterKind], paid: Sequence[Tariff], upkeep: Upkeep, batch: Batch, pricing: str, *,
    told_batch: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Return what the answer rests on, in sentences."""
    notes = list(spec.notes)
    if not told_batch:
        notes.append(
            f"every size trains {batch.global_batch} samples ({batch.global_batch * batch.sequence_length:,} tokens) a step, about "
            "what Llama 2 did; --global-batch tells another"
        )
    pairs = list(zip(chosen, paid, strict=True))
    unpriced = [kind.name for kind, tariff in pairs if tariff.dollars_per_hour is None]
    if unpriced:
        notes.append(f"the {pricing} price of {', '.join(unpriced)} is not known: money is left out there (--price tells it)")
    unpowered = [kind.name for kind, tariff in pairs if tariff.watts is None]
    if unpowered:
        notes.append(f"the power of {', '.join(unpowered)} is not known: energy is left out there (--power tells it)")
    if len(unpowered) < len(pairs):
        pue = paid[0].pue_ratio
        notes.append(f"energy is at nameplate power of the nodes, with {pue:g} W at the site for each W of theirs: an upper end")
    notes.append(f"failures: {upkeep.rates.source}; the same rates on every kind of device")
    if not upkeep.recovery.repair_seconds:
        notes.append("broken nodes are taken to be replaced within the restart; --repair 24h [--spares N] counts the wait")
    return tuple(notes)
