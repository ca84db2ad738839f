"""How many devices of which kind, for how long and for how much: sizes planned where a bound does not rule them out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from meshwright import api, clusters
from meshwright.api import arguments, executors
from meshwright.api.sizes.size_search import ENOUGH, SizeSearch
from meshwright.base import amounts, options, registry, units
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, MixedPrecision, ModelSpec
from meshwright.sizing import kinds as kinds_of
from meshwright.sizing import lower_bounds, points, tariffs
from meshwright.sizing.answer import Sizing
from meshwright.sizing.points import NOT_PLANNED, LeftOut, SizePoint
from meshwright.sizing.told import upkeep as told_upkeep

if TYPE_CHECKING:
    from meshwright.core.cluster import Cluster
    from meshwright.sizing.goodput import Upkeep
    from meshwright.sizing.kinds import ClusterKind
    from meshwright.sizing.tariffs import Tariff

__all__ = ["USUAL_SETTINGS", "device_counts", "size"]

USUAL_SETTINGS = (("alternatives", "1"), ("evaluations", "8"))
"""Options of the search for every size: no runners-up, and few plans played where those prove enough (`size_search.ENOUGH`)."""

USUAL_TOKENS = 4 * 2**20
"""Tokens of a step where no global batch is told: what Llama 2 trained with at every size (arXiv 2307.09288, sec. 2.2)."""

USUAL_COUNTS = tuple(2**i for i in range(3, 15))
"""Devices that are tried where none are told."""

MOST_SIZES = 2000
"""Sizes of all kinds that are looked at in one call."""


def size(  # noqa: PLR0913  as many as the command line has
    model: str | ModelSpec,
    tokens: str | float,
    *,
    within: str = "",
    budget: str | float = "",
    devices: Sequence[int] | int | str = (),
    kinds: Sequence[str] | str = (),
    global_batch: int = 0,
    sequence_length: int = 0,
    training: MixedPrecision | str | None = None,
    framework: str = "",
    file_format: str = "",
    freeze: Sequence[str] = (),
    lora: str = "",
    objective: str = "",
    optimizer: str = "",
    state_precision: str = "",
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
    time_limit_seconds: float = 0.0,
    done: Callable[[int, int], None] | None = None,
    keep: bool = False,
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
    devices : sequence of int, int or str
        Numbers of devices, or as of `device_counts`; empty for powers of two from 8 to 16,384.
    kinds : sequence of str or str
        Built-in kinds of cluster, in full or short (``"h100,b200"``); empty for all whose price is known.
    global_batch : int
        Samples of a step, the same on every size; 0 for as many as make about 4 Mi tokens.
    sequence_length : int
        Tokens of a sample; 0 for the model's own.
    training, framework, file_format, freeze, lora, objective, optimizer, state_precision
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
    time_limit_seconds : float
        When the search for the plan of a size stops, with its best so far; 0 for none.
    done : callable or None
        Told how many of how many sizes of all kinds are planned, or left out because another is better whatever their plan.
    keep : bool
        Whether Ctrl-C, once a size is planned, is not raised: the others are left out and a note says so; here only.

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
    A size is left out unplanned where it cannot be on the front: its least time and money (`lower_bounds.device_seconds`, over
    its goodput, which no plan changes) are beyond a limit, or dominated by a size that was planned. Kinds are planned one
    after the other, the cheapest by that bound first, so that what is left out does not depend on who plans.
    """
    started = time.perf_counter()
    arguments.check(
        model, None, settings, freeze, within=within, framework=framework, file_format=file_format, lora=lora,
        objective=objective, optimizer=optimizer, state_precision=state_precision, pricing=pricing, mtbf=mtbf,
        backend=backend, scheduler=scheduler,
    )  # fmt: skip
    arguments.numbers(global_batch=global_batch, sequence_length=sequence_length, pue=pue, seed=seed, jobs=jobs)
    arguments.texts(prices=prices, powers=powers)
    _refuse(training, recovery, devices, kinds)
    _in_range(pue, sequence_length, seed)
    executors.check(jobs, backend)
    n_tokens = amounts.total_tokens(tokens, "--tokens")
    limit = amounts.duration(within, "--within") if within else math.inf
    most = amounts.money(budget, "--budget") if budget != "" else math.inf
    if isinstance(training, str):
        training = api.training(training) if training else None
    upkeep = told_upkeep(mtbf, recovery)
    spec = model if not isinstance(model, str) else api.read(
        model, file_format=file_format, sequence_length=sequence_length, freeze=freeze, lora=lora, objective=objective
    )  # fmt: skip
    if spec.instance is not None or spec.costs != "analytic" or not spec.graph.n_parameters:
        raise InputError(f"model {spec.name}: only what is read as layers can be sized; {spec.format} brings its own costs")
    chosen, paid = _paid(kinds, pricing, prices, powers, pue)
    counts = _counts(devices, len(chosen))
    batch = Batch(_global_batch(global_batch, spec.graph.n_tokens), 0, spec.graph.sequence_length)
    n_steps = math.ceil(n_tokens / (batch.global_batch * spec.graph.n_tokens))
    chosen_settings = dict(USUAL_SETTINGS) | dict(settings or {})
    options.parse(registry.load("search", "best", "search").Params, chosen_settings, "search best")  # wrong ones are said here
    state = SizeSearch(limit, most, n_steps, chosen_settings, seed, "evaluations" in (settings or {}), time_limit_seconds, keep)
    for kind, tariff in zip(chosen, paid, strict=True):
        node = clusters.cluster(f"{kind.name}:{kind.devices_per_node}")
        lacks = _lacks(node, training)
        if lacks:
            state.left_out.append(LeftOut(kind.name, lacks))
            continue
        first = api.make_problem(
            spec, node, batch=batch, training=training, framework=framework, optimizer=optimizer,
            state_precision=state_precision,
        )  # fmt: skip
        least = lower_bounds.device_seconds(spec.graph, node.kinds[0], first.training, first.framework)
        state.consider(kind, tariff, counts, first, least, upkeep)
    with executors.workers(jobs, backend, scheduler, done=done and state.told(done), keep=keep) as run:
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
    notes += _gaps(best, state.stopped) + _unplanned(state.left_out)
    return Sizing(
        spec.name, n_tokens, batch.sequence_length, batch.global_batch, n_steps, best, tuple(others),
        tuple(sorted(state.left_out, key=lambda entry: entry.cluster)), None if best else near, limit, most, chosen, paid,
        upkeep, notes, seed, tuple(state.settings.items()), time.perf_counter() - started,
        spec.graph.n_sequences,
    )  # fmt: skip


def _paid(
    kinds: Sequence[str] | str, pricing: str, prices: Sequence[str], powers: Sequence[str], pue: float
) -> tuple[tuple[ClusterKind, ...], tuple[Tariff, ...]]:
    """Return the kinds of cluster that are looked at, and what an hour of each costs and draws."""
    words = kinds.split(",") if isinstance(kinds, str) and kinds else kinds
    chosen = kinds_of.kinds(words) or tariffs.priced_kinds(pricing)
    prices_told, powers_told = (
        tariffs.told_of_kinds(told, option, chosen) for told, option in ((prices, "--price"), (powers, "--power"))
    )
    return chosen, tariffs.tariffs(chosen, pricing=pricing, prices=prices_told, powers=powers_told, pue_ratio=pue)


def _in_range(pue: float, sequence_length: int, seed: int) -> None:
    """Refuse numbers that are out of range."""
    if pue and not 1.0 <= pue <= 10.0:
        raise InputError(f"--pue {pue:g}: must be between 1 and 10")
    if sequence_length < 0 or not 0 <= seed < 2**63:
        raise InputError(f"--sequence-length {sequence_length}, --seed {seed}: must be at least 0")


def _refuse(training: object, recovery: object, devices: object, kinds: object) -> None:
    """Refuse arguments of the wrong kind, and lists that name nothing: left out is what stands for all."""
    if not (training is None or isinstance(training, (str, MixedPrecision))):
        raise InputError(f"training {training!r}: must be a precision or a MixedPrecision, as in training='fp8'")
    if not (recovery is None or isinstance(recovery, Mapping)):
        raise InputError(f"recovery {recovery!r}: must be a mapping, as in recovery={{'storage': '1 TB/s'}}")
    for name, value in (("devices", devices), ("kinds", kinds)):
        if isinstance(value, list) and not value:
            raise InputError(f"{name} []: names none; leave it out to look at all of them")


def _lacks(node: Cluster, training: MixedPrecision | None) -> str:
    """Return in a sentence that devices have no matrix unit of the precision asked for; empty where they do."""
    try:
        node.kinds[0].peak(training.precision if training is not None else node.kinds[0].flops_per_second[0][0])
    except InputError as error:
        return str(error)
    return ""


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


def _counts(devices: Sequence[int] | int | str, n_kinds: int) -> tuple[int, ...]:
    """Return the numbers of devices to look at, rising."""
    devices = (devices,) if isinstance(devices, int) else devices
    told = devices if not isinstance(devices, str) else device_counts(devices) if devices else ()
    counts = tuple(sorted(set(told))) or USUAL_COUNTS
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


def _gaps(best: Sequence[SizePoint], stopped: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence about sizes whose plans may be bettered by more than is enough, and one where time was up."""
    wide = ", ".join(f"{point.cluster} {point.gap_ratio:.0%}" for point in best if point.gap_ratio > ENOUGH)
    said = f"a better plan may exist than those shown, by at most: {wide}; --set evaluations=120 looks longer"
    late = f"time was up for {len(stopped)} sizes, whose best plan so far counts: {', '.join(sorted(stopped))}"
    return ((said,) if wide else ()) + ((late,) if stopped else ())


def _unplanned(left_out: Sequence[LeftOut]) -> tuple[str, ...]:
    """Return a sentence about the sizes that Ctrl-C left unplanned; none where there are none."""
    n = sum(entry.reason == NOT_PLANNED for entry in left_out)
    return (f"stopped by Ctrl-C: {n} sizes were not planned, some of which may be better than those shown",) if n else ()


def _notes(
    spec: ModelSpec, chosen: Sequence[ClusterKind], paid: Sequence[Tariff], upkeep: Upkeep, batch: Batch, pricing: str, *,
    told_batch: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Return what the answer rests on, in sentences."""
    notes = list(spec.notes)
    if not told_batch:
        notes.append(
            f"every size trains {batch.global_batch} samples ({batch.global_batch * batch.sequence_length:,} tokens) a step, "
            "about what Llama 2 did; --global-batch tells another"
        )
    pairs = list(zip(chosen, paid, strict=True))
    unpriced = [kind.name for kind, tariff in pairs if tariff.dollars_per_hour is None]
    if unpriced:
        notes.append(f"the {pricing} price of {', '.join(unpriced)} is not known: money is left out there (--price tells it)")
    unpowered = [kind.name for kind, tariff in pairs if tariff.watts is None]
    if unpowered:
        notes.append(f"the power of {', '.join(unpowered)} is not known: energy is left out there (--power tells it)")
    if len(unpowered) < len(pairs):
        notes.append(_power(pairs))
    if upkeep.rates.nothing_fails:
        return (*notes, "nothing fails, as told: no checkpoint is counted")
    notes.append(f"failures: {upkeep.rates.source}; the same rates on every kind of device")
    if not upkeep.recovery.repair_seconds:
        notes.append("broken nodes are taken to be replaced within the restart; --repair 24h [--spares N] counts the wait")
    return tuple(notes)


def _power(pairs: Sequence[tuple[ClusterKind, Tariff]]) -> str:
    """Return at what power energy is counted, in a sentence."""
    told = [kind.name for kind, tariff in pairs if tariff.watts is not None and tariff.power_source == "told"]
    plates = [kind.name for kind, tariff in pairs if tariff.watts is not None and tariff.power_source != "told"]
    site = f"with {pairs[0][1].pue_ratio:g} W at the site for each W of the nodes"
    if not plates:
        return f"energy is at the power told, {site}"
    of = f" of {', '.join(plates)}" if told else ""
    beside = f", and at the power told of {', '.join(told)}" if told else ""
    return f"energy is at the nodes' nameplate power{of}, an upper end{beside}; {site}"
