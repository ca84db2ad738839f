"""A model on a device mesh as a pairwise problem: ways to split each operator as labels, re-sharding on the wires."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Operator
from meshwright.costs.sharded.operator import MeshCosts, OperatorChoices, menu
from meshwright.costs.sharded.resharding import reshard_seconds
from meshwright.costs.sharded.wiring import Node, Wiring
from meshwright.network import Axis, Network
from meshwright.solvers.pairwise.problem import Pairwise

__all__ = ["ShardingProblem", "mesh_axes", "mesh_shape", "problem_of"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ShardingProblem:
    """A model on a mesh, ready to solve.

    `wiring`: operators and tensors.
    `costs`: mesh, device, precision, batch.
    `menus` (tuple of OperatorChoices, length n_operators): ways to split each operator: the labels of its node.
    `problem`: seconds.
    `held_bytes`, shape (n_labels,), float64: memory of each label.
    `forward_tables`: the part of each table of the problem that belongs to the forward pass.
    """

    wiring: Wiring
    costs: MeshCosts
    menus: tuple[OperatorChoices, ...]
    problem: Pairwise
    held_bytes: NDArray[np.float64]
    forward_tables: tuple[NDArray[np.float64], ...]


def mesh_shape(cluster: Cluster, asked: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the shape of the device mesh, outermost first: as asked, or nodes by devices of a node.

    Raises `InputError` when the shape asked for does not have as many places as the cluster has devices.
    """
    n = cluster.n_devices
    if asked:
        if math.prod(asked) != n or min(asked) < 1:
            words = "x".join(map(str, asked))
            raise InputError(f"--set mesh {words}: has {math.prod(asked)} places; cluster {cluster.name} has {n} devices")
        return asked
    sizes = np.bincount(cluster.node_of_device)
    inner = int(sizes[0]) if len(set(sizes.tolist())) == 1 else 1
    shape = tuple(size for size in (n // inner, inner) if size > 1)
    return shape or (1,)


def mesh_axes(cluster: Cluster, shape: tuple[int, ...], devices: Ints | None = None) -> tuple[Axis, ...]:
    """Return the axes of a mesh of devices in their order, the last axis over neighbours.

    `shape`: places along each axis, outermost first.
    `devices`: ids; None for all.
    """
    ids = np.arange(cluster.n_devices) if devices is None else devices
    grid = ids.reshape(shape)
    return tuple(Network.of(cluster).axis(np.moveaxis(grid, d, -1).reshape(-1, size)) for d, size in enumerate(shape))


def problem_of(wiring: Wiring, costs: MeshCosts) -> ShardingProblem:
    """Return a model on a mesh as a pairwise problem.

    Returns: operators and tensors that repeat share their arrays: a model of a hundred alike layers costs as much to set up
    as one.
    Raises `InputError` when an operator cannot be split at all.
    """
    known: dict[tuple[Operator, bool], tuple[OperatorChoices, Ints, Ints]] = {}
    rows = []
    for node in wiring.nodes:
        key = (node.operator, node.unfused)
        if key not in known:
            made = menu(Node("", *key), costs)
            if not made.choices:
                raise InputError(f"operator {node.name}: no way to split it fits a batch of {costs.batch}")
            read = np.array([[choice.read for choice in way] for way in made.choices], dtype=np.int64)
            written = np.array([[choice.written for choice in way] for way in made.choices], dtype=np.int64)
            known[key] = made, read, written
        rows.append(known[key])
    layouts: dict[int, tuple[Ints, Ints]] = {}

    def distinct(array: Ints) -> tuple[Ints, Ints]:
        if id(array) not in layouts:
            values, code = np.unique(array, axis=0, return_inverse=True)
            layouts[id(array)] = values, code.reshape(-1).astype(np.int64)
        return layouts[id(array)]

    pool: list[NDArray[np.float64]] = []
    forwards: list[NDArray[np.float64]] = []
    shared: dict[tuple[int, int, int], int] = {}
    table_of, rows_of, columns_of = [], [], []
    for wire in wiring.wires:
        written, row = distinct(rows[wire.source][2])
        read, column = distinct(rows[wire.target][1])
        place = (id(written), id(read), wire.n_elements)
        if place not in shared:
            n_bytes = float(wire.n_elements * costs.batch * costs.training.activation_bytes)
            shared[place] = len(pool)
            forward, backward = reshard_seconds(costs.axes, written, read, n_bytes)
            pool.append(forward * (2.0 if costs.recompute == "full" else 1.0) + backward)
            forwards.append(forward)
        table_of.append(shared[place])
        rows_of.append(row)
        columns_of.append(column)
    menus = tuple(made for made, _, _ in rows)
    node_cost = np.concatenate([made.compute_seconds + made.communication_seconds for made in menus])
    pairwise = Pairwise(
        np.concatenate(([0], np.cumsum([len(made.choices) for made in menus]))).astype(np.int64), node_cost,
        np.array([wire.source for wire in wiring.wires], dtype=np.int64),
        np.array([wire.target for wire in wiring.wires], dtype=np.int64),
        tuple(rows_of), tuple(columns_of), np.array(table_of, dtype=np.int64), tuple(pool),
    )  # fmt: skip
    return ShardingProblem(wiring, costs, menus, pairwise, np.concatenate([made.held_bytes for made in menus]), tuple(forwards))
