"""Task graphs as FlexNet writes them, played on a network: transfers share links max-min fairly, all-reduces run in rings."""

from __future__ import annotations

from meshwright.planners.topoopt.task_graphs.played import play

__all__ = ["play"]
