"""From a Piper instance and options to the arrays that the pipeline solver reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.readers._piper_instance import PiperChoice, PiperInstance, PiperNode
from meshwright.solvers.stage_menu import StageMenu

__all__ = ["RECOMPUTES", "VANILLA", "Options", "allowed_by", "buffer_bytes", "menu_of"]

VANILLA = "vanilla"
"""The id of the choice that recomputes nothing."""

RECOMPUTES = "activation recomp"
"""The id of the choice that recomputes a layer's activations."""


@dataclass(frozen=True, slots=True)
class Options:
    """What plans may use.

    Parameters
    ----------
    exact : bool
        Exact inner choice; else the published greedy.
    all_or_none : bool
        Within the greedy, recompute the whole stage or nothing.
    data_parallel, tensor_parallel : bool
        Whether stages may have replicas; whether layers may be split.
    recompute : str
        ``choose``, ``never`` or ``always``.
    """

    exact: bool = True
    all_or_none: bool = False
    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: str = "choose"


def menu_of(instance: PiperInstance, options: Options, reserve_bytes: float = 0.0) -> StageMenu:
    """Return the arrays of an instance; choices keep their order in the file.

    Parameters
    ----------
    instance : PiperInstance
        The instance.
    options : Options
        What plans may use.
    reserve_bytes : float
        With buffers counted per layer: room kept for recomputation, which choices with larger buffers may not use.

    Returns
    -------
    StageMenu
        The arrays.
    """
    counting = instance.counting
    allowed = allowed_by(options)
    largest = instance.n_devices if options.tensor_parallel else 1
    degrees = [degree for degree in instance.degrees if degree <= largest] or [1]
    n_replicas = min(instance.n_devices, instance.n_microbatches)
    divides = [d for d in range(1, n_replicas + 1) if counting.any_replicas or instance.n_microbatches % d == 0]
    replicas = np.array(divides if options.data_parallel else [1], np.int64)
    incoming: list[list[int]] = [[] for _ in instance.nodes]
    outgoing: list[list[int]] = [[] for _ in instance.nodes]
    for edge in instance.edges:
        incoming[edge.target].append(edge.source)
        outgoing[edge.source].append(edge.target)
    columns: list[tuple[float, float, float, float]] = []
    first, into, out_of = [0], [0], [0]
    names: list[str] = []
    sync_in: list[float] = []
    sync_out: list[float] = []
    for v, node in enumerate(instance.nodes):
        for degree in degrees:
            for choice in node.at(degree):
                buffer = buffer_bytes(node, degree, choice) if counting.layer_buffers else 0.0
                if allowed(choice) and buffer <= reserve_bytes:
                    static = choice.static_bytes - buffer
                    names.append(choice.id)
                    columns.append((choice.seconds, choice.weight_bytes, choice.activation_bytes, static))
                    forward, backward = dict(choice.sync_forward), dict(choice.sync_backward)
                    sync_in += [forward[u] * 2.0 / instance.bandwidth for u in incoming[v]]
                    sync_out += [backward[x] * 2.0 / instance.bandwidth for x in outgoing[v]]
                    into.append(len(sync_in))
                    out_of.append(len(sync_out))
            first.append(len(columns))
    seconds, weight, activation, held = np.array(columns, np.float64).reshape(-1, 4).T.copy()
    rounds = np.ceil(instance.n_microbatches / replicas)
    return StageMenu(
        len(instance.nodes),
        np.array([edge.source for edge in instance.edges], np.int64),
        np.array([edge.target for edge in instance.edges], np.int64),
        np.array([2.0 * edge.bytes / instance.bandwidth for edge in instance.edges]),
        np.array(degrees, np.int64),
        np.array(first, np.int64),
        seconds, weight, activation, held,
        np.array(into, np.int64), np.array(sync_in), np.array(out_of, np.int64), np.array(sync_out),
        replicas,
        rounds / instance.n_microbatches if counting.any_replicas else 1.0 / replicas,
        _reduce_seconds(instance, np.array(degrees), replicas),
        instance.n_devices, n_replicas, instance.memory_bytes - reserve_bytes,
        options.exact, options.all_or_none, counting.shard_optimizer, counting.tensor_once, tuple(names),
    )  # fmt: skip


def buffer_bytes(node: PiperNode, degree: int, choice: PiperChoice) -> float:
    """Return the part of a choice's fixed memory that holds activations while they are recomputed.

    The published files add to a recomputing layer's fixed memory what its activations shrink by against the choice that
    recomputes nothing; that much is taken for the buffer.
    """
    for plain in node.at(degree):
        if plain.id == VANILLA and choice.id != VANILLA:
            shrunk = plain.activation_bytes - choice.activation_bytes
            return max(0.0, min(shrunk, choice.static_bytes - plain.static_bytes))
    return 0.0


def allowed_by(options: Options) -> Callable[[PiperChoice], bool]:
    """Return which choices recomputation never, always or by choice leaves."""
    if options.recompute == "never":
        return lambda choice: choice.id != RECOMPUTES
    if options.recompute == "always":
        return lambda choice: choice.id != VANILLA
    return lambda choice: True


def _reduce_seconds(instance: PiperInstance, degrees: np.ndarray, replicas: np.ndarray) -> np.ndarray:
    """Return seconds per weight byte and micro-batch of reducing gradients; within a node at the node's bandwidth."""
    bandwidth = np.full((len(degrees), len(replicas)), instance.bandwidth)
    if instance.counting.node_size:
        bandwidth[np.outer(degrees, replicas) <= instance.counting.node_size] = instance.counting.node_bytes_per_second
    return 4.0 * (replicas - 1.0) / replicas / instance.n_microbatches / bandwidth
