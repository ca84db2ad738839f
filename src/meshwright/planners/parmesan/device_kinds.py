"""The kinds of device of a cluster as a partition sees them: their times for each operator, what they may hold, their ids."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright import sim
from meshwright.core.problem import Problem
from meshwright.planners.parmesan.operators import Question, question
from meshwright.solvers.partition.unlike import DeviceKind

__all__ = ["Kinds", "kinds_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Kinds of device, and which devices are of each.

    Parameters
    ----------
    kinds : tuple of DeviceKind
        Told apart by times and memory only, whatever they are called; the slowest last.
    devices : tuple of tuple of int
        Ids of the devices of each kind, ascending.
    """

    kinds: tuple[DeviceKind, ...]
    devices: tuple[tuple[int, ...], ...]

    @property
    def unlike(self) -> bool:
        """Whether it matters which device takes a stage."""
        return len(self.kinds) > 1

    def kind_of(self, device: int) -> int:
        """Return the kind of a device."""
        return next(k for k, mine in enumerate(self.devices) if device in mine)


def kinds_of(problem: Problem, posed: Question, *, limit_bytes: float | None = None) -> Kinds:
    """Return the kinds of device of a problem's cluster.

    Parameters
    ----------
    problem : Problem
        With a cluster.
    posed : Question
        Its operators.
    limit_bytes : float or None
        What every device may hold; None for what is free on it, and no more than the file's own limit.

    Notes
    -----
    The cost model is asked once for each kind, as if all devices were of it. Files with times of their own hold on every
    device.
    """
    cluster = problem.cluster
    assert cluster is not None
    found: dict[tuple[float, bytes], tuple[np.ndarray, list[int]]] = {}
    for kind, device in enumerate(cluster.kinds):
        mine = np.flatnonzero(cluster.kind_of_device == kind).tolist()
        if not mine:
            continue
        compute = posed.operators.compute
        if not posed.own_times and not cluster.homogeneous:
            alone = replace(cluster, kinds=(device,), kind_of_device=np.zeros(cluster.n_devices, dtype=np.int64))
            compute = question(replace(problem, cluster=alone)).operators.compute
        free = (
            min(sim.free_bytes((device,), problem.memory_ratio), posed.own_memory_bytes) if limit_bytes is None else limit_bytes
        )
        found.setdefault((free, compute.tobytes()), (compute, []))[1].extend(mine)
    # an order that no numbering of devices or kinds changes
    ordered = sorted(found.items(), key=lambda item: (float(item[1][0].sum()), -item[0][0], item[0][1]))
    return Kinds(
        tuple(DeviceKind(compute, free, len(mine)) for (free, _), (compute, mine) in ordered),
        tuple(tuple(sorted(mine)) for _, (_, mine) in ordered),
    )
