"""Puts weight gradients where a pipeline rank would wait, given the order of everything else and how long all tasks take."""

from __future__ import annotations

import numpy as np

from meshwright._kernels.compiling import kernel

__all__ = ["fill"]


@kernel(allocates=True)
def fill(skeleton, rank_of_stage, seconds, transfer_seconds, limit, patience, kept_bytes, working_bytes, room_bytes):
    """Return the order of all tasks, coded ``3 * stage + phase`` with phase 0 forward, 1 input gradient, 2 weight gradient.

    A rank runs its skeleton in order and its weight gradients in the order of their input gradients. A weight gradient runs
    when the next task of the skeleton cannot start within `patience` times its length, or may not for lack of memory.

    Parameters
    ----------
    skeleton : ndarray, shape (n_ranks, n_tasks), int64
        Forward tasks and input gradients of each rank in order, coded.
    rank_of_stage : ndarray, shape (n_stages,), int64
        Which rank runs each stage.
    seconds : ndarray, shape (3, n_stages), float64
        By phase and stage.
    transfer_seconds : ndarray, shape (n_stages - 1,), float64
        From each stage to the next and back, where they lie on different ranks.
    limit : ndarray, shape (n_ranks,), int64
        Activations that each rank may hold; at least what it holds when no weight gradient is left waiting.
    patience : ndarray, shape (n_ranks,), float64
        See above; 0 is to run whatever can run.
    kept_bytes, working_bytes : ndarray, shape (n_stages,), float64
        Of an activation of each stage, and of its tasks while they run; zeros where `limit` alone counts.
    room_bytes : ndarray, shape (n_ranks,), float64
        What both may take on each rank; at least what they take when no weight gradient is left waiting.

    Returns
    -------
    ndarray, shape (n_ranks, 3 * n_tasks // 2), int64
        The order of each rank.
    """
    n_ranks, length = skeleton.shape
    n_stages = len(rank_of_stage)
    n_microbatches = n_ranks * length // (2 * n_stages)
    order = np.full((n_ranks, 3 * length // 2), -1)
    # When the next input of each stage is there; below zero: not known yet.
    activation = np.full((n_stages, n_microbatches), -1.0)
    activation[0, :] = 0.0
    gradient = np.full((n_stages, n_microbatches), -1.0)
    gradient[n_stages - 1, :] = 0.0
    done = np.zeros((3, n_stages), dtype=np.int64)
    clock, held, taken = np.zeros(n_ranks), np.zeros(n_ranks, dtype=np.int64), np.zeros(n_ranks)
    n_done, n_waiting = np.zeros(n_ranks, dtype=np.int64), np.zeros(n_ranks, dtype=np.int64)
    # Weight gradients wait in the order of the input gradients; `oldest` is the place in the skeleton of the first one.
    n_out, oldest = np.zeros(n_ranks, dtype=np.int64), np.zeros(n_ranks, dtype=np.int64)
    next_start, next_code = np.full(n_ranks, np.inf), np.full(n_ranks, -1)
    stale = np.ones(n_ranks, dtype=np.bool_)
    for _ in range(order.size):
        chosen = -1
        for rank in range(n_ranks):
            if stale[rank]:
                stale[rank] = False
                while n_waiting[rank] > 0 and skeleton[rank, oldest[rank]] % 3 == 0:
                    oldest[rank] += 1
                next_start[rank], next_code[rank] = np.inf, -1
                if n_done[rank] < length:
                    code = skeleton[rank, n_done[rank]]
                    stage, phase = code // 3, code % 3
                    arrived = activation[stage, done[0, stage]] if phase == 0 else gradient[stage, done[1, stage]]
                    needed, free = taken[rank] + working_bytes[stage], True
                    if phase == 0:
                        if n_waiting[rank] > 0:  # what waits works later, beside this activation
                            needed = taken[rank] + max(working_bytes[stage], working_bytes[skeleton[rank, oldest[rank]] // 3])
                        needed += kept_bytes[stage]
                        free = held[rank] < limit[rank]
                    if arrived >= 0.0 and free and needed <= room_bytes[rank]:
                        next_start[rank], next_code[rank] = max(arrived, clock[rank]), code
                if n_waiting[rank] > 0:
                    stage = skeleton[rank, oldest[rank]] // 3
                    if next_start[rank] > clock[rank] + patience[rank] * seconds[2, stage]:
                        next_start[rank], next_code[rank] = clock[rank], 3 * stage + 2
            if next_code[rank] >= 0 and (chosen < 0 or next_start[rank] < next_start[chosen]):
                chosen = rank
        code = next_code[chosen]
        stage, phase = code // 3, code % 3
        end = next_start[chosen] + seconds[phase, stage]
        order[chosen, n_out[chosen]] = code
        n_out[chosen] += 1
        clock[chosen] = end
        stale[chosen] = True
        i = done[phase, stage]
        done[phase, stage] += 1
        if phase == 2:
            held[chosen] -= 1
            taken[chosen] -= kept_bytes[stage]
            n_waiting[chosen] -= 1
            oldest[chosen] += 1
            continue
        n_done[chosen] += 1
        if phase == 0:
            held[chosen] += 1
            taken[chosen] += kept_bytes[stage]
        else:
            n_waiting[chosen] += 1
        target = stage + 1 if phase == 0 else stage - 1
        if 0 <= target < n_stages:
            if rank_of_stage[target] != chosen:
                end += transfer_seconds[min(stage, target)]
            if phase == 0:
                activation[target, i] = end
            else:
                gradient[target, i] = end
            stale[rank_of_stage[target]] = True
    return order
