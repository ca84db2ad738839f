"""How long bytes take on the links of a cluster: routes, collectives, fair shares."""

from __future__ import annotations

from meshwright.network.axes import Axis, axis, transfer

__all__ = ["Axis", "axis", "transfer"]
