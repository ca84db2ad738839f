"""A model as a chain of layers, and the loads of its layers as arrays: what the bounds of the joint search read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import ById, locked
from meshwright.core.graph import Graph
from meshwright.core.stage_cost import StageCost
from meshwright.solvers.pipeline.layer_split import Relief, relief

if TYPE_CHECKING:
    from meshwright._kernels.best.virtual_stages import StackedLayers

__all__ = [
    "Digest",
    "LayerChain",
    "LeastWork",
    "MainLayers",
    "Pinned",
    "RowLoads",
    "chain_of",
    "digest",
    "least_work",
    "main_layers",
    "stacked",
    "work_of",
]


@dataclass(frozen=True, slots=True)
class LayerChain:
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

    def stages(self, counts: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Return the layers of each stage and the row of each of them, for a number of layers per stage."""
        row_of = dict(zip(self.layers, self.rows, strict=True)) | {i: i for i in (*self.prefix, *self.suffix)}
        ops, start = [], 0
        for stage, count in enumerate(counts):
            own = self.layers[start : start + count]
            start += count
            if stage == 0:
                own = self.prefix + own
            if stage == len(counts) - 1:
                own = own + self.suffix
            ops.append(own)
        return ops, [tuple(row_of[i] for i in stage) for stage in ops]


def chain_of(graph: Graph) -> LayerChain:
    """Return the graph as a chain: from the first layer that repeats to the last one, embedding and head at its ends left out.

    Parameters
    ----------
    graph : Graph
        The model.

    Returns
    -------
    LayerChain
        Where nothing repeats, everything between embedding and head is a layer.
    """
    order = graph.topological_order()
    row = {i: graph.ops[i].like if graph.ops[i].like >= 0 else i for i in order}
    counts: dict[int, int] = {}
    for i in order:
        counts[row[i]] = counts.get(row[i], 0) + 1
    repeated = [position for position, i in enumerate(order) if counts[row[i]] > 1]
    inner = [position for position, i in enumerate(order) if graph.ops[i].kind not in ("embedding", "head")]
    own = repeated or inner or range(len(order))
    first, last = own[0], own[-1]
    layers = order[first : last + 1]
    main_row = max(sorted({row[i] for i in layers}), key=lambda r: counts[r])
    return LayerChain(order[:first], layers, order[last + 1 :], tuple(row[i] for i in layers), main_row)


RowLoads = dict[tuple[int, str], StageCost]


@dataclass(frozen=True, slots=True)
class Pinned:
    """Sums over the layers that are pinned to one end of the chain, or of one layer: seconds of one micro-batch and device.

    Parameters
    ----------
    forward_seconds, backward_seconds, input_seconds, weight_seconds : float
        Forward; backward without recomputation; the part of it that the previous stage waits for, and the part that may wait,
        where backward passes are split.
    static_bytes, activation_bytes : float
        Held all the time; kept of one micro-batch.
    reduce_seconds, update_seconds : float
        Gradient reduction; gathering of weights and optimizer. Once a step.
    after_seconds, split_after_seconds : float
        Once a step after the last task of the rank: that task is a backward pass, or the weight gradients of one.
    overhead_bytes, working_bytes, reserved_bytes : float
        Working and reserved bytes, of each of which the largest counts: together, and each of them.
    """

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    input_seconds: float = 0.0
    weight_seconds: float = 0.0
    static_bytes: float = 0.0
    activation_bytes: float = 0.0
    reduce_seconds: float = 0.0
    update_seconds: float = 0.0
    after_seconds: float = 0.0
    split_after_seconds: float = 0.0
    overhead_bytes: float = 0.0
    working_bytes: float = 0.0
    reserved_bytes: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Loads of the layers as arrays: what bounds read. Rows are layers of the chain in order; columns what they recompute.

    Parameters
    ----------
    work_seconds, activation_bytes : ndarray, shape (n_layers, n_words), float64
        Forward, backward and recomputation of one micro-batch; what is kept of it.
    forward_seconds, backward_seconds, input_seconds, static_bytes, reduce_seconds, update_seconds : ndarray, shape (n_layers,)
        As in `Pinned`.
    after_seconds, split_after_seconds : ndarray, shape (n_layers,), float64
        As in `Pinned`; the sum over the layers of a rank is the least that follows its last task.
    prefix, suffix : Pinned
        What is pinned to the ends.
    saved_bytes, extra_seconds : ndarray, shape (2,), float64
        Two ways to recompute, the weaker first: the most that any layer gives up, and the least seconds that this costs.
    relief : Relief
        The same of every layer by itself.
    overhead_bytes : ndarray, shape (n_layers,), float64
        Working and reserved bytes of each layer at least, whatever it recomputes. A rank holds that of its most demanding layer:
        of sharded weights (ZeRO-3), buffers are as large as the largest layer of the rank itself.
    sort : ndarray, shape (n_layers,), int64
        Which of the distinct layers each one is, from 0 on.
    working_bytes : ndarray, shape (n_layers, n_words), float64
        Needed while the layer runs, by what it recomputes.
    reserved_bytes : ndarray, shape (n_layers,), float64
        What the process reserves for it at least.
    running_sums : ndarray, shape (8, n_layers + 1), float64
        Sums over the layers before each place, for those of virtual stages; nothing recomputed.
    pinned_sums : ndarray, shape (2, 8), float64
        The same of what is pinned to the ends.
    """

    work_seconds: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    forward_seconds: NDArray[np.float64]
    backward_seconds: NDArray[np.float64]
    input_seconds: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    reduce_seconds: NDArray[np.float64]
    update_seconds: NDArray[np.float64]
    after_seconds: NDArray[np.float64]
    split_after_seconds: NDArray[np.float64]
    prefix: Pinned
    suffix: Pinned
    saved_bytes: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]
    relief: Relief
    overhead_bytes: NDArray[np.float64]
    sort: NDArray[np.int64]
    working_bytes: NDArray[np.float64]
    reserved_bytes: NDArray[np.float64]
    running_sums: NDArray[np.float64]
    pinned_sums: NDArray[np.float64]


def digest(chain: LayerChain, rows: RowLoads, words: tuple[str, ...]) -> Digest:
    """Turn loads into arrays."""
    distinct, order = _sorts(ById(chain))
    layers = [_one(rows[row, words[0]]) for row in distinct]
    work = np.array([[work_of(rows[row, word]) for word in words] for row in distinct])
    kept = np.array([[rows[row, word].activation_bytes for word in words] for row in distinct])
    saved, extra = kept[:, :1] - kept[:, 1:], work[:, 1:] - work[:, :1]
    ways = np.zeros((2, 2))
    ways[:, 2 - saved.shape[1] :] = saved.max(axis=0), np.maximum(extra.min(axis=0), 0.0)
    longest = [max(rows[row, word].backward_total_seconds for word in words) for row in distinct]
    working = np.array([[rows[row, word].working_bytes for word in words] for row in distinct])
    reserved = np.array([min(rows[row, word].reserved_bytes for word in words) for row in distinct])
    prefix, suffix = _total(rows, chain.prefix), _total(rows, chain.suffix)
    after = _after([*layers, prefix, suffix], [*longest, prefix.backward_seconds, suffix.backward_seconds])
    split_after = _after([*layers, prefix, suffix], [own.weight_seconds for own in (*layers, prefix, suffix)])
    summed = np.take(np.array([_figures(own) for own in layers], dtype=np.float64).T, order, axis=1)
    summed[0], summed[5] = work[order, 0], kept[order, 0]
    running = np.zeros((len(summed), len(order) + 1))
    running[:, 1:] = np.cumsum(summed, axis=1)
    return Digest(
        work_seconds=work[order],
        activation_bytes=kept[order],
        forward_seconds=summed[1],
        backward_seconds=summed[2],
        input_seconds=summed[3],
        static_bytes=summed[4],
        reduce_seconds=summed[6],
        update_seconds=summed[7],
        after_seconds=after[:-2][order],
        split_after_seconds=split_after[:-2][order],
        prefix=replace(prefix, after_seconds=float(after[-2]), split_after_seconds=float(split_after[-2])),
        suffix=replace(suffix, after_seconds=float(after[-1]), split_after_seconds=float(split_after[-1])),
        saved_bytes=ways[0],
        extra_seconds=ways[1],
        # like layers need none: whole layers are counted
        relief=Relief.none(len(order)) if chain.equal else relief(saved[order], np.maximum(extra, 0.0)[order]),
        overhead_bytes=(working.min(axis=1) + reserved)[order],
        sort=order,
        working_bytes=working[order],
        reserved_bytes=reserved[order],
        running_sums=running,
        pinned_sums=np.array([_figures(prefix), _figures(suffix)]),
    )


@lru_cache(maxsize=8)
def _sorts(chain: ById[LayerChain]) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Return the distinct rows of a chain, rising, and which of them each layer is of; a chain never changes."""
    distinct = tuple(sorted(set(chain.of.rows)))
    place = {row: i for i, row in enumerate(distinct)}
    return distinct, locked(np.array([place[row] for row in chain.of.rows]))


def _figures(own: Pinned) -> tuple[float, ...]:
    """Return what is summed of one layer, or of pinned ones: its work first."""
    return (
        own.forward_seconds + own.backward_seconds, own.forward_seconds, own.backward_seconds, own.input_seconds, own.static_bytes,
        own.activation_bytes, own.reduce_seconds, own.update_seconds,
    )  # fmt: skip


def _after(parts: list[Pinned], last_task_seconds: list[float]) -> NDArray[np.float64]:
    """Return what each part adds at least to what follows its rank's last task: layers by row, then what is pinned.

    A reduction starts with the last task at the earliest: what it lasts longer than that task is exposed. Tasks and reductions of a
    rank add up before they are compared, so a pinned part whose task is the longer one hides others' reductions: its share is
    negative. Where that holds for some layer, reductions count nothing at all.
    """
    exposed = np.array([own.reduce_seconds for own in parts]) - np.array(last_task_seconds)
    if exposed[:-2].min() < 0.0:
        exposed[:] = 0.0
    return np.asarray(np.array([own.update_seconds for own in parts]) + exposed)


def _total(rows: RowLoads, ops: tuple[int, ...]) -> Pinned:
    """Return the sums over pinned layers."""
    stage_costs = [rows[i, "none"] for i in ops]
    own = [_one(load) for load in stage_costs]
    sums = {name: sum(getattr(part, name) for part in own) for name in Pinned.__dataclass_fields__}
    working = max((load.working_bytes for load in stage_costs), default=0.0)
    reserved = max((load.reserved_bytes for load in stage_costs), default=0.0)
    largest = {"overhead_bytes": working + reserved, "working_bytes": working, "reserved_bytes": reserved}
    return Pinned(**(sums | largest))


def _one(load: StageCost) -> Pinned:
    """Return what one layer adds, but for the end of the step."""
    backward = load.backward_total_seconds - load.recompute_seconds
    return Pinned(
        forward_seconds=load.forward_total_seconds,
        backward_seconds=backward,
        input_seconds=backward - load.backward_weight_seconds,
        weight_seconds=load.backward_weight_seconds,
        static_bytes=load.static_bytes,
        activation_bytes=load.activation_bytes,
        reduce_seconds=load.reduce_seconds,
        update_seconds=load.gather_seconds + load.optimizer_seconds,
    )


@dataclass(frozen=True, slots=True, eq=False)
class LeastWork:
    """What one micro-batch takes at least on the kinds of device of a mesh, and as a share of whole models.

    Parameters
    ----------
    whole_seconds : ndarray, shape (n_kinds,), float64
        All layers on one device of each kind.
    share_ratio : float
        The sum over layers of the least share of a whole model that each is on any kind of device.
    layer_seconds : float
        The least that a layer of the chain takes on any of them.
    """

    whole_seconds: NDArray[np.float64]
    share_ratio: float
    layer_seconds: float


def least_work(chain: LayerChain, seconds: list[dict[int, float]]) -> LeastWork:
    """Return the least work of a chain; `seconds`: of each distinct layer, on each kind of device."""
    everything = (*chain.prefix, *chain.rows, *chain.suffix)
    whole = np.array([sum(own[row] for row in everything) for own in seconds])
    # a layer takes at least this share of a whole model on whichever kind of device it is
    shares = 1.0
    if len(seconds) > 1:
        shares = sum(min(own[row] / alone for own, alone in zip(seconds, whole, strict=True)) for row in everything)
    return LeastWork(whole, float(shares), min(own[row] for own in seconds for row in set(chain.rows)))


@dataclass(frozen=True, slots=True, eq=False)
class MainLayers:
    """The layer that occurs most often, on each class of ranks: rows are classes.

    Parameters
    ----------
    work_seconds, activation_bytes : ndarray, shape (n_classes, n_words), float64
        As in `Digest`.
    forward_seconds, backward_seconds, input_seconds, static_bytes, after_seconds, split_after_seconds : ndarray, shape (n_classes,)
        As in `Digest`.
    overhead_bytes, least_overhead_bytes : ndarray, shape (n_classes,), float64
        Working and reserved bytes of the main layer, and of the layer that has least of both.
    n_comparable : float
        The number of main layers that the chain's layers need at least, in every resource and on every class.
    """

    work_seconds: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    forward_seconds: NDArray[np.float64]
    backward_seconds: NDArray[np.float64]
    input_seconds: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    after_seconds: NDArray[np.float64]
    split_after_seconds: NDArray[np.float64]
    overhead_bytes: NDArray[np.float64]
    least_overhead_bytes: NDArray[np.float64]
    n_comparable: float


_COMPARED = (
    "work_seconds", "activation_bytes", "forward_seconds", "backward_seconds", "input_seconds", "static_bytes",
)  # fmt: skip


def main_layers(chain: LayerChain, digests: list[Digest]) -> MainLayers:
    """Return the figures of the main layer on the classes of ranks that some digests are of."""
    main = chain.rows.index(chain.main_row)
    names = (*_COMPARED, "after_seconds", "split_after_seconds", "overhead_bytes")
    figures = {name: np.array([getattr(own, name)[main] for own in digests]) for name in names}
    ratio = np.full(len(chain.layers), np.inf)
    for own in digests if not chain.equal else ():
        for name in _COMPARED:
            flat = getattr(own, name).reshape(len(ratio), -1)
            has_some = flat[main] > 0.0
            if has_some.any():
                ratio = np.minimum(ratio, (flat[:, has_some] / flat[main, has_some]).min(axis=1))
    return MainLayers(
        **figures,
        least_overhead_bytes=np.array([own.overhead_bytes.min() for own in digests]),
        n_comparable=float(len(chain.layers) if chain.equal else ratio.sum()),
    )


def stacked(digests: list[Digest]) -> StackedLayers:
    """Return the layers of every class of ranks as the kernel reads them."""
    from meshwright._kernels.best import virtual_stages as kernel

    prices = [own.relief.seconds_per_byte for own in digests]
    n_most, n_layers = max(len(own) for own in prices), len(digests[0].reduce_seconds)
    padded, worth = np.zeros((len(digests), n_most)), np.zeros((len(digests), n_most, n_layers + 1))
    for i, own in enumerate(digests):
        padded[i, : len(prices[i])], worth[i, : len(prices[i])] = prices[i], own.relief.worth_seconds
    overhead = [(own.overhead_bytes.min(), own.prefix.overhead_bytes, own.suffix.overhead_bytes) for own in digests]
    return kernel.StackedLayers(
        np.array([own.running_sums for own in digests]), np.array([own.pinned_sums for own in digests]),
        np.array([own.reduce_seconds for own in digests]), np.array(overhead),
        np.array([own.saved_bytes for own in digests]), np.array([own.extra_seconds for own in digests]),
        np.array([len(own) for own in prices]), padded, worth,
    )  # fmt: skip


def work_of(load: StageCost) -> float:
    """Return the seconds one layer keeps its device busy for one micro-batch."""
    return load.forward_total_seconds + load.backward_total_seconds
