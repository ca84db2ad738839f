"""Which of the plans that are nearly as quick as the best is the simplest, and the search for it.

A plan that is one percent quicker in a model is not worth a pipeline, virtual stages or one more axis of parallelism to whoever
has to run it. So among all plans within a tolerance of the quickest found the simplest is the answer.
"""

from __future__ import annotations

import math

from meshwright.core import formatting
from meshwright.core.result import Bound, Objective
from meshwright.core.strategy import OFFLOAD
from meshwright.planners.best.incumbents import Incumbent, causes_of_loss, rank
from meshwright.planners.best.space import Config, MeshDegrees

__all__ = ["SimplestWithin", "chosen", "complexity", "fastest_json", "least_complexity"]

Complexity = tuple[int, ...]


def complexity(found: Incumbent) -> Complexity:
    """Return how complicated a plan is, the figure that counts most first; the smaller is the simpler.

    Parameters
    ----------
    found : Incumbent
        The plan.

    Returns
    -------
    tuple of int
        1. whether there is a pipeline; 2. whether ranks have virtual stages; 3. how many of pipeline, data, context, tensor and
        expert degree are above one; 4. whether the schedule splits backward passes (ZB); 5. what layers recompute: nothing, parts
        of some of them, or everything in some; 6. the sharding level (ZeRO-0 to 3); 7. to 10. context, expert, tensor
        and pipeline degree; 11. virtual stages of a rank; 12. whether weights are sharded over a part of the replicas only; 13.
        whether replicas rather than pipeline ranks are blocks of neighbours; 14. whether the first or the last virtual stage has
        fewer layers than in an even spread; 15. whether state or activations are on the host. Plans alike in all of them differ in micro-batch, order
        of devices, how many layers recompute, or split.
    """
    config, mesh = found.config, found.config.mesh
    words = {word for stage in found.plan.stages for word in stage.recompute}
    recomputes = 2 if "full" in words else int(bool(words - {"none", OFFLOAD}))
    degrees = (mesh.context, mesh.expert, mesh.tensor, mesh.pipeline, config.chunks)
    partly = (
        int(config.shard_degree > 0), int(config.layout == "data"), int(max(config.fewer) > 0),
        int(config.offload != "none" or OFFLOAD in words),
    )  # fmt: skip
    return (*_known(config), recomputes, config.shard, *degrees, *partly)


def least_complexity(item: MeshDegrees | Config) -> Complexity:
    """Return what no plan of a mesh or configuration is simpler than.

    Lemma: what is open counts as nothing, so that no figure is above that of any plan, and neither are all of them in order.
    """
    mesh = item if isinstance(item, MeshDegrees) else item.mesh
    chunks, shard, degree, layout, fewer, offload = (1, 0, 0, "", 0, "none") if isinstance(item, MeshDegrees) else (
        item.chunks, max(item.shard, 0), item.shard_degree, item.layout, max(item.fewer), item.offload
    )  # fmt: skip
    degrees = (mesh.context, mesh.expert, mesh.tensor, mesh.pipeline, chunks)
    partly = (int(degree > 0), int(layout == "data"), int(fewer > 0), int(offload != "none"))
    return (*_known(item), 0, shard, *degrees, *partly)


def _known(item: MeshDegrees | Config) -> Complexity:
    """Return what degrees and schedule tell; of a mesh all its schedules are open."""
    mesh = item if isinstance(item, MeshDegrees) else item.mesh
    axes = sum(degree > 1 for degree in (mesh.pipeline, mesh.data, mesh.context, mesh.tensor, mesh.expert))
    virtual, split = (False, False) if isinstance(item, MeshDegrees) else (item.chunks > 1, item.split_backward)
    return (int(mesh.pipeline > 1), int(virtual), axes, int(split))


def chosen(found: list[Incumbent], within_ratio: float) -> Incumbent:
    """Return the simplest plan of those that take at most so much longer than the quickest; of plans as simple the quickest.

    Parameters
    ----------
    found : list of Incumbent
        At least one plan.
    within_ratio : float
        How much longer: 0.01 for 1 %. With 0 only plans alike to nine digits are compared.
    """
    most = min(own.step_seconds for own in found) * (1.0 + max(within_ratio, 1e-9))
    return min(
        (own for own in found if own.step_seconds <= most),
        key=lambda own: (
            complexity(own),
            float(f"{own.step_seconds:.9g}"),
            own.config.exchange != "ring",
            own.config,
            own.pool,
        ),
    )


def fastest_json(found: list[Incumbent], answer: Incumbent, bound: Bound) -> dict[str, object] | None:
    """Return the quickest plan where a simpler one is the answer, JSON-ready; None where it is the answer.

    Parameters
    ----------
    found : list of Incumbent
        All plans found.
    answer : Incumbent
        The answer.
    bound : Bound
        On all plans.

    Returns
    -------
    dict or None
        ``step_seconds``; ``quicker_ratio``, by which share of the answer's step it is quicker; ``gap_ratio`` as of the answer; ``plan``
        in words; ``why``: what the answer spends more on.
    """
    best = min(found, key=rank)
    if best.step_seconds >= answer.step_seconds * (1.0 - 1e-9):
        return None
    return {
        "step_seconds": best.step_seconds,
        "quicker_ratio": 1.0 - best.step_seconds / answer.step_seconds,
        "gap_ratio": bound.gap_ratio(Objective("step_seconds", best.step_seconds)),
        "plan": formatting.describe(best.plan),
        "why": causes_of_loss(answer, best),
    }


class SimplestWithin:
    """The goal of finding the simplest plan of those within a tolerance of the quickest.

    Parameters
    ----------
    found : list of Incumbent
        All plans found, as it grows; at least one.
    within_ratio : float
        The tolerance.
    """

    def __init__(self, found: list[Incumbent], within_ratio: float) -> None:
        self.found, self.within_ratio = found, within_ratio
        self._n_known = 0
        self._most_seconds, self._simplest = math.inf, complexity(found[0])

    def _know(self) -> None:
        """Look at plans that were found since."""
        if self._n_known != len(self.found):
            self._n_known = len(self.found)
            self._most_seconds = min(own.step_seconds for own in self.found) * (1.0 + self.within_ratio)
            self._simplest = complexity(chosen(self.found, self.within_ratio))

    @property
    def cutoff_seconds(self) -> float:
        """The longest step allowed."""
        self._know()
        return self._most_seconds

    def limit(self, item: MeshDegrees | Config) -> float:
        """Return the longest step allowed where plans of a set may be simpler than the simplest found; nothing elsewhere."""
        self._know()
        return self._most_seconds if least_complexity(item) < self._simplest else 0.0
