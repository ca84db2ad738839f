"""One algorithm of a collective as a straight line: seconds = latency + seconds per byte x bytes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AlphaBeta"]


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """One way to do a collective.

    `algorithm`: ``ring``, ``bidirectional_ring``, ``tree``, ``halving_doubling``, ``direct``, ``hierarchical(...)``.
    `latency_seconds`: time of the steps whatever the size.
    `seconds_per_byte`: what each byte of the tensor adds.
    """

    algorithm: str
    latency_seconds: float
    seconds_per_byte: float
