"""Which share of its time a job that is interrupted trains: checkpoints, work done twice, restarts, and waiting for nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.base import files, units
from meshwright.base.errors import InputError
from meshwright.core.problem import Problem
from meshwright.sizing.failures import DATA, FailureRates, figure

__all__ = ["Goodput", "Recovery", "Upkeep", "checkpoint_bytes", "daly_interval", "effective", "goodput", "spares_needed"]

_LEAST_RATIO = 0.01
"""Of the time that trains: with less, failures are taken to let nothing through."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a job saves its state and goes on after an interruption.

    Parameters
    ----------
    restart_seconds : float
        From the interruption until the job reads its checkpoint: detection, diagnosis, start.
    storage_bytes_per_second : float
        What all devices together write to (and read from) the storage of checkpoints.
    copy_bytes_per_second : float
        What one device copies to its host, where checkpoints are asynchronous.
    asynchronous : bool
        Whether training goes on while a checkpoint is written.
    repair_seconds : float
        For how long a node that broke is away; 0 where it is replaced within the restart.
    spare_nodes : int
        Nodes beyond those that train, which stand in for broken ones; -1 for as many as it takes to wait less than 1 % of the
        time (`spares_needed`).
    replan_seconds : float
        What planning again for the nodes that are left takes, where spares run out; negative: the job waits for a node instead.
    """

    restart_seconds: float
    storage_bytes_per_second: float
    copy_bytes_per_second: float
    asynchronous: bool = False
    repair_seconds: float = 0.0
    spare_nodes: int = 0
    replan_seconds: float = -1.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """What becomes of the time of a job.

    Parameters
    ----------
    effective_ratio : float
        The share of elapsed time in which steps are made that are kept.
    lost : tuple of (str, float)
        The other shares by cause: ``checkpoints``, ``lost_work`` (done again), ``restarts``, ``waiting`` (for nodes, or on
        fewer of them).
    mtbf_seconds : float
        Mean time between interruptions of the whole job; infinite for none.
    interval_seconds : float
        Training between checkpoints; infinite where nothing fails.
    checkpoint_bytes : float
        State that is saved.
    checkpoint_seconds : float
        For how long a checkpoint stops training.
    restart_seconds : float
        A restart as a whole, reading included.
    spare_nodes : int
        Nodes beyond those that train.
    """

    effective_ratio: float
    lost: tuple[tuple[str, float], ...]
    mtbf_seconds: float
    interval_seconds: float
    checkpoint_bytes: float
    checkpoint_seconds: float
    restart_seconds: float
    spare_nodes: int = 0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is known about failures and recovery before sizes are: storage may grow with the devices.

    Parameters
    ----------
    rates : FailureRates
        How often parts fail.
    recovery : Recovery
        How the job goes on; its storage is that of one device where `storage_per_device`.
    storage_per_device : bool
        Whether storage is each device's share.
    """

    rates: FailureRates
    recovery: Recovery
    storage_per_device: bool = True

    @classmethod
    def usual(cls, rates: FailureRates) -> Upkeep:
        """Return the published figures of recovery with given rates.

        Parameters
        ----------
        rates : FailureRates
            How often parts fail.
        """
        content = files.read_toml(DATA / "reliability.toml")
        run, recovery = content["run"], content["recovery"]
        restart, storage, copy = (figure(recovery, name, "recovery") for name in ("restart", "storage", "copy"))
        share = units.parse(storage, "bytes_per_second", place="storage") / figure(run, "n_devices", "run")
        found = Recovery(
            units.parse(restart, "seconds", place="restart"), share, units.parse(copy, "bytes_per_second", place="copy")
        )
        return cls(rates, found)

    def of(self, state_bytes: float, n_devices: int, devices_per_node: int) -> Goodput:
        """Return the goodput of a job.

        Parameters
        ----------
        state_bytes : float
            State that a checkpoint holds.
        n_devices, devices_per_node : int
            What the job runs on.
        """
        recovery = self.recovery
        storage = recovery.storage_bytes_per_second * (n_devices if self.storage_per_device else 1)
        return goodput(self.rates, recovery, state_bytes, n_devices, devices_per_node, storage)


def checkpoint_bytes(problem: Problem) -> float:
    """Return the bytes that a checkpoint holds: weights and optimizer state of what is trained, each once.

    Parameters
    ----------
    problem : Problem
        The model, and how numbers are held. Frozen weights are saved nowhere; gradients neither.
    """
    held = problem.training
    return float(problem.graph.n_trained_parameters * (held.weight_bytes + held.optimizer_bytes))


def daly_interval(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Return how long to train between checkpoints.

    Parameters
    ----------
    checkpoint_seconds : float
        For how long one stops training.
    mtbf_seconds : float
        Mean time between interruptions.

    Returns
    -------
    float
        Seconds of training, without the checkpoint.

    References
    ----------
    .. [1] Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974: the leading term,
       ``sqrt(2 C M)``.
    .. [2] Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006, eq. 37.
    """
    if not math.isfinite(mtbf_seconds):
        return math.inf
    if checkpoint_seconds >= 2.0 * mtbf_seconds:
        return mtbf_seconds
    part = checkpoint_seconds / (2.0 * mtbf_seconds)
    first = math.sqrt(2.0 * checkpoint_seconds * mtbf_seconds)
    return max(first * (1.0 + math.sqrt(part) / 3.0 + part / 9.0) - checkpoint_seconds, 1e-9)


def effective(
    interval_seconds: float, checkpoint_seconds: float, restart_seconds: float, mtbf_seconds: float
) -> tuple[float, float, float, float]:
    """Return the shares of training, checkpoints, work done twice and restarts; they add up to 1.

    Parameters
    ----------
    interval_seconds : float
        Training between checkpoints.
    checkpoint_seconds : float
        For how long one stops training.
    restart_seconds : float
        From an interruption until training goes on; interruptions in it start it again.
    mtbf_seconds : float
        Mean time between interruptions, which come at random (exponentially).

    Notes
    -----
    An interval with its checkpoint takes s seconds. It is tried until it comes through, which fails ``exp(s / M) - 1`` times
    in the mean, with ``M (exp(s / M) - 1)`` seconds of trying and, after each failure, ``M (exp(R / M) - 1)`` seconds until a
    restart comes through; together [1]_ ``M exp(R / M) (exp(s / M) - 1)``.

    Where less than one hundredth of the time would train, the answer is that none does.

    References
    ----------
    .. [1] Daly, FGCS 22(3), 2006, eq. 20.
    """
    if not math.isfinite(mtbf_seconds):
        return 1.0, 0.0, 0.0, 0.0
    span, mean = interval_seconds + checkpoint_seconds, mtbf_seconds
    if max(span, restart_seconds) > 500.0 * mean:  # never comes through
        return 0.0, 0.0, 0.0, 1.0
    n_failures, tried = math.expm1(span / mean), mean * math.expm1(span / mean)
    restarts = n_failures * mean * math.expm1(restart_seconds / mean)
    whole = tried + restarts
    if interval_seconds < _LEAST_RATIO * whole:
        return 0.0, 0.0, 0.0, 1.0
    return interval_seconds / whole, checkpoint_seconds / whole, (tried - span) / whole, restarts / whole


def goodput(
    rates: FailureRates,
    recovery: Recovery,
    state_bytes: float,
    n_devices: int,
    devices_per_node: int,
    storage_bytes_per_second: float = 0.0,
) -> Goodput:
    """Return which share of its time a job trains.

    Parameters
    ----------
    rates : FailureRates
        How often parts fail.
    recovery : Recovery
        How state is saved and the job goes on.
    state_bytes : float
        State that is saved, by all devices at once.
    n_devices, devices_per_node : int
        What the job runs on; spare nodes are beyond.
    storage_bytes_per_second : float
        Storage of all; 0 for that of `recovery`.

    Notes
    -----
    An asynchronous checkpoint stops training for the copy to the host only, but counts once it is written: the interval is at
    least the writing, and an interruption costs that much more work in the mean. Nothing fails while a job waits for nodes.
    """
    storage = storage_bytes_per_second or recovery.storage_bytes_per_second
    mtbf = 1.0 / per_second if (per_second := rates.per_second(n_devices, devices_per_node)) else math.inf
    written, read = state_bytes / storage, state_bytes / storage
    stops = state_bytes / n_devices / recovery.copy_bytes_per_second if recovery.asynchronous else written
    late = written if recovery.asynchronous else 0.0  # work since the last complete checkpoint, beyond the interval
    interval = max(daly_interval(stops, mtbf), late)
    restart = recovery.restart_seconds + read
    work, saving, again, restarts = effective(interval, stops, restart + late, mtbf)
    again, restarts = again + restarts * late / (restart + late), restarts * restart / (restart + late)
    present, spares = _present(rates, recovery, n_devices, devices_per_node, restart)
    lost = (("checkpoints", saving), ("lost_work", again), ("restarts", restarts))
    shares = tuple((name, share * present) for name, share in lost)
    return Goodput(work * present, (*shares, ("waiting", 1.0 - present)), mtbf, interval, state_bytes, stops, restart, spares)


def spares_needed(mean_broken: float, most_ratio: float = 0.01) -> int:
    """Return the fewest spare nodes with which more nodes than that are broken for less than a share of the time.

    Parameters
    ----------
    mean_broken : float
        How many nodes are broken in the mean.
    most_ratio : float
        The share.
    """
    k, term = 0, math.exp(-mean_broken)
    within = term
    while 1.0 - within > most_ratio and k < 10**6:
        k += 1
        term *= mean_broken / k
        within += term
    return k


def _present(
    rates: FailureRates, recovery: Recovery, n_devices: int, devices_per_node: int, restart_seconds: float
) -> tuple[float, int]:
    """Return the speed that nodes being away leaves, as a share, and the spare nodes.

    Nodes that are away at a time are Poisson distributed (infinitely many may be, and each is away for as long: M/G/inf).
    """
    broken_per_second = rates.hardware_per_second(n_devices, devices_per_node)
    mean = broken_per_second * recovery.repair_seconds
    if mean > 500.0:
        raise InputError(
            f"--repair: {mean:.0f} nodes of this job would be away at a time; give a shorter repair, or a longer --mtbf"
        )
    spares = spares_needed(mean) if recovery.spare_nodes < 0 else recovery.spare_nodes
    if not mean:
        return 1.0, spares
    n_nodes = math.ceil(n_devices / devices_per_node)
    share, term, within = 0.0, math.exp(-mean), 0.0
    for k in range(spares + n_nodes + 1):
        if k:
            term *= mean / k
        away = max(0, k - spares)
        if away == 0:
            within += term
        share += term * (n_nodes - away) / n_nodes
        if k > spares and term < 1e-15:
            break
    if recovery.replan_seconds < 0.0:
        return min(1.0, within), spares
    full = math.exp(-mean) * mean**spares / math.factorial(spares) if spares <= 150 else 0.0
    changes = broken_per_second * (1.0 - within + full)  # of the failures that find no spare; as many nodes come back
    return max(0.0, min(1.0, share) - changes * (2.0 * recovery.replan_seconds + restart_seconds)), spares
