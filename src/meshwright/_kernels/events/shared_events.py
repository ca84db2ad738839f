"""Plays an order of tasks whose traffic shares links, event by event: tasks, transfers, collectives, the end of the step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright._kernels.compiling import kernel, part
from meshwright._kernels.events.event_queue import put, take
from meshwright._kernels.events.max_min import KIND_BITS, Flows, begin, enter, expect, idle, leave, share
from meshwright._kernels.events.order import Orders, Seconds, TaskTimes

__all__ = ["Ends", "play"]


class Ends(NamedTuple):
    """What follows the last tasks of every rank, one item after the other.

    Attributes
    ----------
    first : ndarray, shape (n_ranks + 1,), int64
        Items of rank r are ``first[r] : first[r + 1]``.
    seconds : ndarray, shape (n_items,), float64
        Alone.
    flow : ndarray, shape (n_items,), int64
        What it puts on links; -1 for work of the device.
    trigger : ndarray, shape (n_items,), int64
        The task with whose start it may begin; -1 for the end of the rank's last task.
    """

    first: np.ndarray
    seconds: np.ndarray
    flow: np.ndarray
    trigger: np.ndarray


_WORK = np.dtype(
    [("stage", np.int64), ("phase", np.int64), ("rank", np.int64), ("seconds", np.float64), ("blocking", np.int64),
     ("beside", np.int64),
     ("channel", np.int64), ("send", np.int64), ("send_seconds", np.float64), ("target", np.int64)]
)  # fmt: skip
"""What all tasks of one phase and stage do: seconds of the device alone; the flows it waits for and beside it (-1 for none);
the channel (-1 where nothing crosses a rank), flow and seconds of its result; the stage that gets it (-1 for none)."""

_TASK = np.dtype(
    [("work", np.int64), ("microbatch", np.int64), ("mate", np.int64), ("following", np.int64), ("start", np.float64),
     ("end", np.float64), ("send_start", np.float64), ("send_end", np.float64)]
)  # fmt: skip
"""A task: what it does, whether it is the first (1) or the second (2) of a pair or none (0), the task whose result waits
behind its own, and when it runs and its result is sent."""

_RANK = np.dtype(
    [("position", np.int64), ("last", np.int64), ("item", np.int64), ("last_item", np.int64), ("task", np.int64),
    ("parts", np.int64)]
)  # fmt: skip
"""A rank: its next task and next item, where both end, the running task (-1 for none) and what that still waits for: its
compute with what blocks, and the flow beside it."""


_ITEM = np.dtype(
    [("seconds", np.float64), ("flow", np.int64), ("trigger", np.int64), ("start", np.float64), ("end", np.float64)]
)
"""An item of the end of the step: as in `Ends`, and when it runs."""


class _Records(NamedTuple):
    """What the event loop changes, made by NumPy: compiled, filling it would take a fifth of all seconds for the loop."""

    works: np.ndarray  # (4 * n_stages + n_paired,), _WORK: of every phase and stage, then of pairs
    tasks: np.ndarray  # (n_tasks,), _TASK
    ranks: np.ndarray  # (n_ranks,), _RANK
    # (4, n_stages, n_microbatches), bool: there are a stage's input, its output's gradient, its output, its input's gradient
    arrived: np.ndarray
    items: np.ndarray  # (n_items,), _ITEM


def _works(orders: Orders, seconds: Seconds, flows: Flows, rank_of_stage: np.ndarray) -> np.ndarray:
    """Return what the tasks of every phase and stage do, as records ``phase * n_stages + stage``, then those of pairs."""
    n_stages = orders.channel.shape[1]
    works, stages = np.zeros(4 * n_stages + len(seconds.paired), _WORK), np.arange(n_stages)
    for phase in range(4):
        work, way = works[phase * n_stages : (phase + 1) * n_stages], 0 if phase == 0 else 1
        work["stage"], work["phase"], work["rank"] = stages, phase, rank_of_stage
        work["seconds"], work["blocking"], work["beside"] = seconds.task[phase], -1, -1
        work["channel"], work["send"], work["target"] = -1, way * n_stages + stages, -1
        if phase == 2:
            continue
        _put_on_links(work, flows, (2 + way) * n_stages + stages, (4 + way) * n_stages + stages)
        work["channel"], work["send_seconds"] = orders.channel[way], seconds.send[way]
        target = stages + 1 - 2 * way
        work["target"] = np.where(target < n_stages, target, -1)
    if len(seconds.paired):
        tasks, work = np.flatnonzero(orders.paired >= 0), works[4 * n_stages :]
        work[orders.paired[tasks]] = works[orders.phase[tasks] * n_stages + orders.stage[tasks]]
        work["seconds"], work["blocking"], work["beside"] = seconds.paired, -1, -1
        blocking = np.arange(8 * n_stages, len(flows.seconds) - 1, 2)[: len(work)]  # fewer where it is not told of all
        _put_on_links(work[: len(blocking)], flows, blocking, blocking + 1)
    return works


def _put_on_links(work: np.ndarray, flows: Flows, blocking: np.ndarray, beside: np.ndarray) -> None:
    """Say of the flows that tasks wait for, and of those beside them, which there are."""
    waits = flows.first[blocking] < flows.first[blocking + 1]
    work["seconds"][waits] = np.maximum(work["seconds"] - flows.seconds[blocking], 0.0)[waits]
    work["blocking"][waits] = blocking[waits]
    runs_beside = flows.first[beside] < flows.first[beside + 1]
    work["beside"][runs_beside] = beside[runs_beside]


def _records(orders: Orders, works: np.ndarray, ends: Ends, n_microbatches: int) -> _Records:
    """Return the records as they are before anything runs."""
    n_stages = orders.channel.shape[1]
    tasks, ranks, items = (
        np.zeros(len(orders.stage), _TASK),
        np.zeros(len(ends.first) - 1, _RANK),
        np.zeros(len(ends.flow), _ITEM),
    )
    tasks["work"] = orders.phase * n_stages + orders.stage
    if len(orders.paired):
        paired = orders.paired >= 0
        tasks["work"][paired] = 4 * n_stages + orders.paired[paired]
        tasks["mate"][paired] = 1 + orders.paired[paired] % 2
    tasks["microbatch"], tasks["following"], tasks["start"] = orders.microbatch, -1, -1.0
    ranks["position"], ranks["last"], ranks["task"] = orders.first[:-1], orders.first[1:], -1
    ranks["item"], ranks["last_item"] = ends.first[:-1], ends.first[1:]
    items["seconds"], items["flow"], items["trigger"] = ends.seconds, ends.flow, ends.trigger
    arrived = np.zeros((4, n_stages, n_microbatches), dtype=np.bool_)
    arrived[0, 0], arrived[1, -1] = True, True
    return _Records(works, tasks, ranks, arrived, items)


@part
def _is_ready(works, tasks, arrived, task):
    """Return whether what a task needs is there."""
    work, microbatch = works[tasks[task]["work"]], tasks[task]["microbatch"]
    stage, phase = work["stage"], work["phase"]
    if phase == 0:
        return arrived[0, stage, microbatch]
    if phase == 2:
        return arrived[3, stage, microbatch]
    return arrived[2, stage, microbatch] and arrived[1, stage, microbatch]


@part
def _start(works, tasks, ranks, arrived, queue, source, rank, now):
    """Start the next task of a rank if the rank is free and what the task, and its mate, need is there; return it, or -1."""
    task = ranks[rank]["position"]
    if ranks[rank]["task"] >= 0 or task >= ranks[rank]["last"]:
        return -1
    if not _is_ready(works, tasks, arrived, task):
        return -1
    if tasks[task]["mate"] == 1 and not _is_ready(works, tasks, arrived, task + 1):
        return -1
    work = works[tasks[task]["work"]]
    ranks[rank]["task"], ranks[rank]["parts"] = task, 1 if work["beside"] < 0 else 2
    ranks[rank]["position"] += 1
    tasks[task]["start"] = now
    put(queue, source, now + work["seconds"], 2 << KIND_BITS | task)
    return task


@part
def _release(works, tasks, arrived, lanes, task, now):
    """Let what a task made be there, or wait for its channel, or return the task to be sent now (else -1)."""
    work, microbatch = works[tasks[task]["work"]], tasks[task]["microbatch"]
    if work["phase"] == 2:
        return -1
    way = 0 if work["phase"] == 0 else 1
    arrived[2 + way, work["stage"], microbatch] = True
    if work["channel"] < 0:
        if work["target"] >= 0:
            arrived[way, work["target"], microbatch] = True
        return -1
    tasks[task]["send_start"], tasks[task]["send_end"] = now, now
    channel = lanes[work["channel"]]
    if channel["load"] < 0:
        return task
    if channel["head"] < 0:
        channel["head"] = task
    else:
        tasks[channel["tail"]]["following"] = task
    channel["tail"] = task
    return -1


@part
def _next_item(items, tasks, ranks, lanes, lane, rank):
    """Return the next item of a rank if the one before has ended and what it waits for has happened, else -1."""
    item = ranks[rank]["item"]
    if item >= ranks[rank]["last_item"] or lanes[lane]["load"] >= 0:
        return -1
    trigger = items[item]["trigger"]
    over = ranks[rank]["task"] < 0 and ranks[rank]["position"] == ranks[rank]["last"]
    if (trigger < 0 and not over) or (trigger >= 0 and tasks[trigger]["start"] < 0.0):
        return -1
    ranks[rank]["item"] += 1
    return item


def play(
    orders: Orders, seconds: Seconds, flows: Flows, ends: Ends, rank_of_stage: np.ndarray, n_microbatches: int
) -> tuple[int, TaskTimes, np.ndarray, np.ndarray]:
    """Return when every task, transfer and end of step runs where traffic shares links max-min fairly, event by event.

    Events are taken by time, then ends of flows before their first bytes before ends of compute, then id.

    Returns
    -------
    status : int
        0, or 1 when the order deadlocks.
    moments : TaskTimes
        When each task and transfer starts and ends.
    item_start, item_end : ndarray, shape (n_items,), float64
        The same for the end of the step.
    """
    n_ranks = len(orders.first) - 1
    records = _records(orders, _works(orders, seconds, flows, rank_of_stage), ends, n_microbatches)
    # channels come first, then three lanes of every rank: for what blocks, for what runs beside, for the end of the step
    first_lane = int(orders.channel.max(initial=-1)) + 1
    n_lanes = first_lane + 3 * n_ranks
    net = idle(flows, n_lanes, n_lanes + n_ranks)
    status = _play(records, net, first_lane)
    moments = (np.ascontiguousarray(records.tasks[name]) for name in TaskTimes._fields)
    return status, TaskTimes(*moments), *(np.ascontiguousarray(records.items[name]) for name in ("start", "end"))


@kernel
def _play(records, net, first_lane):
    """Fill the records of tasks, and items, with when they run; return 0, or 1 when the order deadlocks."""
    works, tasks, ranks, arrived, items = records.works, records.tasks, records.ranks, records.arrived, records.items
    flows, lanes, marks, queue = net.flows, net.lanes, net.marks, net.queue
    n_ranks, n_left = len(ranks), len(tasks) + len(items)
    n_lanes = first_lane + 3 * n_ranks
    now, n_to_look_at = 0.0, n_ranks
    while True:
        if n_to_look_at > 0:  # at the beginning every rank is looked at
            n_to_look_at -= 1
            rank = n_to_look_at
        else:
            if marks[0]["n_touched"] > 0 and (queue[0]["source"] == 0 or queue[1]["moment"] > now):
                share(net, now)
            if queue[0]["source"] == 0:
                break
            now, code = queue[1]["moment"], queue[1]["code"]
            take(queue)
            kind, number = code >> KIND_BITS, code & ((1 << KIND_BITS) - 1)
            if kind == 2:
                work = works[tasks[number]["work"]]
                rank = work["rank"]
                if work["blocking"] >= 0:
                    flow = work["blocking"]
                    begin(net, first_lane + rank, flow, number, flows[flow]["seconds"], now)
                    continue
                ranks[rank]["parts"] -= 1
            elif kind == 1:
                enter(net, number, works[tasks[lanes[number]["load"]]["work"]]["send"])
                continue
            elif lanes[number]["finish"] > now:
                expect(net, number, 0, lanes[number]["finish"])
                continue
            else:
                load = lanes[number]["load"]
                lanes[number]["load"] = -1
                if lanes[number]["flow"] >= 0:
                    leave(net, number)
                if number >= first_lane + 2 * n_ranks:
                    rank = number - first_lane - 2 * n_ranks
                    items[load]["end"] = now
                    n_left -= 1
                elif number >= first_lane:
                    rank = (number - first_lane) % n_ranks
                    ranks[rank]["parts"] -= 1
                else:
                    work = works[tasks[load]["work"]]
                    tasks[load]["send_end"] = now
                    target, way = work["target"], 0 if work["phase"] == 0 else 1
                    arrived[way, target, tasks[load]["microbatch"]] = True
                    rank = works[target]["rank"]  # of its forward pass
                    waiting = lanes[number]["head"]
                    if waiting >= 0:
                        lanes[number]["head"] = tasks[waiting]["following"]
                        tasks[waiting]["send_start"] = now
                        work = works[tasks[waiting]["work"]]
                        begin(net, number, work["send"], waiting, work["send_seconds"], now)
        if ranks[rank]["task"] >= 0 and ranks[rank]["parts"] == 0:
            last = ranks[rank]["task"]
            ranks[rank]["task"] = -1
            tasks[last]["end"], tasks[last]["send_start"], tasks[last]["send_end"] = now, now, now
            n_left -= 1
            # what either task of a pair made is there when both are done
            first = last + 1 if tasks[last]["mate"] == 1 else last - 1 if tasks[last]["mate"] == 2 else last
            for done in range(first, last + 1):
                task = _release(works, tasks, arrived, lanes, done, now)
                if task >= 0:
                    work = works[tasks[task]["work"]]
                    begin(net, work["channel"], work["send"], task, work["send_seconds"], now)
        task = _start(works, tasks, ranks, arrived, queue, n_lanes + rank, rank, now)
        if task >= 0 and works[tasks[task]["work"]]["beside"] >= 0:
            flow = works[tasks[task]["work"]]["beside"]
            begin(net, first_lane + n_ranks + rank, flow, task, flows[flow]["seconds"], now)
        lane = first_lane + 2 * n_ranks + rank
        item = _next_item(items, tasks, ranks, lanes, lane, rank)
        if item >= 0:
            items[item]["start"] = now
            begin(net, lane, items[item]["flow"], item, items[item]["seconds"], now)
    return 0 if n_left == 0 else 1
