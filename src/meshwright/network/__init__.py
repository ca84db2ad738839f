"""How long bytes take on the links of a cluster: routes, collectives, fair shares."""

from __future__ import annotations

from meshwright.network.axes import Axis, axis, transfer
from meshwright.network.loads import load

__all__ = ["Axis", "axis", "load", "transfer"]
