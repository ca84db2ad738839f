"""What a rank must recompute to hold some layers of a chain: exact for few sorts of layers, a lower bound for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from meshwright._kernels.pipeline.rank_memory import Holding

__all__ = ["RankMemory", "least_again"]

_N_WAYS = 3


@dataclass(frozen=True, slots=True, eq=False)
class RankMemory:
    """Layers of a few sorts, what they hold on a few classes of ranks by what they recompute, and the memory of every rank.

    Parameters
    ----------
    sort : ndarray, shape (n_layers,), int64
        Of each layer of the chain, from 0 on.
    of_rank : ndarray, shape (n_ranks,), int64
        The class of each rank.
    static_bytes, reserved_bytes : ndarray, shape (n_classes, n_sorts), float64
        Held all the time, by every layer; by the process, so that the largest of the rank's layers counts.
    kept_bytes, working_bytes, extra_seconds : ndarray, shape (n_classes, n_sorts, n_ways), float64
        By one to three ways to recompute, nothing (or the least) first: kept of one micro-batch; needed while the layer runs,
        the largest of the rank's layers counts; seconds of one micro-batch beyond those of the first way.
    in_flight : ndarray, shape (n_ranks,), float64
        Micro-batches held at the fullest moment.
    room_bytes : ndarray, shape (n_ranks,), float64
        Memory, less what pinned layers hold for good and keep of the micro-batches in flight.
    pinned_working_bytes, pinned_reserved_bytes : ndarray, shape (n_ranks,), float64
        What pinned layers need while they run, and what the process reserves for them.
    """

    sort: NDArray[np.int64]
    of_rank: NDArray[np.int64]
    static_bytes: NDArray[np.float64]
    reserved_bytes: NDArray[np.float64]
    kept_bytes: NDArray[np.float64]
    working_bytes: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]
    in_flight: NDArray[np.float64]
    room_bytes: NDArray[np.float64]
    pinned_working_bytes: NDArray[np.float64]
    pinned_reserved_bytes: NDArray[np.float64]

    @property
    def dearest_seconds(self) -> float:
        """What recomputing all layers takes at most, of one micro-batch."""
        dearest = self.extra_seconds.max(axis=(0, 2), initial=0.0)
        return float(dearest[self.sort].sum()) if len(dearest) else 0.0

    @classmethod
    def unlimited(cls, n_layers: int, n_ranks: int) -> RankMemory:
        """Return ranks of which nothing is known: no layer has to recompute."""
        nothing, none = np.zeros(n_ranks), np.zeros((1, 0))
        ways = np.zeros((1, 0, _N_WAYS))
        return cls(
            np.zeros(n_layers, dtype=np.int64), np.zeros(n_ranks, dtype=np.int64), none, none, ways, ways, ways, nothing,
            nothing, nothing, nothing,
        )  # fmt: skip

    def arrays(self) -> Holding:
        """Return it as the kernels read it."""
        from meshwright._kernels.pipeline import rank_memory as kernel

        is_of = self.sort == np.arange(self.static_bytes.shape[1])[:, None]
        counts = np.zeros((len(is_of), len(self.sort) + 1), dtype=np.int64)
        counts[:, 1:] = np.cumsum(is_of, axis=1)
        state = (self.static_bytes[..., None], self.reserved_bytes[..., None])
        ways = (_three(self.kept_bytes), _three(self.working_bytes), _three(self.extra_seconds))
        ranks = (self.in_flight, self.room_bytes, self.pinned_working_bytes, self.pinned_reserved_bytes)
        return kernel.Holding(
            _locked(counts), _locked(np.concatenate((*state, *ways), axis=2)), _locked(self.of_rank.astype(np.int64)),
            _locked(np.array(ranks).T),
        )  # fmt: skip


def least_again(memory: RankMemory, rank: int, first: int, last: int) -> float:
    """Return the seconds of a micro-batch that a rank recomputes at least to hold some layers.

    Parameters
    ----------
    memory : RankMemory
        The layers and the ranks.
    rank, first, last : int
        The rank, and its layers first..last-1.

    Returns
    -------
    float
        Seconds; inf where nothing fits.

    Notes
    -----
    Lemma: at its fullest moment a rank holds the static bytes of its layers, what each keeps of every micro-batch in flight by
    what it recomputes, and once the largest working memory of any of them (what recomputes more often needs more) and the
    largest reserve. The least extra seconds over all choices with room for that is what it recomputes at least. All choices
    for layers of all sorts but the most frequent one are tried, and for each, how many of that sort recompute by the stronger
    way; then none, as few as are enough, or all of the others recompute by the weaker one: no other number is better. Where
    there are too many choices, nothing but whether the least of every figure fits is asked.
    """
    from meshwright._kernels.pipeline import rank_memory as kernel

    return float(kernel.least_again(memory.arrays(), rank, first, last))


def _three(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return figures of one to three ways as those of three: the first one stands for those that are missing in between."""
    n_missing = _N_WAYS - values.shape[2]
    filled = np.concatenate((np.repeat(values[:, :, :1], n_missing, axis=2), values), axis=2)
    return np.asarray(filled, dtype=np.float64)


def _locked(values: NDArray[Any]) -> NDArray[Any]:
    """Return the array, read-only: kernels are compiled for one kind of array."""
    array = np.ascontiguousarray(values)
    array.setflags(write=False)
    return array
