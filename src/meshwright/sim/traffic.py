"""What the collectives of a plan put on links: those that tasks wait for, those beside them,
and those at the end of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.base.identity import read_only
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import Collective, StageCost

__all__ = ["NO_RANKS", "PARTS", "Traffic", "groups", "on_links", "traffic"]

PARTS = ("forward", "backward", "forward_beside", "backward_beside", "reduce", "gather")
"""Parts of a step in which collectives run; see `meshwright.core.stage_cost.Collective`."""

NO_RANKS, NO_SECONDS = read_only(np.empty(0), np.int64), read_only(np.empty(0), np.float64)
"""The ranks of the sorts of pairs, and their seconds, where there are none."""

Loads = dict[tuple[int, int, int, str, float], tuple[NDArray[np.int64], NDArray[np.float64]]]
"""Links and bytes on them for every byte of a collective, by its devices (their identity), groups, kind and size."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Collectives of one plan. Flow ``part * n_stages + stage`` is all collectives of a stage in one part, as one stream.

    Parameters
    ----------
    seconds : ndarray, shape (len(PARTS), n_stages), float64
        Alone on the links, for one micro-batch or for the step.
    links, bytes : tuple of ndarray
        Per flow: the links it uses, int64, and how many bytes cross each of them, float64.
    paired_seconds : ndarray, shape (4 * n_sorts,), float64
        The same of every sort of pair of tasks: what its first task waits for, what runs beside it, and both of the second.
    paired_links, paired_bytes : tuple of ndarray
        Their links and bytes.
    paired_ranks : ndarray, shape (n_sorts,), int64
        The rank of every sort.
    """

    seconds: NDArray[np.float64]
    links: tuple[NDArray[np.int64], ...]
    bytes: tuple[NDArray[np.float64], ...]
    paired_seconds: NDArray[np.float64] = field(default_factory=lambda: NO_SECONDS)
    paired_links: tuple[NDArray[np.int64], ...] = ()
    paired_bytes: tuple[NDArray[np.float64], ...] = ()
    paired_ranks: NDArray[np.int64] = field(default_factory=lambda: NO_RANKS)

    def before_weights(self, input_seconds: NDArray[np.float64], both_seconds: NDArray[np.float64]) -> Traffic:
        """Return the traffic where weight gradients are tasks of their own: what ran beside both has the input gradient's time.

        Only what needs longer than both tasks lengthens the first one; what the links cannot carry beside it is taken to go on,
        without slowing anything, beside the weight gradient.

        `input_seconds`, `both_seconds`, shape (n_stages,), float64: the task of the input gradient, and of both gradients.
        """
        seconds = self.seconds.copy()
        beside = PARTS.index("backward_beside")
        excess = np.maximum(seconds[beside] - both_seconds, 0.0)
        seconds[beside] = np.minimum(seconds[beside], input_seconds) + excess
        return replace(self, seconds=seconds)


def traffic(problem: Problem, plan: Plan, stage_costs: tuple[StageCost, ...]) -> Traffic | None:
    """Return what the collectives of a plan put on the links of its cluster, all replicas at once.

    `stage_costs`: their ``collectives``, and the seconds that these take.
    Returns: None without a cluster, or where the cost model does not say of which collectives its seconds consist.

    Notes
    -----
    A load's seconds are what is played. What blocks has links for the seconds of its collectives; what else blocks (copies of
    gathered weights) is the device's own. What runs beside compute takes as long as its collectives
    one after the other if the compute is as long, otherwise it fills the compute, or what its links need for its bytes.
    """
    cluster = problem.cluster
    if cluster is None or not any(load.collectives for load in stage_costs):
        return None
    n_stages = len(stage_costs)
    seconds = np.zeros((len(PARTS), n_stages))
    links = [np.empty(0, dtype=np.int64)] * (len(PARTS) * n_stages)
    n_bytes = [np.empty(0)] * (len(PARTS) * n_stages)
    known: Loads = {}
    alike: dict[tuple[object, ...], tuple[NDArray[np.int64], NDArray[np.float64]]] = {}  # virtual stages of a rank often are
    for i, (stage, load) in enumerate(zip(plan.stages, stage_costs, strict=True)):
        blocking = (
            sum(value for _, value in load.forward_communication),
            sum(value for _, value in load.backward_communication),
        )
        whole = (*blocking, 0.0, 0.0, load.reduce_seconds, load.gather_seconds)
        compute = (load.forward_total_seconds - blocking[0], load.backward_total_seconds - blocking[1])
        for part, word in enumerate(PARTS):
            own = tuple(one for one in load.collectives if one.part == word)
            if not own:
                continue
            flow = part * n_stages + i
            key = (id(stage.devices), own)
            if key not in alike:
                alike[key] = on_links(problem, stage, own, known)
            links[flow], n_bytes[flow] = alike[key]
            alone = sum(one.seconds for one in own)
            if word.endswith("beside"):
                busy = float((n_bytes[flow] / cluster.links.bytes_per_second[links[flow]]).max(initial=0.0))
                seconds[part, i] = max(min(alone, compute[part - 2]), busy)
            else:
                seconds[part, i] = min(alone, whole[part]) if part < 2 else whole[part]
    return Traffic(seconds, tuple(links), tuple(n_bytes))


def groups(stage: Stage, size: int, stride: int) -> NDArray[np.int64]:
    """Return the groups of `size` devices that lie `stride` apart in a stage's mesh order; shape (n_groups, size), int64."""
    grid = np.array(stage.devices, dtype=np.int64).reshape(-1, size, stride)
    return np.ascontiguousarray(grid.transpose(0, 2, 1)).reshape(-1, size)


def on_links(
    problem: Problem, stage: Stage, collectives: tuple[Collective, ...], known: Loads
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the links that collectives of one stage use and the bytes on them.

    `known`: loads found before, since stages of one rank, and parts of one stage, often have equal collectives.
    """
    from meshwright.network import Network

    network = Network.of(problem.required_cluster)
    used: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    found: NDArray[np.float64] = np.empty(0)
    for one in collectives:
        key = (id(stage.devices), one.size, one.stride, one.kind, one.n_bytes)
        if key not in known:
            known[key] = network.load(groups(stage, one.size, one.stride), one.kind, one.n_bytes)
        links, per_byte = known[key]
        more = one.n_times * one.n_bytes * per_byte
        if not len(used):
            used, found = links, more
        elif np.array_equal(used, links):
            found = found + more
        else:
            every = np.concatenate((used, links))
            used, which = np.unique(every, return_inverse=True)
            found = np.bincount(which, np.concatenate((found, more)), len(used)).astype(np.float64)
    carried = found != 0.0
    return (used, found) if carried.all() else (used[carried], found[carried])
