"""Loads of layers made of several others, each made once."""

from __future__ import annotations

from dataclasses import replace

from meshwright.planners.best.layer_sums import RowLoads
from meshwright.planners.best.ranks import least

__all__ = ["JoinedLoads"]


class JoinedLoads:
    """Remembers what was made of which loads, told apart by identity: they are kept, so that none is another."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, tuple[int, ...]], tuple[tuple[RowLoads, ...], RowLoads]] = {}

    def least(self, places: list[RowLoads]) -> RowLoads:
        """Return loads of which every figure is the least of those at several places."""
        if len(places) == 1:
            return places[0]
        key = ("least", tuple(id(own) for own in places))
        if key not in self._found:
            self._found[key] = tuple(places), {of: least([rows[of] for rows in places]) for of in places[0]}
        return self._found[key][1]

    def with_state(self, rows: RowLoads, state: RowLoads) -> RowLoads:
        """Return loads that hold what others do all the time, without an optimizer's seconds."""
        key = ("state", (id(rows), id(state)))
        if key not in self._found:
            joined = {
                of: replace(
                    load, weight_bytes=state[of].static_bytes, gradient_bytes=0.0, optimizer_bytes=0.0, optimizer_seconds=0.0
                )
                for of, load in rows.items()
            }
            self._found[key] = (rows, state), joined
        return self._found[key][1]
