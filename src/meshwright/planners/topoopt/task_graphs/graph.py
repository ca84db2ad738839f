"""A task graph as FlexNet's files hold it: one training step as tasks on servers, with the network it was planned for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MILLISECOND", "TYPES", "FlexNetTask", "TaskGraph"]

MILLISECOND = 1e-3
"""Seconds of the file's unit of time."""

TYPES = ("forward", "backward", "comm", "update", "barrier", "nominal_comm", "all_reduce")
"""What a task is; its code is the position."""


@dataclass(frozen=True, slots=True)
class FlexNetTask:
    """One task.

    Parameters
    ----------
    kind : str
        One of `TYPES`.
    identity : int
        Its number in the file.
    device : int
        Number of its device in the file.
    milliseconds : tuple of float
        One number: how long it computes (for an all-reduce: inside its servers first).
    transfer_bytes : int
        What it sends.
    following : tuple of int
        Numbers of the tasks that wait for it; of an all-reduce: the servers that take part.
    """

    kind: str
    identity: int
    device: int
    milliseconds: tuple[float]
    transfer_bytes: int
    following: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """A task graph file.

    Parameters
    ----------
    n_gpus, n_servers, n_switches : int
        Devices of a server, servers, switches.
    bytes_per_millisecond : tuple of (float, float, float)
        Inside a server, of its memory, of one network interface.
    connections : tuple of (int, int, int)
        Two nodes and the number of links between.
    operators : tuple of str
        Names.
    tasks : tuple of FlexNetTask
        The tasks.
    devices : tuple of (int, int, int, int)
        Type, number, node, property of each device.
    routes : tuple of (int, int, tuple of tuple of int)
        Two nodes and the nodes of each path.
    rings : tuple of (int, tuple of tuple of int)
        Group size, and the jumps of each path from a member to the next.
    """

    n_gpus: int
    n_servers: int
    n_switches: int
    bytes_per_millisecond: tuple[float, float, float]
    connections: tuple[tuple[int, int, int], ...]
    operators: tuple[str, ...]
    tasks: tuple[FlexNetTask, ...]
    devices: tuple[tuple[int, int, int, int], ...]
    routes: tuple[tuple[int, int, tuple[tuple[int, ...], ...]], ...]
    rings: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
