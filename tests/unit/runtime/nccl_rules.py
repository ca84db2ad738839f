"""Gloo made to keep NCCL's rules for messages between two ranks, so that a pipeline that would hang on GPUs hangs here too.

``lazy`` (no device bound to the process): the first message of two ranks in a group blocks both until the other one is there,
since NCCL makes their communicator then. ``eager`` (a device is bound): the messages of a group run one after another, in the
order in which the rank posted them.
"""

from __future__ import annotations

import datetime
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_PATIENCE_SECONDS = 120


class _Posted:
    """A message that waits for those posted before it."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self.start = start
        self.done = threading.Event()

    def wait(self) -> None:
        if not self.done.wait(_PATIENCE_SECONDS):
            raise TimeoutError("a message never came to its turn: this would hang under NCCL")

    def is_completed(self) -> bool:
        return self.done.is_set()


def _one_after_another() -> Callable[[Any, Callable[[], Any]], _Posted]:
    """Return what posts a message behind the others of its group."""
    lanes: dict[str, queue.Queue] = {}

    def run(lane: queue.Queue) -> None:
        while True:
            posted = lane.get()
            posted.start().wait()
            posted.done.set()

    def post(group: Any, start: Callable[[], Any]) -> _Posted:
        if group.group_name not in lanes:
            lanes[group.group_name] = queue.Queue()
            threading.Thread(target=run, args=(lanes[group.group_name],), daemon=True).start()
        posted = _Posted(start)
        lanes[group.group_name].put(posted)
        return posted

    return post


def _meeting_first() -> Callable[[Any, int], None]:
    """Return what lets two ranks of a group wait for each other, once."""
    store, met = dist.distributed_c10d._get_default_store(), set()

    def meet(group: Any, peer: int) -> None:
        rank = dist.get_rank()
        pair = f"{group.group_name}/{min(rank, peer)}-{max(rank, peer)}"
        if pair not in met:
            store.set(f"{pair}/{rank}", "here")
            store.wait([f"{pair}/{peer}"], datetime.timedelta(seconds=_PATIENCE_SECONDS))
            met.add(pair)

    return meet


def install(rules: str) -> None:
    """Let ``dist.isend`` and ``dist.irecv`` of this process keep the rules; call it after ``init_process_group``."""
    send, receive = dist.isend, dist.irecv
    if rules == "eager":
        post = _one_after_another()
        dist.isend = lambda tensor, to, group, tag=0: post(group, lambda: send(tensor, to, group=group, tag=tag))
        dist.irecv = lambda tensor, source, group, tag=0: post(group, lambda: receive(tensor, source, group=group, tag=tag))
        return
    assert rules == "lazy", rules
    meet = _meeting_first()

    def lazy_send(tensor: Any, to: int, group: Any, tag: int = 0) -> Any:
        meet(group, to)
        return send(tensor, to, group=group, tag=tag)

    def lazy_receive(tensor: Any, source: int, group: Any, tag: int = 0) -> Any:
        meet(group, source)
        return receive(tensor, source, group=group, tag=tag)

    dist.isend, dist.irecv = lazy_send, lazy_receive
