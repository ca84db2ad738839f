"""A profile as pipeline states: the cuts that exist, and what everything up to each of them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec
from meshwright.planners.dapple.profile import LinearisedProfile, PipeDreamProfile, ProfiledTraining, cleaned
from meshwright.solvers.graph import antichains

__all__ = ["States", "interval_tables", "profile_of", "states_of"]

LARGEST_ANTICHAIN_GRAPH = 6000
"""States beyond which pairs of states (their square) no longer fit in the time and memory of a planner."""


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """The cuts of a profile in a topological order; state j stands for everything up to and including it.

    `names` (tuple of str, length n_states): description of each state's first layer.
    `forward_seconds`, `backward_seconds`, `activation_bytes`, `parameter_bytes`, shape (n_states,), float64: of everything up
    to and including each state, for the whole profile batch.
    `cut_bytes`, shape (n_states,), float64: bytes that cross a cut placed after each state, for the whole profile batch, as
    published: all outputs of the frontier.
    `needed_bytes`, shape (n_states,), float64: the same, counting only outputs that something beyond the cut reads.
    `before_first`, `before`: states that a stage ending with state j may begin after: ``before[before_first[j] : before_first[j
    + 1]]``.
    `inside`, shape (n_states, n_ops), bool: which layers of the graph each state contains; the last one counts as containing
    all.
    `compute_seconds`, shape (n_states,), float64: forward and backward together, as published (one sum per layer).
    `n_folded`: layers without compute and weights that were folded into their only input to keep the states few.
    `is_prefix`: whether states are only the prefixes of one topological order, because there are too many antichains.
    """

    names: tuple[str, ...]
    forward_seconds: NDArray[np.float64]
    backward_seconds: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    parameter_bytes: NDArray[np.float64]
    cut_bytes: NDArray[np.float64]
    needed_bytes: NDArray[np.float64]
    before_first: NDArray[np.int64]
    before: NDArray[np.int64]
    inside: NDArray[np.bool_]
    compute_seconds: NDArray[np.float64]
    n_folded: int = 0
    is_prefix: bool = False

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.names)

    def ops_of_stages(self, last_states: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the layers of stages that end with the given states: of each, what no earlier one contains."""
        found, earlier = [], np.zeros(self.inside.shape[1], dtype=bool)
        for state in last_states:
            now = self.inside[state] & ~earlier
            found.append(tuple(int(op) for op in np.flatnonzero(now)))
            earlier |= now
        return tuple(found)


def profile_of(model_spec: ModelSpec, kind: str) -> PipeDreamProfile | LinearisedProfile:
    """Return the profile a reading holds.

    Raises `InputError` when it holds none.
    """
    if isinstance(model_spec.instance, ProfiledTraining):
        return model_spec.instance.profile
    if not isinstance(model_spec.instance, (PipeDreamProfile, LinearisedProfile)):
        raise InputError(
            f"model {model_spec.name}: {kind} works on measured profiles (formats pipedream_txt, pipedream_linearised), "
            f"this is {model_spec.format}; 'meshwright export PLAN --to pipedream_txt' writes a model's layers as our cost "
            "model times them, or leave --search out"
        )
    return model_spec.instance


def states_of(model_spec: ModelSpec, *, fold: bool = True) -> States:
    """Return the states of the profile a reading holds.

    `model_spec`: with a `PipeDreamProfile` or a `LinearisedProfile`.
    `fold`: whether layers without compute and weights (``__getitem__``) are first folded into their only input. It is
    always done where there would otherwise be more than `LARGEST_ANTICHAIN_GRAPH` states.
    Returns: in a topological order.
    Raises `InputError` when the reading holds no profile.
    """
    profile = profile_of(model_spec, "this search")
    if isinstance(profile, LinearisedProfile):
        return _from_linearised(profile)
    clean = cleaned(profile)
    ids = model_spec.graph.ids()
    op_of_node = [ids[node.name] for node in clean.nodes]
    n = len(clean.nodes)
    for hosts in (list(range(n)), _hosts(clean)) if not fold else (_hosts(clean),):
        kept = sorted(set(hosts))
        position = {node: i for i, node in enumerate(kept)}
        edges = [(position[hosts[a]], position[hosts[b]]) for a, b in clean.edges if hosts[a] != hosts[b]]
        labels = [clean.nodes[i].description for i in kept]
        found = antichains.antichain_graph(len(kept), edges, labels, max_states=LARGEST_ANTICHAIN_GRAPH)
        if found is not None:
            guests = [0] * len(kept)
            for node, host in enumerate(hosts):
                guests[position[host]] |= 1 << node
            return _from_antichains(clean, found, guests, op_of_node, labels)
    return _from_prefixes(clean, model_spec, op_of_node)


def _hosts(profile: PipeDreamProfile) -> list[int]:
    """Return for each layer the one it is folded into: itself, unless it computes nothing and has one input."""
    inputs: list[set[int]] = [set() for _ in profile.nodes]
    for source, target in profile.edges:
        inputs[target].add(source)
    hosts = list(range(len(profile.nodes)))
    for i, node in enumerate(profile.nodes):
        if len(inputs[i]) == 1 and node.compute_seconds == 0.0 and node.parameter_bytes == 0.0:
            hosts[i] = next(iter(inputs[i]))
    for i in range(len(hosts)):
        while hosts[hosts[i]] != hosts[i]:
            hosts[i] = hosts[hosts[i]]
    return hosts


def _expanded(bits: int, guests: list[int]) -> int:
    """Return bits of layers for bits of folded layers."""
    full = 0
    for i in antichains.members(bits):
        full |= guests[i]
    return full


def _from_antichains(
    profile: PipeDreamProfile, found: antichains.AntichainGraph, guests: list[int], op_of_node: list[int], labels: list[str]
) -> States:
    """Return states with the metrics of their down-sets."""
    n_nodes, n_states = len(profile.nodes), len(found.frontier)
    down_sets = [_expanded(bits, guests) for bits in found.down_set]
    n_folded = n_nodes - len(guests)
    inside = antichains.bit_matrix(down_sets, n_nodes)
    needed = _needed(profile, down_sets)
    outputs = np.array([node.output_bytes for node in profile.nodes])
    if n_folded:
        cuts = needed
    else:
        cuts = _sums(antichains.bit_matrix(found.frontier, n_nodes), outputs)
    before = antichains.bit_matrix(found.predecessors, n_states)
    first = np.zeros(n_states + 1, dtype=np.int64)
    np.cumsum(before.sum(axis=1), out=first[1:])
    return _states(
        profile,
        tuple(labels[i] for i in found.first_node),
        inside,
        (cuts, needed),
        (first, np.nonzero(before)[1].astype(np.int64)),
        op_of_node,
        n_folded=n_folded,
    )


def _from_prefixes(profile: PipeDreamProfile, model_spec: ModelSpec, op_of_node: list[int]) -> States:
    """Return the prefixes of the graph's topological order as states: far fewer cuts than antichains, but never too many."""
    n = len(profile.nodes)
    node_of_op = np.argsort(np.array(op_of_node))
    inside = np.zeros((n, n), dtype=bool)
    down_sets, bits = [], 0
    for i, node in enumerate(node_of_op):
        inside[i:, node] = True
        bits |= 1 << int(node)
        down_sets.append(bits)
    needed = _needed(profile, down_sets)
    first = np.cumsum(np.arange(n + 1) - 1).astype(np.int64)
    first[0] = 0
    before = np.concatenate([np.arange(j, dtype=np.int64) for j in range(n)])
    names = tuple(model_spec.graph.ops[i].kind for i in range(n))
    return _states(profile, names, inside, (needed, needed), (first, before), op_of_node, is_prefix=True)


def _states(
    profile: PipeDreamProfile,
    names: tuple[str, ...],
    inside: NDArray[np.bool_],
    cuts: tuple[NDArray[np.float64], NDArray[np.float64]],
    before: tuple[NDArray[np.int64], NDArray[np.int64]],
    op_of_node: list[int],
    *,
    n_folded: int = 0,
    is_prefix: bool = False,
) -> States:
    """Sum the layers of each state."""
    members = np.zeros_like(inside)
    members[:, op_of_node] = inside
    members[-1] = True

    def total(values: list[float]) -> NDArray[np.float64]:
        return _sums(inside, np.array(values))

    return States(
        names,
        total([node.forward_milli_seconds / 1000.0 for node in profile.nodes]),
        total([node.backward_milli_seconds / 1000.0 for node in profile.nodes]),
        total([node.output_bytes for node in profile.nodes]),
        total([node.parameter_bytes for node in profile.nodes]),
        *cuts,
        *before,
        members,
        total([node.compute_seconds for node in profile.nodes]),
        n_folded,
        is_prefix,
    )


def _sums(inside: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum over each row's members in ascending order: the same bits on every machine."""
    total = np.zeros(len(inside))
    for column, value in enumerate(values):
        total += np.where(inside[:, column], value, 0.0)
    return total


def _needed(profile: PipeDreamProfile, down_sets: list[int]) -> NDArray[np.float64]:
    """Return the bytes of outputs inside each down-set that something outside it reads."""
    outside = [0] * len(profile.nodes)
    for source, target in profile.edges:
        outside[source] |= 1 << target
    needed = np.zeros(len(down_sets))
    for i, bits in enumerate(down_sets):
        needed[i] = sum(node.output_bytes for j, node in enumerate(profile.nodes) if bits >> j & 1 and outside[j] & ~bits)
    return needed


def _from_linearised(profile: LinearisedProfile) -> States:
    """Return the states of a file that holds them; it has one time per state, of which a third is taken as forward."""
    n = len(profile.descriptions)
    first = np.zeros(n + 1, dtype=np.int64)
    np.cumsum([len(states) for states in profile.predecessors], out=first[1:])
    before = np.concatenate(profile.predecessors) if n > 1 else np.zeros(0, dtype=np.int64)
    seconds = profile.cumulative_seconds
    members = np.eye(n, dtype=bool)
    for state, states in enumerate(profile.predecessors):
        members[state, states] = True
    members[-1] = True
    return States(
        profile.descriptions,
        seconds / 3.0,
        seconds - seconds / 3.0,
        profile.cumulative_activation_bytes,
        profile.cumulative_parameter_bytes,
        profile.cut_bytes,
        profile.cut_bytes,
        first,
        before,
        members,
        seconds,
    )


def interval_tables(
    model_spec: ModelSpec, states: States
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return seconds, activation bytes and parameter bytes of the stage from state i to state j, for the whole profile batch.

    `model_spec`: what `states` are of; a linearised profile brings its tables along.
    Returns shape (n_states + 1, n_states), float64: row i, column j; -1 where j < i.
    """
    profile = profile_of(model_spec, "this search")
    if isinstance(profile, LinearisedProfile):
        return profile.compute_seconds, profile.activation_bytes, profile.parameter_bytes

    def table(cumulative: NDArray[np.float64]) -> NDArray[np.float64]:
        start = np.concatenate(([0.0], cumulative))
        rows, columns = np.ogrid[: len(start), : len(cumulative)]
        return np.where(columns >= rows, cumulative[None, :] - start[:, None], -1.0)

    return table(states.compute_seconds), table(states.activation_bytes), table(states.parameter_bytes)
