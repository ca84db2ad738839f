"""What kind of run a plan is, as far as measured runs tell predictions apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan
from meshwright.core.stage_cost import StageCost

__all__ = ["ALL", "Kind", "kind_of"]

SHORT_LAYER_SECONDS = 1e-3
"""Layers that compute for less: issuing them takes eager programs about as long, which figures of devices do not count."""

LONG_TOKENS = 16384
"""Samples of this length and more are told apart: attention is most of their compute."""

ALL = "all runs"
"""The class of every run."""


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
        What runs it, by `Framework.word`; empty where none is known.
    cluster : str
        What kind of cluster it runs on: its name without a number of devices.
    n_devices : int
        How many devices it runs on; 0 where that is not known.
    precision : str
        Of products; empty where that is not known.
    offload : str
        What lies on the host: ``optimizer``, ``activations``; empty for nothing.
    trains : str
        What it trains on or of the model where no measured run did: ``pairs``, ``a part of the weights``; empty elsewhere.
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
    trains: str = ""

    @property
    def no_interval(self) -> str:
        """Why nothing measured says how far off its prediction may be, without a full stop; empty where something does."""
        what = "of pairs" if self.trains == "pairs" else f"that trains {self.trains}"
        return f"no interval: no run {what} was measured" if self.trains else ""

    @property
    def length(self) -> int:
        """Tokens of a sample; 0 where the model has no length, which is a graph of one token."""
        return self.n_tokens if self.n_tokens > 1 else 0

    @property
    def near(self) -> str:
        """The name of the nearest class: one framework's runs of one kind of model on one kind of cluster."""
        model = "mixture" if self.mixture else "dense"
        return f"{self.framework.partition(':')[0]} on {self.cluster}, {model}" if self.framework and self.cluster else ""

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

    @property
    def wider(self) -> tuple[str, ...]:
        """Names of the classes that speak of it where no run of its framework is like it, the nearest first: those it belongs
        to and, of long samples, between them those of shorter ones.
        """
        if self.n_tokens < LONG_TOKENS or self.layer_seconds < SHORT_LAYER_SECONDS:
            return self.classes
        return (*self.classes[:2], *replace(self, n_tokens=LONG_TOKENS - 1).classes)


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
        What runs it, by `Framework.word`.
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
        "pairs" if graph.n_sequences > 1 else "" if graph.fully_trained else "a part of the weights",
    )
