"""What a pipeline solver is given: nodes with choices per tensor degree, edges, and what a stage may be (`StageMenu`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.pipeline.choice import Menu, Rules
from meshwright._kernels.pipeline.pairs import Crossing, Space
from meshwright.base.identity import distinct, locked
from meshwright.solvers.pipeline import downsets

__all__ = ["StageMenu", "crossing", "kernel_menu", "rules", "space", "widest"]


@dataclass(frozen=True, slots=True, eq=False)
class StageMenu:
    """An instance of the stage-level problem, as arrays.

    Parameters
    ----------
    n_nodes : int
        Number of nodes.
    edge_source, edge_target : ndarray, shape (n_edges,), int64
        Ends of each edge.
    edge_seconds : ndarray, shape (n_edges,), float64
        What an edge costs each of its two end stages where it crosses a border, per micro-batch.
    degrees : ndarray, shape (n_degrees,), int64
        Tensor degrees, ascending.
    first : ndarray, shape (n_nodes * n_degrees + 1,), int64
        First choice of each node and degree.
    seconds : ndarray, shape (n_choices,), float64
        Forward and backward of one micro-batch.
    weight_bytes, per_microbatch_bytes, fixed_bytes : ndarray, shape (n_choices,), float64
        Weights that replicas reduce; memory per micro-batch in flight; memory held anyway.
    sync_in_first, sync_in_seconds : ndarray, shapes (n_choices + 1,) and (n,), int64 and float64
        Further seconds of each choice for each edge into its node, edges in the order given.
    sync_out_first, sync_out_seconds : ndarray
        The same for each edge out of its node.
    replicas : ndarray, shape (n_options,), int64
        Allowed numbers of replicas of a stage, ascending.
    share : ndarray, shape (n_options,), float64
        Share of the micro-batches that the busiest replica runs.
    reduce_seconds : ndarray, shape (n_degrees, n_options), float64
        Seconds of gradient reduction per weight byte and micro-batch.
    n_devices, n_replicas : int
        Devices, and the largest sum of replicas.
    memory_bytes : float
        Memory of a device.
    exact : bool
        Whether the inner choice is exact; else Piper's greedy.
    all_or_none : bool
        Piper's flag: where the cheapest choices do not fit, the smallest for all nodes of the stage.
    sharded : bool
        Whether replicas share out one copy of the weights' bytes (optimizer sharding).
    tensor_once : bool
        Whether a tensor with several consumers beyond a border crosses it once.
    names : tuple of str
        What each choice is called.
    reserve_bytes : ndarray, shape (n_degrees,), float64, or None
        What a stage of each degree holds beside its nodes; None for nothing. A tensor degree may stand in `degrees` more than
        once, with choices of its own and a reserve of its own.
    border_ratio : ndarray, shape (n_degrees, n_options), float64, or None
        Multiple of `edge_seconds` and the sync terms for a stage of this degree and number of replicas, at least 1; None for 1.
    """

    n_nodes: int
    edge_source: NDArray[np.int64]
    edge_target: NDArray[np.int64]
    edge_seconds: NDArray[np.float64]
    degrees: NDArray[np.int64]
    first: NDArray[np.int64]
    seconds: NDArray[np.float64]
    weight_bytes: NDArray[np.float64]
    per_microbatch_bytes: NDArray[np.float64]
    fixed_bytes: NDArray[np.float64]
    sync_in_first: NDArray[np.int64]
    sync_in_seconds: NDArray[np.float64]
    sync_out_first: NDArray[np.int64]
    sync_out_seconds: NDArray[np.float64]
    replicas: NDArray[np.int64]
    share: NDArray[np.float64]
    reduce_seconds: NDArray[np.float64]
    n_devices: int
    n_replicas: int
    memory_bytes: float
    exact: bool = True
    all_or_none: bool = False
    sharded: bool = False
    tensor_once: bool = False
    names: tuple[str, ...] = ()
    reserve_bytes: NDArray[np.float64] | None = None
    border_ratio: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def n_degrees(self) -> int:
        """Number of tensor degrees."""
        return len(self.degrees)

    def choices(self, node: int, degree: int) -> range:
        """Return the choices of a node at the degree in this position."""
        at = node * self.n_degrees + degree
        return range(int(self.first[at]), int(self.first[at + 1]))

    @property
    def alike(self) -> bool:
        """Whether the choices of every node and degree differ in seconds and memory only."""
        sizes = np.diff(self.first)
        low = np.repeat(self.first[:-1], sizes)
        if not np.array_equal(self.weight_bytes, self.weight_bytes[low]):
            return False
        for first, sync in ((self.sync_in_first, self.sync_in_seconds), (self.sync_out_first, self.sync_out_seconds)):
            lengths = np.diff(first)
            within = np.arange(len(sync)) - np.repeat(first[:-1], lengths)
            if not np.array_equal(sync, sync[np.repeat(first[low], lengths) + within]):
                return False
        return True


def kernel_menu(menu: StageMenu) -> Menu:
    """Return the choices in the kernel's form."""
    n = menu.n_nodes
    in_first, by_target = downsets.groups(menu.edge_target, n)
    out_first, by_source = downsets.groups(menu.edge_source, n)
    return Menu(
        menu.first,
        menu.seconds,
        menu.weight_bytes,
        menu.per_microbatch_bytes,
        menu.fixed_bytes,
        in_first,
        locked(menu.edge_source[by_target]),
        locked(menu.edge_seconds[by_target]),
        out_first,
        locked(menu.edge_target[by_source]),
        locked(menu.edge_seconds[by_source]),
        menu.sync_in_first,
        menu.sync_in_seconds,
        menu.sync_out_first,
        menu.sync_out_seconds,
        menu.alike,
        bool(np.all(np.diff(menu.first) <= 2)),
    )


def widest(menu: StageMenu) -> NDArray[np.int64]:
    """Return for each tensor degree, ascending, the position of the one with most choices:
    it has every choice of the others.
    """
    sizes = np.diff(menu.first).reshape(menu.n_nodes, menu.n_degrees).sum(axis=0)
    return locked(np.array([max(np.flatnonzero(menu.degrees == t), key=lambda i: sizes[i]) for t in distinct(menu.degrees)]))


def rules(menu: StageMenu, *, optimistic: bool = False) -> Rules:
    """Return what a stage may be in the kernel's form."""
    largest = int(menu.replicas[-1])
    position = np.searchsorted(menu.replicas, np.arange(largest + 1))
    position[position == len(menu.replicas)] = -1
    return Rules(
        menu.degrees,
        menu.replicas,
        menu.share,
        menu.reduce_seconds,
        locked(position.astype(np.int64)),
        int(menu.exact),
        int(menu.all_or_none),
        int(menu.sharded),
        int(optimistic),
        locked(np.zeros(menu.n_degrees) if menu.reserve_bytes is None else menu.reserve_bytes),
        locked(np.ones((menu.n_degrees, len(menu.replicas))) if menu.border_ratio is None else menu.border_ratio),
        locked(np.searchsorted(distinct(menu.degrees), menu.degrees)),
    )


def space(menu: StageMenu, family: downsets.Family) -> Space:
    """Return downsets with the sums over their members that bound a stage's time and memory."""
    words, link_first, link = family
    n, n_degrees = menu.n_nodes, menu.n_degrees
    value = np.zeros((n, n_degrees, 7))
    work = np.full((n, n_degrees, 4), np.inf)
    for v in range(n):
        for t, degree in enumerate(menu.degrees):
            choices = np.asarray(menu.choices(v, t))
            if not len(choices):
                value[v, t, 6] = 1.0
                continue
            a, b = menu.per_microbatch_bytes[choices], menu.fixed_bytes[choices]
            fast = int(np.argmin(menu.seconds[choices]))
            weight = menu.weight_bytes[choices].min()
            least = menu.seconds[choices[fast]]
            fixed = (b - menu.weight_bytes[choices] * menu.sharded).min()
            value[v, t, :6] = (least, weight, a[fast], b[fast], a.min(), fixed)
            work[v, t] = (degree * least, least, degree * a.min(), degree * fixed)
    least_work = work.min(axis=1)
    least_work[~np.isfinite(least_work)] = 0.0
    flat = np.concatenate([value.reshape(n, -1), least_work], axis=1)
    totals = np.empty((len(words), flat.shape[1]))
    step = max(1, 2_000_000 // n)  # sets whose members fit into 16 MB together
    for start in range(0, len(words), step):
        block = downsets.members(words[start : start + step], n).astype(np.float64)
        totals[start : start + step] = block @ flat
    sums = np.ascontiguousarray(totals[:, : 7 * n_degrees]).reshape(len(words), n_degrees, 7)
    return Space(locked(words), locked(link_first), locked(link), locked(sums), locked(totals[:, 7 * n_degrees :].copy()))


def crossing(menu: StageMenu) -> Crossing:
    """Return the edges, by source, with what each costs the stage it enters and the one it leaves at every degree."""
    n_edges, n_degrees = len(menu.edge_source), menu.n_degrees
    into = np.repeat(menu.edge_seconds[:, None], n_degrees, axis=1)
    out_of = into.copy()
    rank_in = _rank_within(menu.edge_target)
    rank_out = _rank_within(menu.edge_source)
    for e in range(n_edges):
        for t in range(n_degrees):
            entering = [
                menu.sync_in_seconds[menu.sync_in_first[c] + rank_in[e]] for c in menu.choices(int(menu.edge_target[e]), t)
            ]
            leaving = [
                menu.sync_out_seconds[menu.sync_out_first[c] + rank_out[e]] for c in menu.choices(int(menu.edge_source[e]), t)
            ]
            into[e, t] += min(entering, default=0.0)
            out_of[e, t] += min(leaving, default=0.0)
    _, order = downsets.groups(menu.edge_source, menu.n_nodes)
    return Crossing(
        locked(menu.edge_source[order]), locked(menu.edge_target[order]), locked(into[order]), locked(out_of[order]),
        bool(menu.tensor_once),
    )  # fmt: skip


def _rank_within(keys: NDArray[np.int64]) -> list[int]:
    """Return how many earlier entries have the same key."""
    seen: dict[int, int] = {}
    ranks = []
    for key in keys.tolist():
        ranks.append(seen.get(key, 0))
        seen[key] = ranks[-1] + 1
    return ranks
