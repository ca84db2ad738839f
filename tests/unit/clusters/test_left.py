"""What is left of a cluster after some of its devices are gone."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.clusters import left


def _wires(cluster: object) -> list[tuple[int, int, float]]:
    links = cluster.links  # type: ignore[attr-defined]
    return sorted(zip(links.source.tolist(), links.target.tolist(), links.bytes_per_second.tolist(), strict=True))


def test_devices_left_keep_their_order_their_nodes_and_their_links() -> None:
    whole = clusters.cluster("dgx-a100:16")
    found = left.without(whole, [3, 0, 9])
    kept = [device for device in range(16) if device not in (0, 3, 9)]
    assert found.n_devices == 13 and found.n_switches == whole.n_switches and found.periods == ()
    assert found.name == "dgx-a100:16 without 0, 3, 9"
    assert np.array_equal(found.groups, whole.groups[:, kept])
    number = {old: new for new, old in enumerate([*kept, *range(16, 16 + whole.n_switches)])}
    expected = [(number[a], number[b], rate) for a, b, rate in _wires(whole) if a in number and b in number]
    assert _wires(found) == sorted(expected)
    again = left.without(found, [12])
    assert again.n_devices == 12 and again.node_of_device.tolist() == whole.node_of_device[kept[:12]].tolist()


@pytest.mark.parametrize(
    ("lost", "message"), [([], "has no device to lose"), ([4], r"has no device \[4\]"), ([0, 1, 2, 3], "all of its 4 devices")]
)
def test_what_cannot_be_lost_is_told(lost: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        left.without(clusters.cluster("flat:4"), lost)


def test_devices_that_can_no_longer_reach_each_other_are_told() -> None:
    ring = clusters.cluster("torus:6x1")
    assert left.without(ring, [2]).n_devices == 5
    with pytest.raises(InputError, match="cluster torus:6x1 without 0, 3"):
        left.without(ring, [0, 3])
