"""Which collectives the seconds of a stage's communication are made of, for the simulator to put on links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.costs._layer import LayerWork, Transfer
from meshwright.costs._mesh import BUCKET_BYTES, Axis, Mesh
from meshwright.problem import Training
from meshwright.strategy import Strategy
from meshwright.table import Collective

__all__ = ["collectives"]

Bucket = tuple[str, str, float]
"""Axis, kind and bytes of what goes into buckets that span layers."""


def collectives(
    layers: Mapping[tuple[int, str], int], works: Mapping[int, LayerWork], mesh: Mesh, strategy: Strategy, training: Training
) -> tuple[Collective, ...]:
    """Return the collectives of one stage, equal ones together.

    Parameters
    ----------
    layers : mapping of (int, str) to int
        How often each row with each way to recompute occurs in the stage.
    works : mapping of int to LayerWork
        What the layer of a row does on one device.
    mesh : Mesh
        Axes of the stage.
    strategy : Strategy
        Degrees and sharding.
    training : Training
        Bytes of weights and gradients.

    Returns
    -------
    tuple of Collective
        The blocking ones take what `meshwright.costs._stage.layer_load` counts, those beside compute what it leaves out.
    """
    ledger = _Ledger(mesh, strategy)
    for (row, recompute), n_layers in layers.items():
        work = works[row]
        repeated = {"full": work.forward, "selective": work.selective}.get(recompute, ())
        again_seconds = {"full": work.forward_seconds, "selective": work.selective_seconds}.get(recompute, 0.0)
        ledger.inside("forward", work.forward, n_layers)
        ledger.inside("backward", (*work.backward, *repeated), n_layers)
        backward_seconds = work.backward_input_seconds + work.backward_weight_seconds + again_seconds
        dense, expert = work.n_dense_parameters, work.n_expert_parameters
        gathered = (
            ("shard", "all_gather", float(dense * training.weight_bytes)),
            ("expert_data", "all_gather", float(expert * training.weight_bytes)),
        )
        kind = "reduce_scatter" if strategy.shard else "all_reduce"
        reduced = (
            ("shard", kind, float(dense * training.gradient_bytes)),
            ("expert_data", kind, float(expert * training.gradient_bytes)),
        )
        if strategy.shard == 3:
            ledger.beside("forward", gathered, work.forward_seconds, n_layers)
        if strategy.shard >= 2:
            ledger.beside("backward", (*gathered, *reduced) if strategy.shard == 3 else reduced, backward_seconds, n_layers)
        else:
            ledger.once("reduce", reduced, n_layers)
        ledger.once("reduce", (("replicate", "all_reduce", dense * training.gradient_bytes / mesh.n_shards),), n_layers)
        if strategy.shard in (1, 2):
            ledger.once("gather", gathered, n_layers)
    return ledger.found()


class _Ledger:
    """Adds up collectives by what they are."""

    def __init__(self, mesh: Mesh, strategy: Strategy) -> None:
        self._sums: dict[tuple[str, str, int, int, float], list[float]] = {}
        ranks, tensor = strategy.data * strategy.context, strategy.tensor
        self._axes: dict[str, tuple[Axis | None, int, int]] = {
            "tensor": (mesh.tensor, tensor, 1),
            "context": (mesh.context, strategy.context, tensor),
            "expert": (mesh.expert, strategy.expert, tensor),
            "shard": (mesh.shard, mesh.n_shards, tensor),
            "replicate": (mesh.replicate, ranks // mesh.n_shards, mesh.n_shards * tensor),
            "expert_data": (mesh.expert_data, mesh.n_expert_shards, strategy.expert * tensor),
        }

    def found(self) -> tuple[Collective, ...]:
        """Return what was added."""
        return tuple(Collective(*key, n_times=n_times, seconds=seconds) for key, (n_times, seconds) in self._sums.items())

    def _add(self, part: str, axis: str, kind: str, n_bytes: float, count: float) -> None:
        network_axis, size, stride = self._axes[axis]
        if network_axis is None or n_bytes <= 0.0 or count <= 0.0:
            return
        both = self._sums.setdefault((part, kind, size, stride, n_bytes), [0.0, 0.0])
        both[0] += count
        both[1] += count * network_axis.seconds(kind, n_bytes)

    def _seconds(self, axis: str, kind: str, n_bytes: float) -> float:
        network_axis = self._axes[axis][0]
        return 0.0 if network_axis is None or n_bytes <= 0.0 else network_axis.seconds(kind, n_bytes)

    def inside(self, part: str, transfers: Sequence[Transfer], n_layers: int) -> None:
        """Add collectives inside layers: what their compute hides runs beside it, the rest blocks."""
        for _, axis, kind, n_bytes, hidden_seconds in transfers:
            seconds = self._seconds(axis, kind, n_bytes)
            hidden = min(1.0, hidden_seconds / seconds) if seconds > 0.0 else 0.0
            self._add(part, axis, kind, n_bytes, n_layers * (1.0 - hidden))
            self._add(f"{part}_beside", axis, kind, n_bytes, n_layers * hidden)

    def beside(self, part: str, buckets: Sequence[Bucket], hidden_seconds: float, n_layers: int) -> None:
        """Add parts of buckets that run beside a layer's compute, and block as far as they are longer."""
        seconds = sum(
            _share(n_bytes) * self._seconds(axis, kind, max(n_bytes, BUCKET_BYTES)) for axis, kind, n_bytes in buckets
        )
        hidden = min(1.0, hidden_seconds / seconds) if seconds > 0.0 else 0.0
        self.once(part, buckets, n_layers * (1.0 - hidden))
        self.once(f"{part}_beside", buckets, n_layers * hidden)

    def once(self, part: str, buckets: Sequence[Bucket], count: float) -> None:
        """Add parts of buckets; see `meshwright.costs._mesh.bucket_seconds`."""
        for axis, kind, n_bytes in buckets:
            if n_bytes > 0.0:
                self._add(part, axis, kind, max(n_bytes, BUCKET_BYTES), count * _share(n_bytes))


def _share(n_bytes: float) -> float:
    """Return which part of a bucket a layer's bytes are."""
    return n_bytes / max(n_bytes, BUCKET_BYTES)
