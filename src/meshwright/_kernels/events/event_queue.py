"""The next event of every source, in order of time, then of a code: a binary heap in one record array."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.compiling import part

__all__ = ["EVENT", "put", "take"]

EVENT = np.dtype([("moment", np.float64), ("code", np.int64), ("source", np.int64), ("place", np.int64)])
"""An event at one place of the heap, places counting from 1; ``source`` at place 0 is how many there are. Column ``place`` is
by source instead: where its event is, 0 for none."""


@part
def _set(queue, place, moment, code, source):
    """Put an event at a place."""
    event = queue[place]
    event["moment"], event["code"], event["source"] = moment, code, source
    queue[source]["place"] = place


@part
def _rise(queue, place, moment, code, source):
    """Put an event at a place or above it, where it is in order."""
    while place > 1:
        above = queue[place // 2]
        if above["moment"] < moment or (above["moment"] == moment and above["code"] <= code):
            break
        _set(queue, place, above["moment"], above["code"], above["source"])
        place //= 2
    _set(queue, place, moment, code, source)


@part
def _sink(queue, place, moment, code, source):
    """Put an event at a place or below it, where it is in order."""
    n_events = queue[0]["source"]
    while 2 * place <= n_events:
        below = 2 * place
        if below < n_events:
            left, right = queue[below], queue[below + 1]
            if right["moment"] < left["moment"] or (right["moment"] == left["moment"] and right["code"] < left["code"]):
                below += 1
        following = queue[below]
        if moment < following["moment"] or (moment == following["moment"] and code <= following["code"]):
            break
        _set(queue, place, following["moment"], following["code"], following["source"])
        place = below
    _set(queue, place, moment, code, source)


@part
def put(queue, source, moment, code):
    """Make this the event of a source, instead of the one it has, which is later."""
    place = queue[source]["place"]
    if place == 0:
        queue[0]["source"] += 1
        place = queue[0]["source"]
    _rise(queue, place, moment, code, source)


@part
def take(queue):
    """Remove the first event; it is read at place 1 before."""
    n_left = queue[0]["source"] - 1
    queue[0]["source"] = n_left
    queue[queue[1]["source"]]["place"] = 0
    if n_left > 0:
        last = queue[n_left + 1]
        _sink(queue, 1, last["moment"], last["code"], last["source"])
