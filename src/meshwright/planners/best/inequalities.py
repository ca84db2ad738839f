"""What must fit into a step of 1F1B or ZB-H1, also with longer warm-ups, whatever the split of the layers: the inequalities behind the bound of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.planners.best.costs import Costs, after_name
from meshwright.planners.best.layer_sums import Digest, Pinned
from meshwright.planners.best.space import Config
from meshwright.solvers.pipeline import layer_split
from meshwright.solvers.pipeline.rank_memory import RankMemory

__all__ = ["chain_to_cut"]

_MOST_WAITING = 3  # ranks of which it is asked how often they wait for a round trip
_MOST_TURNS = 6  # stretches of ranks that are asked for round trips in turn
_NOT_ASKED = -1e18  # seconds of a rank of which an inequality says nothing


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
    * Where transfers take time: a rank forwards a micro-batch only once the one that is its lead earlier has come back. So every
      lead-th of them, the last one included, makes its round trip from this rank down and back after the one before, and the first of
      these follows the forward passes of those earlier still. Each rank's lead and what lies behind it are other ones: this is asked
      of the ranks on which it takes longest if layers are spread evenly (`_MOST_WAITING`). Under ZB-H1 the first rank may hold no more
      micro-batches than its lead, so that it also computes the weight gradients of the one before.
    * A stretch of ranks in the middle makes round trips in turn as well: see `_turns`.
    * What other ranks recompute at least to hold their layers is part of every way back through them, and of each round trip.
    * A channel carries one transfer at a time: all micro-batches pass the slowest one after each other, the first (or last) of them
      also all the rest of the way there and back.

    Where ranks are of several classes, forward and backward pass of every layer are each counted as on the class on which they take
    least, and its work as both together: what hides behind the wait is then never more than what was counted. Every way from rank to
    rank also takes its transfers.
    """
    digests, ranks = costs.digests(config, light=False), costs.pipeline_ranks(config, n_microbatches, building=building)[0]
    kinds = [digests[i] for i in costs.classes(config).of_rank]
    hops = np.zeros(len(ranks.lead) - 1) if transfer_seconds is None else transfer_seconds
    asked = _Asked.of(config, digests, kinds, ranks, n_microbatches, hops)
    found, end = _inequalities(asked)
    saved = [own.activation_bytes[:, :1] - own.activation_bytes[:, 1:] for own in digests]
    extra = [own.work_seconds[:, 1:] - own.work_seconds[:, :1] for own in digests]
    return layer_split.UnequalChain(
        inequalities=found,
        end_seconds=end,
        forward_seconds=asked.forward,
        static_bytes=digests[0].static_bytes,
        activation_bytes=digests[0].activation_bytes[:, 0],
        budget_bytes=ranks.budget_bytes,
        in_flight=costs.peaks(config, n_microbatches).held[:, 0, 0],
        saved_bytes=np.array([own.saved_bytes for own in kinds]),
        extra_seconds=np.array([own.extra_seconds for own in kinds]),
        relief=digests[0].relief
        if len(digests) == 1
        else layer_split.relief(np.max(saved, axis=0), np.maximum(_least(extra), 0.0)),
        memory=_memory(costs, config, digests, costs.peaks(config, n_microbatches).held[:, 0, 0]),
        turns=_turns(asked) if asked.in_turn and asked.arrives[-1] > 0.0 else None,
    )


def _memory(costs: Costs, config: Config, digests: Sequence[Digest], held: NDArray[np.float64]) -> RankMemory:
    """Return what layers hold by what they recompute, on every class of ranks, and the memory that pinned layers leave each rank."""
    of_rank = costs.classes(config).of_rank
    _, first = np.unique(digests[0].sort, return_index=True)

    def of_sort(name: str) -> NDArray[np.float64]:
        return np.array([getattr(own, name)[first] for own in digests])

    work, room = of_sort("work_seconds"), costs.memory_bytes(config).astype(np.float64)
    working, reserved = np.zeros(len(room)), np.zeros(len(room))
    for rank, pinned in ((0, digests[of_rank[0]].prefix), (len(room) - 1, digests[of_rank[-1]].suffix)):
        room[rank] -= pinned.static_bytes + held[rank] * pinned.activation_bytes
        working[rank] = max(working[rank], pinned.working_bytes)
        reserved[rank] = max(reserved[rank], pinned.reserved_bytes)
    return RankMemory(
        digests[0].sort, of_rank, of_sort("static_bytes"), of_sort("reserved_bytes"), of_sort("activation_bytes"),
        of_sort("working_bytes"), np.maximum(work - work[:, :, :1], 0.0), held, room, working, reserved,
    )  # fmt: skip


def _least(columns: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.min(columns, axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """Seconds of the layers, each on the class of ranks on which it takes least, and of what is pinned to the ranks.

    `forward`, `backward`, `returns` (input gradients only), `work`, `after` (what follows the last pass) and `update` (that
    without weight gradients) are of each layer; `pinned`, `pinned_forward`, `lead` (micro-batches in flight), `arrives` (transfers
    from the first rank on) and `ends` (what follows the last task of ranks with pinned layers) of each rank.
    """

    in_turn: bool
    splits: bool
    n_microbatches: float
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    returns: NDArray[np.float64]
    work: NDArray[np.float64]
    after: NDArray[np.float64]
    update: NDArray[np.float64]
    prefix: Pinned
    suffix: Pinned
    pinned: NDArray[np.float64]
    pinned_forward: NDArray[np.float64]
    lead: NDArray[np.float64]
    arrives: NDArray[np.float64]
    ends: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        config: Config,
        digests: Sequence[Digest],
        kinds: Sequence[Digest],
        ranks: layer_split.PipelineRanks,
        n_microbatches: int,
        hops: NDArray[np.float64],
    ) -> _Asked:
        """Return the seconds of a configuration; `digests` are of the classes of rank, `kinds` of each rank."""
        follows, ends = after_name(config), np.zeros(len(kinds))
        ends[0] += getattr(kinds[0].prefix, follows)
        ends[-1] += getattr(kinds[-1].suffix, follows)
        forward = _least([own.forward_seconds for own in digests])
        return cls(
            config.in_turn, config.split_backward, float(n_microbatches), forward,
            backward=_least([own.backward_seconds for own in digests]),
            returns=_least([own.input_seconds for own in digests]),
            work=forward + _least([own.work_seconds[:, 0] - own.forward_seconds for own in digests]),
            after=_least([getattr(own, follows) for own in digests]),
            update=_least([own.reduce_seconds + own.update_seconds for own in digests]),
            prefix=kinds[0].prefix, suffix=kinds[-1].suffix,
            pinned=ranks.fixed_work_seconds, pinned_forward=ranks.fixed_forward_seconds, lead=ranks.lead,
            arrives=np.concatenate(([0.0], np.cumsum(hops))), ends=ends,
        )  # fmt: skip

    @property
    def later(self) -> NDArray[np.bool_]:
        """Which ranks are not the first."""
        return np.arange(len(self.lead)) > 0


def _inequalities(asked: _Asked) -> tuple[tuple[layer_split.Inequality, ...], NDArray[np.float64]]:
    """Return what must fit into a step, and what follows a layer's last pass where its rank ends the step."""
    m, none, nothing = asked.n_microbatches, np.zeros_like(asked.work), np.zeros(len(asked.lead))
    once = m * asked.pinned + asked.later * asked.prefix.forward_seconds + asked.arrives + asked.ends
    arrival = layer_split.Inequality(m, m * asked.work + asked.after, asked.forward, none, once, nothing)
    if not asked.in_turn:
        return (arrival,), none
    end = asked.update if asked.splits else asked.after
    return (arrival, _round_trip(asked), *_ends(asked), *_in_turn(asked)), end


def _round_trip(asked: _Asked) -> layer_split.Inequality:
    """Return the inequality of the first micro-batch, which goes all the way there and back to the rank."""
    m, one = asked.n_microbatches, not asked.splits
    there = float(asked.forward.sum() + asked.pinned_forward.sum() + asked.arrives[-1])
    back = asked.suffix.backward_seconds if one else asked.suffix.input_seconds
    not_last, comes_back = asked.later[::-1], asked.arrives[-1] - asked.arrives
    once = there + m * asked.pinned - asked.lead * asked.pinned_forward + not_last * back + comes_back + asked.ends
    returns = asked.backward if one else asked.returns
    step = m * asked.work + asked.after
    return layer_split.Inequality(m, step, np.zeros_like(asked.work), returns, once, asked.lead, n_later=1.0)


def _ends(asked: _Asked) -> tuple[layer_split.Inequality, layer_split.Inequality]:
    """Return the inequalities of the last micro-batch, which goes on to the first rank, alone and with the first one's trip.

    Under ZB-H1 without weight gradients, all of which may wait: the last input gradient still goes back to the first rank, whose
    last weight gradients and reduction begin then.
    """
    m = asked.n_microbatches
    both, pinned, back, last = _there_and_back(asked)
    work = both if asked.splits else asked.work
    none, nothing = np.zeros_like(work), np.zeros(len(asked.lead))
    once = last + m * pinned + back + 2.0 * asked.arrives
    alone = layer_split.Inequality(m, m * work, both, none, once, nothing, ends_first=True, n_before=1.0)
    trip = last + float(work.sum() + pinned.sum() + 2.0 * asked.arrives[-1])
    once = trip + (m - 1.0) * pinned - (asked.lead - 1.0) * asked.pinned_forward
    together = layer_split.Inequality(
        m, (m - 1.0) * work, none, none, once, asked.lead - 1.0, ends_first=True, n_before=1.0, n_later=1.0
    )
    return alone, together


def _there_and_back(asked: _Asked) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
    """Return what one micro-batch takes there and back: in each layer; in what is pinned to each rank; in what is pinned to the first
    rank, for each later one; and what follows on the first rank for what is pinned to it. Without weight gradients where these wait.

    A single rank has all that is pinned: what is pinned to the last stage may take off what follows, since it hides reductions.
    """
    prefix = asked.prefix
    if not asked.splits:
        back = np.asarray(asked.later, dtype=np.float64) * (prefix.forward_seconds + prefix.backward_seconds)
        return asked.forward + asked.backward, asked.pinned, back, float(asked.ends[0])
    pinned = asked.pinned_forward.copy()
    pinned[0] += prefix.input_seconds
    pinned[-1] += asked.suffix.input_seconds
    back = np.asarray(asked.later, dtype=np.float64) * (prefix.forward_seconds + prefix.input_seconds)
    return asked.forward + asked.returns, pinned, back, prefix.reduce_seconds + prefix.update_seconds


def _in_turn(asked: _Asked) -> list[layer_split.Inequality]:
    """Return the inequalities of round trips that follow each other, and of the slowest channel; none where transfers take no time."""
    if asked.arrives[-1] <= 0.0:
        return []
    m, n_ranks = asked.n_microbatches, len(asked.lead)
    both, pinned, back, last = _there_and_back(asked)
    none, nothing = np.zeros_like(both), np.zeros(n_ranks)
    slowest = float(np.diff(asked.arrives).max())
    trip = last + float(both.sum() + pinned.sum() + 2.0 * asked.arrives[-1])
    once = np.full(n_ranks, trip + (m - 1.0) * slowest)
    channel = layer_split.Inequality(1.0, none, none, none, once, nothing, ends_first=True, n_before=1.0, n_later=1.0)
    rounds = np.ceil(m / asked.lead)
    behind = np.cumsum(pinned[::-1])[::-1] + 2.0 * (asked.arrives[-1] - asked.arrives)
    spread = rounds * (behind + both.sum() * np.arange(n_ranks, 0, -1.0) / n_ranks)
    before = last + back + 2.0 * asked.arrives
    found = [channel]
    for rank in np.argsort(-spread, kind="stable")[:_MOST_WAITING].tolist():
        n_first = (m - 1.0) % asked.lead[rank]  # forward passes before the first of the round trips
        once, lead = np.full(n_ranks, _NOT_ASKED), np.zeros(n_ranks)
        once[rank] = before[rank] + rounds[rank] * behind[rank] + n_first * asked.pinned_forward[rank]
        lead[rank] = -n_first
        trips = own = rounds[rank] * both
        if rank == 0 and asked.splits:
            own = both + (rounds[rank] - 1.0) * asked.work
            once[rank] += (rounds[rank] - 1.0) * asked.prefix.weight_seconds
        found.append(
            layer_split.Inequality(
                float(rounds[rank]),
                own,
                both,
                trips,
                once,
                lead,
                ends_first=True,
                n_before=1.0,
                n_later=float(rounds[rank]),
            )
        )
    return found


def _turns(asked: _Asked) -> layer_split.Stretches:
    """Return the stretches of ranks whose round trips in turn take longest if layers are spread evenly (`_MOST_TURNS`).

    Lemma: let a rank a forward l(a) micro-batches before its first backward pass (its lead), and b be a later rank. Once b has forwarded
    micro-batch i + l(b) - 1 it runs the backward pass of i, which goes back to a, and only then does a forward i + l(a). So between a's
    forward passes of j and of j + l(a) - l(b) + 1 lies the way of one micro-batch from a down to b and of one from b back to a, with all
    transfers between, for every j from l(b) - 1 on. Before the first of these j - which is taken so that the last one is the last
    micro-batch - that many micro-batches have passed what is pinned to a, and the slowest channel on the way to b, one after the other;
    after them the last micro-batch makes its own way down and back to the first rank, which ends the step. A rank has at
    least one layer, or what is pinned to it. Where weight gradients may wait, backward passes
    are gradients of inputs. Where only b is the last rank this is what `_in_turn` says.
    """
    m, n_ranks = int(asked.n_microbatches), len(asked.lead)
    both, pinned, back, last = _there_and_back(asked)
    first, to = np.triu_indices(n_ranks, 1)
    lead = asked.lead.astype(np.int64)
    apart = lead[first] - lead[to] + 1
    n_times, rest = np.divmod(np.maximum(m - lead[to], 0), apart)
    before, below = np.concatenate(([0.0], np.cumsum(pinned))), pinned.sum() + asked.arrives[-1]
    trip = before[to + 1] - before[first] + 2.0 * (asked.arrives[to] - asked.arrives[first])
    last_one = last + back[first] + both.sum() + below - before[first] + asked.arrives[-1]
    slowest = np.maximum.accumulate(np.concatenate(([0.0], np.diff(asked.arrives))))[to]
    fixed = last_one + n_times * trip + (lead[to] - 1 + rest) * np.maximum(asked.pinned_forward[first], slowest)
    value = fixed + n_times * both.sum() * (to - first + 1) / n_ranks
    kept = np.argsort(-np.where(n_times > 0, value, -np.inf), kind="stable")[:_MOST_TURNS]
    kept = kept[n_times[kept] > 0]
    least = (np.minimum(to, n_ranks - 2) - np.maximum(first, 1) + 1) * both.min()
    ranks = np.stack((first, to), axis=1)[kept]
    return layer_split.Stretches(ranks, n_times[kept].astype(np.float64), fixed[kept], np.maximum(least, 0.0)[kept], both)
