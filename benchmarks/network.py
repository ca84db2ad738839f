"""How long the network model takes: axes of a mesh on 16,384 devices, and a flow simulation of 128 servers and 1,000 flows."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from meshwright import topologies, warm
from meshwright.network import Network, fair_share, routes


def main() -> None:
    """Print CPU seconds."""
    for _, task in warm.tasks()[:1]:
        task()
    started = time.process_time()
    cluster = topologies.cluster("dgx-h100:16384")
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
    rng = np.random.default_rng(0)
    servers = topologies.cluster("random-regular:128,degree=4")
    source = rng.integers(0, 128, 1000)
    target = (source + rng.integers(1, 128, 1000)) % 128
    started = time.process_time()
    first, links, shares = routes.shares(servers, source, target)
    print(f"routes of 1,000 flows between 128 servers: {time.process_time() - started:.3f} s, {len(links)} links")
    started = time.process_time()
    end = fair_share.finish_seconds(
        first, links, servers.links.bytes_per_second, rng.uniform(1e6, 1e8, 1000), rng.uniform(0, 0.01, 1000), shares
    )
    print(f"flow simulation of 128 servers and 1,000 flows: {time.process_time() - started:.3f} s, ends at {end.max():.4f} s")


if __name__ == "__main__":
    main()
