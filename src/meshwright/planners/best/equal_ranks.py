"""A configuration as pipeline ranks of equal layers: what is the same for all its schedules, and what its own adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.best.layer_sums import Digest, MainLayers
from meshwright.planners.best.memory import ROUNDING_RATIO
from meshwright.planners.best.space import Config, after_name
from meshwright.solvers.pipeline.layer_split import PipelineRanks

__all__ = ["EqualRanks", "equal_ranks", "scheduled"]


@dataclass(frozen=True, slots=True, eq=False)
class EqualRanks:
    """Ranks of a pipeline of main layers under any schedule.

    Parameters
    ----------
    layers : MainLayers
        The main layer on each rank: rows are ranks.
    overhead_bytes, fixed_work_seconds, fixed_forward_seconds : ndarray, shape (n_ranks,), float64
        Working and reserved bytes; work of what is pinned to a rank, and the forward part of it.
    prefix, suffix : Digest
        The classes of the first and of the last rank, to which layers are pinned.
    """

    layers: MainLayers
    overhead_bytes: NDArray[np.float64]
    fixed_work_seconds: NDArray[np.float64]
    fixed_forward_seconds: NDArray[np.float64]
    prefix: Digest
    suffix: Digest


def equal_ranks(own: MainLayers, digests: Sequence[Digest], of_rank: NDArray[np.int64], *, building: bool) -> EqualRanks:
    """Return ranks of main layers.

    Parameters
    ----------
    own : MainLayers
        The main layer on each class of ranks.
    digests : sequence of Digest
        All layers on each class.
    of_rank : ndarray, shape (n_ranks,), int64
        Classes.
    building : bool
        Whether every rank is taken to hold a main layer; else it needs no more than the least of all layers does.
    """
    p = len(of_rank)
    fixed_work, fixed_forward = np.zeros(p), np.zeros(p)
    overhead = (own.overhead_bytes if building else own.least_overhead_bytes)[of_rank]
    first, last = digests[of_rank[0]], digests[of_rank[-1]]
    for rank, pinned in ((0, first.prefix), (p - 1, last.suffix)):
        fixed_work[rank] += pinned.forward_seconds + pinned.backward_seconds
        fixed_forward[rank] += pinned.forward_seconds
        if pinned.overhead_bytes:
            # without layers of the chain, what is pinned may be all that the rank holds
            overhead[rank] = max(pinned.overhead_bytes, overhead[rank] if building or p == 1 else 0.0)
    figures = {name: getattr(own, name)[of_rank] for name in MainLayers.__slots__ if name != "n_comparable"}
    return EqualRanks(MainLayers(**figures, n_comparable=own.n_comparable), overhead, fixed_work, fixed_forward, first, last)


def scheduled(
    ranks: EqualRanks, config: Config, n_microbatches: int, in_flight: NDArray[np.float64], memory_bytes: NDArray[np.float64],
    *, equal: bool,
) -> tuple[PipelineRanks, float, float]:  # fmt: skip
    """Return ranks under the schedule of a configuration, how many main layers there are, and seconds pinned after the step.

    Parameters
    ----------
    ranks : EqualRanks
        Those of the configuration's mesh, sharding and layout.
    config : Config
        The configuration.
    n_microbatches : int
        Micro-batches of a step.
    in_flight, memory_bytes : ndarray, shape (n_ranks,), float64
        Micro-batches that each rank holds at its fullest moment; what may be filled.
    equal : bool
        Whether all layers are alike; those of several kinds are not compared by what follows the last task.
    """
    own, split_backward, p = ranks.layers, config.split_backward, config.mesh.pipeline
    prefix, suffix = ranks.prefix.prefix, ranks.suffix.suffix
    budget = memory_bytes * (1.0 + ROUNDING_RATIO) - ranks.overhead_bytes
    for rank, pinned in ((0, prefix), (p - 1, suffix)):
        budget[rank] -= pinned.static_bytes + in_flight[rank] * pinned.activation_bytes
    after = after_name(config)
    found = PipelineRanks(
        work_seconds=own.work_seconds,
        layer_bytes=own.static_bytes[:, None] + in_flight[:, None] * own.activation_bytes,
        forward_seconds=own.forward_seconds,
        backward_seconds=own.input_seconds if split_backward else own.backward_seconds,
        fixed_work_seconds=ranks.fixed_work_seconds,
        fixed_forward_seconds=ranks.fixed_forward_seconds,
        budget_bytes=budget,
        lead=config.leads(n_microbatches),
        after_seconds=equal * (own.split_after_seconds if split_backward else own.after_seconds),
    )
    # every rank's work ends on the first one only where backward passes are whole
    pinned_after = 0.0 if split_backward and p > 1 else getattr(prefix, after) + (getattr(suffix, after) if p == 1 else 0.0)
    return found, own.n_comparable, pinned_after
