"""From a Piper instance and options to the arrays that the pipeline solver reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.readers._piper_instance import PiperChoice, PiperInstance
from meshwright.solvers.stage_menu import StageMenu

__all__ = ["RECOMPUTES", "VANILLA", "Options", "menu_of"]

VANILLA = "vanilla"
"""The id of the choice that recomputes nothing."""

RECOMPUTES = "activation recomp"
"""The id of the choice that recomputes a layer's activations."""


@dataclass(frozen=True, slots=True)
class Options:
    """What plans may use, and what the cost model counts beyond the published one.

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
    any_replicas : bool
        Whether the number of replicas need not divide the batch.
    tensor_once : bool
        Whether a tensor crosses a border once however many consumers it has there.
    shard_optimizer : bool
        Whether replicas share out one copy of the weights' bytes.
    node_size : int
        Devices of one node; 0 for no nodes.
    node_bandwidth : float
        Bytes per time unit within a node, used where all devices of a stage lie in one.
    """

    exact: bool = True
    all_or_none: bool = False
    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: str = "choose"
    any_replicas: bool = False
    tensor_once: bool = False
    shard_optimizer: bool = False
    node_size: int = 0
    node_bandwidth: float = 0.0


def menu_of(instance: PiperInstance, options: Options) -> StageMenu:
    """Return the arrays of an instance; choices keep their order in the file.

    Parameters
    ----------
    instance : PiperInstance
        The instance.
    options : Options
        What plans may use.

    Returns
    -------
    StageMenu
        The arrays.
    """
    allowed = _allowed(options)
    largest = instance.n_devices if options.tensor_parallel else 1
    degrees = [degree for degree in instance.degrees if degree <= largest] or [1]
    n_replicas = min(instance.n_devices, instance.n_microbatches)
    divides = [d for d in range(1, n_replicas + 1) if options.any_replicas or instance.n_microbatches % d == 0]
    replicas = np.array(divides if options.data_parallel else [1], np.int64)
    incoming: list[list[int]] = [[] for _ in instance.nodes]
    outgoing: list[list[int]] = [[] for _ in instance.nodes]
    for edge in instance.edges:
        incoming[edge.target].append(edge.source)
        outgoing[edge.source].append(edge.target)
    columns: list[tuple[float, float, float, float]] = []
    first, into, out_of = [0], [0], [0]
    sync_in: list[float] = []
    sync_out: list[float] = []
    for v, node in enumerate(instance.nodes):
        for degree in degrees:
            for choice in node.at(degree):
                if allowed(choice):
                    columns.append((choice.seconds, choice.weight_bytes, choice.activation_bytes, choice.static_bytes))
                    forward, backward = dict(choice.sync_forward), dict(choice.sync_backward)
                    sync_in += [forward[u] * 2.0 / instance.bandwidth for u in incoming[v]]
                    sync_out += [backward[x] * 2.0 / instance.bandwidth for x in outgoing[v]]
                    into.append(len(sync_in))
                    out_of.append(len(sync_out))
            first.append(len(columns))
    seconds, weight, activation, static = np.array(columns, np.float64).reshape(-1, 4).T.copy()
    rounds = np.ceil(instance.n_microbatches / replicas)
    return StageMenu(
        len(instance.nodes),
        np.array([edge.source for edge in instance.edges], np.int64),
        np.array([edge.target for edge in instance.edges], np.int64),
        np.array([2.0 * edge.bytes / instance.bandwidth for edge in instance.edges]),
        np.array(degrees, np.int64),
        np.array(first, np.int64),
        seconds, weight, activation, static,
        np.array(into, np.int64), np.array(sync_in), np.array(out_of, np.int64), np.array(sync_out),
        replicas,
        rounds / instance.n_microbatches if options.any_replicas else 1.0 / replicas,
        _reduce_seconds(instance, options, np.array(degrees), replicas),
        instance.n_devices, n_replicas, instance.memory_bytes,
        options.exact, options.all_or_none, options.shard_optimizer, options.tensor_once,
    )  # fmt: skip


def _allowed(options: Options) -> Callable[[PiperChoice], bool]:
    """Return which choices recomputation never, always or by choice leaves."""
    if options.recompute == "never":
        return lambda choice: choice.id != RECOMPUTES
    if options.recompute == "always":
        return lambda choice: choice.id != VANILLA
    return lambda choice: True


def _reduce_seconds(instance: PiperInstance, options: Options, degrees: np.ndarray, replicas: np.ndarray) -> np.ndarray:
    """Return seconds per weight byte and micro-batch of reducing gradients; within a node at the node's bandwidth."""
    bandwidth = np.full((len(degrees), len(replicas)), instance.bandwidth)
    if options.node_size:
        bandwidth[np.outer(degrees, replicas) <= options.node_size] = options.node_bandwidth
    return 4.0 * (replicas - 1.0) / replicas / instance.n_microbatches / bandwidth
