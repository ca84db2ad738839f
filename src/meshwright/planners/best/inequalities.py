"""What must fit into a step of 1F1B or ZB-H1 whatever the split of the layers: the inequalities behind the bound of a configuration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.best.costs import Costs, after_name
from meshwright.planners.best.space import Config
from meshwright.solvers.pipeline import layer_split

__all__ = ["chain_to_cut"]


def chain_to_cut(
    costs: Costs,
    config: Config,
    n_microbatches: int,
    transfer_seconds: NDArray[np.float64] | None = None,
    *,
    building: bool = False,
) -> layer_split.UnequalChain:
    """Return a configuration as a chain to cut, with all that its schedule says must fit into a step.

    Parameters
    ----------
    costs : Costs
        Loads of the layers.
    config : Config
        The configuration, one stage per rank.
    n_microbatches : int
        Micro-batches of a step.
    transfer_seconds : ndarray, shape (n_ranks - 1,), float64, or None
        The least that a transfer from each rank to the next takes, whatever the split; None for nothing.
    building : bool
        Whether a plan is to be built: as in `Costs.pipeline_ranks`.

    Returns
    -------
    UnequalChain
        The inequalities below, each of which every plan of the configuration satisfies.

    Notes
    -----
    * A rank works for all micro-batches from the arrival of the first one, and then ends the step.
    * Before its first backward pass the first micro-batch goes all the way there and back to the rank (under ZB-H1 only its input
      gradients come back), which hides as many forward passes as are in flight; then come all other passes.
    * The last micro-batch goes on from the rank to the first one, which ends the step. Under ZB-H1 weight gradients may wait, so
      here they count only on the first rank: its last one and its reduction begin with them.
    * The last two together: the round trip of the first micro-batch, the rank's other passes, the end on the first rank.

    Where ranks are of several classes, forward and backward pass of every layer are each counted as on the class on which they take
    least, and its work as both together: what hides behind the wait is then never more than what was counted. Every way from rank to
    rank also takes its transfers.
    """
    digests = costs.digests(config, light=False)
    ranks, _, _ = costs.pipeline_ranks(config, n_microbatches, building=building)
    p, follows = len(ranks.lead), after_name(config)
    hops = np.zeros(p - 1) if transfer_seconds is None else transfer_seconds
    arrives = np.concatenate(([0.0], np.cumsum(hops)))
    comes_back = arrives[-1] - arrives

    def least(columns: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.asarray(np.min(columns, axis=0))

    forward = least([own.forward_seconds for own in digests])
    work = forward + least([own.work_seconds[:, 0] - own.forward_seconds for own in digests])
    after = least([getattr(own, follows) for own in digests])
    backward = least([own.backward_seconds for own in digests])
    returns = least([own.input_seconds for own in digests])
    kinds = [digests[i] for i in costs.classes(config).of_rank]
    prefix, suffix, pinned = kinds[0].prefix, kinds[-1].suffix, ranks.fixed_work_seconds
    none, nothing = np.zeros_like(work), np.zeros(p)
    later_ranks, not_last = np.arange(p) > 0, np.arange(p) < p - 1
    # what follows the last task of the ranks that hold pinned layers
    ends = nothing.copy()
    ends[0] += getattr(prefix, follows)
    ends[-1] += getattr(suffix, follows)
    lead, pinned_forward, m = ranks.lead, ranks.fixed_forward_seconds, float(n_microbatches)
    there = float(forward.sum() + pinned_forward.sum() + arrives[-1])
    both = forward + (returns if config.schedule == "zb_h1" else backward)
    once, end = m * pinned + later_ranks * prefix.forward_seconds + arrives + ends, none
    found = [layer_split.Inequality(m, m * work + after, forward, none, once, nothing)]
    if config.schedule == "1f1b":
        once = there + m * pinned - lead * pinned_forward + not_last * suffix.backward_seconds + comes_back + ends
        found.append(layer_split.Inequality(m, m * work + after, none, backward, once, lead))
        back = later_ranks * (prefix.forward_seconds + prefix.backward_seconds)
        end, last = after, prefix.after_seconds
    elif config.schedule == "zb_h1":
        once = there + m * pinned - lead * pinned_forward + not_last * suffix.input_seconds + comes_back + ends
        found.append(layer_split.Inequality(m, m * work + after, none, returns, once, lead))
        # without weight gradients, all of which may wait: the last input gradient still goes back to the first rank, whose
        # last weight gradients and reduction begin then
        work, pinned = both, pinned_forward.copy()
        pinned[0] += prefix.input_seconds
        pinned[-1] += suffix.input_seconds
        back = later_ranks * (prefix.forward_seconds + prefix.input_seconds)
        end = least([own.reduce_seconds + own.update_seconds for own in digests])
        last = prefix.reduce_seconds + prefix.update_seconds
    if config.schedule in ("1f1b", "zb_h1"):
        once = last + m * pinned + back + 2.0 * arrives
        found.append(layer_split.Inequality(m, m * work, both, none, once, nothing, ends_first=True))
        trip = last + float(work.sum() + pinned.sum() + 2.0 * arrives[-1])
        once = trip + (m - 1.0) * pinned - (lead - 1.0) * pinned_forward
        found.append(layer_split.Inequality(m - 1.0, (m - 1.0) * work, none, none, once, lead - 1.0, ends_first=True))
    saved = [own.activation_bytes[:, :1] - own.activation_bytes[:, 1:] for own in digests]
    extra = [own.work_seconds[:, 1:] - own.work_seconds[:, :1] for own in digests]
    return layer_split.UnequalChain(
        inequalities=tuple(found),
        end_seconds=end,
        forward_seconds=forward,
        static_bytes=digests[0].static_bytes,
        activation_bytes=digests[0].activation_bytes[:, 0],
        budget_bytes=ranks.budget_bytes,
        in_flight=costs.peaks(config, n_microbatches).held[:, 0, 0],
        saved_bytes=np.array([own.saved_bytes for own in kinds]),
        extra_seconds=np.array([own.extra_seconds for own in kinds]),
        relief=digests[0].relief
        if len(digests) == 1
        else layer_split.relief(np.max(saved, axis=0), np.maximum(least(extra), 0.0)),
    )
