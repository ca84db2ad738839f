"""What a search looks for once the best plan is known, and how much work it may spend on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from meshwright.planners.best.space import Config, MeshDegrees

__all__ = ["Allowance", "Goal"]


class Goal(Protocol):
    """What is searched for once the best plan is known."""

    @property
    def cutoff_seconds(self) -> float:
        """The step from which on no plan is of use."""

    def limit(self, item: MeshDegrees | Config) -> float:
        """Return the step from which on plans of a set are of no use."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many plans may have been evaluated and built, and entries of the heap looked at, before a search stops."""

    n_evaluations: float = math.inf
    n_built: float = math.inf
    n_looked: float = math.inf
