"""Where measured runs lie around predictions: 80 % of the steps, by how near the question is to a measured run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.base import files
from meshwright.base.units import format_seconds
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.stage_cost import StageCost

__all__ = [
    "ALL", "COVERAGE_RATIO", "FEWEST_NEAR_RUNS", "FEWEST_SETS", "MEASURED_COSTS", "UNMEASURED", "Interval", "Kind",
    "TimeInterval", "around", "factors", "kind_of",
]  # fmt: skip

COVERAGE_RATIO = 0.8
"""Share of measured runs that an interval should hold."""

MEASURED_COSTS = ("analytic", "sharded")
"""Cost models whose errors are known from measured runs."""

FEWEST_NEAR_RUNS = 9
"""Runs that have to speak of the nearest class: of nine runs and a further one, one tenth is one run."""

FEWEST_SETS = 4
"""Sets that have to speak of a class before it stands alone: the range of K sets holds K / (K + 1) of the next one's runs in
the mean.
"""

SHORT_LAYER_SECONDS = 1e-3
"""Layers that compute for less: issuing them takes eager programs about as long, which figures of devices do not count."""

LONG_TOKENS = 16384
"""Samples of this length and more are told apart: attention is most of their compute."""

ALL = "all runs"
"""The class of every run."""

FAR = "runs unlike those of other sets"
"""The class of runs whose length, devices, layers or precision no other set had near."""

NEAR_RATIO = 1.5
"""How many times longer, wider or slower than measured runs another may be and still be near them: of 1.5, 2, 4 and 8 the one by which
the intervals of other sets hold 80 % of a set's runs, in the mean over sets."""  # noqa: E501

UNMEASURED = "kinds of device taken as not measured"
"""The class of runs predicted with the shares of another kind of device, as kinds are that nobody measured."""

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a run is, as far as intervals tell runs apart.

    Parameters
    ----------
    devices : tuple of str
        Kinds of device, by `Device.name`, sorted.
    mixture : bool
        Whether the model has routed experts.
    shard : int
        The most that a stage's data axis shards, as `Strategy.shard`.
    n_tokens : int
        Tokens of a sample.
    layer_seconds : float
        Compute of the forward pass of one micro-batch, in the mean of the layers: where it is short, the host is what decides.
    framework : str
        What runs it, by `Framework.name`; empty where none is known.
    cluster : str
        What kind of cluster it runs on: its name without a number of devices.
    n_devices : int
        How many devices it runs on; 0 where that is not known.
    precision : str
        Of products; empty where that is not known.
    offload : str
        What lies on the host: ``optimizer``, ``activations``; empty for nothing.
    """

    devices: tuple[str, ...]
    mixture: bool
    shard: int
    n_tokens: int
    layer_seconds: float
    framework: str = ""
    cluster: str = ""
    n_devices: int = 0
    precision: str = ""
    offload: str = ""

    @property
    def length(self) -> int:
        """Tokens of a sample; 0 where the model has no length, which is a graph of one token."""
        return self.n_tokens if self.n_tokens > 1 else 0

    @property
    def near(self) -> str:
        """The name of the nearest class: one framework's runs of one kind of model on one kind of cluster; empty for none."""
        model = "mixture" if self.mixture else "dense"
        return f"{self.framework} on {self.cluster}, {model}" if self.framework and self.cluster else ""

    @property
    def on(self) -> str:
        """Its devices in words."""
        return " and ".join(self.devices)

    @property
    def work(self) -> str:
        """What it does, in words: the classes that residuals differ by."""
        if self.layer_seconds < SHORT_LAYER_SECONDS:
            return "layers under 1 ms"
        model = "mixture" if self.mixture else "dense"
        sharded = "gradients sharded" if self.shard >= 2 else "gradients whole"
        return f"{model}, {sharded}, {'16,384 tokens and more' if self.n_tokens >= LONG_TOKENS else 'under 16,384 tokens'}"

    @property
    def classes(self) -> tuple[str, str, str]:
        """Names of the wider classes it belongs to, the nearest first: this work on these devices, on any, and all runs."""
        return f"{self.work}, on {self.on}", self.work, ALL


def kind_of(
    graph: Graph, cluster: Cluster, plan: Plan, stage_costs: Sequence[StageCost], framework: str = "", precision: str = ""
) -> Kind:
    """Return what kind of run a plan is.

    Parameters
    ----------
    graph : Graph
        The model.
    cluster : Cluster
        Where it runs.
    plan : Plan
        The plan.
    stage_costs : sequence of StageCost
        What its stages do.
    framework : str
        The name of what runs it.
    precision : str
        Of products; empty where that is not known.
    """
    used = {stage.devices for stage in plan.stages} if len(cluster.kinds) > 1 else ((0,),)
    devices = {cluster.device(device).name for own in used for device in own}
    mixture = any(operator.expert for op in graph.ops for operator in op.body)
    seconds = sum(load.forward_seconds for load in stage_costs) / sum(len(stage.ops) for stage in plan.stages)
    shard = max(stage.strategy.shard for stage in plan.stages)
    on = cluster.name.partition(":")[0]
    away = {stage.strategy.offload for stage in plan.stages} - {"none"}
    offload = " and ".join(sorted(away | ({"activations"} if plan.n_offloaded else set())))
    return Kind(
        tuple(sorted(devices)),
        mixture,
        shard,
        graph.sequence_length,
        seconds,
        framework,
        on,
        plan.n_devices,
        precision,
        offload,
    )


@dataclass(frozen=True, slots=True)
class TimeInterval:
    """Between which multiples of a prediction measured seconds of one class lie.

    Parameters
    ----------
    low_ratio, high_ratio : float
        Ends.
    n_runs, n_sets : int
        What they rest on.
    n_tokens, n_devices : tuple of (int, int)
        Fewest and most tokens of a sample and devices among these runs; zeros where that is not known.
    layer_seconds : tuple of (float, float)
        Least and most of `Kind.layer_seconds` among them.
    precisions : tuple of str
        Of their products.
    distance_ratio : float
        Of `FAR`: how many times what the other sets reached its runs exceeded, in the geometric mean over sets.
    """

    low_ratio: float
    high_ratio: float
    n_runs: int
    n_sets: int
    n_tokens: tuple[int, int] = (0, 0)
    n_devices: tuple[int, int] = (0, 0)
    layer_seconds: tuple[float, float] = (0.0, 0.0)
    precisions: tuple[str, ...] = ()
    distance_ratio: float = 1.0

    def distance(self, kind: Kind) -> float:
        """Return how many times the reach of its runs a question exceeds, in what it exceeds most; 1 where in nothing."""
        reaches = (
            (kind.length, self.n_tokens), (kind.n_devices, self.n_devices), (kind.layer_seconds, self.layer_seconds)
        )  # fmt: skip
        return max((1.0, *(max(value / high, low / value) for value, (low, high) in reaches if value and high)))

    def unlike_products(self, kind: Kind) -> bool:
        """Tell whether its runs' products are of another precision than a question's."""
        return bool(kind.precision and self.precisions) and _products(kind.precision) not in map(_products, self.precisions)

    def beyond(self, kind: Kind) -> tuple[str, ...]:
        """Return in which respects no run of the class is near another one, in words: the question's, and what was measured."""
        found = [f"{kind.offload} on the host"] if kind.offload else []
        if _far(kind.length, *self.n_tokens):
            found.append(f"{kind.length:,} tokens a sample, not {_range(*self.n_tokens)}")
        if _far(kind.n_devices, *self.n_devices):
            found.append(f"{kind.n_devices:,} device{'s' * (kind.n_devices != 1)}, not {_range(*self.n_devices)}")
        if _far(kind.layer_seconds, *self.layer_seconds):
            short, long = (format_seconds(seconds) for seconds in self.layer_seconds)
            found.append(f"layers of {format_seconds(kind.layer_seconds)}, not {short} to {long}")
        if self.unlike_products(kind):
            found.append(f"{kind.precision}, not {', '.join(self.precisions)}")
        return tuple(found)


def _far(value: float, low: float, high: float) -> bool:
    """Tell whether a figure is known and no measured one is near."""
    return bool(value and high) and not low / NEAR_RATIO <= value <= high * NEAR_RATIO


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _products(precision: str) -> str:
    """Return a name for precisions whose products run at one rate."""
    return {"fp16": "bf16", "mxfp8": "fp8"}.get(precision, precision)


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval around a predicted time.

    Parameters
    ----------
    low_seconds, high_seconds : float
        Its ends.
    basis : str
        In words, which measured runs it rests on, and whether they are near.
    n_runs, n_sets : int
        How many runs, of the widest class it rests on, and of how many sets.
    unmeasured : str
        The kinds of device, in words, where no run on them was measured; empty where there were some.
    unlike : str
        In which respects no measured run is near, in words; empty where one is.
    """

    low_seconds: float
    high_seconds: float
    basis: str = ""
    n_runs: int = 0
    n_sets: int = 0
    unmeasured: str = ""
    unlike: str = ""


def factors() -> Mapping[str, TimeInterval]:
    """Return the ends by name of class (`Kind.near`, `Kind.classes`).

    Notes
    -----
    They stand in ``core/data/intervals.toml``, which ``benchmarks/fit_intervals.py`` writes from the residuals of all measured
    runs, each predicted as ``plan`` would.
    """
    entries = files.read_toml(DATA / "intervals.toml")
    return {name: _stored(entry) for name, entry in entries.items()}


def _stored(entry: Mapping[str, Any]) -> TimeInterval:
    """Return a class from its table."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return TimeInterval(**fields)


def around(seconds: float, kind: Kind, known: Mapping[str, TimeInterval] | None = None) -> Interval:
    """Return the interval around a predicted time.

    Parameters
    ----------
    seconds : float
        Predicted.
    kind : Kind
        What kind of run it is of.
    known : mapping or None
        What `factors` returns, where it is at hand.

    Returns
    -------
    Interval
        Of the framework's runs on the kind of cluster where there are enough and one is near; else of the nearest of the wider
        classes that enough sets measured, widened by nearer ones that fewer did. Where no run of its work is near in length,
        devices, layers or precision, or state lies on the host, not less than `FAR`, which widens with the distance. On kinds
        of device that no set measured, in precisions that none measured on them, and with state on the host not less than what
        other kinds would be off by if nobody had measured them.
    """
    known = factors() if known is None else known
    if kind.near in known and not (unlike := known[kind.near].beyond(kind)):
        ends = known[kind.near]
        basis = f"{_counted(ends)} ({kind.near})"
        return Interval(seconds * ends.low_ratio, seconds * ends.high_ratio, basis, ends.n_runs, ends.n_sets)
    found: list[tuple[str, TimeInterval]] = []
    here = known.get(kind.classes[0])
    strange = here is not None and here.unlike_products(kind)
    device_measured = any(name.endswith(f", on {kind.on}") for name in known)
    for name in kind.classes:
        if name in known:
            found.append((name, known[name]))
            if device_measured and known[name].n_sets >= FEWEST_SETS and not (strange and name == kind.classes[0]):
                break
    widest = next((known[name] for name in kind.classes[1:] if name in known), known[ALL])
    unlike = widest.beyond(kind)
    if strange and here and not widest.unlike_products(kind):
        unlike = (*unlike, f"{kind.precision} on {kind.on}, not {', '.join(here.precisions)}")
    if widest.beyond(kind) and FAR in known:
        found.append((FAR, _farther(known[FAR], widest.distance(kind))))
    if UNMEASURED in known and (not device_measured or strange or kind.offload or widest.unlike_products(kind)):
        found.append((UNMEASURED, known[UNMEASURED]))
    low, high = min(ends.low_ratio for _, ends in found), max(ends.high_ratio for _, ends in found)
    last = found[-1][1]
    basis, unmeasured = _basis(kind, found, device_measured, unlike), "" if device_measured else kind.on
    return Interval(seconds * low, seconds * high, basis, last.n_runs, last.n_sets, unmeasured, "; ".join(unlike))


def _farther(ends: TimeInterval, distance_ratio: float) -> TimeInterval:
    """Return the ends of `FAR` for a question that is farther off than its runs were: as many times, in logarithms."""
    times = max(1.0, math.log(distance_ratio) / math.log(max(ends.distance_ratio, NEAR_RATIO)))
    return replace(ends, low_ratio=ends.low_ratio**times, high_ratio=ends.high_ratio**times)


def _basis(kind: Kind, found: Sequence[tuple[str, TimeInterval]], device_measured: bool, unlike: Sequence[str]) -> str:
    """Say which runs an interval rests on."""
    rests = "; ".join(f"{_counted(ends)} ({name})" for name, ends in found)
    if unlike:
        return f"no run like this was measured ({'; '.join(unlike)}); interval from {rests}"
    if found[0][0] == kind.classes[0]:
        return rests
    if not device_measured:
        return f"no run on {kind.on} was measured; interval from {rests}"
    return f"no run like this on {kind.on} was measured; interval from {rests}"


def _counted(ends: TimeInterval) -> str:
    """Return how many runs of how many sets."""
    return f"{ends.n_runs} run{'s' * (ends.n_runs != 1)} of {ends.n_sets} set{'s' * (ends.n_sets != 1)}"
