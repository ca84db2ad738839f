"""A measured profile in the terms of PipeDream's text format: layers of one batch."""

from __future__ import annotations

from meshwright.costs import profiled
from meshwright.costs.profiled.readers.profile_json import Profile
from meshwright.planners.dapple.profile import PipeDreamProfile as TextProfile
from meshwright.planners.dapple.profile import ProfileNode

__all__ = ["pipedream_profile"]


def pipedream_profile(profile: Profile, rows: int) -> TextProfile:
    """Return a measured profile in the terms of PipeDream's text format.

    `rows`: samples of the batch whose times are written; the format does not hold their number.
    Returns: a chain of layers ``node1``, ``node2``, ..., each described by its own name.
    """
    nodes = []
    for op, layer in enumerate(profile.layers):
        forward, of_input, of_weight = profiled.layer_seconds(profile, op, rows, 1)
        size = (layer.output_bytes * rows,)
        nodes.append(
            ProfileNode(
                f"node{op + 1}", layer.name, forward * 1e3, (of_input + of_weight) * 1e3, size, False, layer.weight_bytes
            )
        )
    return TextProfile(tuple(nodes), tuple((i, i + 1) for i in range(len(nodes) - 1)), rows)
