"""One stage per rank: what a rank takes at least for some layers, and whether layers can be cut into ranks within a time.

All of it under 1F1B and ZB-H1, both also with a warm-up of twice the depth (early backward, ZB-H2), and GPipe. A *time* is a step that is asked about; what is shown not to fit into it is shown of every
split of the layers and every mixture of recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from meshwright import schedules
from meshwright.planners.best.check.end_layers import EndLayers
from meshwright.planners.best.check.prices import MEMORY_ROUNDING, LayerPrices, Table
from meshwright.planners.best.check.rank_memory import least_extra, least_repeated
from meshwright.planners.best.check.space import CheckedMesh, Form
from meshwright.planners.best.check.turns import Turns

__all__ = ["Sums", "WholeStages", "sums_of"]

_MOST_PRICES = 8


def _sums(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))


class Sums:
    """Running sums over the layers of the chain under one table of prices."""

    def __init__(self, prices: LayerPrices, table: Table, *, is_split: bool) -> None:
        chain = prices.chain
        self.words = words = prices.words(table)
        of_row = {row: [table[row, word] for word in words] for row in set(chain.rows)}
        ways = [of_row[row] for row in chain.rows]
        base = [own[0] for own in ways]
        self.passing = [own.forward for own in base]
        self.forward = _sums(self.passing)
        self.work = _sums([own.work for own in base])
        self.weight = _sums([own.weight for own in base])
        self.backward = _sums([own.backward for own in base])
        self.static_bytes = _sums([own.static_bytes for own in base])
        self.kept_bytes = _sums([own.kept_bytes for own in base])
        self.reduce = _sums([own.reduce for own in base])
        self.update = _sums([own.update for own in base])
        last = {row: max(one.weight if is_split else one.backward + one.again for one in own) for row, own in of_row.items()}
        exposed = {row: own[0].reduce - last[row] for row, own in of_row.items()}
        # a layer whose task outlasts its reduction hides those of others: then none is counted, so that more layers never take less
        self.is_exposed = min(exposed.values()) >= 0.0
        self.exposed = _sums([exposed[row] if self.is_exposed else 0.0 for row in chain.rows])
        returning = {
            row: min(one.backward + one.again - (one.weight if is_split else 0.0) for one in own) for row, own in of_row.items()
        }
        self.returning = [returning[row] for row in chain.rows]
        self.reducing = [own.reduce for own in base]
        self.output_bytes = [own.output_bytes for own in base]
        self.answered = _sums([float(own.output_gradient) for own in base])
        self.overhead_bytes = min(min(one.working_bytes for one in own) + own[0].reserved_bytes for own in of_row.values())
        self.prefix = EndLayers([table[i, prices.pinned_word(i)] for i in chain.prefix], is_split=is_split)
        self.suffix = EndLayers([table[i, prices.pinned_word(i)] for i in chain.suffix], is_split=is_split)
        # ways to recompute: what each layer gives up of a micro-batch, and what that takes
        saved = {row: [max(0.0, own[0].kept_bytes - one.kept_bytes) for one in own[1:]] for row, own in of_row.items()}
        extra = {row: [max(0.0, one.work - own[0].work) for one in own[1:]] for row, own in of_row.items()}
        self.saved, self.extra = [saved[row] for row in chain.rows], [extra[row] for row in chain.rows]
        self.sorts = [(own, _sums([float(row == of) for row in chain.rows])) for of, own in of_row.items()]
        self.most_saved = _sums([max(own, default=0.0) for own in self.saved])
        # of any layer: the most that it gives up by each way, and the least that this takes
        self.any_saved = [max(own) for own in zip(*saved.values(), strict=True)]
        self.any_extra = [min(own) for own in zip(*extra.values(), strict=True)]

    @cached_property
    def worth(self) -> list[tuple[float, list[float]]]:
        """Prices of a byte, and for each what recomputing earns at most, its own seconds taken off, as running sums.

        Lemma: to free E bytes takes at least ``price * E`` less what the layers earn at that price, each by its best way (or none).
        """
        ways = [(tuple(saved), tuple(extra)) for saved, extra in zip(self.saved, self.extra, strict=True)]
        kinds = set(ways)
        found = set()
        for saved, extra in kinds:
            points = [(0.0, 0.0), *zip(saved, extra, strict=True)]
            found |= {(e - f) / (s - t) for s, e in points for t, f in points if s > t and e > f}
        prices = sorted(found)
        if len(prices) > _MOST_PRICES:
            prices = [prices[round(i * (len(prices) - 1) / (_MOST_PRICES - 1))] for i in range(_MOST_PRICES)]
        found_of: list[tuple[float, list[float]]] = []
        for price in prices:
            earned = {
                (saved, extra): max(0.0, *(price * s - e for s, e in zip(saved, extra, strict=True))) if saved else 0.0
                for saved, extra in kinds
            }
            found_of.append((price, _sums([earned[own] for own in ways])))
        return found_of


def sums_of(prices: LayerPrices, table: Table, *, is_split: bool) -> Sums:
    """Return the running sums of a table, remembered with it."""
    key = (id(table), is_split)
    if key not in prices.sums:
        prices.sums[key] = table, Sums(prices, table, is_split=is_split)
    found: Sums = prices.sums[key][1]
    return found


class WholeStages:
    """A configuration with one stage per rank: what ranks take at least.

    Parameters
    ----------
    prices : LayerPrices
        Of the pool.
    mesh, form
        The configuration.
    tables, of_rank, kinds
        As `LayerPrices.of_ranks` or `LayerPrices.any_sharding` return them.
    hop_seconds : sequence of float
        The least that a transfer from each rank to the next takes in any split; empty for nothing.
    """

    def __init__(
        self, prices: LayerPrices, mesh: CheckedMesh, form: Form, tables: list[Table], of_rank: list[int], kinds: list[int],
        hop_seconds: Sequence[float] = (),
    ) -> None:  # fmt: skip
        p, self.m = mesh.pipeline, prices.problem.batch.global_batch // (mesh.data * mesh.micro_batch)
        self.p, self.form, self.of_rank = p, form, of_rank
        self.n_layers, self.is_equal = len(prices.chain.layers), prices.chain.is_equal
        self.sums = [sums_of(prices, table, is_split=form.is_split) for table in tables]
        self.memory_bytes = [prices.memory_bytes(kind) * (1.0 + MEMORY_ROUNDING) for kind in kinds]
        self.held = [float(n) for n in schedules.load(form.schedule).in_flight(p, 1, self.m)]
        self.lead = [float(min(1 if form.schedule == "gpipe" else form.lead(p - 1 - rank), self.m)) for rank in range(p)]
        self.prefix, self.suffix = self.sums[of_rank[0]].prefix, self.sums[of_rank[-1]].suffix
        self.arrives = _sums(hop_seconds or [0.0] * (p - 1))
        self.slowest = max(hop_seconds, default=0.0)
        self.passes = _sums([min(column) for column in zip(*(own.passing for own in self.sums), strict=True)])
        self.returns = _sums([min(column) for column in zip(*(own.returning for own in self.sums), strict=True)])
        back = "returns" if form.is_split else "backward"
        self.head, self.head_back = self.prefix.forward, float(getattr(self.prefix, back))
        self.tail, self.tail_back = self.suffix.forward, float(getattr(self.suffix, back))
        self.there = self.passes[-1] + self.head + self.tail + self.arrives[-1]
        self.trip = self.there + self.returns[-1] + self.head_back + self.tail_back + self.arrives[-1]
        self._pinned = [EndLayers((), is_split=form.is_split)] * p  # to each rank: seconds
        self._pinned[0], self._pinned[-1] = self.prefix, self.suffix
        if p == 1:
            self._pinned = [EndLayers((*self.prefix.layers, *self.suffix.layers), is_split=form.is_split)]
        self.turns: Turns | None = None
        if self.arrives[-1] > 0.0 and form.schedule != "gpipe":
            both = [there + back for there, back in zip(self.passes, self.returns, strict=True)]
            pinned = [(own.forward, own.forward + float(getattr(own, back))) for own in self._pinned]
            self.turns = Turns([int(own) for own in self.lead], self.m, self.arrives, both, pinned, self.trip)
        self._repeated: dict[tuple[int, int], float] = {}
        self._choices: dict[tuple[int, ...], float] = {}
        first = [self._end(n) for n in range(self.n_layers + 1)]
        self.least_end = list(accumulate(reversed(first), min))[::-1]

    def _end(self, n_first: int) -> float:
        """Return what follows on the first rank, with so many layers, at least after its last backward pass (of inputs)."""
        own, pinned = self.sums[self.of_rank[0]], self._pinned[0]
        update = own.update[n_first] + pinned.update
        if self.form.is_split:
            return own.reduce[n_first] + pinned.reduce + update
        return update + self._exposed(0, own.exposed[n_first])

    def _exposed(self, rank: int, seconds: float) -> float:
        """Return what of a rank's reductions comes at least after its last task, for that of its layers of the chain."""
        if not self.sums[self.of_rank[rank]].is_exposed:
            return 0.0
        return max(0.0, seconds + self._pinned[rank].exposed)

    def _parts(self, rank: int) -> list[EndLayers]:
        return [*([self.prefix] if rank == 0 else []), *([self.suffix] if rank == self.p - 1 else [])]

    def repeated(self, rank: int, start: int, stop: int) -> float:
        """Return the seconds of a micro-batch that a rank must recompute at least to hold some layers; inf where nothing helps.

        Lemma: at its fullest moment a rank holds the state of its layers and the activations of as many micro-batches as its schedule
        keeps in flight, and with them the working and reserved bytes of the most demanding layer: at least of what is pinned to it,
        or of the least demanding of all. What exceeds its memory must be given up, in whole layers where all are alike.
        """
        freed = self._freed(rank, start, stop)
        return freed if freed == math.inf else max(freed, self._chosen(rank, start, stop))

    def _freed(self, rank: int, start: int, stop: int) -> float:
        """Return what `repeated` says of the bytes that a rank must give up, whatever its layers need while they run."""
        own, held = self.sums[self.of_rank[rank]], self.held[rank]
        parts = self._parts(rank)
        n_bytes = own.static_bytes[stop] - own.static_bytes[start] + held * (own.kept_bytes[stop] - own.kept_bytes[start])
        n_bytes += sum(part.static_bytes + held * part.kept_bytes for part in parts)
        n_bytes += max([part.overhead_bytes for part in parts] + [own.overhead_bytes if stop > start else 0.0])
        excess = n_bytes - self.memory_bytes[rank]
        if excess <= 0.0:
            return 0.0
        if excess > held * (own.most_saved[stop] - own.most_saved[start]) * (1.0 + 1e-9):
            return math.inf
        if not self.is_equal:
            return max([0.0, *(price * excess / held - worth[stop] + worth[start] for price, worth in own.worth)])
        key = (rank, stop - start)
        if key not in self._repeated:
            self._repeated[key] = least_extra(excess / held, stop - start, own.saved[0], own.extra[0])
        return self._repeated[key]

    def _chosen(self, rank: int, start: int, stop: int) -> float:
        """Return what `least_repeated` says of a rank with some layers."""
        own, parts = self.sums[self.of_rank[rank]], self._parts(rank)
        sorts = [(round(before[stop] - before[start]), ways) for ways, before in own.sorts]
        key = (rank, *(n for n, _ in sorts))
        if key not in self._choices:
            held = self.held[rank]
            static = own.static_bytes[stop] - own.static_bytes[start]
            static += sum(part.static_bytes + held * part.kept_bytes for part in parts)
            reserved = [min(way.reserved_bytes for way in ways) for n, ways in sorts if n]
            static += max([part.reserved_bytes for part in parts] + reserved, default=0.0)
            room = self.memory_bytes[rank] * (1.0 + 1e-9) - static
            working = max((part.working_bytes for part in parts), default=0.0)
            self._choices[key] = least_repeated(sorts, room, held, working)
        return self._choices[key]

    def takes(
        self, rank: int, start: int, stop: int, end: float, limit: float, before_again: float = 0.0, later_again: float = 0.0
    ) -> bool:
        """Return whether `seconds` are `limit` or more: with nothing recomputed, or less than all, which never takes longer.

        `rank`, `start`, `stop`, `end`, `before_again`, `later_again`: as of `seconds`.
        """
        known = -1.0
        for least in (lambda *_: 0.0, self._freed, self.repeated):
            again = least(rank, start, stop)
            if again > known and self._seconds(rank, start, stop, end, before_again, later_again, again) >= limit:
                return True
            known = again
        return False

    def seconds(
        self, rank: int, start: int, stop: int, end: float, before_again: float = 0.0, later_again: float = 0.0
    ) -> float:
        """Return what a step takes at least where a rank has layers start..stop-1; inf where they do not fit.

        Parameters
        ----------
        rank, start, stop : int
            The rank and its layers.
        end : float
            What follows on the first rank at least after its last backward pass.
        before_again, later_again : float
            What earlier and later ranks recompute of a micro-batch at least: part of every way back through them, and of round trips.

        Notes
        -----
        Lemma, of six parts; the step is no shorter than any of them. (1) The first micro-batch passes all ranks before; then the rank
        works for all micro-batches; a reduction begins with its last task or later; then it updates. (2) From the rank the last
        micro-batch goes back through all ranks before to the first, which then ends the step. (3) Before its first backward pass the
        rank waits for the first micro-batch to go on to the last rank and back; only so many forward passes as it runs before that
        (its lead) hide in this wait. (4) The round trip of the first micro-batch down to the last rank and up to the first, the other
        passes of this rank except the forward ones that hide, and the end on the first rank follow each other. (5) The rank forwards a
        micro-batch only once the one that is its lead earlier has come back to it: every lead-th one, the last included, makes its round
        trip from here to the last rank and back after the one before, behind the forward passes of those that came earlier still, and
        the last one goes on as in (2); under ZB-H1 and ZB-H2 the first rank holds no more than its lead, so that it computes weight
        gradients before it goes on. (6) All micro-batches follow each other over the slowest transfer, and one makes the rest of the
        round trip from the first rank, which ends the step.
        Under GPipe all micro-batches go down before the last one comes back first: (3) and (4) hold of that one, whose own forward pass
        alone hides (a lead of one); (5) is not asked; in (6) all follow each other both ways. Where weight gradients may come later, only
        those of inputs count in what others wait for, and in (2), (4) to (6). Passes of other ranks count where they take least.
        """
        again = self.repeated(rank, start, stop)
        return self._seconds(rank, start, stop, end, before_again, later_again, again)

    def _seconds(
        self, rank: int, start: int, stop: int, end: float, before_again: float, later_again: float, again: float
    ) -> float:
        """Return `seconds` where the rank recomputes so many of a micro-batch."""
        if again == math.inf:
            return math.inf
        own, m, pinned = self.sums[self.of_rank[rank]], self.m, self._pinned[rank]
        work = own.work[stop] - own.work[start] + again + pinned.forward + pinned.backward
        after = own.update[stop] - own.update[start] + pinned.update
        after += self._exposed(rank, own.exposed[stop] - own.exposed[start])
        before = self.passes[start] + self.arrives[rank] + (self.head if rank else 0.0)
        most = before + m * work + after
        forward = own.forward[stop] - own.forward[start] + pinned.forward
        back = self.returns[-1] - self.returns[stop] + self.arrives[-1] - self.arrives[rank]
        back += later_again + (self.tail_back if rank < self.p - 1 else 0.0)
        most = max(most, self.there + back + m * work - self.lead[rank] * forward + after)
        if self.form.is_split:
            work -= own.weight[stop] - own.weight[start] + pinned.weight
        elif rank == 0:
            end = after
        before += self.returns[start] + self.arrives[rank] + before_again + (self.head_back if rank else 0.0)
        whole_trip = self.trip + before_again + again + later_again
        most = max(most, before + m * work + end, whole_trip + (m - 1) * work - (self.lead[rank] - 1.0) * forward + end)
        if self.form.schedule == "gpipe":
            return max(most, whole_trip + 2.0 * (m - 1) * self.slowest + end)
        n_first, n_trips = (m - 1) % int(self.lead[rank]), -(-m // int(self.lead[rank]))
        trip = work + back + self.passes[-1] - self.passes[stop] + self.arrives[-1] - self.arrives[rank]
        trip += self.tail if rank < self.p - 1 else 0.0
        trips = n_trips * trip
        if self.form.is_split and rank == 0:
            trips += (n_trips - 1) * (own.weight[stop] - own.weight[start] + pinned.weight)
        return max(most, before + n_first * forward + trips + end, whole_trip + (m - 1) * self.slowest + end)

    def _earliest(self, rank: int, stop: int, end: float, limit: float) -> int:
        """Return the first layer from which on a rank can take all up to `stop` within a limit; `stop` where it can take none."""
        low, high = 0, stop
        while low < high:
            middle = (low + high) // 2
            if self.takes(rank, middle, stop, end, limit):
                low = middle + 1
            else:
                high = middle
        return high

    def _starts(self, n_first: int, limit: float) -> list[int]:
        """Return where ranks begin at the earliest, when from the last one back each takes all that it can; behind all layers where
        none can.
        """
        starts, end = [0] * self.p + [self.n_layers], self.least_end[n_first]
        for rank in range(self.p - 1, 0, -1):
            starts[rank] = self._earliest(rank, starts[rank + 1], end, limit)
            if self.turns is not None:
                starts[rank] = max(starts[rank], self.turns.earliest(rank, starts, end, limit))
            if starts[rank] > self.n_layers:
                return [self.n_layers + 1] * (self.p + 1)
        return starts

    def refuted(self, limit: float) -> bool:
        """Return whether every split of the layers, whatever they recompute, is shown to take `limit` or longer.

        Lemma: seconds of a rank never fall when it takes a layer more at either end, since what a layer takes on its own rank is no
        less than what it delays others. So no rank begins before the place found from the back, and the first rank has all before.
        What that leaves open is asked again with what other ranks recompute.
        """
        n_first = 0
        while True:
            if self.takes(0, 0, n_first, self.least_end[n_first], limit):
                return True
            least = self._starts(n_first, limit)[1] if self.p > 1 else self.n_layers
            if least > self.n_layers:  # more layers on the first rank end the step no earlier
                return True
            if least <= n_first:
                return self.p > 1 and next(self.cuts(limit), None) is None
            n_first = least

    def cuts(self, limit: float) -> Iterator[tuple[int, ...]]:
        """Yield every split (layers of each rank) that is not shown to take `limit` or longer."""
        for n_first in range(self.n_layers + 1):
            if self.takes(0, 0, n_first, self.least_end[n_first], limit):
                return
            starts = self._starts(n_first, limit) if self.p > 1 else [0, self.n_layers]
            if starts[1] <= n_first:
                yield from self._within(n_first, limit, starts)

    def _within(self, n_first: int, limit: float, starts: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the splits with so many layers on the first rank, each rank asked with what the others recompute at least.

        `starts`: where each rank begins at the earliest.

        Lemma: in a split within the limit every rank is within it with its own layers alone, so what ranks up to some layer recompute
        is at least the least sum over all ways to cut the layers before into ranks each within the limit; likewise behind.
        """
        end, p, n = self.least_end[n_first], self.p, self.n_layers
        front: list[dict[int, float]] = [{} for _ in range(p + 1)]
        back: list[dict[int, float]] = [{} for _ in range(p + 1)]
        front[1][n_first], back[p][n] = self.repeated(0, 0, n_first), 0.0
        pieces = []
        for rank in range(1, p):
            for start, before in front[rank].items():
                for stop in range(max(start, starts[rank + 1]), n + 1):
                    if self.takes(rank, start, stop, end, limit):
                        break
                    again = self.repeated(rank, start, stop)
                    pieces.append((rank, start, stop, again))
                    front[rank + 1][stop] = min(front[rank + 1].get(stop, math.inf), before + again)
        for rank, start, stop, again in reversed(pieces):
            if stop in back[rank + 1]:
                back[rank][start] = min(back[rank].get(start, math.inf), again + back[rank + 1][stop])
        if n_first not in back[1] or self.takes(0, 0, n_first, end, limit, 0.0, back[1][n_first]):
            return
        after: list[dict[int, list[int]]] = [{} for _ in range(p)]
        ends = {(p, n)}
        for rank, start, stop, _ in reversed(pieces):
            if (rank + 1, stop) not in ends:
                continue
            if not self.takes(rank, start, stop, end, limit, front[rank][start], back[rank + 1][stop]):
                after[rank].setdefault(start, []).append(stop)
                ends.add((rank, start))
        yield from self._on(1, (n_first,), (n_first,), after, limit)

    def _on(
        self, rank: int, counts: tuple[int, ...], stops: tuple[int, ...], after: list[dict[int, list[int]]], limit: float
    ) -> Iterator[tuple[int, ...]]:
        """Yield the splits that go on from some, whose ranks end at `stops`; `after`: of each rank, where it may end by where it begins,
        so that all can go on.
        """
        if rank == self.p:
            yield counts
            return
        for stop in reversed(after[rank].get(stops[-1], [])):
            further = (*stops, stop)
            if self.turns is None or self.turns.allow(rank, further, self.least_end[stops[0]], limit):
                yield from self._on(rank + 1, (*counts, stop - stops[-1]), further, after, limit)
