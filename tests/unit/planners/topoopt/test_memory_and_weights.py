"""What servers hold, and how the released TopologyFinder weights all-reduces: figures added up by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meshwright.planners.topoopt.step import PlacementTraffic, Step, data_parallel


def test_a_server_holds_every_operator_that_is_on_it(small: Callable[..., Step]) -> None:
    """Tables are dealt out to three of four servers; every other operator has a part on each."""
    step = small()
    plan = data_parallel(step.space)
    for operation, servers in zip(step.space.workload.operations, plan.servers, strict=True):
        assert len(servers) == (1 if operation.kind == "embedding" else 4)
    everywhere = sum(
        choice.memory_bytes for choice, servers in zip(step.chosen(plan), plan.servers, strict=True) if len(servers) == 4
    )
    tables = [choice.memory_bytes for choice, servers in zip(step.chosen(plan), plan.servers, strict=True) if len(servers) == 1]
    assert len(tables) == 3 and min(tables) > 0.0
    assert step.memory_bytes(plan).tolist() == pytest.approx([everywhere + held for held in [*tables, 0.0]])


def test_an_all_reduce_counts_twice_its_members_less_one_by_group() -> None:
    """Two groups of 2 with 10 and 6 bytes: 16 x 3 / 2; one of 4 with 8 bytes: 8 x 7 / 4."""
    groups = (((0, 1), 10.0), ((0, 1, 2, 3), 8.0), ((2, 3), 6.0))
    assert PlacementTraffic(np.zeros((4, 4)), groups).by_group_size() == pytest.approx({2: 24.0, 4: 14.0})
