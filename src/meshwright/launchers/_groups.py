"""Groups of ranks against nodes: each stays inside the node, or NVLink domain, that it was planned in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meshwright.base.errors import ExportError
from meshwright.core.cluster import Cluster
from meshwright.core.plan import Plan
from meshwright.core.strategy import Strategy

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["checked"]

_AXES = ("tensor", "context", "expert")


def checked(plan: Plan, cluster: Cluster | None, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is to be said of tensor, context and expert groups, one sentence at most for each.

    `axes`: how the framework numbers its ranks (`Program.axes`).

    Raises
    ------
    ExportError
        When its ranks would have a group cross nodes that was planned inside one, or other nodes than planned.
    """
    node = None if cluster is None else cluster.node_of_device
    planned = [np.array(devices) for devices in plan.ranks()]
    launched = _launched(plan, axes) if axes else planned
    of_rank = {stage.devices: stage.strategy for stage in plan.stages}
    found = []
    for axis in _AXES:
        widest, size = 1, 1
        for r, devices in enumerate(plan.ranks()):
            for places in _groups(of_rank[devices], axis):
                wanted, got = planned[r][places], launched[r][places]
                if node is None:
                    continue
                n_wanted, n_got = len(np.unique(node[wanted])), len(np.unique(node[got]))
                if n_got > n_wanted:
                    raise ExportError(
                        f"launch: the {axis} group of devices {wanted.tolist()} was planned in {n_wanted} node(s), but the "
                        f"ranks that the framework puts into one group lie in {n_got}: devices {got.tolist()}"
                    )
                widest, size = max(widest, n_wanted), max(size, len(places))
        if size > 1 and node is not None:
            inside = (
                "stays inside one node or NVLink domain" if widest == 1 else f"crosses up to {widest} nodes or NVLink domains"
            )
            found.append(f"{axis} groups of {size}: each {inside}, as planned")
    return tuple(found)


def _groups(strategy: Strategy, axis: str) -> Iterator[NDArray[np.int64]]:
    """Yield the groups of an axis, as places in mesh order."""
    mesh = np.arange(strategy.n_devices).reshape(strategy.data * strategy.context, strategy.tensor)
    if axis == "tensor" and strategy.tensor > 1:
        yield from mesh
    elif axis == "context" and strategy.context > 1:
        for rows in mesh.reshape(strategy.data, strategy.context, strategy.tensor):
            yield from rows.T
    elif axis == "expert" and strategy.expert > 1:
        lines = [mesh.ravel()] if strategy.folded else list(mesh.T)
        for line in lines:
            yield from line.reshape(-1, strategy.expert)


def _launched(plan: Plan, axes: tuple[str, ...]) -> list[NDArray[np.int64]]:
    """Return the devices of every pipeline rank, in mesh order, as a framework's numbering of ranks has them."""
    used = np.array(sorted({device for stage in plan.stages for device in stage.devices}))
    one = plan.stages[0].strategy
    sizes = {"tensor": one.tensor, "context": one.context, "data": one.data, "pipeline": len(plan.ranks())}
    shape = [sizes[axis] for axis in reversed(axes)]
    if int(np.prod(shape)) != len(used) or any(stage.strategy != one for stage in plan.stages):
        raise ExportError("launch: stages of different degrees have no one numbering of ranks; plan with equal ones")
    order = [len(axes) - 1 - axes.index(axis) for axis in ("pipeline", "data", "context", "tensor")]
    mesh = used.reshape(shape).transpose(order)
    return [mesh[r].ravel() for r in range(sizes["pipeline"])]
