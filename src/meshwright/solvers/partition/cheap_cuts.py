"""Pools of ideals that cut few nets, for graphs with many ideals: what one cut costs is missing for all others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright._kernels.partition import cheap_ideals as kernel
from meshwright.solvers.partition.ideal_pool import Task, WindowedPool, pool_of

__all__ = ["cheap_pool"]

_SLACK = 1e-9  # relative widening of every window, so that rounding of sums excludes nothing
_GROWTH = 1.5  # of the cost up to which a cheapest cut is looked for
_LEVELS = 16  # such costs that are tried
_ROUNDS = 8  # over all cuts: each makes the windows of the others narrower
_STEPS = 20_000_000  # of all searches together
_FEW = 1024  # ideals found on the way to the cheapest
_WORDS = 30_000_000  # most 64-bit words of one list of ideals

Floats = NDArray[np.float64]


def cheap_pool(task: Task, limit: float) -> WindowedPool | None:
    """Return the ideals that may stand after some stage of a partition whose largest load is at most `limit`.

    Stages must be alike and none on a host; ``task.n_ideals`` is the most of one cut.
    Returns: complete; None where the lists would be too long.

    Notes
    -----
    Lemma. Let stage s end with the ideal I_s, and all S stages have loads of at most U, so that I_s has compute of at most s U
    and leaves at most (S - s) U. Call a net *private* to s if by these windows alone no I_t with t != s can cut it, and let no
    I_t cut less than K_t in nets private to t. If I_s has compute c_s, and the nets that it cuts cost k_s,

        c_s + k_s + 2 (K_1 + ... + K_{s-1}) <= s U,

    because stages 1 to s pay their compute; at least once each net that I_s cuts, which has pins in them; and at least twice
    each net private to some t < s that I_t cuts: it has a pin in I_t, and as I_s does not cut it, all its pins are in I_s, so
    they lie in two of these stages or more. These nets differ for different t. The same holds behind, with K_{s+1}, ...

    Each K_s is the least over the ideals in the window that the others leave to I_s, so the windows are narrowed in turn; they
    hold for all partitions of such loads at each moment, whatever the order.
    """
    cuts = _Cuts(task, limit)
    cuts.narrow()
    lists: list[NDArray[np.uint64]] = []
    for s in range(1, task.n_stages):
        bits, _, complete = cuts.listed(s, task.units.arrays.net_cost, np.inf)
        if not complete:
            return None
        lists.append(bits)
    return pool_of(task, limit, [(np.unique(np.concatenate(lists), axis=0), 0)])


class _Cuts:
    """The cuts between stages: what each costs at least in private nets, and the steps that are left to find that out."""

    def __init__(self, task: Task, limit: float) -> None:
        self.task = task
        self.limit = limit
        self.sides = np.stack([task.units.before, task.units.after])
        self.bits_of = kernel.reaches(task.units.arrays)
        for array in (self.sides, *self.bits_of):
            array.setflags(write=False)
        self.private = _private(task, limit)
        self.least = np.zeros(task.n_stages + 1)
        self.n_steps = _STEPS

    def window(self, s: int) -> tuple[float, float]:
        """Return what the compute in front of cut s, with its own cost added behind and in front, must keep."""
        low = self.task.units.total - (self.task.n_stages - s) * self.limit + 2.0 * float(self.least[s + 1 :].sum())
        return low, s * self.limit - 2.0 * float(self.least[:s].sum())

    def listed(
        self, s: int, net_cost: Floats, most: float, *, shrinking: bool = False
    ) -> tuple[NDArray[np.uint64], float, bool]:
        """Return the ideals that cut s may be, what all others cost more than, and whether none is missing."""
        slack = _SLACK * (self.task.units.total + self.limit)
        low, high = self.window(s)
        window = np.array([low, high, min(most, 0.5 * (high - low) + slack), slack])  # a cut is paid on both sides
        n_ideals = _FEW if shrinking else max(16, min(self.task.n_ideals, _WORDS // self.bits_of[0].shape[1]))
        limits = np.array([n_ideals, self.n_steps])
        for array in (window, limits):
            array.setflags(write=False)
        bits, proven, n_taken, complete = kernel.cheap_ideals(
            self.task.units.arrays, self.sides, self.bits_of, net_cost, window, shrinking, limits
        )
        self.n_steps -= n_taken
        return bits, proven, bool(complete)

    def narrow(self) -> None:
        """Raise what each cut costs at least, until nothing changes or too many steps were taken."""
        for _ in range(_ROUNDS):
            before = self.least.copy()
            for s in range(1, self.task.n_stages):
                self.least[s] = max(float(self.least[s]), self._cheapest(s))
            if not (self.least > before + _SLACK * self.limit).any():
                return

    def _cheapest(self, s: int) -> float:
        """Return a cost in private nets that no ideal in the window of cut s stays below."""
        low, high = self.window(s)
        largest = max(0.5 * (high - low), 0.0)
        proven = 0.0
        for level in range(1 - _LEVELS, 1):
            most = largest * _GROWTH**level
            if most < self.least[s] and level < 0:
                continue
            bits, least, complete = self.listed(s, self.private[s], most, shrinking=True)
            if not complete:
                return proven
            proven = max(least, 0.0)
            if len(bits):
                return proven
        return proven


def _private(task: Task, limit: float) -> tuple[Floats, ...]:
    """Return for each cut the cost of each net where no other cut can cut it, by windows of compute, and zero elsewhere."""
    units, a, n = task.units, task.units.arrays, task.n_stages
    slack = _SLACK * (units.total + limit)
    if not len(a.net_cost):
        return (a.net_cost,) * (n + 1)
    # a net is cut where one of its pins may be in and another, or the same, out
    in_front = np.minimum.reduceat(units.before[a.net_pins], a.net_first[:-1])
    behind = np.minimum.reduceat(units.after[a.net_pins], a.net_first[:-1])
    may_be_cut = np.stack(
        [(in_front <= s * limit + slack) & (behind <= (n - s) * limit + slack) for s in range(n + 1)]
    )  # fmt: skip
    alone = may_be_cut[1:n].sum(axis=0) == 1
    private = tuple(np.where(alone & may_be_cut[s], a.net_cost, 0.0) for s in range(n + 1))
    for cost in private:
        cost.setflags(write=False)
    return private
