"""What is pinned to the ends of the chain of layers, added up, for the check of answers."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planners.best.check.prices import PricedLayer

__all__ = ["EndLayers"]


class EndLayers:
    """What is pinned to one end of the chain, added up."""

    def __init__(self, layers: Sequence[PricedLayer], *, is_split: bool) -> None:
        self.layers = tuple(layers)
        self.forward = sum(own.forward for own in layers)
        self.backward = sum(own.backward for own in layers)
        self.work = sum(own.work for own in layers)
        self.weight = sum(own.weight for own in layers)
        self.static_bytes = sum(own.static_bytes for own in layers)
        self.kept_bytes = sum(own.kept_bytes for own in layers)
        self.most_saved = 0.0  # they recompute no more than is said of them
        self.reduce = sum(own.reduce for own in layers)
        self.update = sum(own.update for own in layers)
        self.exposed = self.reduce - (self.weight if is_split else self.backward)
        self.working_bytes = max((own.working_bytes for own in layers), default=0.0)
        self.reserved_bytes = max((own.reserved_bytes for own in layers), default=0.0)
        self.overhead_bytes = self.working_bytes + self.reserved_bytes

    @property
    def returns(self) -> float:
        """Gradients of inputs: what the rank before waits for where weight gradients may wait."""
        return self.backward - self.weight
