"""How long the network model takes: axes of a mesh on 16,384 devices."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from meshwright import api, clusters
from meshwright.network import Network, precompile


def main() -> None:
    """Print CPU seconds."""
    precompile.run(api.plan)
    started = time.process_time()
    cluster = clusters.cluster("dgx-h100:16384")
    print(f"dgx-h100:16384 built: {time.process_time() - started:.3f} s")
    ids = np.arange(16384)
    for alike in (True, False):
        place = cluster if alike else dataclasses.replace(cluster, periods=())
        for name, groups in (
            ("2,048 groups of 8, in nodes", ids.reshape(-1, 8)),
            ("256 groups of 64, over nodes", ids.reshape(-1, 64)),
            ("8 groups of 2,048, along rails", ids.reshape(2048, 8).T),
            ("one group of 16,384", ids[None]),
        ):
            started = time.process_time()
            axis = Network.of(place).axis(groups)
            for kind in ("all_reduce", "all_gather", "reduce_scatter"):
                axis.seconds(kind, 1e9)
            what = "one block for all" if alike else "every group"
            print(f"all-reduce, all-gather, reduce-scatter of {name} ({what}): {time.process_time() - started:.3f} s")


if __name__ == "__main__":
    main()
