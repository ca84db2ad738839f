"""Sending rows of micro-batches between stages: receives posted ahead in the sender's order, sends in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meshwright.runtime.ranks.layout import Layout, Message
from meshwright.runtime.ranks.message_order import Arrival, ReceiveOrder

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


class P2PCommunicator:
    """All transfers of one rank during one step.

    `layout`: the plan as ranks.
    `rank`: this process.
    `crossings`: per stage, what it sends forward.
    `device`: where tensors live.

    Notes
    -----
    NCCL knows no tags: the messages of a group run one after another, in the order in which each rank posted them. A receive
    posted ahead would hold up a send behind it that its own sender waits for. So every channel has a group of its own, in
    which a rank either only sends or only receives, both in the order of the sender's work.

    Without a device bound to the process, NCCL makes what two ranks of a group need when they first exchange a message, and
    both wait for each other there. So every pair exchanges one number first, all of them in one order.
    """

    def __init__(self, layout: Layout, rank: int, crossings: Sequence[Sequence[BoundaryTensor]], device: torch.device) -> None:
        self.layout, self.rank, self.crossings, self.device = layout, rank, crossings, device
        self.groups = self._make_groups()
        self.orders = {True: ReceiveOrder(layout, rank), False: ReceiveOrder(layout, rank, backward=False)}
        self.order = self.orders[True]
        self.routes: dict[tuple[int, int, int], tuple[int, tuple[Message, ...]]] = {}
        self.posted: dict[Arrival, list[tuple[Message, list[torch.Tensor], list[Any]]]] = {}
        self.sent: list[tuple[Any, torch.Tensor]] = []
        self.local: dict[Arrival, list[tuple[Message, list[torch.Tensor]]]] = {}

    def _make_groups(self) -> dict[tuple[int, int, int], Any]:
        """Make the group of every channel, and let each pair of ranks in it meet; return them by direction and pair."""
        found = {}
        number = torch.zeros(1, device=self.device)
        for channel in self.layout.channels():
            group = dist.new_group(channel.ranks)
            for source, target in channel.pairs:
                if self.rank not in (source, target):
                    continue
                found[channel.direction, source, target] = group
                sends = self.rank == source
                work = dist.isend(number, target, group=group) if sends else dist.irecv(number, source, group=group)
                if work is not None:
                    work.wait()
        return found

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

    def _post(self, key: Arrival) -> None:
        """Post the receives of one arrival."""
        target, microbatch, direction = key
        source = target - 1 if direction == 0 else target + 1
        entries = self._tensors(min(source, target), direction)
        posted = []
        for message in self._route(source, target, self._rows(microbatch))[1]:
            if message.target != self.rank or message.source == self.rank:
                continue
            buffers = [entry.blank(message.stop - message.start, self.device) for entry in entries]
            group = self.groups[direction, message.source, message.target]
            works = [dist.irecv(buffer, message.source, group=group, tag=self._tag(key, i)) for i, buffer in enumerate(buffers)]
            posted.append((message, buffers, works))
        self.posted[key] = posted

    def _tag(self, key: Arrival, tensor: int) -> int:
        target, microbatch, _ = key
        return (microbatch * self.layout.n_stages + target) * 16 + tensor

    def post_first(self, *, backward: bool = True) -> None:
        """Post the first receives of a step, or of its forward passes only."""
        self.order = self.orders[backward]
        self._post_all(self.order.begin())

    def _post_all(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._post(arrival)

    def receive(self, stage: int, microbatch: int, direction: int) -> list[torch.Tensor]:
        """Return this rank's rows of what a stage receives; waits for them.

        `direction`: 0 for activations from the stage before, 1 for gradients from the one after.
        """
        key = (stage, microbatch, direction)
        self._post_all(self.order.before(key))
        pieces = list(self.local.pop(key, []))
        for message, buffers, works in self.posted.pop(key):
            for work in works:
                work.wait()
            pieces.append((message, buffers))
        self._post_all(self.order.after(key))
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
            group = self.groups[direction, message.source, message.target]
            for i, piece in enumerate(pieces):
                work = dist.isend(piece, message.target, group=group, tag=self._tag(key, i))
                self.sent.append((work, piece))

    def finish(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()
