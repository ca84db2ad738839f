"""Annealing of a convex partition: units wander to a neighbouring stage, with all that must go before or behind them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.arrays import copy, largest
from meshwright._kernels.compiling import kernel, part

__all__ = ["State", "anneal"]


class State(NamedTuple):
    """A partition while it is changed.

    Parameters
    ----------
    stage : ndarray, shape (n,), int64
        Stage of each unit.
    counts : ndarray, shape (n_nets, n_stages), int32
        Pins of each net in each stage.
    load, memory : ndarray, shape (n_stages,), float64
        Load and bytes of each stage.
    """

    stage: NDArray[np.int64]
    counts: NDArray[np.int32]
    load: NDArray[np.float64]
    memory: NDArray[np.float64]


@part(allocates=True)
def _state(a, stage, scales):
    """Return the state of a partition."""
    n_stages = scales.shape[1]
    counts = np.zeros((len(a.net_cost), n_stages), np.int32)
    load = np.zeros(n_stages)
    memory = np.zeros(n_stages)
    for v in range(len(stage)):
        s = stage[v]
        load[s] += scales[0, s] * a.compute[v]
        memory[s] += a.memory[v]
        for k in range(a.unit_first[v], a.unit_first[v + 1]):
            counts[a.unit_nets[k], s] += 1
    for net in range(len(a.net_cost)):
        pins = a.net_first[net + 1] - a.net_first[net]
        for s in range(n_stages):
            if 0 < counts[net, s] < pins:
                load[s] += scales[1, s] * a.net_cost[net]
    return State(stage, counts, load, memory)


@part
def _gather(a, stage, v, forward, group):
    """Fill `group` with a unit and all of its stage that must follow (or precede) it; return their number, 0 for too many."""
    group[0] = v
    size = 1
    done = 0
    while done < size:
        u = group[done]
        done += 1
        begin, end = (a.succ_first[u], a.succ_first[u + 1]) if forward else (a.pred_first[u], a.pred_first[u + 1])
        for k in range(begin, end):
            w = a.succ[k] if forward else a.pred[k]
            if stage[w] != stage[v]:
                continue
            known = False
            for i in range(size):
                known = known or group[i] == w
            if known:
                continue
            if size == len(group):
                return 0
            group[size] = w
            size += 1
    return size


@part
def _move(a, state, scales, v, new):
    """Move a unit to another stage and bring loads up to date."""
    old = state.stage[v]
    state.stage[v] = new
    first = 0.0
    second = 0.0
    for k in range(a.unit_first[v], a.unit_first[v + 1]):
        net = a.unit_nets[k]
        pins = a.net_first[net + 1] - a.net_first[net]
        here = state.counts[net, old]
        there = state.counts[net, new]
        if here == 1:
            first -= a.net_cost[net]
        elif here == pins:
            first += a.net_cost[net]
        if there == 0:
            second += a.net_cost[net]
        elif there == pins - 1:
            second -= a.net_cost[net]
        state.counts[net, old] = here - 1
        state.counts[net, new] = there + 1
    state.load[old] += scales[1, old] * first - scales[0, old] * a.compute[v]
    state.load[new] += scales[1, new] * second + scales[0, new] * a.compute[v]
    state.memory[old] -= a.memory[v]
    state.memory[new] += a.memory[v]


@kernel(allocates=True)
def anneal(a, stage, scales, memory_limit, n_moves, power, temperatures, most_units, random):
    """Anneal the sum of powers of the loads; return the stages of the least largest load that was met.

    Parameters
    ----------
    a : meshwright._kernels.partition.convex.Arrays
        The problem.
    stage : ndarray, shape (n,), int64
        Stages at the start; changed.
    scales : ndarray, shape (2, n_stages), float64
        Factors on compute and communication of each stage.
    memory_limit : float
        Of one stage.
    n_moves : int
        Moves to try.
    power : float
        Loads count by this power, relative to the largest at the start.
    temperatures : ndarray, shape (2,), float64
        First and last temperature.
    most_units : int
        Most units of one move.
    random : numpy.random.Generator
        Source of chance.
    """
    n, n_stages = len(stage), scales.shape[1]
    state = _state(a, stage, scales)
    start = largest(state.load)
    best = start
    kept = stage.copy()
    group = np.empty(most_units, np.int64)
    cooling = (temperatures[1] / temperatures[0]) ** (1.0 / max(n_moves - 1, 1))
    temperature = temperatures[0]
    for _ in range(n_moves):
        temperature *= cooling
        v = random.integers(0, n)
        forward = random.random() < 0.5
        old = stage[v]
        new = old + 1 if forward else old - 1
        if new < 0 or new >= n_stages:
            continue
        size = _gather(a, stage, v, forward, group)
        if size == 0:
            continue
        before = (state.load[old] / start) ** power + (state.load[new] / start) ** power
        for i in range(size):
            _move(a, state, scales, group[i], new)
        rise = (state.load[old] / start) ** power + (state.load[new] / start) ** power - before
        if state.memory[new] > memory_limit or (rise > 0.0 and random.random() >= np.exp(-rise / temperature)):
            for i in range(size):
                _move(a, state, scales, group[i], old)
        elif state.load[old] < best and state.load[new] < best:
            value = largest(state.load)
            if value < best * (1.0 - 1e-12):
                best = value
                copy(kept, stage, n)
    return kept
