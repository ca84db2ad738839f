"""What would happen: every task of one training step with its start and end, and the memory held over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshwright.base.identity import read_only

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PHASES", "PlayedGraph", "Timeline"]

PHASES = ("forward", "backward_input", "backward_weight", "backward", "send", "reduce", "gather", "optimizer")
"""What a span is; its code is the position. `backward` is input and weight gradients in one; `send` occupies links."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One simulated training step.

    Parameters
    ----------
    step_seconds : float
        From the first start to the last end.
    stage, microbatch, phase : ndarray, shape (n_spans,), int64
        What each span is: pipeline stage (virtual ones counted apart), micro-batch (-1: once a step), code into `PHASES`.
        A ``send`` has the sending stage.
    rank : ndarray, shape (n_spans,), int64
        Pipeline rank that the span occupies; -1 where it occupies links only.
    start_seconds, end_seconds : ndarray, shape (n_spans,), float64
        When.
    peak_bytes : tuple of float
        Most memory that one device of each pipeline rank must hold, all told: what plans are judged on.
    memory_seconds, memory_bytes : tuple of ndarray
        Per pipeline rank: times at which the memory held by one device changes, and its value from then on.
    memory_causes : tuple of (tuple of (str, float))
        Per pipeline rank, what the peak consists of, in bytes: ``weights``, ``gradients``, ``optimizer``, ``activations``,
        ``working`` (tensors), ``communication`` (buffers of collectives), ``allocator`` (what it cannot use of its blocks) and
        ``context`` (of the device, and libraries).
    causes : tuple of (str, float)
        Seconds of the step by cause, adding up to `step_seconds`: ``compute``, ``recompute``, ``offload``, ``tensor``,
        ``context``, ``expert``, ``gather``, ``contention``, ``imbalance``, ``bubble``, ``transfer``, ``reduce``, ``optimizer``;
        of the pipeline rank that finishes last.
    link_busy_ratio : tuple of (int, float)
        The busiest links: id and the share of what they could carry in the step that they do carry.
    allocated_bytes, reserved_bytes : tuple of float
        The part of each peak that is tensors, and the part that the caching allocator has taken from the device
        (``torch.cuda.max_memory_allocated`` and ``max_memory_reserved``). What `peak_bytes` has beyond is the context.
    link_bytes : ndarray, shape (n_links,), float64
        What every link of the cluster carries in the step: transfers between stages, and collectives where the cost model names
        them; empty without a cluster.
    """

    step_seconds: float
    stage: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    phase: NDArray[np.int64]
    rank: NDArray[np.int64]
    start_seconds: NDArray[np.float64]
    end_seconds: NDArray[np.float64]
    peak_bytes: tuple[float, ...]
    memory_seconds: tuple[NDArray[np.float64], ...] = ()
    memory_bytes: tuple[NDArray[np.float64], ...] = ()
    memory_causes: tuple[tuple[tuple[str, float], ...], ...] = ()
    causes: tuple[tuple[str, float], ...] = ()
    link_busy_ratio: tuple[tuple[int, float], ...] = ()
    allocated_bytes: tuple[float, ...] = ()
    reserved_bytes: tuple[float, ...] = ()
    link_bytes: NDArray[np.float64] = field(default_factory=lambda: read_only((), float))

    def __reduce__(self) -> tuple[Any, ...]:  # so that arrays of a copy cannot be written to either
        return type(self), tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def __post_init__(self) -> None:
        for name in ("stage", "microbatch", "phase", "rank", "start_seconds", "end_seconds", "link_bytes"):
            object.__setattr__(self, name, read_only(getattr(self, name)))
        for name in ("memory_seconds", "memory_bytes"):
            object.__setattr__(self, name, tuple(read_only(array) for array in getattr(self, name)))


@dataclass(frozen=True, slots=True)
class PlayedGraph:
    """A training step that a file gives task by task, after it was played on a network.

    Parameters
    ----------
    step_seconds : float
        End of its last task.
    compute_seconds : float
        What the busiest device computes.
    n_tasks : int
        Tasks.
    transfer_bytes, all_reduce_bytes : float
        What tasks send to each other, and the tensors that are summed over servers.
    link_busy_ratio : tuple of (str, float)
        Share of the step in which each link would be busy at its full speed; the busiest first, only those in use.
    notes : tuple of str
        Sentences the user should read.
    """

    step_seconds: float
    compute_seconds: float
    n_tasks: int
    transfer_bytes: float
    all_reduce_bytes: float
    link_busy_ratio: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()
