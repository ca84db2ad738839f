"""A model as a chain of layers, and the loads of its layers as arrays: what the bounds of the joint search read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.graph import Graph
from meshwright.table import StageLoad

__all__ = ["Chain", "Digest", "RowLoads", "chain_of", "digest", "stage_sums", "work_of"]


@dataclass(frozen=True, slots=True)
class Chain:
    """A model as a chain: layers that repeat in the middle, what is pinned to the first and to the last stage around them.

    Parameters
    ----------
    prefix, layers, suffix : tuple of int
        Ids, in topological order; together all of the graph.
    rows : tuple of int
        Row (id of the first like layer) of every entry of `layers`.
    main_row : int
        The row that occurs most often.
    """

    prefix: tuple[int, ...]
    layers: tuple[int, ...]
    suffix: tuple[int, ...]
    rows: tuple[int, ...]
    main_row: int

    @property
    def equal(self) -> bool:
        """Whether all layers are alike."""
        return len(set(self.rows)) == 1


def chain_of(graph: Graph) -> Chain:
    """Return the graph as a chain: from the first layer that repeats to the last one.

    Parameters
    ----------
    graph : Graph
        The model.

    Returns
    -------
    Chain
        Where nothing repeats, everything is a layer.
    """
    order = graph.topological_order()
    row = {i: graph.ops[i].like if graph.ops[i].like >= 0 else i for i in order}
    counts: dict[int, int] = {}
    for i in order:
        counts[row[i]] = counts.get(row[i], 0) + 1
    repeated = [position for position, i in enumerate(order) if counts[row[i]] > 1]
    first, last = (repeated[0], repeated[-1]) if repeated else (0, len(order) - 1)
    layers = order[first : last + 1]
    main_row = max(sorted({row[i] for i in layers}), key=lambda r: counts[r])
    return Chain(order[:first], layers, order[last + 1 :], tuple(row[i] for i in layers), main_row)


RowLoads = dict[tuple[int, str], StageLoad]


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Loads of the layers as arrays: what bounds read. Rows are layers of the chain in order; columns what they recompute.

    Parameters
    ----------
    work_seconds, activation_bytes : ndarray, shape (n_layers, n_words), float64
        Forward, backward and recomputation of one micro-batch; what is kept of it.
    forward_seconds, backward_seconds, input_seconds, static_bytes, after_seconds : ndarray, shape (n_layers,), float64
        Forward; backward without recomputation; the part of it that the previous stage waits for under split backward passes;
        static bytes; seconds that follow the last backward pass, once a step.
    prefix, suffix : tuple of float
        The same five sums of what is pinned to the ends, then its activations: forward, backward, input, static, after, activation.
    saved_bytes, extra_seconds : ndarray, shape (2,), float64
        Two ways to recompute, the weaker first: the most that any layer gives up, and the least seconds that this costs.
    reserved_bytes : float
        What the process cannot use.
    """

    work_seconds: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    forward_seconds: NDArray[np.float64]
    backward_seconds: NDArray[np.float64]
    input_seconds: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    after_seconds: NDArray[np.float64]
    prefix: tuple[float, ...]
    suffix: tuple[float, ...]
    saved_bytes: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]
    reserved_bytes: float


def digest(chain: Chain, rows: RowLoads, words: tuple[str, ...]) -> Digest:
    """Turn loads into arrays."""
    distinct = sorted(set(chain.rows))
    place = {row: i for i, row in enumerate(distinct)}
    order = np.array([place[row] for row in chain.rows])
    columns = np.array([_five(rows[row, words[0]]) for row in distinct])
    # a reduction starts with the last backward pass at the earliest: what it lasts longer than that pass is exposed
    longest = np.array([max(rows[row, word].backward_total_seconds for word in words) for row in distinct])
    columns[:, 4] += np.maximum(0.0, np.array([rows[row, words[0]].reduce_seconds for row in distinct]) - longest)
    columns = columns[order]
    work = np.array([[work_of(rows[row, word]) for word in words] for row in distinct])
    kept = np.array([[rows[row, word].activation_bytes for word in words] for row in distinct])
    saved, extra = kept[:, :1] - kept[:, 1:], work[:, 1:] - work[:, :1]
    ways = np.zeros((2, 2))
    ways[:, 2 - saved.shape[1] :] = saved.max(axis=0), np.maximum(extra.min(axis=0), 0.0)
    forward, backward, waits, static, after = columns.T[:5]
    return Digest(
        work[order],
        kept[order],
        forward,
        backward,
        waits,
        static,
        after,
        _pinned(rows, chain.prefix),
        _pinned(rows, chain.suffix),
        ways[0],
        ways[1],
        max(load.reserved_bytes for load in rows.values()),
    )


def _pinned(rows: RowLoads, ops: tuple[int, ...]) -> tuple[float, ...]:
    """Return the sums of `_five` over pinned layers; a backward pass longer than its reduction hides some of other layers'."""
    sums = [0.0] * 6
    for i in ops:
        load = rows[i, "none"]
        sums = [total + value for total, value in zip(sums, _five(load), strict=True)]
        sums[4] -= max(0.0, load.backward_total_seconds - load.reduce_seconds)
    return tuple(sums)


def _five(load: StageLoad) -> tuple[float, ...]:
    """Return forward, backward, what the previous stage waits for, static bytes, the end of the step, and activations."""
    backward = load.backward_total_seconds - load.recompute_seconds
    after = load.gather_seconds + load.optimizer_seconds
    waits = backward - load.backward_weight_seconds
    return load.forward_total_seconds, backward, waits, load.static_bytes, after, load.activation_bytes


def stage_sums(digest: Digest, ends: NDArray[np.int64], split_backward: bool) -> tuple[NDArray[np.float64], ...]:
    """Return, per stage: work, static bytes, activations kept, what delays earlier ranks, and the end of step."""

    def summed(values: NDArray[np.float64], first: float, last: float) -> NDArray[np.float64]:
        total = np.concatenate(([0.0], np.cumsum(values)))
        sums = total[ends[1:]] - total[ends[:-1]]
        sums[0] += first
        sums[-1] += last
        return sums

    first, last = digest.prefix, digest.suffix
    back = 0.0 if split_backward else 1.0
    return (
        summed(digest.work_seconds[:, 0], first[0] + first[1], last[0] + last[1]),
        summed(digest.static_bytes, first[3], last[3]),
        summed(digest.activation_bytes[:, 0], first[5], last[5]),
        summed(digest.forward_seconds + back * digest.backward_seconds, first[0] + back * first[1], last[0] + back * last[1]),
        summed(digest.after_seconds, first[4], last[4]),
    )


def work_of(load: StageLoad) -> float:
    """Return the seconds one layer keeps its device busy for one micro-batch."""
    return load.forward_total_seconds + load.backward_total_seconds
