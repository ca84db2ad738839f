"""Splitting equal layers over the ranks of a pipeline: how long a step must last at least, and who takes how many layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import read_only
from meshwright.solvers.pipeline.rank_memory import RankMemory
from meshwright.solvers.pipeline.relief import Relief, relief

if TYPE_CHECKING:
    from meshwright._kernels.pipeline.chain_cuts import Chain

__all__ = [
    "Inequality",
    "PipelineRanks",
    "Relief",
    "Stretches",
    "UnequalChain",
    "bottleneck",
    "bound",
    "cuts",
    "least_extra",
    "relief",
    "split",
]


@dataclass(frozen=True, slots=True, eq=False)
class PipelineRanks:
    """Ranks of a pipeline and what one layer costs on each, for every variant (what a layer recomputes).

    Parameters
    ----------
    work_seconds : ndarray, shape (n_ranks, n_variants), float64
        Forward, backward and recomputation of one layer and one micro-batch.
    layer_bytes : ndarray, shape (n_ranks, n_variants), float64
        Static bytes of one layer, and its activations times the micro-batches in flight on that rank.
    forward_seconds, backward_seconds : ndarray, shape (n_ranks,), float64
        Forward of one layer; what has to return up the pipeline per layer (its backward, or only the input gradients).
    fixed_work_seconds, fixed_forward_seconds : ndarray, shape (n_ranks,), float64
        Work of what is pinned to a rank (embedding, head) per micro-batch, and the forward part of it.
    budget_bytes : ndarray, shape (n_ranks,), float64
        Memory left for layers.
    lead : ndarray, shape (n_ranks,), float64
        Micro-batches that a rank forwards before its first backward.
    after_seconds : ndarray, shape (n_ranks,), float64
        Per layer, once a step after the last backward of the rank (exposed gradient reduction, optimizer).
    """

    work_seconds: NDArray[np.float64]
    layer_bytes: NDArray[np.float64]
    forward_seconds: NDArray[np.float64]
    backward_seconds: NDArray[np.float64]
    fixed_work_seconds: NDArray[np.float64]
    fixed_forward_seconds: NDArray[np.float64]
    budget_bytes: NDArray[np.float64]
    lead: NDArray[np.float64]
    after_seconds: NDArray[np.float64]


def bound(
    ranks: PipelineRanks,
    n_layers: float,
    n_microbatches: int,
    *,
    split_backward: bool,
    whole: bool,
    limit_seconds: float,
    tolerance_ratio: float = 1e-6,
) -> float:
    """Return a proven lower bound on the step over all splits of the layers and all mixes of variants.

    Parameters
    ----------
    ranks : PipelineRanks
        The ranks.
    n_layers : float
        Layers to place (a real number where layers of several kinds were made comparable).
    n_microbatches : int
        Micro-batches of a step.
    split_backward : bool
        Whether weight gradients may wait (zero bubble): only input gradients then return up the pipeline.
    whole : bool
        Whether layers are equal and cannot be divided.
    limit_seconds : float
        Give up above this: the answer is then inf.
    tolerance_ratio : float
        How far below the best provable bound the answer may be.

    Returns
    -------
    float
        Seconds; inf when nothing fits the memory, or when the step would be longer than `limit_seconds`.

    Notes
    -----
    For a step of T seconds every rank's room for layers follows from two inequalities of one-forward-one-backward order
    (Narayanan et al., SC'21, section 2.2; ours are stated for unequal stages): the rank works for all micro-batches between
    the first arrival and the last return; and its first backward waits for the round trip of the first micro-batch, behind
    which only as many forwards hide as the schedule allows in flight. With the memory row, a rank's room is a linear program
    with two rows over the variants. T is bisected until the rooms add up to all layers.
    """
    from meshwright._kernels.pipeline import layer_split as kernel

    return float(
        kernel.least_step(
            _arrays(ranks), float(n_layers), float(n_microbatches), split_backward, whole, float(limit_seconds), tolerance_ratio
        )
    )


def split(
    ranks: PipelineRanks, n_layers: int, n_microbatches: int, *, split_backward: bool, step_seconds: float
) -> NDArray[np.int64] | None:
    """Return how many layers each rank takes so that the step comes close to the bound, or None when they do not fit.

    Parameters
    ----------
    ranks, n_layers, n_microbatches, split_backward
        As in `bound`.
    step_seconds : float
        The bound, where the search for a split starts.

    Returns
    -------
    ndarray, shape (n_ranks,), int64
        Layers of each rank, in pipeline order; surplus room is left where it shortens the warm-up: at the last ranks.
    """
    from meshwright._kernels.pipeline import layer_split as kernel

    arrays = _arrays(ranks)
    most_layers = np.zeros(len(ranks.lead))
    seconds = step_seconds
    for _ in range(60):
        if (
            kernel.capacities(arrays, float(n_layers), float(n_microbatches), split_backward, True, seconds, most_layers)
            >= n_layers
        ):
            break
        seconds *= 1.01
    else:
        return None
    counts = most_layers.astype(np.int64)
    least = (ranks.fixed_work_seconds == 0.0).astype(np.int64)  # a rank without pinned layers needs one
    while counts.sum() > n_layers and (counts > least).any():
        # take a layer away where the rank would then be ahead of the others by most: the largest work, last rank first
        work = np.where(counts > least, counts * ranks.work_seconds[:, 0] + ranks.fixed_work_seconds, -1.0)
        counts[len(work) - 1 - int(np.argmax(work[::-1]))] -= 1
    return counts if counts.sum() == n_layers else None


@dataclass(frozen=True, slots=True, eq=False)
class Inequality:
    """One thing that must fit into a step, for every rank: what its own layers take, and what those before and behind it delay.

    Parameters
    ----------
    n_times : float
        How often recomputation counts.
    step_seconds, before_seconds, later_seconds : ndarray, shape (n_layers,), float64
        Of each layer: seconds of a whole step for the rank that takes it, for every later rank, and for every earlier one.
    fixed_seconds, lead : ndarray, shape (n_ranks,), float64
        Of each rank: seconds whatever it takes, and how many forward passes of its layers hide in the wait for the first
        backward pass.
    ends_first : bool
        Whether the end of the step on the first rank comes after all that.
    n_before, n_later : float
        How often what earlier and what later ranks recompute of a micro-batch counts.
    """

    n_times: float
    step_seconds: NDArray[np.float64]
    before_seconds: NDArray[np.float64]
    later_seconds: NDArray[np.float64]
    fixed_seconds: NDArray[np.float64]
    lead: NDArray[np.float64]
    ends_first: bool = False
    n_before: float = 0.0
    n_later: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Stretches of ranks that micro-batches go down and up in turn, each after one has come back: all must fit into a step.

    Parameters
    ----------
    ranks : ndarray, shape (n_turns, 2), int64
        First and last rank of each.
    n_times, fixed_seconds, least_seconds : ndarray, shape (n_turns,), float64
        How often; seconds of a step whatever layers lie there; of one micro-batch there and back in the fewest layers that can.
    passing_seconds : ndarray, shape (n_layers,), float64
        What a micro-batch takes there and back in each layer.
    """

    ranks: NDArray[np.int64]
    n_times: NDArray[np.float64]
    fixed_seconds: NDArray[np.float64]
    least_seconds: NDArray[np.float64]
    passing_seconds: NDArray[np.float64]

    @classmethod
    def none(cls, n_layers: int) -> Stretches:
        """Return no stretches."""
        return cls(np.zeros((0, 2), dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(n_layers))


@dataclass(frozen=True, slots=True, eq=False)
class UnequalChain:
    """Layers in order, and the ranks of a pipeline that they are cut for.

    Parameters
    ----------
    inequalities : tuple of Inequality
        All of them hold for every rank of every plan. In each, what a layer delays others is at most what it takes on its own
        rank.
    end_seconds : ndarray, shape (n_layers,), float64
        What each layer adds to the end of the step if it is on the first rank.
    forward_seconds, static_bytes, activation_bytes : ndarray, shape (n_layers,), float64
        Of each layer: forward of one micro-batch; static bytes; activations of one micro-batch.
    budget_bytes, in_flight : ndarray, shape (n_ranks,), float64
        Of each rank: memory left for layers, and micro-batches in flight.
    saved_bytes, extra_seconds : ndarray, shape (n_ranks, 2), float64
        Two ways to recompute a layer, the weaker first: the most that any layer gives up of its activations, and the least that
        this costs in seconds of one micro-batch.
    relief : Relief
        The same of every layer by itself.
    memory : RankMemory or None
        What the layers hold by what they recompute, exactly; None where no more is known.
    turns : Stretches or None
        What several ranks together take; the end of the step on the first rank comes after that. None where nothing is known.
    """

    inequalities: tuple[Inequality, ...]
    end_seconds: NDArray[np.float64]
    forward_seconds: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    budget_bytes: NDArray[np.float64]
    in_flight: NDArray[np.float64]
    saved_bytes: NDArray[np.float64]
    extra_seconds: NDArray[np.float64]
    relief: Relief
    memory: RankMemory | None = None
    turns: Stretches | None = None


def bottleneck(
    chain: UnequalChain, *, least_seconds: float = 0.0, limit_seconds: float = math.inf
) -> tuple[float, NDArray[np.int64]]:
    """Return the least step that all inequalities allow over all ways to cut a chain, and how many layers each rank then takes.

    Parameters
    ----------
    chain : UnequalChain
        The layers and the ranks.
    least_seconds, limit_seconds : float
        What is asked: no answer below the first is needed, and above the second it may be inf.

    Returns
    -------
    seconds : float
        No cut allows a shorter step, unless that is below `least_seconds`; inf when no cut fits the memory.
    counts : ndarray, shape (n_ranks,), int64
        Layers of each rank.
    """
    from meshwright._kernels.pipeline import chain_cuts as kernel

    ends = np.zeros(len(chain.budget_bytes), dtype=np.int64)
    seconds = float(kernel.least_bottleneck(_chain_arrays(chain), ends, least_seconds, limit_seconds))
    return seconds, np.diff(np.concatenate(([0], ends)))


def cuts(chain: UnequalChain, limit_seconds: float, n_most: int) -> NDArray[np.int64] | None:
    """Return every way to cut a chain that all inequalities allow within a limit.

    Parameters
    ----------
    chain : UnequalChain
        The layers and the ranks.
    limit_seconds : float
        The longest step.
    n_most : int
        How many cuts are asked for at most.

    Returns
    -------
    ndarray, shape (n_cuts, n_ranks), int64, or None
        Layers of each rank, which may have none; None where there are more cuts than asked for.
    """
    from meshwright._kernels.pipeline import chain_cuts as kernel

    ends = np.zeros((n_most, len(chain.budget_bytes)), dtype=np.int64)
    n_cuts = kernel.cuts_within(_chain_arrays(chain), limit_seconds, ends)
    return None if n_cuts > n_most else np.diff(ends[:n_cuts], axis=1, prepend=0)


def _chain_arrays(chain: UnequalChain) -> Chain:
    """Return a chain as the kernels read it."""
    from meshwright._kernels.pipeline import chain_cuts as kernel

    turns = chain.turns or Stretches.none(len(chain.forward_seconds))
    memory = chain.memory or RankMemory.unlimited(len(chain.forward_seconds), len(chain.budget_bytes))

    def stacked(*names: str) -> NDArray[np.float64]:
        return np.array([[getattr(own, name) for own in chain.inequalities] for name in names], dtype=np.float64)

    def sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
        np.cumsum(values, axis=-1, out=found[..., 1:])
        return _locked(found)

    of_layers = (chain.forward_seconds, chain.static_bytes, chain.activation_bytes, chain.end_seconds, turns.passing_seconds)
    of_ranks = (chain.budget_bytes, chain.in_flight, *chain.saved_bytes.T, *chain.extra_seconds.T)
    return kernel.Chain(
        delays=sums(stacked("step_seconds", "before_seconds", "later_seconds")),
        sums=sums(np.array(of_layers)),
        offsets=_locked(stacked("fixed_seconds", "lead")),
        times=_locked(stacked("n_times", "n_before", "n_later", "ends_first").T),
        ranks=_locked(np.array(of_ranks).T),
        prices=_locked(chain.relief.seconds_per_byte),
        worth=_locked(chain.relief.worth_seconds),
        dearest=max(
            chain.relief.dearest_seconds, memory.dearest_seconds, len(chain.forward_seconds) * float(chain.extra_seconds.max())
        ),
        turn=read_only(turns.ranks, np.int64),
        turn_seconds=_locked(np.array((turns.n_times, turns.fixed_seconds, turns.least_seconds)).T),
        holding=memory.arrays(),
    )


def least_extra(
    excess_bytes: float, n_layers: int, saved_bytes: NDArray[np.float64], extra_seconds: NDArray[np.float64]
) -> float:
    """Return the least seconds of recomputation, in whole layers, that free some bytes; inf when all layers do not.

    Parameters
    ----------
    excess_bytes : float
        Bytes to free.
    n_layers : int
        Layers there are.
    saved_bytes, extra_seconds : ndarray, shape (2,), float64
        What either way to recompute frees per layer at most, and costs at least; the weaker way first.
    """
    from meshwright._kernels.pipeline import rank_memory as kernel

    return float(kernel.least_extra(float(excess_bytes), n_layers, saved_bytes, extra_seconds))


def _arrays(ranks: PipelineRanks) -> Any:
    from meshwright._kernels.pipeline import layer_split as kernel

    figures = (
        ranks.forward_seconds, ranks.backward_seconds, ranks.fixed_work_seconds, ranks.fixed_forward_seconds,
        ranks.budget_bytes, ranks.lead, ranks.after_seconds,
    )  # fmt: skip
    return kernel.Ranks(_locked(ranks.work_seconds), _locked(ranks.layer_bytes), _locked(np.array(figures)))


def _locked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the array, read-only: kernels are compiled for one kind of array."""
    array = np.ascontiguousarray(values, dtype=np.float64)
    array.setflags(write=False)
    return array
