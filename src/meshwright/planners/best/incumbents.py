"""Plans that the joint search played: how they are ranked, told apart, described and compared."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.core.plan import Plan
from meshwright.core.result import Alternative, Objective
from meshwright.core.timeline import Timeline
from meshwright.planners.best.space import Config

__all__ = ["Incumbent", "alternatives", "degrees_key", "describe", "rank"]


@dataclass(frozen=True, slots=True, eq=False)
class Incumbent:
    """One plan, simulated."""

    pool: int
    config: Config
    plan: Plan
    timeline: Timeline

    @property
    def step_seconds(self) -> float:
        """The simulated step."""
        return self.timeline.step_seconds


def alternatives(ranked: list[Incumbent]) -> tuple[Alternative, ...]:
    """Return the best plan of every other combination of degrees, with the causes that cost it the most."""
    best = ranked[0]
    own = dict(best.timeline.causes)
    seen = {degrees_key(best.config)}
    others = []
    for found in ranked[1:]:
        tied = found.step_seconds <= best.step_seconds * (1 + 1e-6)
        if degrees_key(found.config) in seen or tied:
            continue
        seen.add(degrees_key(found.config))
        theirs = dict(found.timeline.causes)
        worse = sorted(((theirs.get(cause, 0.0) - own.get(cause, 0.0), cause) for cause in {*own, *theirs}), reverse=True)
        why = ", ".join(f"{cause} +{seconds / best.step_seconds:.1%}" for seconds, cause in worse[:2] if seconds > 0)
        others.append(Alternative(found.plan, Objective("step_seconds", found.step_seconds), why))
    return tuple(others)


def rank(found: Incumbent) -> tuple[object, ...]:
    """Order plans: the shorter step first; of steps alike to nine digits the simpler plan."""
    mesh = found.config.mesh
    complexity = (mesh.context, mesh.expert, mesh.tensor, mesh.pipeline, found.config.chunks, found.config.shard)
    return (float(f"{found.step_seconds:.9g}"), *complexity, found.config)


def degrees_key(config: Config) -> tuple[object, ...]:
    """Return what tells combinations of degrees apart: two plans alike in it are variants of one another."""
    mesh = config.mesh
    return (mesh.pipeline, mesh.data, mesh.context, mesh.tensor, mesh.expert, mesh.micro_batch, config.shard, config.schedule)


def describe(config: Config) -> str:
    """Return a configuration in words."""
    mesh = config.mesh
    degrees = [
        ("pipeline", mesh.pipeline),
        ("data", mesh.data),
        ("context", mesh.context),
        ("tensor", mesh.tensor),
        ("expert", mesh.expert),
    ]
    parts = [f"{name} {value}" for name, value in degrees if value > 1] or ["one device"]
    return f"{', '.join(parts)}, micro-batch {mesh.micro_batch}, sharding level {config.shard}"
