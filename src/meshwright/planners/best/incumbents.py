"""Plans that the joint search played: how they are ranked, told apart, described, compared and found in the space; what is
searched for once the best is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from meshwright.base.units import format_bytes, format_seconds
from meshwright.core.plan import Plan
from meshwright.core.problem import Problem
from meshwright.core.timeline import Timeline
from meshwright.planners.best import virtual
from meshwright.planners.best.costs import Costs
from meshwright.planners.best.ranks import taken_in_order
from meshwright.planners.best.space import Config, MeshDegrees
from meshwright.sim import fits

__all__ = [
    "STOPPED", "STOPPED_WITHOUT", "Allowance", "Degrees", "Goal", "Incumbent", "causes_of_loss", "degrees_of", "describe",
    "memory_notes", "place_of", "rank", "so_far",
]  # fmt: skip

STOPPED = "stopped before its end, as asked: this is the best plan so far, and the gap says how far it may be from the best"
STOPPED_WITHOUT = "stopped before its end, as asked, and no plan was found until then; that there is none is not proven"

Degrees = tuple[int, int, int, int, int]
"""Pipeline, data, context, tensor, expert."""


_NEARLY_FULL = 0.95  # share of memory from which on a note says how to leave room


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


def causes_of_loss(found: Incumbent, best: Incumbent) -> str:
    """Return the two causes that cost a plan most against another one, as shares of the other's step; empty for none."""
    own, theirs = dict(best.timeline.causes), dict(found.timeline.causes)
    worse = sorted(((theirs.get(cause, 0.0) - own.get(cause, 0.0), cause) for cause in {*own, *theirs}), reverse=True)
    return ", ".join(f"{cause} +{seconds / best.step_seconds:.1%}" for seconds, cause in worse[:2] if seconds > 0)


def rank(found: Incumbent) -> tuple[object, ...]:
    """Order plans: the shorter step first; of steps alike to nine digits the simpler plan."""
    mesh = found.config.mesh
    complexity = (mesh.context, mesh.expert, mesh.tensor, mesh.pipeline, found.config.chunks, found.config.shard)
    told = (found.config.offload != "none", found.config.exchange != "ring")
    return (float(f"{found.step_seconds:.9g}"), *complexity, *told, found.config)


def degrees_of(item: MeshDegrees | Config) -> Degrees:
    """Return pipeline, data, context, tensor and expert degree: plans alike in them are variants of one another."""
    mesh = item if isinstance(item, MeshDegrees) else item.mesh
    return (mesh.pipeline, mesh.data, mesh.context, mesh.tensor, mesh.expert)


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
    if config.strategy.folded:
        parts.append("experts over the tensor axis too")
    if config.exchange != "ring":
        parts.append(f"context exchange {config.exchange}")
    if config.offload != "none":
        parts.append(f"{config.offload} state on the host")
    return f"{', '.join(parts)}, micro-batch {mesh.micro_batch}, sharding level {config.shard}"


def so_far(found: Sequence[Incumbent], least: float) -> str:
    """Return in a few words how far a search has come.

    Parameters
    ----------
    found : sequence of Incumbent
        The plans found.
    least : float
        What all plans take at least, in seconds; 0 where nothing is proven yet.
    """
    if not found:
        return "no plan yet"
    best = min(own.step_seconds for own in found)
    return f"best so far {format_seconds(best)} a step" + (f", proven within {best / least - 1.0:.1%}" if least > 0.0 else "")


def memory_notes(problem: Problem, found: Incumbent) -> tuple[str, ...]:
    """Return what a plan holds on hosts, and a warning where it leaves little room for an error of the memory model."""
    return (*_host_notes(problem, found), *_device_notes(problem, found))


def _host_notes(problem: Problem, found: Incumbent) -> tuple[str, ...]:
    """Return what a plan holds on the host of a device at most, where it holds anything there."""
    held = max(fits.host_bytes(problem, found.plan))
    state = ("optimizer state and gradients",) if found.config.offload != "none" else ()
    what = " and ".join((*state, *(("activations",) if found.plan.n_offloaded else ())))
    return (f"on the host, {what} take {format_bytes(held)} for each device at most",) if held else ()


def _device_notes(problem: Problem, found: Incumbent) -> tuple[str, ...]:
    """Return a warning where a plan leaves little room on its devices."""
    cluster = problem.required_cluster
    shares = [
        peak / cluster.device(ranks[0]).memory_bytes
        for peak, ranks in zip(found.timeline.peak_bytes, found.plan.ranks(), strict=True)
    ]
    if max(shares) < _NEARLY_FULL or problem.memory_ratio < 1.0:  # room is left as the question asks
        return ()
    return (
        f"the fullest device is filled to {max(shares):.1%}; where the memory model errs by more than the rest, the plan does not "
        "fit: --set memory_ratio=0.9 leaves a tenth free",
    )


def place_of(plan: Plan, costs: Sequence[Costs]) -> tuple[int, Config] | None:
    """Return where a plan stands in the joint space: which of some costs, and the configuration; None where it is none of the space."""
    own, ranks = plan.stages[0].strategy, list(plan.ranks())
    if any(stage.strategy != own or stage.ring for stage in plan.stages):
        return None
    mesh = MeshDegrees(len(ranks), own.data, own.context, own.tensor, own.expert, plan.micro_batch)
    used = {word for stage in plan.stages for word in stage.recompute} - {"none"}
    for layout in ("pipeline", "data"):
        config = Config(
            mesh,
            own.shard,
            own.shard_degree,
            plan.schedule,
            len(plan.stages) // len(ranks),
            layout,
            own.context_exchange,
            offload=own.offload,
        )
        for place, known in enumerate(costs if config.strategy == own else ()):
            pool = known.pool
            one_kind = layout == "pipeline" or len(pool.devices) == 1
            if config.exchange not in known.exchanges.of(mesh) or config.offload not in known.exchanges.offloads:
                continue
            if known.offloads and mesh.pipeline > 1:
                continue
            if not used <= set(known.recompute) or not one_kind or pool.n_devices < mesh.rank_size * mesh.pipeline:
                continue
            if [tuple(devices.tolist()) for devices in pool.ranks(config)] != ranks:
                continue
            if not taken_in_order(pool, mesh, known.problem):
                continue
            if config.chunks > 1:
                held = tuple(sum(op in known.chain.layers for op in stage.ops) for stage in plan.stages)
                fewer = virtual.fewer_of(known, config, held)
                if fewer is None:
                    continue
                config = replace(config, fewer=fewer)
            return place, config
    return None
