"""The ways to split every operator over servers, with times and memory: measured where a file has them, otherwise estimated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright import sim
from meshwright.base.errors import InputError
from meshwright.core.cluster import Device
from meshwright.planners.topoopt.readers.flexflow_measures import Measurement, Measurements
from meshwright.planners.topoopt.workloads.workload import DATA, Operation, Workload, flops

__all__ = ["OperatorSplit", "Servers", "SplitSpace", "degrees_of", "in_parts", "measurements", "space"]

_MOST_LISTED = 7  # numbers of parts


@dataclass(frozen=True, slots=True)
class Servers:
    """What is known of the machines before the network is.

    Parameters
    ----------
    n_servers : int
        Servers.
    n_gpus : int
        Devices of a server.
    gpu : Device
        The kind of device.
    gpu_bytes_per_second : float
        Bandwidth of one device into the network inside the server: an all-reduce there takes ``2 / n_gpus`` of its bytes over
        it.
    gpu_latency_seconds : float
        Of that all-reduce, whatever its size.
    gpus_contend : bool
        Whether all-reduces inside one server take turns; otherwise each has its network to itself, as published.
    """

    n_servers: int
    n_gpus: int
    gpu: Device
    gpu_bytes_per_second: float
    gpu_latency_seconds: float = 0.0
    gpus_contend: bool = False

    @property
    def memory_bytes(self) -> float:
        """Memory of one server's devices together."""
        return self.n_gpus * sim.free_bytes((self.gpu,))

    def inner_seconds(self, n_bytes: int) -> float:
        """Return how long the devices of a server add up a tensor among themselves if they do nothing else."""
        moved = (2 * n_bytes // self.n_gpus) * (1.0 / self.gpu_bytes_per_second)
        return self.gpu_latency_seconds + moved if self.n_gpus > 1 else 0.0


@dataclass(frozen=True, slots=True)
class OperatorSplit:
    """One way to split an operator: parts along samples, output features, and rows of a table.

    Parameters
    ----------
    samples, columns, rows : int
        Parts of each; their product is the number of servers.
    forward_seconds, backward_seconds : float
        Of one part on one server.
    memory_bytes : float
        Of one part on one server, all its devices together.
    measured : bool
        Whether the times were measured.
    """

    samples: int
    columns: int
    rows: int
    forward_seconds: float
    backward_seconds: float
    memory_bytes: float
    measured: bool = False

    @property
    def n_parts(self) -> int:
        """Servers it takes."""
        return self.samples * self.columns * self.rows


@dataclass(frozen=True, slots=True, eq=False)
class SplitSpace:
    """All choices of a workload on some servers.

    Parameters
    ----------
    workload : Workload
        The operators.
    servers : Servers
        The machines.
    choices : tuple of tuple of OperatorSplit
        Of each operator, by parts.
    notes : tuple of str
        What was assumed.
    control_edges : bool
        Whether a plan may say which operators are last in the backward pass of their servers.
    """

    workload: Workload
    servers: Servers
    choices: tuple[tuple[OperatorSplit, ...], ...]
    notes: tuple[str, ...] = ()
    control_edges: bool = True

    @property
    def parts(self) -> tuple[int, ...]:
        """In how many parts operators may lie, each on a server of its own, ascending."""
        return tuple(sorted({choice.n_parts for options in self.choices for choice in options}))


def space(
    workload: Workload, servers: Servers, measurements: Measurements | None, *, shard: bool, place: str = ""
) -> SplitSpace:
    """Return the ways to split every operator.

    `measurements`: measured times; None to estimate all.
    `shard`: whether weights may be split: matrices by columns, tables by columns and by rows.
    Raises `InputError` when the measurements are of another batch or another number of servers, or have nothing of the
    workload.
    """
    if measurements is not None:
        _check(workload, servers, measurements, place)
    table = {} if measurements is None else measurements.table()
    keys = {key for key, _ in table}
    missing = dict.fromkeys(op.key for op in workload.operations if op.key not in keys)
    if measurements is not None and len(missing) == len({op.key for op in workload.operations}):
        raise InputError(f"--measures {place}: has none of the operators of {workload.name}; is it of another workload?")
    choices = tuple(_choices(workload, i, servers, table, shard) for i in range(len(workload.operations)))
    notes = []
    if measurements is None:
        notes.append(f"no measurements: times are estimated from the peak and the memory bandwidth of {servers.gpu.name}")
    elif missing:
        notes.append(f"estimated, because not measured: {', '.join(missing)}")
    if shard and measurements is not None:
        notes.append("times of split weights are those measured for as many parts along samples")
    return SplitSpace(workload, servers, choices, (*notes, *_idle(workload, servers.n_servers)))


def measurements(space: SplitSpace) -> Measurements:
    """Return the times of all splits along samples as a measurement file has them; operators with the same key share the first.

    `space`: choices, measured or estimated. Splits of weights are left out: such files have none.
    """
    rows: dict[tuple[str, int], Measurement] = {}
    for operation, options in zip(space.workload.operations, space.choices, strict=True):
        devices = 1 if operation.kind == "embedding" else space.servers.n_gpus
        for choice in (choice for choice in options if choice.columns == choice.rows == 1):
            split = (*(1,) * len(operation.shape), choice.samples)
            times = (choice.forward_seconds * 1e3, choice.backward_seconds * 1e3)
            row = Measurement(operation.key, split, times, round(choice.memory_bytes / devices))
            rows.setdefault((operation.key, choice.samples), row)
    return Measurements(space.workload.global_batch, space.servers.n_servers, tuple(rows.values()))


def _check(workload: Workload, servers: Servers, measurements: Measurements, place: str) -> None:
    """Check that measurements are of this batch on so many servers."""
    if measurements.batch_size != workload.global_batch:
        raise InputError(
            f"--measures {place}: measured with a batch of {measurements.batch_size}, but {workload.name} trains "
            f"{workload.global_batch} samples per step; take the file of this batch or change the batch"
        )
    if measurements.n_devices != servers.n_servers:
        raise InputError(
            f"--measures {place}: measured for {measurements.n_devices} servers, but --servers is {servers.n_servers}"
        )


def _choices(
    workload: Workload, i: int, servers: Servers, table: dict[tuple[str, tuple[int, ...]], Measurement], shard: bool
) -> tuple[OperatorSplit, ...]:
    """Return the choices of one operator."""
    operation = workload.operations[i]
    degrees = _degrees(workload, servers.n_servers)
    rank = len(operation.shape) + 1
    own = {
        split[-1]: row
        for (key, split), row in table.items()
        if key == operation.key and set(split[:-1]) <= {1} and len(split) == rank
    }
    found = []
    for samples in degrees_of(workload, i, servers.n_servers):
        if own and samples not in own:
            continue
        found.append(
            _measured(own[samples], samples, servers, operation) if own else _estimated(workload, i, servers, samples, 1, 1)
        )
    if not found:
        raise InputError(
            f"operator {operation.name} ({operation.key}): measured for {sorted(own)} parts; on {servers.n_servers} servers "
            f"{workload.global_batch} samples lie in {in_parts(degrees)}"
        )
    if shard and operation.kind in ("linear", "embedding"):
        for parts in degrees[1:]:
            if operation.n_features % parts == 0:
                found += _split(workload, i, servers, found, degrees, parts)
            if operation.kind == "embedding":
                found.append(_table_part(found[0], parts, 1, parts, operation, workload, servers))
    return tuple(found)


def degrees_of(workload: Workload, i: int, n_servers: int) -> list[int]:
    """Return into how many parts along samples an operator may be split; a table is not.

    `i`: which operator of the workload.
    `n_servers`: how many servers there are.
    """
    return [1] if workload.operations[i].kind == "embedding" else _degrees(workload, n_servers)


def _degrees(workload: Workload, n_servers: int) -> list[int]:
    """Return into how many equal parts a step's samples are split: as many as divide the servers; where these do not divide the
    samples, so that some are idle whatever the parts, as many as there are servers for.
    """
    batch = workload.global_batch
    return [k for k in range(1, n_servers + 1) if batch % k == 0 and (n_servers % k == 0 or batch % n_servers)]


def _idle(workload: Workload, n_servers: int) -> list[str]:
    """Return what is to be said where servers do not divide the samples of a step: who is idle, and how many would divide."""
    batch, degrees = workload.global_batch, _degrees(workload, n_servers)
    if batch % n_servers == 0:
        return []
    idle, samples = n_servers - degrees[-1], [k * n_servers for k in (batch // n_servers, batch // n_servers + 1) if k]
    servers = [degrees[-1], *(k for k in range(n_servers + 1, 2 * n_servers + 1) if batch % k == 0)][:2]
    return [
        f"{n_servers} servers do not divide {batch} samples: operators lie in {in_parts(degrees)} along samples, and each "
        f"leaves {idle} server{'s' * (idle > 1)} or more idle; {_listed(samples)} samples divide over {n_servers} servers, "
        f"{batch} samples over {_listed(servers)}"
    ]


def in_parts(numbers: Sequence[int]) -> str:
    """Return numbers of parts in words, the middle ones left out where they are many; the largest last."""
    return f"{_listed(numbers)} part{'s' * (numbers[-1] > 1)}"


def _listed(numbers: Sequence[int]) -> str:
    """Return whole numbers in words, the middle ones left out where they are many."""
    shown = [str(number) for number in numbers]
    if len(shown) > _MOST_LISTED:
        shown = [*shown[: _MOST_LISTED - 2], "...", shown[-1]]
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _measured(row: Measurement, samples: int, servers: Servers, operation: Operation) -> OperatorSplit:
    """Return a choice as measured on one device; tables lie on one device of their server."""
    forward, backward = (milliseconds * 1e-3 for milliseconds in row.milliseconds)
    devices = 1 if operation.kind == "embedding" else servers.n_gpus
    return OperatorSplit(samples, 1, 1, forward, backward, float(row.memory_bytes * devices), measured=True)


def _split(
    workload: Workload, i: int, servers: Servers, found: list[OperatorSplit], degrees: list[int], columns: int
) -> list[OperatorSplit]:
    """Return the choices of an operator whose output features are split into `columns`."""
    operation = workload.operations[i]
    if operation.kind == "embedding":
        return [_table_part(found[0], columns, columns, 1, operation, workload, servers)]
    whole = {choice.samples: choice for choice in found if choice.columns == 1}
    made = []
    for samples in degrees:
        like = whole.get(samples * columns)
        if like is None:
            continue
        weights = float(workload.state_bytes * sum(operation.weights))
        producer = max((p for p in operation.inputs if p != DATA), default=DATA)
        width = workload.operations[producer].n_elements if producer != DATA else operation.n_elements
        inputs = 2.0 * workload.element_bytes * width * workload.global_batch / samples
        memory = max(like.memory_bytes + (inputs - weights * servers.n_gpus) * (1 - 1 / columns), 0.0)
        made.append(OperatorSplit(samples, columns, 1, like.forward_seconds, like.backward_seconds, memory))
    return made


def _table_part(
    whole: OperatorSplit, parts: int, columns: int, rows: int, operation: Operation, workload: Workload, servers: Servers
) -> OperatorSplit:
    """Return a part of a table: by columns everything shrinks, by rows every part still writes a full-width partial sum."""
    output = workload.element_bytes * operation.n_elements * workload.global_batch
    extra = output / (servers.gpu.memory_bytes_per_second * servers.gpu.memory_ratio) if rows > 1 else 0.0
    memory = whole.memory_bytes / parts + (2.0 * output * (1 - 1 / parts) if rows > 1 else 0.0)
    return OperatorSplit(
        1, columns, rows, whole.forward_seconds / parts + extra, whole.backward_seconds / parts + extra, memory
    )


def _estimated(workload: Workload, i: int, servers: Servers, samples: int, columns: int, rows: int) -> OperatorSplit:
    """Return a choice with roofline times: work at its achieved share of the peak, or bytes at that of the bandwidth."""
    operation, gpu = workload.operations[i], servers.gpu
    devices = 1 if operation.kind == "embedding" else servers.n_gpus
    share = math.ceil(workload.global_batch / samples / devices)
    inputs = sum(workload.operations[p].n_elements for p in operation.inputs if p != DATA)
    weights = sum(operation.weights)
    if operation.kind == "embedding":
        moved = share * (max(operation.bag, 1) + 1) * operation.n_elements
    else:
        moved = share * (inputs + operation.n_elements) + weights
    precision = "fp32" if workload.element_bytes == 4 else "bf16"
    work = share * flops(operation) / (gpu.peak(precision) * gpu.matmul_ratio)
    forward = max(work, workload.element_bytes * moved / (gpu.memory_bytes_per_second * gpu.memory_ratio)) + gpu.launch_seconds
    held = workload.state_bytes * weights + 2.0 * workload.element_bytes * share * (inputs + operation.n_elements)
    return OperatorSplit(samples, columns, rows, forward, 2.0 * forward, held * devices)
