"""What a cluster and its devices refuse where they are made, whoever makes them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright import clusters
from meshwright.base.errors import InputError
from meshwright.core import connected
from meshwright.core.cluster import Cluster, Device, Links

KIND = Device("A", (("bf16", 1e15),), 80e9, 3e12)


def links(*pairs: tuple[int, int]) -> Links:
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Links(source, target, np.full(len(pairs), 1e9), np.zeros(len(pairs)))


def both(*pairs: tuple[int, int]) -> Links:
    return links(*pairs, *((b, a) for a, b in pairs))


def made(wires: Links, n: int = 4, n_switches: int = 0, **changed: Any) -> Cluster:
    own = {"kinds": (KIND,), "kind_of_device": np.zeros(n, np.int64), "groups": np.arange(n)[None], **changed}
    return Cluster(name="made", n_switches=n_switches, links=wires, **own)


RING = tuple((i, (i + 1) % 4) for i in range(4))


@pytest.mark.parametrize(
    ("wires", "told"),
    [
        (both((0, 1)), r"device 0 cannot reach device 2 \(nor 1 others\)"),
        (both((0, 1), (2, 3)), "device 0 cannot reach device 2"),
        (links((0, 1), (1, 2), (2, 3)), r"device 0 cannot be reached from device 1 \(nor 2 others\)"),
        (links((3, 2), (2, 1), (1, 0)), r"device 0 cannot reach device 1 \(nor 2 others\)"),
        (links(*RING[:3], (0, 3)), "cannot be reached from device 1"),
        (links(), "cannot reach"),
    ],
)
def test_devices_that_do_not_reach_each_other_are_refused(wires: Links, told: str) -> None:
    with pytest.raises(InputError, match=f"^cluster made: .*{told}.*; add links or switches$"):
        made(wires)


def test_one_way_rings_and_single_devices_are_clusters() -> None:
    assert made(links(*RING)).n_devices == made(links(*((b, a) for a, b in RING))).n_devices == 4
    assert made(links(), 1).n_devices == 1


def test_devices_that_do_not_forward_need_switches_or_links_of_their_own() -> None:
    chain = both((0, 1), (1, 2), (2, 3))
    with pytest.raises(InputError, match="device 0 reaches device 2 only through other devices, which do not forward"):
        made(chain, forwards=False)
    assert made(chain, forwards=True).n_devices == 4
    assert made(both((0, 4), (1, 4), (2, 5), (3, 5), (4, 5)), n_switches=2, forwards=False).n_devices == 4
    with pytest.raises(InputError, match="device 0 reaches device 2 only through"):  # both switches hang on device 1
        made(both((0, 4), (1, 4), (1, 5), (2, 5), (3, 5)), n_switches=2, forwards=False)
    with pytest.raises(
        InputError, match="device 0 reaches device 3 only through"
    ):  # 3 sends to the switch, but hears of 2 only
        made(links((0, 4), (4, 0), (1, 4), (4, 1), (2, 4), (4, 2), (3, 4), (2, 3)), n_switches=1, forwards=False)
    every = [(a, b) for a in range(4) for b in range(4) if a != b]
    assert made(links(*every), forwards=False).n_devices == 4
    with pytest.raises(InputError, match="device 3 reaches device 2 only"):
        made(links(*every[:-1]), forwards=False)


def reached_by_hand(wires: Links, i: int, n: int, forwards: bool) -> set[int]:
    """Devices that device `i` reaches: link by link, stopping at devices that do not pass on traffic."""
    ahead, found = [i], {i}
    while ahead:
        at = ahead.pop()
        if at == i or at >= n or forwards:
            new = {int(b) for a, b in zip(wires.source, wires.target, strict=True) if a == at} - found
            found |= new
            ahead += new
    return {j for j in found if j < n}


@pytest.mark.parametrize("forwards", [False, True])
def test_links_count_in_their_direction_also_between_switches(forwards: bool) -> None:
    """Against a walk over the links, in nets of which some links go one way only."""
    rng, n, seen = np.random.default_rng(7), 4, set()
    for _ in range(400):
        n_switches = int(rng.integers(1, 5))
        ways = [(a, b) for a in range(n + n_switches) for b in range(n + n_switches) if a != b and (a >= n or b >= n)]
        wires = links(*(way for way in ways if rng.random() < rng.uniform(0.3, 0.9)), *[(0, 1)] * int(rng.integers(2)))
        joined = all(reached_by_hand(wires, i, n, forwards) == set(range(n)) for i in range(n))
        said = connected.fault((wires.source, wires.target), n, n_switches, forwards=forwards)
        assert (said == "") == joined, (wires, said)
        seen.add(joined)
    assert seen == {True, False}


def test_a_switch_that_only_feeds_another_does_not_bring_traffic_back() -> None:
    """Devices 2 and 3 send into the second switch, which has no link to the first: only over device 0 they reach device 1."""
    there = ((0, 4), (1, 4), (4, 0), (4, 1), (4, 5), (5, 2), (5, 3), (2, 5), (3, 5), (5, 0))
    with pytest.raises(InputError, match="device 2 reaches device 1 only through other devices"):
        made(links(*there), n_switches=2, forwards=False)
    assert made(links(*there, (5, 1)), n_switches=2, forwards=False).n_devices == 4


def test_the_check_is_quick_where_there_are_many_devices() -> None:
    """A search breadth first takes as many rounds over all links as a ring has devices to one side."""
    n = 1_000
    ids = np.arange(n)
    ring = Links(np.r_[ids, (ids + 1) % n], np.r_[(ids + 1) % n, ids], np.ones(2 * n), np.zeros(2 * n))
    rounds = 0

    class Counted:
        def at(self, *arguments: Any) -> None:
            nonlocal rounds
            rounds += 1
            minimum.at(*arguments)

    minimum = np.minimum
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connected.np, "minimum", Counted())
        assert connected.fault((ring.source, ring.target), n, 0, forwards=True) == ""
    assert rounds <= 4 * math.log2(n)


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, "fast"])
@pytest.mark.parametrize("name", ["launch_seconds", "reconfiguration_seconds"])
def test_times_of_a_cluster_are_finite_and_not_negative(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^cluster dgx-h100:16: {name} is .*; it must be a finite number of at least 0$"):
        replace(clusters.cluster("dgx-h100:16"), **{name: value})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kind_of_device": np.full(4, 1)}, "device 0 is of kind 1; there are 1 kinds"),
        ({"kind_of_device": np.array([0, 0, 0, -1])}, "device 3 is of kind -1"),
        ({"kinds": ()}, "device 0 is of kind 0; there are 0 kinds"),
        ({"kind_of_device": np.zeros(0), "groups": np.zeros((1, 0))}, "1 device or more"),
        ({"kind_of_device": np.zeros((2, 2))}, "kind_of_device has shape"),
        ({"groups": np.zeros((1, 3))}, r"groups has shape \(1, 3\); it must be \(levels, 4\)"),
        ({"groups": np.zeros((0, 4))}, "with one level or more"),
        ({"groups": np.zeros(4)}, "groups has shape"),
    ],
)
def test_every_device_has_a_kind_and_groups(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=f"^cluster made: .*{told}"):
        made(both(*RING), **changed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("memory_bytes", "memory_bytes_per_second") for value in (math.nan, 0.0, -1.0, math.inf)),
        *((name, -1) for name in ("launch_seconds", "reserved_bytes", "issue_seconds", "n_multiprocessors")),
        *((name, value) for name in ("matmul_ratio", "attention_ratio", "memory_ratio") for value in (0.0, 1.5, math.nan)),
        *((name, value) for name in ("fp8_ratio", "fp4_ratio") for value in (-0.1, 1.5)),
        ("flops_per_second", (("bf16", -1e15),)), ("flops_per_second", (("bf16", 1e15), ("fp8", math.nan))),
    ],
)  # fmt: skip
def test_figures_of_a_device_are_finite_and_in_their_range(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name) as error:
        replace(KIND, **{name: value})
    assert "\n" not in str(error.value)
