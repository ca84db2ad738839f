"""PaSE's published cost model: configurations of an operator, what each costs, and what re-sharding a tensor costs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.pase.operators import Gemm, PaseOperator

__all__ = ["allowed_splits", "configurations", "data_parallel_splits", "edge_cost", "layer_cost", "tensor_splits"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def allowed_splits(size: int, cutoff: int, n_processors: int) -> Ints:
    """Return the divisors of `size` up to `n_processors` that leave at least `cutoff`; 1 where none does."""
    found = {1}
    for divisor in range(1, math.isqrt(size) + 1):
        if size % divisor == 0:
            found |= {divisor, size // divisor}
    kept = sorted(split for split in found if split <= n_processors and size // split >= cutoff)
    return np.array(kept or [1], dtype=np.int64)


def configurations(operator: PaseOperator, n_processors: int) -> Ints:
    """Return every configuration of an operator, in lexicographic order.

    `n_processors`: the product of the splits is at most this.
    Returns shape (n_configurations, n_axes), int64: into how many parts each axis is split.

    References
    ----------
    .. [1] V. Elango, "PaSE", IPDPS 2021, section III (parallelization configurations).
    """
    rows = np.ones((1, 0), dtype=np.int64)
    used = np.ones(1, dtype=np.int64)
    for size in operator.splittable:
        splits = allowed_splits(size, operator.cutoff, n_processors)
        parents, choice = np.nonzero(used[:, None] * splits[None, :] <= n_processors)
        rows = np.column_stack((rows[parents], splits[choice]))
        used = used[parents] * splits[choice]
    if operator.kind in ("Ravel", "Unravel"):
        rows = rows[_contiguous(rows, operator.splittable)]
    return np.ascontiguousarray(rows)


def _contiguous(rows: Ints, sizes: tuple[int, ...]) -> NDArray[np.bool_]:
    """Say which configurations cut a row-major tensor into contiguous parts: whole axes, one partial split, then none."""
    open_ = np.ones(len(rows), dtype=bool)
    good = np.ones(len(rows), dtype=bool)
    for axis, size in enumerate(sizes):
        split = rows[:, axis]
        good &= open_ | (split == 1)
        open_ &= split == size
    return good


def data_parallel_splits(operator: PaseOperator, n_processors: int) -> Ints:
    """Return the configuration that splits only the batch, into `n_processors` parts, whether or not it is enumerated."""
    row = np.ones((1, len(operator.sizes)), dtype=np.int64)
    row[0, operator.batch_axis] = n_processors
    return row


def tensor_splits(splits: Ints, axes: tuple[tuple[int, ...], ...]) -> Ints:
    """Return how configurations of an operator split one of its tensors.

    `splits`, shape (n_configurations, n_axes), int64: configurations.
    `axes`: for each dimension of the tensor the axes whose splits multiply to its split.
    Returns shape (n_configurations, n_dimensions), int64: parts of each dimension.
    """
    if all(len(group) == 1 for group in axes):
        return splits[:, [group[0] for group in axes]]
    return np.column_stack([np.prod(splits[:, list(group)], axis=1, dtype=np.int64) for group in axes])


def edge_cost(shape: tuple[int, ...], produced: Ints, consumed: Ints, word_flop: float) -> Floats:
    """Return what re-sharding a tensor costs, forward and backward.

    `produced`, shape (n_produced, n_dimensions), int64: splits it may be written in.
    `consumed`, shape (n_consumed, n_dimensions), int64: splits it may be read in.
    `word_flop`: FLOP a device does while it moves one word.
    Returns shape (n_produced, n_consumed), float64: words each device lacks, twice, in FLOP equivalents.

    References
    ----------
    .. [1] V. Elango, "PaSE", IPDPS 2021, section III (edge cost).

    Notes
    -----
    The closed form of the published code: the consumer finds nothing in place where it uses more devices than the producer.
    """
    needed = np.prod(np.array(shape) / consumed, axis=1)
    held = np.ones((len(produced), len(consumed)))
    for dimension, size in enumerate(shape):
        held *= np.minimum((size / produced[:, dimension])[:, None], (size / consumed[:, dimension])[None, :])
    held[np.prod(consumed, axis=1)[None, :] > np.prod(produced, axis=1)[:, None]] = 0.0
    return np.asarray(word_flop * 2 * np.maximum(0.0, needed[None, :] - held))


def layer_cost(operator: PaseOperator, splits: Ints, word_flop: float) -> Floats:
    """Return what each configuration of an operator costs, forward and backward.

    `splits`, shape (n_configurations, n_axes), int64: its configurations.
    `word_flop`: FLOP a device does while it moves one word.
    Returns shape (n_configurations,), float64: FLOP equivalents on one device per training step.

    References
    ----------
    .. [1] V. Elango, "PaSE", IPDPS 2021, section III (layer cost); the published program where the two differ.
    """
    c = splits.astype(np.float64)
    parts = np.array(operator.sizes) / c
    elements = np.prod(parts, axis=1)
    kind = operator.kind
    if operator.gemm is not None:
        cost = _gemm(operator.gemm, splits, word_flop)
        return cost + _lstm_cells(operator, c, word_flop) if kind == "LSTM" else cost
    if kind == "Elementwise":
        return np.asarray((1 + operator.pointwise) * elements)
    if kind == "Pooling":
        return np.asarray(elements + _halo(operator, c, word_flop))
    if kind == "Norm":
        along = parts[:, operator.axis]
        others = np.prod(np.delete(c, operator.axis, axis=1), axis=1)
        reduced = 4 * _all_reduce(elements / along, c[:, operator.axis], word_flop)
        return np.asarray(16 * elements + reduced + 4 * _all_reduce(along, others, word_flop))
    if kind == "ReduceMean":
        return _all_reduce(elements, np.prod(c[:, list(operator.reduced)], axis=1), word_flop)
    if kind == "Softmax":
        return _softmax(operator, c, parts, word_flop)
    if kind == "SoftmaxCrossEntropy":
        rows = np.prod(parts[:, :-1], axis=1)
        return np.asarray(4 * elements + 2 * rows + np.where(c[:, -1] > 1, word_flop * 2 * rows, 0.0))
    return np.zeros(len(splits))


def _all_reduce(words: Floats, n: Floats, word_flop: float) -> Floats:
    """Ring all-reduce of `words` per device over n devices."""
    return np.asarray(word_flop * (words / n) * 2 * (n - 1))


def _gemm(gemm: Gemm, splits: Ints, word_flop: float) -> Floats:
    """One forward and two backward products, with the reductions that their split axes need."""
    cuts = [np.prod(splits[:, list(axes)], axis=1).astype(np.float64) for axes in gemm.axes]
    sizes = [size / cut for size, cut in zip(gemm.sizes, cuts, strict=True)]
    m, n, k = sizes[-3:]
    cut_m, cut_n, cut_k = cuts[-3:]
    batch = np.prod(np.array(sizes[:-3]), axis=0) if len(sizes) > 3 else 1.0
    work = 3 * m * n * k + 3 * gemm.pointwise * m * n
    work = work + _all_reduce(m * n, cut_k, word_flop) + _all_reduce(m * k, cut_n, word_flop)
    return np.asarray(batch * (work + _all_reduce(n * k, cut_m, word_flop)))


def _halo(operator: PaseOperator, c: Floats, word_flop: float) -> Floats:
    """Borders that a pooling with split height or width exchanges; parts are real quotients, not rounded."""
    height, width, r, s = operator.window
    b, channels = operator.sizes[0] / c[:, 0], operator.sizes[1] / c[:, 1]
    h, w = height / c[:, 2], width / c[:, 3]
    outer = (h + np.where(c[:, 2] > 1, r, 0)) * (w + np.where(c[:, 3] > 1, s, 0))
    return np.asarray(word_flop * (outer - h * w) * b * channels)


def _softmax(operator: PaseOperator, c: Floats, parts: Floats, word_flop: float) -> Floats:
    """Softmax with its quadratic backward pass, and the three reductions of a split axis."""
    size, cut = operator.sizes[operator.axis], c[:, operator.axis]
    elements = np.prod(parts, axis=1)
    rows = np.prod(np.delete(parts, operator.axis, axis=1), axis=1)
    reductions = _all_reduce(rows, cut, word_flop) + _all_reduce(rows * size, cut, word_flop)
    return np.asarray(4 * elements + elements * size + reductions + _all_reduce(rows, cut, word_flop))


def _lstm_cells(operator: PaseOperator, c: Floats, word_flop: float) -> Floats:
    """Re-sharding of the cell state between time steps and layers; layers and steps count in full."""
    n_layers, length, batch, n_units, _ = operator.sizes
    needed = (batch / c[:, 2]) * (n_units / c[:, 4])
    held = np.minimum(batch / c[:, 2], batch / c[:, 2]) * np.minimum(n_units / c[:, 3], n_units / c[:, 4])
    held = np.where(c[:, 2] * c[:, 4] > c[:, 2] * c[:, 3], 0.0, held)
    return np.asarray(n_layers * length * word_flop * np.maximum(0.0, needed - held))
