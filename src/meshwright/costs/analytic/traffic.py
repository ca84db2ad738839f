"""Which collectives the seconds of a stage's communication are made of, for the simulator to put on links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.stage_cost import Collective
from meshwright.core.strategy import Strategy
from meshwright.costs.analytic.device_mesh import BUCKET_BYTES, Axis, Mesh
from meshwright.costs.analytic.layer import LayerWork, Transfer
from meshwright.costs.analytic.scattering import gathers, replica_bytes, scatter_width, scatters
from meshwright.costs.analytic.stage import exchanges, exposed, repeated, sharded_seconds

__all__ = ["collectives"]

Bucket = tuple[str, str, float]
"""Axis, kind and bytes of what goes into buckets that span layers."""


def collectives(
    layers: Mapping[tuple[int, str], int],
    works: Mapping[tuple[int, str], LayerWork],
    mesh: Mesh,
    strategy: Strategy,
    training: MixedPrecision,
    framework: Framework,
    once: Mapping[int, LayerWork] = MappingProxyType({}),
) -> tuple[Collective, ...]:
    """Return the collectives of one stage, equal ones together.

    `layers`: how often each row with each way to recompute occurs in the stage.
    `works`: what the layer of a row does on the device that the stage waits for.
    `once`: of rows whose shared weights another layer on the devices holds, what they do at the end of the step.
    Returns: the blocking ones take what `meshwright.costs.analytic.stage.layer_load` counts, but for the copies of gathered
    weights, which use no link; those beside compute take what it leaves out.
    """
    ledger = _Ledger(mesh, strategy, framework)
    runs = [(works[key], key, n_layers) for key, n_layers in layers.items()]
    runs += [(work.reference, (-1, "none"), n_layers) for work, _, n_layers in runs if work.reference is not None]
    for work, key, n_layers in runs:
        again_seconds, again = repeated(work, key[1])
        ledger.inside("forward", work.forward, n_layers)
        ledger.inside("backward", (*work.backward, *again), n_layers)
        gathered = (
            ("shard", "all_gather", float(work.gathered_bytes(training.weight_bytes))),
            ("expert_data", "all_gather", float(work.n_expert_parameters * training.weight_bytes)),
        )
        kind = "reduce_scatter" if strategy.shard else "all_reduce"
        lasting = once.get(key[0], work)
        each = scatters(strategy, framework)
        per_batch, width = work if each else lasting, scatter_width(strategy, training, framework)
        n_dense, n_expert = lasting.n_trained_dense, lasting.n_trained_expert
        reduced = (
            ("shard", kind, float(per_batch.n_trained_dense * width)),
            ("expert_data", kind, float(n_expert * width)),
            ("replicate", "all_reduce", replica_bytes(per_batch, mesh, strategy, training, framework)[0]),
        )
        updated = (
            ("shard", "all_gather", float(n_dense * training.weight_bytes)),
            ("expert_data", "all_gather", float(n_expert * training.weight_bytes)),
        )
        backward_seconds = work.backward_input_seconds + work.backward_weight_seconds + again_seconds
        gather, scatter = sharded_seconds(work, mesh, strategy, training, framework)
        gather_again = gather if strategy.shard == 3 else 0.0
        beside = gather_again + scatter if framework.overlaps_scatter else gather_again
        hidden = min(1.0, backward_seconds / beside) if beside > 0.0 else 0.0
        if gathers(strategy, framework):
            ledger.beside(
                "forward", gathered, gather, min(1.0, work.forward_seconds / gather) if gather > 0.0 else 0.0, n_layers
            )
        if strategy.shard == 3:
            ledger.beside("backward", gathered, gather, hidden, n_layers * work.has_backward)
        if each:
            ledger.beside("backward", reduced, scatter, hidden if framework.overlaps_scatter else 0.0, n_layers)
        else:
            ledger.once("reduce", reduced, n_layers)
        replicas = replica_bytes(lasting, mesh, strategy, training, framework)[1]
        ledger.once("reduce", (("replicate", "all_reduce", replicas),), n_layers)
        if strategy.shard in (1, 2) and not gathers(strategy, framework):
            ledger.once("gather", updated, n_layers)
        for name, axis, n_bytes in exchanges(lasting, mesh, strategy):
            ledger.exactly("gather", (name, "all_to_all", n_bytes), 2.0 * n_layers, axis.seconds("all_to_all", n_bytes))
    return ledger.found()


class _Ledger:
    """Adds up collectives by what they are."""

    def __init__(self, mesh: Mesh, strategy: Strategy, framework: Framework) -> None:
        self._sums: dict[tuple[str, str, int, int, float], list[float]] = {}
        self._costs = (mesh, strategy, framework)
        ranks, tensor = strategy.data * strategy.context, strategy.tensor
        n_heads = 1 if mesh.context_heads is None else mesh.context_heads.size
        expert_stride = 1 if strategy.folded else tensor
        self._axes: dict[str, tuple[Axis | None, int, int]] = {
            "tensor": (mesh.tensor, tensor, 1),
            "context": (mesh.context, strategy.context, tensor),
            "context_heads": (mesh.context_heads, n_heads, tensor),
            "context_ring": (mesh.context_ring, strategy.context // n_heads, n_heads * tensor),
            "expert": (mesh.expert, strategy.expert, expert_stride),
            "shard": (mesh.shard, mesh.n_shards, tensor),
            "replicate": (mesh.replicate, ranks // mesh.n_shards, mesh.n_shards * tensor),
            "expert_data": (mesh.expert_data, mesh.n_expert_shards, strategy.expert * expert_stride),
        }

    def found(self) -> tuple[Collective, ...]:
        """Return what was added."""
        return tuple(Collective(*key, n_times=n_times, seconds=seconds) for key, (n_times, seconds) in self._sums.items())

    def _add(self, part: str, axis: str, kind: str, n_bytes: float, count: float, seconds: float) -> None:
        """Add `count` collectives of `seconds` each."""
        network_axis, size, stride = self._axes[axis]
        if network_axis is None or n_bytes <= 0.0 or count <= 0.0:
            return
        both = self._sums.setdefault((part, kind, size, stride, n_bytes), [0.0, 0.0])
        both[0] += count
        both[1] += count * seconds

    def exactly(self, part: str, bucket: Bucket, count: float, seconds: float) -> None:
        """Add collectives of their own, `seconds` each."""
        self._add(part, *bucket, count, seconds)

    def inside(self, part: str, transfers: Sequence[Transfer], n_layers: int) -> None:
        """Add collectives inside layers: what their compute hides runs beside it, the rest blocks."""
        for transfer in transfers:
            n_bytes, seconds, waited = exposed(transfer, *self._costs)
            alone = waited / seconds if seconds > 0.0 else 0.0
            self._add(part, transfer.axis, transfer.kind, n_bytes, n_layers * alone, seconds)
            self._add(f"{part}_beside", transfer.axis, transfer.kind, n_bytes, n_layers * (1.0 - alone), seconds)

    def beside(self, part: str, buckets: Sequence[Bucket], seconds: float, hidden: float, n_layers: int) -> None:
        """Add parts of buckets that take `seconds` together, of which compute hides the share `hidden` and the rest blocks."""
        network_seconds = sum(_share(n_bytes) * self._seconds(axis, kind, n_bytes) for axis, kind, n_bytes in buckets)
        longer = seconds / network_seconds if network_seconds > 0.0 else 0.0
        self.once(part, buckets, n_layers * (1.0 - hidden), longer)
        self.once(f"{part}_beside", buckets, n_layers * hidden, longer)

    def once(self, part: str, buckets: Sequence[Bucket], count: float, longer: float = 1.0) -> None:
        """Add parts of buckets, each `longer` times its seconds; see `meshwright.costs.analytic.device_mesh.bucket_seconds`."""
        for axis, kind, n_bytes in buckets:
            whole = max(n_bytes, BUCKET_BYTES)
            self._add(part, axis, kind, whole, count * _share(n_bytes), longer * self._seconds(axis, kind, n_bytes))

    def _seconds(self, axis: str, kind: str, n_bytes: float) -> float:
        """Return the seconds of a whole bucket; 0 where there is nothing to communicate."""
        network_axis = self._axes[axis][0]
        return 0.0 if network_axis is None or n_bytes <= 0.0 else network_axis.seconds(kind, max(n_bytes, BUCKET_BYTES))


def _share(n_bytes: float) -> float:
    """Return which part of a bucket a layer's bytes are."""
    return n_bytes / max(n_bytes, BUCKET_BYTES)
