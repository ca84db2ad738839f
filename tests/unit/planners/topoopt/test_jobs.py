"""Several jobs on one cluster: alone as before, slower where links are shared, and each server in one job."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.planners.topoopt import networks
from meshwright.planners.topoopt.fabric import Fabric
from meshwright.planners.topoopt.jobs import PlacedJob, fitted, scattered, together
from meshwright.planners.topoopt.step import Step, data_parallel


@pytest.mark.parametrize("traffic", ["queues", "segments", "fair"])
def test_a_job_alone_on_its_servers_takes_the_time_of_its_own_step(small: Callable[..., Step], traffic: str) -> None:
    step = small()
    plan = data_parallel(step.space)
    fabric = networks.build("switch", 8, 2, 1e9, 1e-6, 0).fabric
    own = networks.build("switch", 4, 2, 1e9, 1e-6, 0).fabric
    (seconds,) = together([PlacedJob(step, plan, (1, 3, 4, 6))], fabric, traffic)
    assert seconds == pytest.approx(step.seconds(plan, own, traffic=traffic), rel=1e-9)


@pytest.mark.parametrize("traffic", ["queues", "segments", "fair"])
def test_jobs_that_share_one_cable_are_slower_and_jobs_that_share_none_are_not(
    small: Callable[..., Step], traffic: str
) -> None:
    step, wide = small(n=2), small("topoopt:candle,batch=32,tower=64x2,top=64-1", n=2)
    both = [data_parallel(step.space), data_parallel(wide.space)]
    pairs = [(0, 2), (2, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3), (3, 5), (5, 3)]
    # servers 0 and 1 forward over the cable 2 - 3 to 4 and 5
    fabric = Fabric("cable", 6, dict.fromkeys(pairs, 1.0), 1e6, 0.0)
    crossing = [PlacedJob(step, both[0], (0, 4)), PlacedJob(wide, both[1], (1, 5))]
    alone = [together([job], fabric, traffic)[0] for job in crossing]
    shared = together(crossing, fabric, traffic)
    assert all(after >= before * (1 - 1e-9) for before, after in zip(alone, shared, strict=True))
    assert max(after / before for before, after in zip(alone, shared, strict=True)) > 1.2
    assert together(crossing, fitted(crossing, fabric), traffic) == pytest.approx(shared, rel=0.1)  # there is one way only
    apart = [PlacedJob(step, both[0], (0, 2)), PlacedJob(wide, both[1], (3, 5))]
    assert together(apart, fabric, traffic) == pytest.approx([together([job], fabric, traffic)[0] for job in apart], rel=1e-9)


def test_a_tree_with_half_the_links_above_its_edge_is_slower_and_cheaper() -> None:
    full, half = (networks.build(name, 16, 4, 1e9, 1e-6, 0) for name in ("fat-tree", "oversubscribed"))
    assert half.n_switch_ports < full.n_switch_ports
    above = half.fabric.count[half.fabric.source >= 16][half.fabric.target[half.fabric.source >= 16] >= 16]
    assert (above == 1.0 / networks.OVERSUBSCRIPTION_RATIO).all() and len(half.fabric.wires()) == len(full.fabric.wires())


def test_servers_are_dealt_out_once_and_wrong_jobs_are_refused(small: Callable[..., Step]) -> None:
    dealt = scattered(16, (4, 8), np.random.default_rng(0))
    assert len({server for servers in dealt for server in servers}) == 12 and [len(servers) for servers in dealt] == [4, 8]
    assert scattered(16, (4, 2)) == [(0, 1, 2, 3), (4, 5)]
    with pytest.raises(InputError, match="need 20 servers"):
        scattered(16, (10, 10))
    step = small()
    fabric = networks.build("switch", 6, 2, 1e9, 1e-6, 0).fabric
    plan = data_parallel(step.space)
    with pytest.raises(InputError, match="one job only"):
        together([PlacedJob(step, plan, (0, 1, 2, 3)), PlacedJob(step, plan, (3, 4, 5, 0))], fabric)
