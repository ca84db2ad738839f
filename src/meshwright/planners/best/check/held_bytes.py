"""Whether one stage per rank can hold its layers at all, whatever they recompute: running sums, for the check of answers."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from meshwright import schedules
from meshwright.planners.best.check.prices import LayerPrices, PricedLayer, Table
from meshwright.planners.best.check.space import CheckedMesh, Form

__all__ = ["never_fits"]

_ROUNDING = 1e-9
"""Share of a device's memory by which sums in another order may differ, with room: what just fits is not refuted."""


def never_fits(prices: LayerPrices, mesh: CheckedMesh, form: Form, priced: tuple[list[Table], list[int], list[int]]) -> bool:
    """Return whether no split of the layers fits its ranks, one stage each.

    Lemma: at its fullest moment a rank holds the state of its layers, the activations of as many micro-batches as its schedule keeps
    in flight, and the working bytes of the layer that needs most while it runs. Those are as many as one of the ways to recompute says;
    at each such level a layer keeps no less than the least of its ways that need no more. By these sums a rank never holds less
    with a layer more: from the last rank back each takes all that it can, and where layers are left before the first, no split fits.

    Parameters
    ----------
    prices : LayerPrices
        Of the pool.
    mesh, form
        The configuration.
    priced : tuple
        As `LayerPrices.of_ranks` or `LayerPrices.any_sharding` return it.
    """
    tables, of_rank, kinds = priced
    chain, last = prices.chain, mesh.pipeline - 1
    n_microbatches = prices.problem.batch.global_batch // (mesh.data * mesh.micro_batch)
    in_flight = schedules.load(form.schedule).in_flight(mesh.pipeline, 1, n_microbatches)
    of_tables = [_levels(prices, table) for table in tables]
    start = len(chain.rows)
    for rank in range(last, -1, -1):
        table, held = tables[of_rank[rank]], float(in_flight[rank])
        rows = (*(chain.prefix if rank == 0 else ()), *(chain.suffix if rank == last else ()))
        pinned = [table[row, prices.pinned_word(row)] for row in rows]
        static, reserved, levels = of_tables[of_rank[rank]]
        room = prices.memory_bytes(kinds[rank]) * (1.0 + _ROUNDING)
        room -= sum(own.static_bytes + held * own.kept_bytes for own in pinned)
        room -= max([own.reserved_bytes for own in pinned] + ([reserved] if start else []), default=0.0)
        working = max((own.working_bytes for own in pinned), default=0.0)
        if room < working:
            return True
        start = min((_first(static, kept, held, start, room - max(working, level)) for level, kept in levels), default=start)
    return start > 0


def _levels(prices: LayerPrices, table: Table) -> tuple[list[float], float, list[tuple[float, list[float]]]]:
    """Return running sums of the state of the layers, the least that any of them has reserved, and for every level of working bytes
    running sums of what layers keep of a micro-batch at least.
    """
    words, rows = prices.words(table), prices.chain.rows
    ways: dict[int, list[PricedLayer]] = {row: [table[row, word] for word in words] for row in set(rows)}
    static = list(accumulate((ways[row][0].static_bytes for row in rows), initial=0.0))
    reserved = min(way.reserved_bytes for own in ways.values() for way in own)
    levels = []
    for level in sorted({way.working_bytes for own in ways.values() for way in own}):
        kept = {
            row: min(way.kept_bytes for way in [w for w in own if w.working_bytes <= level] or own) for row, own in ways.items()
        }
        levels.append((level, list(accumulate((kept[row] for row in rows), initial=0.0))))
    return static, reserved, levels


def _first(static: list[float], kept: list[float], held: float, stop: int, room: float) -> int:
    """Return the first layer from which on all up to `stop` fit into the room; `stop` where none does."""
    most = static[stop] + held * kept[stop] - room
    return bisect_left(range(stop), most, key=lambda layer: static[layer] + held * kept[layer])
