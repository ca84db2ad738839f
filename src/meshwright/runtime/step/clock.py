"""When things happen on a device: read from the processor's clock, or left as marks in a GPU's queue of work and read later."""

from __future__ import annotations

import time
from typing import Any

import torch

__all__ = ["Clock"]


class Clock:
    """Marks moments of a step.

    `device`: on a GPU a mark is an event between the kernels issued before and after it: the host runs ahead, and asking for
    the time at once would make it wait.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        """Return this moment."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> None:
        """Wait until the device has done all that was issued, so that its marks can be read."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, first: Any, last: Any) -> float:
        """Return the seconds from one mark to another."""
        return float(first.elapsed_time(last)) / 1e3 if self.on_gpu else last - first
