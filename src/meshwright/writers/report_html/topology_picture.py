"""The topology as a picture: places of devices and switches, and the links between with what they carry, in abstract units.

Grids are drawn as grids, switched networks in levels with the devices of a node in one frame, anything else on a circle. Where
there is too much to draw, nodes, racks and switches that hang on the same things are drawn as one, and the caption says so.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.core.cluster import Cluster
from meshwright.network.placement import coordinates

__all__ = ["picture"]

WIDTH = 1140.0
"""Of every picture; the page scales it."""
MOST_FRAMES, MOST_DETAIL, MOST_BOXES, MOST_CELLS, MOST_ON_CIRCLE = 64, 72, 48, 4608, 512
"""Frames in a row; devices whose links are drawn one by one; switches of a level drawn one by one; cells;
places of a circle.
"""
LEVEL = 105.0
"""From one level of switches to the next."""
DEVICE, SWITCH, FRAME, GROUP = range(4)
"""What an item of the picture is; a group stands for several devices."""


class _Draft:
    """A picture while it is laid out: items (x, y, width, height, what, name, device), and which of them a node is drawn as."""

    def __init__(self) -> None:
        self.items: list[list[Any]] = []
        self.item_of_node: dict[int, int] = {}
        self.notes: list[str] = []
        self.height = 0.0

    def add(self, box: tuple[float, float, float, float], kind: int, name: str, device: int = -1) -> int:
        """Add an item; return its number."""
        self.items.append([*(round(value, 1) for value in box), kind, name, device])
        self.height = max(self.height, box[1] + box[3])
        return len(self.items) - 1


def picture(cluster: Cluster, link_bytes: NDArray[np.float64], step_seconds: float) -> dict[str, Any]:
    """Return the topology with what its links carry in a step.

    `link_bytes`, shape (n_links,), float64: what each link carries; empty where that is not known.
    Returns: JSON-ready: ``width``, ``height``; ``items`` (x, y, width, height, what, name, device or -1); ``links`` (item,
    item, number of links one way, largest use of one there and back, largest bytes on one; then, where it is not 0, the
    dimension along which it leaves the grid, and of several links the mean use there and back); ``notes``. Single devices
    have no name.
    """
    places = coordinates(cluster) if cluster.n_switches == 0 else None
    draft = _Draft()
    if places is not None and len(places) <= 3:
        _grid(draft, cluster, places)
    elif cluster.n_switches == 0:
        _circle(draft, cluster)
    else:
        _levels(draft, cluster)
    carried = link_bytes if len(link_bytes) else np.zeros(len(cluster.links))
    return {
        "width": WIDTH,
        "height": round(draft.height, 2),
        "items": draft.items,
        "links": _links(draft, cluster, carried, step_seconds, places),
        "notes": draft.notes,
    }


def _grid(draft: _Draft, cluster: Cluster, places: NDArray[np.int64]) -> None:
    """Lay a mesh or torus out: planes of the third dimension side by side, in rows where they are many."""
    sizes = places.max(axis=1) + 1
    n_columns, n_rows, n_planes = int(sizes[0]), int(sizes[1]), int(sizes[2]) if len(sizes) > 2 else 1
    per_row = max(1, min(n_planes, int(WIDTH / (9.0 * (n_columns + 1.0)))))
    step = min(64.0, WIDTH / (per_row * (n_columns + 1.0)))
    side = step * 0.5
    for device in range(cluster.n_devices):
        x, y = places[0, device], places[1, device]
        z = int(places[2, device]) if len(places) > 2 else 0
        left = (z % per_row * (n_columns + 1.0) + x + 0.5) * step
        top = (z // per_row * (n_rows + 1.0) + y + 0.5) * step
        draft.item_of_node[device] = draft.add((left, top, side, side), DEVICE, "", device)
    draft.height += step
    if n_planes > 1:
        draft.notes.append(
            f"{n_planes} planes of {n_columns} x {n_rows}, side by side; short strokes lead to the next plane or around the "
            "torus"
        )
    elif any(abs(places[:, a] - places[:, b]).sum() > 1 for a, b in _pairs(cluster)[:4096]):
        draft.notes.append("short strokes lead around the torus")


def _pairs(cluster: Cluster) -> list[tuple[int, int]]:
    """Return the ends of every link."""
    return list(zip(cluster.links.source.tolist(), cluster.links.target.tolist(), strict=True))


def _circle(draft: _Draft, cluster: Cluster) -> None:
    """Lay devices without switches out on a circle, several to a place where they are many."""
    per_place = -(-cluster.n_devices // MOST_ON_CIRCLE)
    n_places = -(-cluster.n_devices // per_place)
    radius = min(WIDTH / 2 - 40.0, max(90.0, n_places * 5.0))
    side = min(26.0, 0.6 * math.tau * radius / n_places)
    for place in range(n_places):
        angle = math.tau * place / n_places - math.pi / 2
        first = place * per_place
        members = range(first, min(first + per_place, cluster.n_devices))
        box = (
            WIDTH / 2 + radius * math.cos(angle) - side / 2,
            radius + 30.0 + radius * math.sin(angle) - side / 2,
            side,
            side,
        )
        name = "" if len(members) == 1 else f"devices {first} to {members[-1]}"
        item = draft.add(box, DEVICE if len(members) == 1 else GROUP, name, first)
        draft.item_of_node.update(dict.fromkeys(members, item))
    draft.height += 30.0
    if per_place > 1:
        draft.notes.append(f"each place stands for {per_place} devices")


def _levels(draft: _Draft, cluster: Cluster) -> None:
    """Lay a switched network out: devices in frames at the bottom, switches in levels above."""
    node, frame = _node_and_frame(cluster)
    n_frames = int(frame.max()) + 1
    inside = _switches_inside(cluster, node)
    level = _level_of_switches(cluster, inside)
    n_levels = int(level.max(initial=0))
    of_node = np.concatenate((np.zeros(cluster.n_devices, dtype=np.int64), level))
    beside = (of_node[cluster.links.source] == of_node[cluster.links.target]) & (of_node[cluster.links.source] > 0)
    first = 60.0 if beside.any() else 12.0  # links between switches of a level are arcs above them
    top = first + n_levels * LEVEL
    detail = cluster.n_devices <= MOST_DETAIL
    _frames(draft, cluster, (node, frame), inside, top, detail)
    if not detail and n_frames < len(set(node.tolist())):
        draft.notes.append(f"{len(set(node.tolist()))} nodes are drawn in {n_frames} frames, side by side in each")
    above: dict[int, int] = {}
    for number in range(1, n_levels + 1):
        switches = [int(switch) for switch in np.flatnonzero(level == number) + cluster.n_devices]
        _row(draft, cluster, switches, number, first + (n_levels - number) * LEVEL, above)
    draft.item_of_node.update(above)
    draft.height += 8.0


def _node_and_frame(cluster: Cluster) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the node of each device (or the smallest group that several share), and the frame it is drawn in."""
    shared = [level for level in cluster.groups if len(np.unique(level)) < cluster.n_devices]
    node = np.unique(shared[0], return_inverse=True)[1] if shared else np.arange(cluster.n_devices)
    few = [level for level in shared if len(np.unique(level)) <= MOST_FRAMES]
    if few:
        return node, np.unique(few[0], return_inverse=True)[1]
    return node, node // -(-(int(node.max()) + 1) // MOST_FRAMES)


def _switches_inside(cluster: Cluster, node: NDArray[np.int64]) -> dict[int, int]:
    """Return the switches that only devices of one node are plugged into, with the node."""
    found: dict[int, set[int]] = {}
    for source, target in _pairs(cluster):
        for switch, other in ((source, target), (target, source)):
            if switch >= cluster.n_devices:
                found.setdefault(switch, set()).add(int(node[other]) if other < cluster.n_devices else -1)
    return {switch: next(iter(nodes)) for switch, nodes in found.items() if len(nodes) == 1 and -1 not in nodes}


def _level_of_switches(cluster: Cluster, inside: dict[int, int]) -> NDArray[np.int64]:
    """Return how many hops each switch is away from the nearest device; 0 for switches inside nodes."""
    n = cluster.n_devices
    level = np.full(n + cluster.n_switches, -1, dtype=np.int64)
    level[:n] = 0
    level[list(inside)] = 0
    for number in range(1, cluster.n_switches + 1):
        reached = (level[cluster.links.source] == number - 1) & (level[cluster.links.target] < 0)
        if not reached.any():
            break
        level[cluster.links.target[reached]] = number
    return level[n:]


def _frames(
    draft: _Draft,
    cluster: Cluster,
    groups: tuple[NDArray[np.int64], NDArray[np.int64]],
    inside: dict[int, int],
    top: float,
    detail: bool,
) -> None:
    """Draw the devices in their frames, with the switches inside nodes."""
    node, frame = groups
    n_frames = int(frame.max()) + 1
    whole = cluster.n_devices > MOST_CELLS  # a cell is a node then
    unit = node if whole else np.arange(cluster.n_devices)
    most = max(len(np.unique(unit[frame == i])) for i in range(n_frames)) if n_frames <= cluster.n_devices else 1
    pitch = WIDTH / n_frames
    width = min(pitch * 0.9, 300.0)
    columns = min(most, int(width / 14.0) if detail else round(math.sqrt(most * width / 150.0))) or 1
    cell = min(30.0, (width - 4.0) / columns)
    width = columns * cell + 4.0
    n_bars = max((list(inside.values()).count(i) for i in set(inside.values())), default=0) if detail else 0
    n_rows = -(-most // columns)
    height = n_rows * cell + 6.0 + (26.0 + 18.0 * n_bars if n_bars else 0.0)
    for i in range(n_frames):
        left = (i + 0.5) * pitch - width / 2
        members = np.flatnonzero(frame == i)
        name = f"devices {members[0]} to {members[-1]}" if len(members) > 1 else f"device {members[0]}"
        box = draft.add((left, top, width, height), FRAME, name)
        bars = [switch for switch, home in sorted(inside.items()) if frame[np.flatnonzero(node == home)[0]] == i]
        for k, switch in enumerate(bars):
            if detail:
                bar = (left + 3.0, top + n_rows * cell + 28.0 + 18.0 * k, width - 6.0, 13.0)
                draft.item_of_node[switch] = draft.add(bar, SWITCH, f"switch {switch - cluster.n_devices} (inside the node)")
            else:
                draft.item_of_node[switch] = box
        for k, one in enumerate(dict.fromkeys(unit[members].tolist())):
            own = members[unit[members] == one]
            x, y = left + 2.0 + k % columns * cell, top + 4.0 + k // columns * cell
            gap = min(2.0, 0.12 * cell)
            label = "" if len(own) == 1 else f"devices {own[0]} to {own[-1]}"
            place = draft.add((x, y, cell - gap, cell - gap), DEVICE if len(own) == 1 else GROUP, label, int(own[0]))
            draft.item_of_node.update(dict.fromkeys(own.tolist(), place if detail else box))
    if whole:
        draft.notes.append("a cell is a node, in the colours of its first device")
    if not detail:
        draft.notes.append("links of one frame, and switches that hang on the same things, are drawn together")


def _row(draft: _Draft, cluster: Cluster, switches: list[int], number: int, top: float, above: dict[int, int]) -> None:
    """Draw the switches of one level, those on the same things as one where they are many, near what they hang on."""
    below: dict[int, set[int]] = {switch: set() for switch in switches}
    for source, target in _pairs(cluster):
        item = draft.item_of_node.get(source)
        if target in below and item is not None and source not in below:
            below[target].add(item)
    boxes: dict[tuple[Any, ...], list[int]] = {}
    together = len(switches) > MOST_BOXES or cluster.n_devices > MOST_DETAIL
    for switch in switches:
        key = tuple(sorted(below[switch])) if together else (switch,)
        boxes.setdefault(key, []).append(switch)
    rows = sorted(boxes.values(), key=lambda own: (round(_middle(draft, below[own[0]])), own[0]))
    if len(rows) > MOST_FRAMES:
        size = -(-len(rows) // MOST_FRAMES)
        rows = [[switch for own in rows[i : i + size] for switch in own] for i in range(0, len(rows), size)]
    pitch = WIDTH / len(rows)
    for i, own in enumerate(rows):
        width = min(0.82 * pitch, 180.0)
        first = own[0] - cluster.n_devices
        name = f"switch {first}" if len(own) == 1 else f"{len(own)} switches, from {first} on"
        box = ((i + 0.5) * pitch - width / 2, top, width, 20.0)
        item = draft.add(box, SWITCH, f"{name} (level {number})")
        above.update(dict.fromkeys(own, item))
    draft.item_of_node.update(above)


def _middle(draft: _Draft, items: set[int]) -> float:
    """Return the mean place of items from left to right."""
    return float(sum(draft.items[item][0] + draft.items[item][2] / 2 for item in items) / max(1, len(items)))


def _links(
    draft: _Draft, cluster: Cluster, carried: NDArray[np.float64], step_seconds: float, places: NDArray[np.int64] | None
) -> list[list[Any]]:
    """Return the links between items, both directions and all parallel ones together."""
    links = cluster.links
    use = carried / links.bytes_per_second / max(step_seconds, 1e-300)
    item = np.array([draft.item_of_node[node] for node in range(cluster.n_devices + cluster.n_switches)])
    a, b = item[links.source], item[links.target]
    n_items = len(draft.items)
    key = np.minimum(a, b) * n_items + np.maximum(a, b)
    found: list[list[Any]] = []
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order], prepend=-1))
    for own in np.split(order, bounds[1:]):
        low, high = divmod(int(key[own[0]]), n_items)
        if low == high:
            continue
        there, back = own[a[own] == low], own[a[own] == high]
        row: list[Any] = [low, high, len(there), *(_rounded(use[way].max(initial=0.0)) for way in (there, back))]
        row += [_rounded(carried[own].max()), _stub(places, links, int(own[0]))]
        if len(there) > 1:
            row += [_rounded(use[way].mean() if len(way) else 0.0) for way in (there, back)]
        found.append(row if row[6:] != [0] else row[:6])
    return found


def _stub(places: NDArray[np.int64] | None, links: Any, link: int) -> int:
    """Return 0 for a link that is drawn as a line, else which dimension it leaves the plane or grid along, counted from 1."""
    if places is None or len(places) > 3:
        return 0
    apart = np.abs(places[:, links.source[link]] - places[:, links.target[link]])
    if len(apart) > 2 and apart[2]:
        return 3
    return 0 if apart.sum() <= 1 else int(np.argmax(apart)) + 1


def _rounded(value: float) -> float | int:
    """Return three digits of a number, as few characters as JSON needs for it."""
    short = float(f"{value:.3g}")
    return int(short) if short.is_integer() else short
