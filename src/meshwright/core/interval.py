"""Where measured runs lie around predictions: 80 % of the steps, by how near the question is to a measured run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.base import files
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.stage_cost import StageCost

__all__ = [
    "ALL", "COVERAGE_RATIO", "FAR", "FAR_RATIO", "FEWEST_NEAR_RUNS", "FEWEST_SETS", "MEASURED_COSTS", "UNMEASURED", "Interval",
    "Kind", "TimeInterval", "around", "factors", "kind_of",
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

UNMEASURED = "kinds of device taken as not measured"
"""The class of runs predicted with the shares of another kind of device, as kinds are that nobody measured."""

FAR = "the sets furthest off"
"""The class of runs that are like none of the runs of their framework on their kind of cluster: between the tenths of the two
sets that are furthest off.
"""

FAR_RATIO = 2.0
"""So many times the devices or tokens of any measured run are far from it, and layers so many times shorter."""

SIXTEEN_BITS = ("bf16", "fp16")
"""Precisions that products run alike in."""

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
        Devices of the plan; 0 where they do not count.
    precision : str
        Of products; empty where it does not count.
    offloaded : bool
        Whether anything lies on the host.
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
    offloaded: bool = False

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
) -> Kind:  # fmt: skip
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
        Of products; empty where it does not count.
    """
    used = {stage.devices for stage in plan.stages} if len(cluster.kinds) > 1 else ((0,),)
    devices = {cluster.device(device).name for own in used for device in own}
    mixture = any(operator.expert for op in graph.ops for operator in op.body)
    seconds = sum(load.forward_seconds for load in stage_costs) / sum(len(stage.ops) for stage in plan.stages)
    shard = max(stage.strategy.shard for stage in plan.stages)
    on = cluster.name.partition(":")[0]
    away = plan.n_offloaded > 0 or any(stage.strategy.offload != "none" for stage in plan.stages)
    return Kind(
        tuple(sorted(devices)), mixture, shard, graph.sequence_length, seconds, framework, on, plan.n_devices, precision, away
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
    most_devices, most_tokens : int
        Of the runs of a nearest class: devices, and tokens of a sample; 0 where any are near.
    least_layer_seconds : float
        Of these runs, as `Kind.layer_seconds`.
    precisions : tuple of str
        Of these runs; empty where any is near.
    """

    low_ratio: float
    high_ratio: float
    n_runs: int
    n_sets: int
    most_devices: int = 0
    most_tokens: int = 0
    least_layer_seconds: float = 0.0
    precisions: tuple[str, ...] = ()

    def far(self, kind: Kind) -> str:
        """Return what sets a run apart from all those of its nearest class, in words; empty for nothing."""
        if self.most_devices and kind.n_devices > FAR_RATIO * self.most_devices:
            return f"on so many devices ({self.most_devices:,} at most)"
        if self.most_tokens and kind.n_tokens > FAR_RATIO * self.most_tokens:
            return f"of so many tokens a sample ({self.most_tokens:,} at most)"
        if kind.layer_seconds < self.least_layer_seconds / FAR_RATIO:
            return f"with so little work a layer (forward {self.least_layer_seconds * 1e3:.3g} ms at least)"
        alike = SIXTEEN_BITS if kind.precision in SIXTEEN_BITS else (kind.precision,)
        if self.precisions and kind.precision and not set(alike) & set(self.precisions):
            return f"in {kind.precision} (only {', '.join(self.precisions)})"
        return "with anything on the host" if kind.offloaded else ""


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
    """

    low_seconds: float
    high_seconds: float
    basis: str = ""
    n_runs: int = 0
    n_sets: int = 0
    unmeasured: str = ""


def factors() -> Mapping[str, TimeInterval]:
    """Return the ends by name of class (`Kind.near`, `Kind.classes`).

    Notes
    -----
    They stand in ``core/data/intervals.toml``, which ``benchmarks/fit_intervals.py`` writes from the residuals of all measured
    runs, each predicted as ``plan`` would.
    """
    entries = files.read_toml(DATA / "intervals.toml")
    return {name: TimeInterval(**entry | {"precisions": tuple(entry.get("precisions", ()))}) for name, entry in entries.items()}


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
        Of the framework's runs on the kind of cluster where there are enough; else of the nearest of the wider classes that
        enough sets measured, widened by nearer ones that fewer did; on kinds of device that no set measured the widest of all
        classes it belongs to and of what other kinds would be off by if nobody had measured them. A question that is far from
        every run of its nearest class (`TimeInterval.far`) has the widest of the wider classes and of the sets furthest off.
    """
    known = factors() if known is None else known
    far = known[kind.near].far(kind) if kind.near in known else ""
    if kind.near in known and not far:
        ends = known[kind.near]
        basis = f"{_counted(ends)} ({kind.near})"
        return Interval(seconds * ends.low_ratio, seconds * ends.high_ratio, basis, ends.n_runs, ends.n_sets)
    found: list[tuple[str, TimeInterval]] = []
    device_measured = any(name.endswith(f", on {kind.on}") for name in known)
    for name in kind.classes:
        if name in known:
            found.append((name, known[name]))
            if device_measured and known[name].n_sets >= FEWEST_SETS:
                break
    if not device_measured and UNMEASURED in known:
        found.append((UNMEASURED, known[UNMEASURED]))
    if far and FAR in known:
        found.append((FAR, known[FAR]))
    low, high = min(ends.low_ratio for _, ends in found), max(ends.high_ratio for _, ends in found)
    last = found[-1][1]
    basis, unmeasured = _basis(kind, found, device_measured), "" if device_measured else kind.on
    if far:
        basis = f"no run of {kind.near} {far} was measured; interval from {'; '.join(_said(*one) for one in found)}"
    return Interval(seconds * low, seconds * high, basis, last.n_runs, last.n_sets, unmeasured)


def _basis(kind: Kind, found: Sequence[tuple[str, TimeInterval]], device_measured: bool) -> str:
    """Say which runs an interval rests on."""
    rests = "; ".join(_said(*one) for one in found)
    if found[0][0] == kind.classes[0]:
        return rests
    if not device_measured:
        return f"no run on {kind.on} was measured; interval from {rests}"
    return f"no run like this on {kind.on} was measured; interval from {rests}"


def _said(name: str, ends: TimeInterval) -> str:
    """Return how many runs a class has, and which."""
    return f"{_counted(ends)} ({name})"


def _counted(ends: TimeInterval) -> str:
    """Return how many runs of how many sets."""
    return f"{ends.n_runs} run{'s' * (ends.n_runs != 1)} of {ends.n_sets} set{'s' * (ends.n_sets != 1)}"
