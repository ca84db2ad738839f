"""How long bytes take on the links of a cluster: routes, collectives, fair shares."""

from __future__ import annotations

from meshwright.network.axes import Axis
from meshwright.network.model import Network
from meshwright.network.routes import REMEMBERED_CLUSTERS

__all__ = ["REMEMBERED_CLUSTERS", "Axis", "Network"]
