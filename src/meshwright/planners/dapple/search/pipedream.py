"""PipeDream's planner: the quickest slowest stage, machine by machine, for asynchronous training; here judged synchronously.

References
----------
.. [1] Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training, SOSP 2019, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.base.identity import distinct
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer, Bound, Objective
from meshwright.network.numbering import links_alike, numbered_alike
from meshwright.planners.dapple import question
from meshwright.planners.dapple.evaluate import Cut, Evaluator, PlanOutline
from meshwright.planners.dapple.machines import ETHERNET_BYTES_PER_SECOND, NVLINK_BYTES_PER_SECOND
from meshwright.planners.dapple.profile import ProfiledTraining, training_of
from meshwright.planners.dapple.states import States, states_of
from meshwright.solvers.mapping.search import pair_seconds

__all__ = ["Params", "search"]

MOST_STATES = 240
"""States beyond which the program, which looks at all triples of them, takes minutes; then every so many are left out."""


@dataclass(frozen=True, slots=True)
class Params:
    """Options of the search.

    Parameters
    ----------
    profile_batch : int
        Samples the profile was measured with, which are PipeDream's minibatch; 0 for the number after ``pbs-`` in the file's
        name.
    global_batch : int
        Samples of one synchronous step; 0 for ``--global-batch``.
    machines : tuple of int
        Exclusive ends of the machines' device ids, ascending: ``8,16``. Empty for the cluster given.
    min_micro_batch : int
        Fewest samples of one micro-batch.
    optimizer_memory_scaling : float or None
        Bytes held per byte of weights; none for 4: weights, gradients and two moments of Adam.
    peak_activation_per_sample : float or None
        Activation bytes of one sample at the peak, where measured.
    recompute : str
        Whether stages recompute: ``choose`` where they do not fit otherwise, ``never``, ``always``.
    """

    profile_batch: int = field(default=0, metadata={"minimum": 0})
    global_batch: int = field(default=0, metadata={"minimum": 0})
    machines: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    min_micro_batch: int = field(default=1, metadata={"minimum": 1})
    optimizer_memory_scaling: float | None = field(default=None, metadata={"minimum": 0})
    peak_activation_per_sample: float | None = field(default=None, metadata={"unit": "bytes"})
    recompute: str = field(default="choose", metadata={"choices": ("choose", "never", "always")})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return PipeDream's plan, run synchronously with the number of micro-batches that suits it best.

    `problem` holds a profile; `seed` and `stop` are not used: nothing is random, and the search ends by itself. The objective
    is PipeDream's own: seconds between minibatches of the slowest stage.
    Raises `InputError` when a batch size or the machines are missing, or machines differ in size.

    Notes
    -----
    PipeDream sends whole minibatches to replicas in turn and never waits for all gradients; a synchronous step splits every
    micro-batch over the replicas instead, as DAPPLE does, so its plans are judged in a setting they were not made for.
    """
    problem, notes = question.completed(problem, _asked(params), "pipedream")
    answer = numbered_alike(problem, lambda asked: _answered(asked, params), pair_seconds)
    return replace(answer, notes=notes + answer.notes, problem=problem)


def _answered(problem: Problem, params: Params) -> Answer:
    """Return the answer in the numbering that devices have."""
    training, notes = training_of(problem), tuple[str, ...]()
    states = states_of(problem.model_spec)
    kept = list(range(states.n_states))
    if len(kept) > MOST_STATES:
        kept = sorted({*np.linspace(0, states.n_states - 1, MOST_STATES).astype(int).tolist(), states.n_states - 1})
        notes += (f"of {states.n_states} cuts {len(kept)} are tried",)
    seconds, cuts = _plan(problem, training, states, kept)
    evaluator = Evaluator(problem, training, states, params.recompute)
    batch = problem.batch.global_batch
    sizes = [size for size in range(params.min_micro_batch, batch + 1) if batch % size == 0]
    if problem.batch.micro_batch:
        sizes = [size for size in sizes if size == problem.batch.micro_batch]
    shapes = [PlanOutline(batch // size, cuts, "1f1b") for size in sizes]
    if not shapes:
        raise InputError(
            f"global batch {batch} has no divisor that is a micro-batch of the size asked for; choose sizes that divide"
        )
    best = evaluator.best(shapes)
    if best is None:
        missing_bytes = min(evaluator.missing_bytes(shape) for shape in shapes)
        return Answer(plan=None, missing_bytes=missing_bytes, notes=notes, problem=problem)
    objective = Objective("seconds_per_minibatch", seconds)
    bound: Bound | None = Bound(seconds, "exact")
    if not training.published_links and not links_alike(problem.required_cluster, pair_seconds):
        bound = None
        notes += (
            "devices or links are unlike, and PipeDream's planner knows one rate inside machines and one between them, of the "
            "first and last machine: that no plan is quicker is not proven",
        )
    return Answer(plan=evaluator.plan(best[1]), objective=objective, bound=bound, notes=notes, problem=problem)


def completed(problem: Problem, params: Params) -> Problem:
    """Return the question with samples, machines and memory as the options say; a cluster given goes before ``machines``.

    Raises `InputError` as for `search`.
    """
    if problem.cluster is not None:
        params = replace(params, machines=())
    return question.completed(problem, _asked(params), "pipedream")[0]


def _asked(params: Params) -> question.Asked:
    """Return the options that every search on a profile has."""
    return question.Asked(
        params.profile_batch, params.global_batch, params.machines, params.min_micro_batch,
        4.0 if params.optimizer_memory_scaling is None else params.optimizer_memory_scaling, params.peak_activation_per_sample,
    )  # fmt: skip


def _plan(problem: Problem, training: ProfiledTraining, states: States, kept: list[int]) -> tuple[float, tuple[Cut, ...]]:
    """Run the program inside a machine, then over machines; return the slowest stage and the stages on their devices."""
    from meshwright._kernels.dapple import pipedream as kernel

    machines = _machines(problem)
    rates = _rates(problem, training, machines)

    def nodes(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate(([0.0], values[kept]))

    compute = nodes(states.forward_seconds + states.backward_seconds)
    weights, cut_bytes = nodes(states.parameter_bytes), nodes(states.needed_bytes)
    allowed = np.zeros((len(kept) + 1, len(kept) + 1), dtype=bool)
    allowed[0, 1:] = allowed[1:-1, -1] = True
    position = {state: i + 1 for i, state in enumerate(kept)}
    for state in kept:
        before = states.before[states.before_first[state] : states.before_first[state + 1]].tolist()
        allowed[[position[b] for b in before if b in position], position[state]] = True
    alone = np.where(allowed, compute[None, :] - compute[:, None], np.inf)
    per_machine = len(machines[0])
    inner = kernel.level(alone, weights, cut_bytes, allowed, per_machine, rates[0], False)
    filled = np.ascontiguousarray(inner[0][:, :, per_machine])
    outer = kernel.level(filled, weights, cut_bytes, allowed, len(machines), rates[1], True)
    cuts: list[Cut] = []
    taken = 0
    for begin, end, n_machines in _stages(outer, 0, len(kept), len(machines)):
        here, used = machines[taken : taken + n_machines], 0
        taken += n_machines
        for _, stop, n_devices in _stages(inner, begin, end, per_machine):
            devices = tuple(device for machine in here for device in machine[used : used + n_devices])
            used += n_devices
            cuts.append(Cut(kept[stop - 1], devices))
    return float(outer[0][0, len(kept), len(machines)]), tuple(cuts)


def _stages(
    found: tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]], begin: int, end: int, n_components: int
) -> list[tuple[int, int, int]]:
    """Follow the choices from the back: first and last node and components of each stage."""
    _, split, replicas = found
    stages = []
    while end > begin:
        at, width = int(split[begin, end, n_components]), int(replicas[begin, end, n_components])
        stages.append((begin if at < 0 else at, end, width))
        if at < 0:
            break
        end, n_components = at, n_components - width
    return stages[::-1]


def _machines(problem: Problem) -> list[tuple[int, ...]]:
    """Return the devices of each machine; all machines must be alike."""
    cluster = problem.required_cluster
    node = cluster.node_of_device
    machines = [tuple(int(device) for device in np.flatnonzero(node == name)) for name in distinct(node)]
    if len({len(machine) for machine in machines}) > 1:
        sizes = ", ".join(str(len(machine)) for machine in machines)
        raise InputError(f"search pipedream: machines of {sizes} devices; PipeDream's planner knows only machines of one size")
    return machines


def _rates(problem: Problem, training: ProfiledTraining, machines: list[tuple[int, ...]]) -> tuple[float, float]:
    """Return bytes per second between devices of one machine and between machines."""
    if training.published_links:
        return NVLINK_BYTES_PER_SECOND, ETHERNET_BYTES_PER_SECOND
    from meshwright.network import Network

    pairs = [machines[0][:2], (machines[0][0], machines[-1][0])]
    rates = [1.0 / Network.of(problem.required_cluster).transfer([pair])[1] if len(set(pair)) == 2 else 1e30 for pair in pairs]
    return rates[0], rates[1]
