"""The order in which every rank posts its messages, and a proof that no rank waits for ever, without PyTorch.

NCCL knows no tags: messages of a process group run one after another, in the order in which each rank posted them. A receive
posted ahead of time therefore holds up whatever its rank posts behind it in the same group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from meshwright.base.errors import InputError
from meshwright.runtime.ranks.layout import Layout
from meshwright.schedules import BACKWARD_WEIGHT, FORWARD

__all__ = ["Arrival", "ReceiveOrder", "check"]

_AHEAD = 4
"""Receives posted beyond the one waited for: enough to keep transfers going, few enough to cost little memory."""

Arrival = tuple[int, int, int]
"""What a stage receives: the stage, the micro-batch, and 0 for activations from the stage before, 1 for gradients."""


class ReceiveOrder:
    """When one rank posts its receives: in the order in which each sender works, some ahead of the one waited for.

    `layout`: the plan as ranks.
    `rank`: which.
    `backward`: whether gradients are sent back, too; else the forward passes are all there is.
    """

    def __init__(self, layout: Layout, rank: int, *, backward: bool = True) -> None:
        self.queues = self._queues(layout, set(layout.stages_of(rank)), (0, 1) if backward else (0,))
        self.place = {arrival: (i, j) for i, queue in enumerate(self.queues) for j, arrival in enumerate(queue)}
        self.next = [0] * len(self.queues)

    @staticmethod
    def _queues(layout: Layout, mine: set[int], directions: tuple[int, ...]) -> list[list[Arrival]]:
        """Return what arrives, one list per sending pipeline rank and direction, in the order in which the sender works."""
        slots = layout.slots
        queues = []
        for sender in range(slots.n_ranks):
            for direction in directions:
                queue = []
                for task in range(int(slots.first[sender]), int(slots.first[sender + 1])):
                    phase = int(slots.phase[task])
                    if phase == BACKWARD_WEIGHT or (phase == FORWARD) != (direction == 0):
                        continue
                    target = int(slots.stage[task]) + (1 if direction == 0 else -1)
                    if target in mine:
                        queue.append((target, int(slots.microbatch[task]), direction))
                if queue:
                    queues.append(queue)
        return queues

    def begin(self) -> list[Arrival]:
        """Return what is posted when a step begins."""
        self.next = [0] * len(self.queues)
        return [arrival for i in range(len(self.queues)) for arrival in self._until(i, _AHEAD)]

    def before(self, arrival: Arrival) -> list[Arrival]:
        """Return what is posted before an arrival is waited for."""
        queue, place = self.place[arrival]
        return self._until(queue, place + 1)

    def after(self, arrival: Arrival) -> list[Arrival]:
        """Return what is posted once an arrival is there."""
        queue, place = self.place[arrival]
        return self._until(queue, place + 1 + _AHEAD)

    def _until(self, queue: int, stop: int) -> list[Arrival]:
        start, self.next[queue] = self.next[queue], max(self.next[queue], min(stop, len(self.queues[queue])))
        return self.queues[queue][start : self.next[queue]]


Transfer = tuple[Arrival, int, int]
"""One message: what arrives, the rank that sends it and the rank that receives it. With a direction from `_TASK` on, that a
rank, twice, has come to a task of this phase."""

_TASK = 2


def check(layout: Layout, place: str) -> None:
    """Prove that a step ends when the messages of a channel run strictly in the order posted, and a send ends with its receive.

    All ranks of a stage wait for one another in each of its tasks, as if it had collectives (of a tensor or context axis, of
    sharded gradients or weights): where such a step ends, one with fewer of them does, too.

    Where all stages have the same degrees in the same order of devices, the ranks at one place of all stages exchange messages
    among themselves only, and do what those at any other place do: the first place is played for all.

    Parameters
    ----------
    layout : Layout
        The plan as ranks.
    place : str
        The plan's name for a message.

    Raises
    ------
    InputError
        When a rank would wait for ever.
    """
    game = _Step(layout)
    stuck = game.play()
    if stuck is not None:
        rank, ((stage, microbatch, direction), source, _) = stuck
        if direction >= _TASK:
            raise InputError(
                f"{place}: schedule {layout.plan.schedule} would hang: rank {rank} waits for ever for rank {source} in a task "
                f"of micro-batch {microbatch} of stage {stage}; plan with another schedule"
            )
        kind = "gradients" if direction else "activations"
        raise InputError(
            f"{place}: schedule {layout.plan.schedule} would hang: rank {rank} waits for ever for the {kind} of micro-batch "
            f"{microbatch} for stage {stage} from rank {source}; plan with another schedule"
        )


class _Step:
    """One step of all ranks that exchange messages, played by their orders alone."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.channel = {(channel.direction, *pair): i for i, channel in enumerate(layout.channels()) for pair in channel.pairs}
        self.done: set[Transfer] = set()
        self.programs = {rank: self._program(rank) for rank in self._played()}
        self.awaited: dict[int, set[Transfer]] = {rank: set() for rank in self.programs}
        self.posted: dict[int, dict[int, deque[Transfer]]] = {rank: {} for rank in self.programs}

    def _played(self) -> list[int]:
        """Return the ranks to play: those at the first place of every stage where all places do the same, else all."""
        stages, ranks = self.layout.plan.stages, self.layout.ranks_of_stage
        alike = len({(stage.strategy.data, stage.strategy.context * stage.strategy.tensor) for stage in stages}) == 1
        places: dict[int, set[int]] = {}
        for row in ranks:
            for place, rank in enumerate(row):
                places.setdefault(rank, set()).add(place)
        if alike and all(len(found) == 1 for found in places.values()):
            return sorted({row[0] for row in ranks})
        return list(range(self.layout.n_ranks))

    def _transfers(self, arrival: Arrival) -> list[Transfer]:
        """Return the messages of one arrival in the order of every sender and receiver."""
        stage, microbatch, direction = arrival
        start, stop = self.layout.microbatch_rows(microbatch)
        messages = self.layout.messages(stage - 1 if direction == 0 else stage + 1, stage, stop - start)
        return [(arrival, message.source, message.target) for message in messages if message.source != message.target]

    def _program(self, rank: int) -> Iterator[set[Transfer]]:
        """Yield what a rank waits for, posting what it posts in between."""
        layout, order = self.layout, ReceiveOrder(self.layout, rank)
        row = layout.pipeline_rank_of(rank)
        slots = layout.slots
        sent: set[Transfer] = set()
        self._post(rank, order.begin())
        for task in range(int(slots.first[row]), int(slots.first[row + 1])):
            stage, microbatch, phase = int(slots.stage[task]), int(slots.microbatch[task]), int(slots.phase[task])
            if phase == BACKWARD_WEIGHT:
                yield self._come_to(rank, stage, microbatch, phase)
                continue
            direction, step = (0, 1) if phase == FORWARD else (1, -1)
            if 0 <= stage - step < layout.n_stages:
                arrival = (stage, microbatch, direction)
                self._post(rank, order.before(arrival))
                yield {transfer for transfer in self._transfers(arrival) if transfer[2] == rank}
                self._post(rank, order.after(arrival))
            yield self._come_to(rank, stage, microbatch, phase)
            if 0 <= stage + step < layout.n_stages:
                mine = [t for t in self._transfers((stage + step, microbatch, direction)) if t[1] == rank]
                self._put(rank, mine)
                sent.update(mine)
        yield sent

    def _come_to(self, rank: int, stage: int, microbatch: int, phase: int) -> set[Transfer]:
        """Say that a rank has come to a task; return that all ranks of its stage have."""
        arrival = (stage, microbatch, _TASK + phase)
        self.done.add((arrival, rank, rank))
        return {(arrival, other, other) for other in self.layout.ranks_of_stage[stage] if other in self.programs}

    def _post(self, rank: int, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._put(rank, [transfer for transfer in self._transfers(arrival) if transfer[2] == rank])

    def _put(self, rank: int, transfers: list[Transfer]) -> None:
        posted = self.posted[rank]
        for (stage, microbatch, direction), source, target in transfers:
            lane = posted.setdefault(self.channel[direction, source, target], deque())
            lane.append(((stage, microbatch, direction), source, target))

    def play(self) -> tuple[int, Transfer] | None:
        """Play until every rank has ended, or return one that cannot go on and what it waits for."""
        going = set(self.programs)
        while going:
            moved = False
            for rank in sorted(going):
                while self.awaited[rank] <= self.done:
                    moved = True
                    following = next(self.programs[rank], None)
                    if following is None:
                        going.discard(rank)
                        break
                    self.awaited[rank] = following
            moved |= self._transfer()
            if not moved:
                rank = min(going)
                return rank, min(self.awaited[rank] - self.done)
        return None

    def _transfer(self) -> bool:
        """Let every message through that is first in line at both its ends; return whether any was."""
        moved = False
        for posted in self.posted.values():
            for channel, lane in posted.items():
                while lane and self._first(lane[0], channel):
                    transfer = lane[0]
                    for end in transfer[1:]:
                        self.posted[end][channel].popleft()
                    self.done.add(transfer)
                    moved = True
        return moved

    def _first(self, transfer: Transfer, channel: int) -> bool:
        """Whether a message is first in line at both its ends."""
        lanes = [self.posted[end].get(channel) for end in transfer[1:]]
        return all(lane and lane[0] == transfer for lane in lanes)
