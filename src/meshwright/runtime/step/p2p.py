"""Sending rows of micro-batches between stages: receives posted ahead in the sender's order, sends in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meshwright.runtime.ranks.layout import Layout, Message
from meshwright.schedules import BACKWARD_WEIGHT, FORWARD

__all__ = ["BoundaryTensor", "P2PCommunicator"]


@dataclass(frozen=True, slots=True)
class BoundaryTensor:
    """A tensor that crosses the boundary between two stages.

    `sizes`: without the row dimension, where it has one.
    `dtype`: type.
    `by_rows`: whether its first dimension are the rows of the micro-batch; masks and tables of positions are handed on whole.
    """

    sizes: tuple[int, ...]
    dtype: torch.dtype
    by_rows: bool

    @property
    def comes_back(self) -> bool:
        """Whether a gradient is sent back for it."""
        return self.by_rows and self.dtype.is_floating_point

    def blank(self, n_rows: int, device: torch.device) -> torch.Tensor:
        """Return a tensor for so many rows, its values undefined."""
        return torch.empty((n_rows, *self.sizes) if self.by_rows else self.sizes, dtype=self.dtype, device=device)


_AHEAD = 4
"""Receives posted beyond the one waited for: enough to keep transfers going, few enough to cost little memory."""


class P2PCommunicator:
    """All transfers of one rank during one step.

    `layout`: the plan as ranks.
    `rank`: this process.
    `crossings`: per stage, what it sends forward.
    `device`: where tensors live.

    Notes
    -----
    NCCL knows no tags: between two ranks of a group it matches messages in order, sends and receives in one queue. A receive
    posted ahead would therefore hold up a send behind it that its own sender waits for. So transfers forward and backward, to
    higher and to lower ranks, have a group each, where there are any: between two ranks of a group messages go one way, in the
    order of the sender's work.
    """

    def __init__(self, layout: Layout, rank: int, crossings: Sequence[Sequence[BoundaryTensor]], device: torch.device) -> None:
        self.layout, self.rank, self.crossings, self.device = layout, rank, crossings, device
        self.groups = {way: dist.new_group() for way in layout.ways()}
        self.queues = self._queues()
        self.next = [0] * len(self.queues)
        self.place = {key: (i, j) for i, queue in enumerate(self.queues) for j, key in enumerate(queue)}
        self.routes: dict[tuple[int, int, int], tuple[int, tuple[Message, ...]]] = {}
        self.posted: dict[tuple[int, int, int], list[tuple[Message, list[torch.Tensor], list[Any]]]] = {}
        self.sent: list[tuple[Any, torch.Tensor]] = []
        self.local: dict[tuple[int, int, int], list[tuple[Message, list[torch.Tensor]]]] = {}

    def _queues(self) -> list[list[tuple[int, int, int]]]:
        """Return what arrives, as (target stage, micro-batch, direction), one list per sending pipeline rank and direction.

        In the order in which the sender works: a library that matches messages by order then matches ours.
        """
        slots = self.layout.slots
        mine = set(self.layout.stages_of(self.rank))
        queues = []
        for sender in range(slots.n_ranks):
            for forward in (True, False):
                queue = []
                for task in range(int(slots.first[sender]), int(slots.first[sender + 1])):
                    phase = int(slots.phase[task])
                    if phase == BACKWARD_WEIGHT or (phase == FORWARD) != forward:
                        continue
                    target = int(slots.stage[task]) + (1 if forward else -1)
                    if target in mine:
                        queue.append((target, int(slots.microbatch[task]), 0 if forward else 1))
                if queue:
                    queues.append(queue)
        return queues

    def _tensors(self, boundary: int, direction: int) -> list[BoundaryTensor]:
        """Return what crosses the boundary after a stage."""
        return [entry for entry in self.crossings[boundary] if direction == 0 or entry.comes_back]

    def _rows(self, microbatch: int) -> int:
        start, stop = self.layout.microbatch_rows(microbatch)
        return stop - start

    def _route(self, source: int, target: int, n_rows: int) -> tuple[int, tuple[Message, ...]]:
        """Return the first row that this rank holds of what `source` sends, and the messages it sends or receives; kept."""
        key = (source, target, n_rows)
        if key not in self.routes:
            ends = (message for message in self.layout.messages(source, target, n_rows))
            mine = tuple(message for message in ends if self.rank in (message.source, message.target))
            base = 0
            if self.rank in self.layout.ranks_of_stage[source]:
                base = self.layout.rows(source, self.layout.seat(self.rank, source).data, n_rows)[0]
            self.routes[key] = (base, mine)
        return self.routes[key]

    def _post(self, key: tuple[int, int, int]) -> None:
        """Post the receives of one arrival."""
        target, microbatch, direction = key
        source = target - 1 if direction == 0 else target + 1
        entries = self._tensors(min(source, target), direction)
        posted = []
        for message in self._route(source, target, self._rows(microbatch))[1]:
            if message.target != self.rank or message.source == self.rank:
                continue
            buffers = [entry.blank(message.stop - message.start, self.device) for entry in entries]
            works = [
                dist.irecv(buffer, message.source, group=self._group(message, direction), tag=self._tag(key, i))
                for i, buffer in enumerate(buffers)
            ]
            posted.append((message, buffers, works))
        self.posted[key] = posted

    def _group(self, message: Message, direction: int) -> Any:
        return self.groups[direction, message.source > message.target]

    def _tag(self, key: tuple[int, int, int], tensor: int) -> int:
        target, microbatch, _ = key
        return (microbatch * self.layout.n_stages + target) * 16 + tensor

    def post_first(self) -> None:
        """Post the first receives of a step."""
        for i, queue in enumerate(self.queues):
            self.next[i] = 0
            self._post_until(i, min(_AHEAD, len(queue)))

    def _post_until(self, queue: int, stop: int) -> None:
        while self.next[queue] < min(stop, len(self.queues[queue])):
            self._post(self.queues[queue][self.next[queue]])
            self.next[queue] += 1

    def receive(self, stage: int, microbatch: int, direction: int) -> list[torch.Tensor]:
        """Return this rank's rows of what a stage receives; waits for them.

        `direction`: 0 for activations from the stage before, 1 for gradients from the one after.
        """
        key = (stage, microbatch, direction)
        queue, place = self.place[key]
        self._post_until(queue, place + 1)
        pieces = list(self.local.pop(key, []))
        for message, buffers, works in self.posted.pop(key):
            for work in works:
                work.wait()
            pieces.append((message, buffers))
        self._post_until(queue, place + 1 + _AHEAD)
        pieces.sort(key=lambda piece: piece[0].start)
        if len(pieces) == 1:
            return pieces[0][1]
        boundary = stage - 1 if direction == 0 else stage
        parts = zip(*(buffers for _, buffers in pieces), strict=True)
        return [
            torch.cat(part) if entry.by_rows else part[0]
            for entry, part in zip(self._tensors(boundary, direction), parts, strict=True)
        ]

    def send(self, stage: int, microbatch: int, direction: int, tensors: Sequence[torch.Tensor]) -> None:
        """Send this rank's rows of a stage's result on; returns at once.

        `direction`: 0 for activations to the stage after, 1 for gradients to the one before.
        """
        target = stage + 1 if direction == 0 else stage - 1
        key = (target, microbatch, direction)
        base, messages = self._route(stage, target, self._rows(microbatch))
        entries = self._tensors(min(stage, target), direction)
        self.sent = [(work, tensor) for work, tensor in self.sent if not work.is_completed()]
        for message in messages:
            if message.source != self.rank:
                continue
            rows = slice(message.start - base, message.stop - base)
            pieces = [
                (tensor[rows] if entry.by_rows else tensor).contiguous() for entry, tensor in zip(entries, tensors, strict=True)
            ]
            if message.target == self.rank:
                self.local.setdefault(key, []).append((message, pieces))
                continue
            for i, piece in enumerate(pieces):
                work = dist.isend(piece, message.target, group=self._group(message, direction), tag=self._tag(key, i))
                self.sent.append((work, piece))

    def finish(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()
