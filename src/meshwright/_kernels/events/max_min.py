"""Max-min fair rates of flows on shared links while flows come and go: what the event loop asks when time goes on.

What the event loop changes lies in few record arrays, which a function takes out of their tuple once: with an array for every
column, counting references took half of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import part
from meshwright._kernels.events.event_queue import EVENT, put

__all__ = ["KIND_BITS", "Flows", "Net", "begin", "enter", "expect", "idle", "leave", "share"]


class Flows(NamedTuple):
    """What the stages put on links that several of them may fill.

    Flow ``part * n_stages + stage``: parts 0 and 1 are what a stage sends forward and backward, 2 and 3 the collectives that a
    forward and a backward task waits for, 4 and 5 those beside them, 6 the reduction of gradients and 7 the gathering of
    weights.

    Attributes
    ----------
    seconds, latency_seconds : ndarray, shape (n_flows,), float64
        Alone on the links; the part of it before the first byte, during which links are free.
    ceiling : ndarray, shape (n_flows,), float64
        The share of the link it fills most that a flow takes alone; 1 for flows whose links are their own.
    first : ndarray, shape (n_flows + 1,), int64
        Links of flow f are ``link[first[f] : first[f + 1]]``; none where its links are its own.
    link, owner : ndarray, int64
        Links that several lanes may fill, and the flow f of each entry.
    weight : ndarray, float64
        Share of that link for each share of the link that the flow fills most, at most 1.
    room : ndarray, shape (n_links + 1,), int64
        Where lists of the flows now on each link have room.
    lane : ndarray, shape (n_flows,), int64
        What carries a flow, one at a time: a channel between ranks, or one of three lanes of a rank; -1 for flows that do not
        exist.
    """

    seconds: np.ndarray
    latency_seconds: np.ndarray
    ceiling: np.ndarray
    first: np.ndarray
    link: np.ndarray
    owner: np.ndarray
    weight: np.ndarray
    room: np.ndarray
    lane: np.ndarray


KIND_BITS = 40
"""Events of one moment are ordered by kind, then by number: a code is ``kind << KIND_BITS | number``."""

FLOW = np.dtype(
    [("seconds", np.float64), ("latency_seconds", np.float64), ("ceiling", np.float64), ("first", np.int64), ("last", np.int64)]
)
"""A flow; its meetings with links are ``first`` to ``last``, without the last."""

MEETING = np.dtype(
    [("link", np.int64), ("lane", np.int64), ("weight", np.float64), ("asked", np.float64), ("where", np.int64),
    ("now_on", np.int64)]
)  # fmt: skip
"""A flow on one of its links: the link, the flow's lane, its weight, what it takes of the link alone, and its place in the list
of those now on the link. ``now_on`` of places ``room`` to ``room + n_on`` of a link are that list."""

LINK = np.dtype(
    [("room", np.int64), ("n_on", np.int64), ("asked", np.float64), ("weight", np.float64), ("full", np.bool_),
     ("is_touched", np.bool_), ("seen", np.int64),
     ("free", np.float64), ("rising", np.float64), ("n_rising", np.int64), ("level", np.float64)]
)  # fmt: skip
"""A link: the flows now on it, what they would take of it, each as fast as alone, and their weights; whether the former was
more than the link when rates were last shared; whether flows came or left since; a mark; workspace: what is left, weight and
number of flows still rising, the level at which they fill it."""

LANE = np.dtype(
    [("load", np.int64), ("flow", np.int64), ("head", np.int64), ("tail", np.int64), ("finish", np.float64),
     ("ratio", np.float64),
     ("pending", np.float64), ("seen", np.int64), ("fair", np.float64)]
)  # fmt: skip
"""A lane: the task whose result is on its way, the task that waits, or the item (-1 for none); the flow whose bytes are on
links that others use (-1 for none); the first and last task whose results wait; when the flow ends at the present rate, and
that rate over the one it has alone; when the lane's next event is due (never after ``finish``, before it where the flow was
slowed down since); a mark; workspace: the rate from now on, as ``ratio``."""

LIST = np.dtype(
    [("touched", np.int64), ("entered", np.int64), ("tight", np.int64), ("member", np.int64), ("stopped", np.int64)]
)  # fmt: skip
"""Columns are lists: links whose flows are others than when rates were last shared, lanes whose flows came since; full links
that tie lanes together, these lanes, and those of them whose rates are found."""

MARK = np.dtype([("stamp", np.int64), ("n_touched", np.int64), ("n_entered", np.int64)])
"""The present mark, and the lengths of the first two lists."""


class Net(NamedTuple):
    """Flows on their way, as records.

    Attributes
    ----------
    flows, meetings, links, lanes : ndarray
        See `FLOW`, `MEETING`, `LINK` and `LANE`.
    lists, marks : ndarray
        See `LIST` and `MARK`.
    queue : ndarray
        The next event of every lane; see `meshwright._kernels.events.event_queue`.
    """

    flows: np.ndarray
    meetings: np.ndarray
    links: np.ndarray
    lanes: np.ndarray
    lists: np.ndarray
    marks: np.ndarray
    queue: np.ndarray


def idle(flows: Flows, n_lanes: int, n_sources: int) -> Net:
    """Return the net when nothing is on its way; events have `n_sources` sources, of which lanes are the first.

    In NumPy: compiled, each kind of record costs a kernel a part of a second.
    """
    n_links = len(flows.room) - 1
    table, meetings = np.zeros(len(flows.seconds), FLOW), np.zeros(len(flows.link), MEETING)
    links, lanes = np.zeros(n_links, LINK), np.zeros(n_lanes, LANE)
    table["seconds"], table["latency_seconds"], table["ceiling"] = flows.seconds, flows.latency_seconds, flows.ceiling
    table["first"], table["last"] = flows.first[:-1], flows.first[1:]
    meetings["link"], meetings["lane"], meetings["weight"] = flows.link, flows.lane[flows.owner], flows.weight
    meetings["asked"] = flows.ceiling[flows.owner] * flows.weight
    links["room"] = flows.room[:-1]
    for none in ("load", "flow", "head", "tail"):
        lanes[none] = -1
    lanes["ratio"] = 1.0
    lists, marks, queue = np.zeros(max(n_links, n_lanes), LIST), np.zeros(1, MARK), np.zeros(n_sources + 1, EVENT)
    return Net(table, meetings, links, lanes, lists, marks, queue)


@part
def _touch(net, link):
    """Note that the flows on a link are others than when rates were last shared."""
    links, lists, marks = net.links, net.lists, net.marks
    if not links[link]["is_touched"]:
        links[link]["is_touched"] = True
        lists[marks[0]["n_touched"]]["touched"] = link
        marks[0]["n_touched"] += 1


@part
def enter(net, lane, flow):
    """Put a flow on its links; `share` gives it its rate."""
    flows, meetings, links, lanes, lists, marks = net.flows, net.meetings, net.links, net.lanes, net.lists, net.marks
    lanes[lane]["flow"], lanes[lane]["pending"] = flow, np.inf
    lists[marks[0]["n_entered"]]["entered"] = lane
    marks[0]["n_entered"] += 1
    for k in range(flows[flow]["first"], flows[flow]["last"]):
        link = links[meetings[k]["link"]]
        place = link["room"] + link["n_on"]
        meetings[place]["now_on"] = k
        meetings[k]["where"] = place
        link["n_on"] += 1
        link["asked"] += meetings[k]["asked"]
        link["weight"] += meetings[k]["weight"]
        _touch(net, meetings[k]["link"])


@part
def leave(net, lane):
    """Take the flow of a lane off its links; `share` gives the others theirs."""
    flows, meetings, links, lanes = net.flows, net.meetings, net.links, net.lanes
    flow = lanes[lane]["flow"]
    lanes[lane]["flow"] = -1
    for k in range(flows[flow]["first"], flows[flow]["last"]):
        link = links[meetings[k]["link"]]
        link["n_on"] -= 1
        last = meetings[link["room"] + link["n_on"]]["now_on"]
        meetings[meetings[k]["where"]]["now_on"] = last
        meetings[last]["where"] = meetings[k]["where"]
        link["asked"] -= meetings[k]["asked"]
        link["weight"] -= meetings[k]["weight"]
        if link["n_on"] == 0:  # rounding does not pile up
            link["asked"], link["weight"] = 0.0, 0.0
        _touch(net, meetings[k]["link"])


@part
def _tied(net, stamp, lane):
    """List the lanes tied to one lane by full links, itself first, and these links; return how many of both."""
    flows, meetings, links, lanes, lists = net.flows, net.meetings, net.links, net.lanes, net.lists
    lists[0]["member"] = lane
    lanes[lane]["seen"], lanes[lane]["fair"] = stamp, 0.0
    n_members, n_tight, i = 1, 0, 0
    while i < n_members:
        flow = flows[lanes[lists[i]["member"]]["flow"]]
        i += 1
        for k in range(flow["first"], flow["last"]):
            link = links[meetings[k]["link"]]
            if not link["full"] or link["seen"] == stamp:
                continue
            link["seen"] = stamp
            lists[n_tight]["tight"] = meetings[k]["link"]
            n_tight += 1
            for place in range(link["room"], link["room"] + link["n_on"]):
                other = meetings[meetings[place]["now_on"]]["lane"]
                if lanes[other]["seen"] != stamp:
                    lanes[other]["seen"], lanes[other]["fair"] = stamp, 0.0
                    lists[n_members]["member"] = other
                    n_members += 1
    return n_members, n_tight


@part
def _fill(net, n_members, n_tight):
    """Give the members their max-min fair rates over the rates they have alone, ``fair``.

    All rates rise together; where a link is full, or a flow is as fast as alone, it keeps its rate and the others go on. A full
    link's level only rises when flows stop below it, so all that are as fast as alone before any link is full stop at once.
    """
    flows, meetings, links, lanes, lists = net.flows, net.meetings, net.links, net.lanes, net.lists
    for n in range(n_tight):
        link = links[lists[n]["tight"]]
        link["free"], link["rising"], link["n_rising"] = 1.0, link["weight"], link["n_on"]
    n_stopped = 0
    while True:
        lowest = np.inf
        for n in range(n_tight):
            link = links[lists[n]["tight"]]
            if link["n_rising"] > 0:
                link["level"] = max(link["free"], 0.0) / max(link["rising"], 1e-12)
                lowest = min(lowest, link["level"])
        first = n_stopped
        for n in range(n_members):
            lane = lanes[lists[n]["member"]]
            if lane["fair"] == 0.0 and flows[lane["flow"]]["ceiling"] <= lowest * (1.0 + 1e-9):
                lane["fair"] = 1.0
                lists[n_stopped]["stopped"] = lists[n]["member"]
                n_stopped += 1
        for n in range(n_tight if n_stopped == first else 0):
            link = links[lists[n]["tight"]]
            if link["n_rising"] > 0 and link["level"] <= lowest * (1.0 + 1e-12):
                for place in range(link["room"], link["room"] + link["n_on"]):
                    number = meetings[meetings[place]["now_on"]]["lane"]
                    lane = lanes[number]
                    if lane["fair"] == 0.0:
                        lane["fair"] = max(lowest / flows[lane["flow"]]["ceiling"], 1e-12)
                        lists[n_stopped]["stopped"] = number
                        n_stopped += 1
        if n_stopped == n_members:
            return
        for n in range(first, n_stopped):
            lane = lanes[lists[n]["stopped"]]
            flow = flows[lane["flow"]]
            for k in range(flow["first"], flow["last"]):
                link = links[meetings[k]["link"]]
                link["free"] -= lane["fair"] * meetings[k]["asked"]
                link["rising"] -= meetings[k]["weight"]
                link["n_rising"] -= 1


@part
def expect(net, lane, kind, moment):
    """Make this the next event of a lane: 0 the end of what it does, 1 the first byte of a flow."""
    lanes, queue = net.lanes, net.queue
    lanes[lane]["pending"] = moment
    put(queue, lane, moment, kind << KIND_BITS | lane)


@part
def _retime(net, stamp, lane, now):
    """Give the lanes tied to one their fair rates from now on."""
    lanes, lists = net.lanes, net.lists
    n_members, n_tight = _tied(net, stamp, lane)
    if n_tight == 0:
        lanes[lane]["fair"] = 1.0
    else:
        _fill(net, n_members, n_tight)
    for n in range(n_members):
        number = lists[n]["member"]
        other = lanes[number]
        if other["fair"] != other["ratio"]:
            other["finish"] = now + max(other["finish"] - now, 0.0) * other["ratio"] / other["fair"]
            other["ratio"] = other["fair"]
        # Whoever was slowed down is looked at again when its event is due.
        if other["finish"] < other["pending"]:
            expect(net, number, 0, other["finish"])


@part
def share(net, now):
    """Share links max-min fairly from now on: once for all flows that came or left at this moment.

    Only flows tied to those by full links, or by links that were full, have other rates than before.
    """
    meetings, links, lanes, lists, marks = net.meetings, net.links, net.lanes, net.lists, net.marks
    marks[0]["stamp"] += 1
    stamp, n_touched, n_entered = marks[0]["stamp"], marks[0]["n_touched"], marks[0]["n_entered"]
    marks[0]["n_touched"], marks[0]["n_entered"] = 0, 0
    n_concerned = 0
    for n in range(n_touched):
        number = lists[n]["touched"]
        link = links[number]
        link["is_touched"] = False
        was_full = link["full"]
        link["full"] = link["asked"] > 1.0 + 1e-9
        if was_full or link["full"]:
            lists[n_concerned]["touched"] = number
            n_concerned += 1
    for n in range(n_entered):
        lane = lists[n]["entered"]
        if lanes[lane]["seen"] != stamp:
            _retime(net, stamp, lane, now)
    for n in range(n_concerned):
        link = links[lists[n]["touched"]]
        for place in range(link["room"], link["room"] + link["n_on"]):
            lane = meetings[meetings[place]["now_on"]]["lane"]
            if lanes[lane]["seen"] != stamp:
                _retime(net, stamp, lane, now)


@part
def begin(net, lane, flow, load, seconds, now):
    """Put something on a lane: a flow, or work of the device (-1)."""
    flows, lanes = net.flows, net.lanes
    lanes[lane]["load"], lanes[lane]["finish"], lanes[lane]["ratio"] = load, now + seconds, 1.0
    if flow < 0 or flows[flow]["first"] == flows[flow]["last"]:
        expect(net, lane, 0, now + seconds)
    elif flows[flow]["latency_seconds"] > 0.0:
        expect(net, lane, 1, now + flows[flow]["latency_seconds"])
    else:
        enter(net, lane, flow)
