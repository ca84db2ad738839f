"""What splits of a PaSE graph take on a real cluster, in seconds: compute on the device, collectives on its links, overlap.

PaSE's own cost model counts words at one bandwidth, whatever carries them. Here the same splits are laid out on the devices
of a cluster, and what PaSE counts as a reduction or as re-sharding is priced by `meshwright.network` where it really runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster, Device
from meshwright.network import Network
from meshwright.planners.pase.operators import Axes, PaseGraph, PaseOperator

__all__ = ["SplitSeconds", "step_seconds"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

WORD_BYTES = 4
"""Of a number: everything in single precision, as the paper trained."""

_KERNELS = 3  # of an operator in a step: forward, gradient of its input, gradient of its weights


@dataclass(frozen=True, slots=True)
class SplitSeconds:
    """Seconds of one training step.

    Parameters
    ----------
    compute_seconds : float
        Of the slowest device, forward and backward, starting of kernels included.
    reduction_seconds : float
        Of partial sums inside operators, which hold up what reads them.
    resharding_seconds : float
        Of tensors moved from the layout they are written in to the one they are read in, and their gradients back.
    gradient_seconds : float
        Of the reductions of weight gradients.
    exposed_seconds : float
        What of that the backward compute does not hide.
    """

    compute_seconds: float
    reduction_seconds: float
    resharding_seconds: float
    gradient_seconds: float
    exposed_seconds: float

    @property
    def step_seconds(self) -> float:
        """All that adds up to the step."""
        return self.compute_seconds + self.reduction_seconds + self.resharding_seconds + self.exposed_seconds


def step_seconds(graph: PaseGraph, splits: Sequence[Ints], cluster: Cluster, overlap: bool = False) -> SplitSeconds:
    """Return what a step takes when every operator is split as given.

    Parameters
    ----------
    graph : PaseGraph
        Operators, built for a batch.
    splits : sequence of ndarray, each shape (n_axes,), int64
        Into how many parts each axis of each operator is split.
    cluster : Cluster
        Devices of one kind.
    overlap : bool
        Whether reductions of weight gradients run beside the backward compute.

    Returns
    -------
    SplitSeconds
        In single precision.

    Raises
    ------
    InputError
        When an operator has more parts than there are devices, or devices differ.
    """
    if not cluster.homogeneous:
        raise InputError(f"cluster {cluster.name} has several kinds of device; splits of PaSE's graphs are priced on one kind")
    for operator, parts in zip(graph.operators, splits, strict=True):
        n_parts = math.prod(parts.tolist())
        if n_parts > cluster.n_devices:
            raise InputError(f"{operator.name} has {n_parts} parts; cluster {cluster.name} has {cluster.n_devices} devices")
    placed = _placed(graph, splits, cluster)
    compute = sum(
        _compute_seconds(operator, one.layout.parts[:-1], cluster.device(0))
        for operator, one in zip(graph.operators, placed, strict=True)
    )
    reductions, gradients, resharding = (math.fsum(column) for column in zip(*(one.seconds for one in placed), strict=True))
    exposed = max(0.0, gradients - (compute * 2.0 / 3.0 if overlap else 0.0))
    return SplitSeconds(compute, reductions, resharding, gradients, exposed)


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """One operator on devices: its parts by axis, and its split axes from the one whose parts lie farthest apart.

    Behind the axes of `parts` stands one more: copies of the whole operator, where it has fewer parts than there are devices.
    """

    parts: Ints
    order: tuple[int, ...]

    def _grid(self) -> Ints:
        """Return the device of every combination of parts, one dimension for each axis in `order`."""
        shape = [int(self.parts[axis]) for axis in self.order]
        return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)

    def groups(self, axes: tuple[int, ...]) -> Ints:
        """Return the devices of every group that reduces over some axes: all other parts alike."""
        inside = [i for i, axis in enumerate(self.order) if axis in axes]
        outside = [i for i in range(len(self.order)) if i not in inside]
        size = math.prod(int(self.parts[self.order[i]]) for i in inside)
        return np.ascontiguousarray(self._grid().transpose(*outside, *inside).reshape(-1, size))

    def regions(self, axes: Axes, shape: tuple[int, ...]) -> Floats:
        """Return the part of a tensor that every device has, shape (n_devices, n_dimensions, 2): from and to."""
        sizes = [int(self.parts[axis]) for axis in self.order]
        n = math.prod(sizes)
        index = dict(zip(self.order, np.unravel_index(np.arange(n), sizes) if sizes else (), strict=True))
        found = np.empty((n, len(shape), 2))
        for d, group in enumerate(axes):
            number, count = np.zeros(n), 1
            for axis in group:
                number, count = number * int(self.parts[axis]) + index.get(axis, 0), count * int(self.parts[axis])
            found[:, d, 0], found[:, d, 1] = number * shape[d] / count, (number + 1.0) * shape[d] / count
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """One operator with where it lies, and the seconds of its reductions, weight gradients and inputs there."""

    layout: _Layout
    seconds: tuple[float, float, float]


def _placed(graph: PaseGraph, splits: Sequence[Ints], cluster: Cluster) -> list[_Placed]:
    """Return how every operator lies on the devices: greedily, so that it sends for the fewest seconds, those before it given.

    The paper says of its own assignment that it is greedy and maximises locality. Among equals the axes keep their order.
    """
    reads: dict[int, list[tuple[int, Axes, tuple[int, ...]]]] = {}
    for u, v, use in graph.edges():
        reads.setdefault(v, []).append((u, use.axes, use.shape))
    found: list[_Placed] = []
    known: dict[tuple[object, ...], _Placed] = {}
    for v, (operator, parts) in enumerate(zip(graph.operators, splits, strict=True)):
        inputs = [
            (found[u].layout.regions(graph.operators[u].output_axes, shape), axes, shape) for u, axes, shape in reads.get(v, ())
        ]
        key = (
            replace(operator, name="", uses=()), bool(operator.uses), parts.tobytes(),
            *((one.tobytes(), axes, shape) for one, axes, shape in inputs),
        )  # fmt: skip
        if key not in known:
            n_parts = math.prod(parts.tolist())
            laid = np.append(parts, cluster.n_devices // n_parts)
            split = tuple(axis for axis, count in enumerate(laid.tolist()) if count > 1)
            tries = [_tried(operator, _Layout(laid, order), inputs, cluster) for order in itertools.permutations(split)]
            known[key] = min(tries, key=lambda one: math.fsum(one.seconds))
        found.append(known[key])
    return found


def _tried(
    operator: PaseOperator, layout: _Layout, inputs: Sequence[tuple[Floats, Axes, tuple[int, ...]]], cluster: Cluster
) -> _Placed:
    """Return one way to lay an operator out with what it sends there."""
    network, seconds = Network.of(cluster), [0.0, 0.0]
    for axes, words, of_weights in _reductions(operator, layout.parts[:-1]):
        seconds[of_weights] += network.axis(layout.groups(axes)).seconds("all_reduce", words * WORD_BYTES)
    moved = math.fsum(_moving_seconds(cluster, _fetched(held, layout.regions(axes, shape))) for held, axes, shape in inputs)
    return _Placed(layout, (seconds[0], seconds[1], 2.0 * moved))


def _compute_seconds(operator: PaseOperator, parts: Ints, device: Device) -> float:
    """Return the compute of one part, forward and backward: the slower of products and memory, and starting the kernels."""
    moved = _elements(operator, parts) * WORD_BYTES * _KERNELS / (device.memory_bytes_per_second * device.memory_ratio)
    flops = 0.0
    if operator.gemm is not None and operator.kind != "Embedding":  # rows are looked up, and their gradients added
        cuts = [math.prod(int(parts[axis]) for axis in axes) for axes in operator.gemm.axes]
        flops = 2.0 * _KERNELS * math.prod(size / cut for size, cut in zip(operator.gemm.sizes, cuts, strict=True))
    peak = dict(device.flops_per_second)["fp32"] * device.matmul_ratio
    return max(flops / peak, moved) + _KERNELS * device.launch_seconds


def _elements(operator: PaseOperator, parts: Ints) -> float:
    """Return what one part reads and writes in one pass: its share of inputs, weights and output."""
    written = operator.output_elements / math.prod(int(parts[a]) for axes in operator.output_axes for a in axes)
    read = sum(math.prod(use.shape) / math.prod(int(parts[a]) for axes in use.axes for a in axes) for use in operator.uses)
    return written + read + operator.weight_elements / math.prod(int(parts[a]) for a in operator.weight_axes)


def _reductions(operator: PaseOperator, parts: Ints) -> list[tuple[tuple[int, ...], float, bool]]:
    """Return what is reduced in a step: the axes that it is reduced over, words of each device, and whether it is weights."""
    found: list[tuple[tuple[int, ...], float, bool]] = []
    everywhere = tuple(range(len(parts)))

    def add(axes: Sequence[int], words: float, of_weights: bool = False) -> None:
        split = tuple(axis for axis in axes if parts[axis] > 1)
        if split:
            found.append((split, words, of_weights))

    if operator.gemm is not None:
        cuts = [math.prod(int(parts[axis]) for axis in axes) for axes in operator.gemm.axes]
        sizes = [size / cut for size, cut in zip(operator.gemm.sizes, cuts, strict=True)]
        batch, (m, n, k) = math.prod(sizes[:-3]), sizes[-3:]
        over_m, over_n, over_k = operator.gemm.axes[-3:]
        add(over_k, batch * m * n)
        if operator.uses:
            add(over_n, batch * m * k)
        if not operator.weight_elements:
            add(over_m, batch * n * k)
    if operator.weight_elements:
        words = operator.weight_elements / math.prod(int(parts[a]) for a in operator.weight_axes)
        add([axis for axis in everywhere if axis not in operator.weight_axes], words, of_weights=True)
    if operator.kind == "Norm" and operator.axis:
        add(
            (operator.axis,),
            4.0 * operator.output_elements / math.prod(parts.tolist()) / (operator.sizes[operator.axis] / parts[operator.axis]),
        )
    if operator.kind == "ReduceMean":
        add(
            operator.reduced, operator.output_elements / math.prod(int(parts[a]) for axes in operator.output_axes for a in axes)
        )
    if operator.kind in ("Softmax", "SoftmaxCrossEntropy"):
        axis = len(parts) - 1 if operator.kind == "SoftmaxCrossEntropy" else operator.axis
        rows = math.prod(operator.sizes) / operator.sizes[axis] / math.prod(int(p) for a, p in enumerate(parts) if a != axis)
        add((axis,), 3.0 * rows)
    return found


def _fetched(produced: Floats, consumed: Floats) -> Floats:
    """Return the elements that each reader, which lacks them, fetches from each writer, shape (n_readers, n_writers)."""
    low = np.maximum(produced[None, :, :, 0], consumed[:, None, :, 0])
    high = np.minimum(produced[None, :, :, 1], consumed[:, None, :, 1])
    wanted = np.asarray(np.prod(np.maximum(high - low, 0.0), axis=2))
    _, kind, copies = np.unique(produced.reshape(len(produced), -1), axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    wanted /= copies[kind][None, :]  # of several that hold the same, each sends its share
    both = min(len(produced), len(consumed))
    wanted[:both][kind[None, :] == kind[:both, None]] = 0.0
    return wanted


def _moving_seconds(cluster: Cluster, wanted: Floats) -> float:
    """Return the time until all readers have what they fetch, all at once."""
    reader, writer = np.nonzero(wanted >= 0.5)
    if not len(reader):
        return 0.0
    latency, links, load = Network.of(cluster).sends(writer, reader, wanted[reader, writer] * WORD_BYTES)
    return latency + float((load / cluster.links.bytes_per_second[links]).max(initial=0.0))
