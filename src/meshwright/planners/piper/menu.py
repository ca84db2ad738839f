"""From a Piper instance and options to the arrays that the pipeline solver reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from meshwright.planners.piper.problem import PiperChoice, PiperInstance, PiperNode
from meshwright.solvers.pipeline.menu import StageMenu

__all__ = ["MOST_LEVELS", "RECOMPUTES", "VANILLA", "Options", "allowed_by", "buffer_bytes", "menu_of", "rooms"]

MOST_LEVELS = 32
"""Sizes of buffer told apart at one tensor degree to begin with; where there are more, those that matter are added."""

VANILLA = "vanilla"
"""The id of the choice that recomputes nothing."""

RECOMPUTES = "activation recomp"
"""The id of the choice that recomputes a layer's activations."""


@dataclass(frozen=True, slots=True)
class Options:
    """What plans may use.

    `exact`: exact inner choice; else the published greedy.
    `all_or_none`: within the greedy, recompute the whole stage or nothing.
    `data_parallel`, `tensor_parallel`: whether stages may have replicas; whether layers may be split.
    `recompute`: ``choose``, ``never`` or ``always``.
    """

    exact: bool = True
    all_or_none: bool = False
    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: str = "choose"


def rooms(instance: PiperInstance, degree: int) -> tuple[float, ...]:
    """Return the sizes of buffer for recomputation at a tensor degree, 0 among them; ascending.

    Without buffers counted per layer there is none but 0.
    """
    if not instance.counting.layer_buffers:
        return (0.0,)
    return tuple(sorted({0.0} | {buffer_bytes(node, degree, choice) for node in instance.nodes for choice in node.at(degree)}))


def _levels(instance: PiperInstance, degree: int, distinct_levels: Mapping[int, frozenset[float]]) -> list[tuple[float, float]]:
    """Return ranges of buffers that a stage's largest may be in: its least and its largest size."""
    sizes = rooms(instance, degree)
    step = max(1.0, (len(sizes) - 1) / (MOST_LEVELS - 1))
    ends = (
        {sizes[round(i * step)] for i in range(min(MOST_LEVELS, len(sizes)))}
        | {sizes[-1]}
        | distinct_levels.get(degree, frozenset())
    )
    result, least = [], sizes[0]
    for i, size in enumerate(sizes):
        if size in ends:
            result.append((least, size))
            least = sizes[min(i + 1, len(sizes) - 1)]
    return result


def menu_of(
    instance: PiperInstance,
    options: Options,
    *,
    distinct_levels: Mapping[int, frozenset[float]] = MappingProxyType({}),
    careful: bool = False,
    links: str = "node",
) -> StageMenu:
    """Return the arrays of an instance; choices keep their order in the file.

    `distinct_levels`: with buffers counted per layer: sizes by tensor degree that end a range. A stage whose largest buffer is
    within a range keeps room for the least of it, which is right where the range has one size, and a bound where it has
    more.
    `careful`: keep room for the largest of the range: plans fit, and some that would are left out.
    `links`: with nodes: what stages smaller than a node send over. ``node`` the node's links, which is a lower bound;
    ``between`` those between nodes; ``aligned`` the node's, where only degrees and replicas are allowed that leave no stage
    across two nodes.
    Returns: the arrays. With buffers counted per layer every tensor degree stands there once for each range of rooms that
    may be kept.
    """
    counting = instance.counting
    allowed = allowed_by(options)
    largest = instance.n_devices if options.tensor_parallel else 1
    known = [degree for degree in instance.degrees if degree <= largest] or [1]
    ranges = [(t, least, most) for t in known for least, most in _levels(instance, t, distinct_levels)]
    bandwidth = max(instance.bandwidth, counting.node_bytes_per_second)
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
        for degree, _, most in ranges:
            for choice in node.at(degree):
                buffer = buffer_bytes(node, degree, choice) if counting.layer_buffers else 0.0
                if allowed(choice) and buffer <= most:
                    static = choice.static_bytes - buffer
                    names.append(choice.id)
                    columns.append((choice.seconds, choice.weight_bytes, choice.activation_bytes, static))
                    forward, backward = dict(choice.sync_forward), dict(choice.sync_backward)
                    sync_in += [forward[u] * 2.0 / bandwidth for u in incoming[v]]
                    sync_out += [backward[x] * 2.0 / bandwidth for x in outgoing[v]]
                    into.append(len(sync_in))
                    out_of.append(len(sync_out))
            first.append(len(columns))
    seconds, weight, activation, held = np.array(columns, np.float64).reshape(-1, 4).T.copy()
    degrees = np.array([degree for degree, _, _ in ranges], np.int64)
    rounds = np.ceil(instance.n_microbatches / replicas)
    return StageMenu(
        len(instance.nodes),
        np.array([edge.source for edge in instance.edges], np.int64),
        np.array([edge.target for edge in instance.edges], np.int64),
        np.array([2.0 * edge.bytes / bandwidth for edge in instance.edges]),
        degrees,
        np.array(first, np.int64),
        seconds, weight, activation, held,
        np.array(into, np.int64), np.array(sync_in), np.array(out_of, np.int64), np.array(sync_out),
        replicas,
        rounds / instance.n_microbatches if counting.any_replicas else 1.0 / replicas,
        _reduce_seconds(instance, degrees, replicas),
        instance.n_devices, n_replicas, instance.memory_bytes,
        options.exact, options.all_or_none, counting.shard_optimizer, counting.tensor_once, tuple(names),
        np.array([most if careful else least for _, least, most in ranges]), _border_ratio(instance, degrees, replicas, links),
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
    """Return seconds per weight byte and micro-batch of reducing gradients; of stages that fit into a node,
    at the best bandwidth.
    """
    bandwidth = np.full((len(degrees), len(replicas)), instance.bandwidth)
    if instance.counting.node_size:
        best = max(instance.bandwidth, instance.counting.node_bytes_per_second)
        bandwidth[np.outer(degrees, replicas) <= instance.counting.node_size] = best
    return np.asarray(4.0 * (replicas - 1.0) / replicas / instance.n_microbatches / bandwidth)


def _border_ratio(instance: PiperInstance, degrees: np.ndarray, replicas: np.ndarray, links: str) -> np.ndarray:
    """Return how many times longer tensors take over a stage's borders than at the best bandwidth there is."""
    size = np.outer(degrees, replicas)
    node, node_bandwidth = instance.counting.node_size, instance.counting.node_bytes_per_second
    if not node:
        return np.ones(size.shape)
    # A stage that fills a node has no neighbour in it; a smaller one may.
    slow = size >= node if links != "between" else size > 0
    ratio = np.where(slow, max(1.0, node_bandwidth / instance.bandwidth), 1.0)
    if links == "aligned":
        across = (node % np.minimum(size, node) != 0) | (size % np.minimum(size, node) != 0)
        ratio[across | ((size > node) & (size % node != 0))] = 1e30
    return ratio
