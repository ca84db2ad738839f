"""How sharded weights and their gradients go between ranks: when, and how wide."""

from __future__ import annotations

from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.costs.analytic.device_mesh import Mesh
from meshwright.costs.analytic.layer import LayerWork

__all__ = ["gathers", "held_width", "replica_bytes", "scatter_width", "scatters"]


def gathers(strategy: Strategy, framework: Framework) -> bool:
    """Tell whether the forward pass of every micro-batch gathers weights; its backward pass does so under ZeRO-3 only."""
    return strategy.shard == 3 or (framework.gathers_each and strategy.shard == 2)


def scatters(strategy: Strategy, framework: Framework) -> bool:
    """Tell whether every micro-batch scatters its gradients: else they are reduced once a step."""
    once = framework.whole_gradients or (framework.reduces_once and strategy.shard == 2)
    return strategy.shard >= 2 and not once


def scatter_width(strategy: Strategy, training: MixedPrecision, framework: Framework) -> int:
    """Return the bytes of a gradient on its way between ranks: `MixedPrecision.gradient_bytes` unless FSDP narrows it."""
    narrow = framework.narrow_scatter and strategy.shard >= 2
    return training.weight_bytes if narrow else held_width(strategy, training, framework)


def held_width(strategy: Strategy, training: MixedPrecision, framework: Framework) -> int:
    """Return the bytes of a gradient that is held: `MixedPrecision.gradient_bytes` unless ZeRO narrows it."""
    narrow = framework.narrow_gradients and strategy.shard >= 1
    return min(training.weight_bytes, training.gradient_bytes) if narrow else training.gradient_bytes


def replica_bytes(
    work: LayerWork, mesh: Mesh, strategy: Strategy, training: MixedPrecision, framework: Framework
) -> tuple[float, float]:
    """Return the bytes that replicas of shards add up of a layer's gradients in every micro-batch, and once a step."""
    n_bytes = work.n_trained_dense * scatter_width(strategy, training, framework) / mesh.n_shards
    return (n_bytes, 0.0) if framework.reduces_replicas_each and scatters(strategy, framework) else (0.0, n_bytes)
