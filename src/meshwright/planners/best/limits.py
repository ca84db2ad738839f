"""The limits of the joint space: what the user fixes, and how far each degree can go for a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.flops import forward_flops
from meshwright.core.framework import AXES, Framework
from meshwright.core.graph import Graph, Operator
from meshwright.core.problem import Problem
from meshwright.core.strategy import ALTERNATE, CONTEXT_EXCHANGES, MODULES, ON_HOST, RECOMPUTE
from meshwright.costs import analytic
from meshwright.planners.best.space import VIRTUAL, Config, DevicePool, MeshDegrees, divisors
from meshwright.schedules import in_pairs

__all__ = [
    "N_USUAL",
    "SCHEDULES",
    "Limits",
    "allowed_degrees",
    "fullest_shardings",
    "inside_framework",
    "largest_degrees",
    "outside",
    "runnable",
    "sample_flops",
    "shard_degrees",
    "usual",
    "usual_micro_batches",
    "variants",
]  # fmt: skip

SCHEDULES = (
    "gpipe", "1f1b", "early_backward_b", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min",
    "dualpipe_v", "combined_1f1b", "combined_dualpipe_v",
)  # fmt: skip
"""Schedules that may be allowed."""
USUAL_SAMPLES, MOST_TOKENS = 8, 65_536
"""Samples, or tokens, of the largest micro-batch that is searched unasked: of short samples it takes many to fill a device."""
N_USUAL = 3
"""Sets of meshes that are tried one after the other before all others: see `usual`."""


def usual_micro_batches(graph: Graph, global_batch: int) -> tuple[int, ...]:
    """Return the samples of the micro-batches that are searched unless others are asked for.

    Divisors of the batch of at most `USUAL_SAMPLES` samples or `MOST_TOKENS` tokens; where these end below half of that, the next too.
    """
    all_sizes, n_tokens = divisors(global_batch), max(graph.n_tokens, 1)
    sizes = [size for size in all_sizes if size <= USUAL_SAMPLES or size * n_tokens <= MOST_TOKENS]
    if 2 * sizes[-1] * n_tokens < MOST_TOKENS:
        sizes += all_sizes[len(sizes) : len(sizes) + 1]
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be fixed or limited in the joint space; everything left open is searched.

    Parameters
    ----------
    tensor, context, expert, pipeline, data, micro_batch : tuple of int
        Degrees allowed; empty for all legal ones.
    shard : tuple of int
        Sharding levels of the data axis allowed (0 to 3).
    recompute : tuple of str
        What layers may recompute.
    schedules : tuple of str
        Schedules allowed.
    context_exchange : tuple of str
        How keys and values may be exchanged over a context axis; empty for what `meshwright.planners.best.question.Exchanges` says.
    offload : tuple of str
        What may lie on the host: nothing, the optimizer's state, activations of the first layers where nothing is recomputed.
    evaluations : int
        How many plans are evaluated at most before the answer is given with the gap reached.
    alternatives : int
        How many combinations of degrees are optimised: the answer's, and those of its runners-up.
    splits : int
        How many splits of the layers are tried at most once the search has run, to find better ones and to prove that there are none.
    uniform : bool
        Whether every stage must hold equally many layers and all layers recompute alike, as hand-written recipes do.
    memory_ratio : float
        Share of a device's memory that a plan may fill; below 1 it leaves room for what the memory model does not know.
    within_ratio : float
        How much longer than the quickest plan found the answer may take, as a share, in order to be simpler: see
        `meshwright.planners.best.beside.simplest`. 0 for the quickest.
    """

    tensor: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    context: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    expert: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    pipeline: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    data: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    micro_batch: tuple[int, ...] = field(default=(), metadata={"minimum": 1})
    shard: tuple[int, ...] = field(default=(0, 1, 2, 3), metadata={"minimum": 0, "maximum": 3})
    recompute: tuple[str, ...] = field(default=RECOMPUTE, metadata={"choices": (*RECOMPUTE, ALTERNATE, *MODULES)})
    schedules: tuple[str, ...] = field(default=("1f1b", "interleaved_1f1b", "zb_h1", "zb_v"), metadata={"choices": SCHEDULES})
    context_exchange: tuple[str, ...] = field(default=(), metadata={"choices": CONTEXT_EXCHANGES})
    offload: tuple[str, ...] = field(default=("none",), metadata={"choices": ON_HOST, "at_least": 1})
    evaluations: int = field(default=120, metadata={"minimum": 1})
    alternatives: int = field(default=4, metadata={"minimum": 1})
    splits: int = field(default=400, metadata={"minimum": 0})
    uniform: bool = False
    memory_ratio: float = field(default=1.0, metadata={"minimum": 0.01})
    within_ratio: float = field(default=0.0, metadata={"minimum": 0.0, "maximum": 1.0})

    @property
    def state_offloads(self) -> tuple[str, ...]:
        """Those of `offload` that a strategy says: what may lie on the host beside activations, which layers say."""
        return tuple(word for word in self.offload if word != "activations") or ("none",)


def largest_degrees(graph: Graph) -> dict[str, int]:
    """Return the largest tensor, context and expert degree that could be legal; every legal one divides it.

    Parameters
    ----------
    graph : Graph
        The model.

    Returns
    -------
    dict of str to int
        ``tensor``: what divides all attention heads; ``context``: up to a token in a thousand of the sequence; ``expert``:
        the number of routed experts (1 without).
    """
    heads = experts = 0
    for op in graph.ops:
        for operator in op.body:
            heads = math.gcd(heads, operator.size("heads", 0))
            if operator.expert:
                experts = math.gcd(experts, operator.size("experts", 0))
    return {"tensor": heads or 1, "context": max(1, graph.sequence_length // 1024), "expert": experts or 1}


def sample_flops(graph: Graph) -> float:
    """Return the floating point operations of forward and backward of one sample, as the cost model counts them at least.

    A backward pass is one forward pass for the gradient of what is read and one for that of the weights, where there are such; two
    for attention, whose products have two operands to differentiate.
    """

    def passes(operator: Operator) -> float:
        if operator.kind in ("attention", "causal_attention"):
            return 3.0 if operator.has_backward else 1.0
        return 1.0 + float(operator.input_gradient) + float(operator.n_trained_parameters > 0)

    return sum(passes(operator) * forward_flops(operator) for op in graph.ops for operator in op.body)


def shard_degrees(problem: Problem, replica_size: int, data: int) -> tuple[int, ...]:
    """Return over how many data ranks weights may be sharded: all of them, or those of one node (hybrid sharding).

    Parameters
    ----------
    problem : Problem
        The question; its cluster says how large a node is.
    replica_size, data : int
        Devices of one data rank (tensor times context degree), and how many there are.

    Returns
    -------
    tuple of int
        0 stands for all of them.
    """
    cluster = problem.required_cluster
    node = int((cluster.node_of_device == cluster.node_of_device[0]).sum())
    inside = node // replica_size
    return (0, inside) if 1 < inside < data and data % inside == 0 else (0,)


def usual(problem: Problem, params: Limits) -> Callable[[MeshDegrees], int]:
    """Return a function that says how early people would try a mesh: 0 first, `N_USUAL` for the rest.

    In all that are tried early, all devices or those of one node work (links between nodes may be slow), the tensor axis stays in a
    node, the micro-batch is the smallest one, and the expert degree none or the largest of data and context degree. First come those
    on one node and those whose tensor axis fills a node, then all others without context parallelism, then those with it.

    Parameters
    ----------
    problem, params
        The question, and what is given: where degrees are, those count as usual.

    Returns a callable: of a mesh, a whole number.
    """
    cluster = problem.required_cluster
    node = int((cluster.node_of_device == cluster.node_of_device[0]).sum())
    degrees = allowed_degrees(problem, params, cluster.n_devices)
    least = {name: min(values, default=1) for name, values in degrees.items()}

    widest = max((degree for degree in degrees["tensor"] if degree <= node), default=least["tensor"])
    widest_usual, n_devices = max(node, least["tensor"]), cluster.n_devices

    def rank(mesh: MeshDegrees) -> int:
        if mesh.micro_batch != least["micro_batch"] or mesh.tensor > widest_usual:
            return N_USUAL
        if mesh.rank_size * mesh.pipeline not in (n_devices, node):
            return N_USUAL
        most_expert = max((degree for degree in degrees["expert"] if mesh.data * mesh.context % degree == 0), default=1)
        if mesh.expert not in (least["expert"], most_expert):
            return N_USUAL
        if mesh.context != least["context"]:
            return 2
        return 0 if mesh.tensor == widest or mesh.rank_size * mesh.pipeline == node else 1

    return rank


def variants(
    config: Config, problem: Problem, pool: DevicePool, shards: tuple[int, ...],
    exchanges: tuple[str, ...] = ("ring",), offloads: tuple[str, ...] = ("none",),
) -> list[Config]:  # fmt: skip
    """Return a configuration with every sharding, layout, context exchange and offload: replicas as blocks only where no experts are
    exchanged between them.

    Parameters
    ----------
    config, problem, pool
        The configuration, the question and the devices.
    shards : tuple of int
        Sharding levels allowed; where nothing can be sharded, only none is.
    exchanges, offloads : tuple of str
        Context exchanges of the mesh, and what may lie on the host.
    """
    mesh = config.mesh
    levels = tuple(level for level in shards if level == 0 or mesh.data * mesh.context > 1) or (0,)
    apart = mesh.pipeline > 1 and mesh.data > 1 and mesh.expert == 1 and len(pool.devices) == 1
    framework = problem.framework.limits
    layouts = ("pipeline", "data") if apart and "data" in framework.layouts else ("pipeline",)
    return [
        Config(mesh, level, degree, config.schedule, config.chunks, layout, exchange, config.fewer, offload)
        for offload in offloads
        for exchange in exchanges
        for level in levels
        for layout in layouts
        for degree in (
            shard_degrees(problem, mesh.tensor * mesh.context, mesh.data)
            if level == 3 and level in framework.hybrid_shards
            else (0,)
        )
    ]


def fullest_shardings(config: Config, framework: Framework, shards: tuple[int, ...], offloads: tuple[str, ...]) -> list[Config]:
    """Return a configuration with the shardings of which one leaves the least state on a device, one sample at a time.

    Parameters
    ----------
    config, framework
        The configuration and what runs it: where gradients stand whole, higher levels may hold more than lower ones.
    shards : tuple of int
        Sharding levels allowed.
    offloads : tuple of str
        What may lie on the host: the optimizer's state there leaves the least here.
    """
    mesh = replace(config.mesh, micro_batch=1)
    levels = shards if framework.reduces_once or framework.whole_gradients else (max(shards),)
    return [
        Config(mesh, level, 0, config.schedule, config.chunks, "pipeline", offload=max(offloads))
        for level in (levels if mesh.data * mesh.context > 1 else (0,))
    ]


def runnable(
    config: Config, problem: Problem, pool: DevicePool, shards: tuple[int, ...],
    exchanges: tuple[str, ...] = ("ring",), offloads: tuple[str, ...] = ("none",),
) -> list[Config]:  # fmt: skip
    """Return those of `variants` whose degrees the framework runs beside each other; what they take at least is that of all."""
    every = variants(config, problem, pool, shards, exchanges, offloads)
    return [one for one in every if not problem.framework.limits.unpaired(one.strategy)]


def allowed_degrees(problem: Problem, params: Limits, n_devices: int) -> dict[str, tuple[int, ...]]:
    """Return the values each degree may take on some devices: those given, else the powers of two and divisors that can be legal.

    Parameters
    ----------
    problem, params
        The question, and what is given.
    n_devices : int
        How many devices there are.

    Returns
    -------
    dict of str to tuple of int
        Empty where the rest decides: of pipelines and data.

    Raises
    ------
    InputError
        When the micro-batch is given twice and not the same.
    """
    n, batch = n_devices, problem.batch
    if batch.micro_batch and params.micro_batch and params.micro_batch != (batch.micro_batch,):
        given = ",".join(str(number) for number in params.micro_batch)
        raise InputError(f"--micro-batch {batch.micro_batch} and --set micro_batch={given}: say it once")
    largest = largest_degrees(problem.graph)
    tensor = tuple(d for d in divisors(largest["tensor"]) if d <= min(n, 64))
    context = tuple(2**i for i in range(11) if 2**i <= min(n, largest["context"]))
    expert = tuple(d for d in divisors(largest["expert"]) if d <= n)
    usual = usual_micro_batches(problem.graph, batch.global_batch)
    micro = (batch.micro_batch,) if batch.micro_batch else usual
    allowed = {
        "tensor": params.tensor or tensor,
        "context": params.context or context,
        "expert": params.expert or expert,
        "micro_batch": params.micro_batch or micro,
        "pipeline": params.pipeline,
        "data": params.data,
    }
    framework = problem.framework.limits
    closed = {axis for axis in AXES if axis not in framework.degrees_for(problem.graph)}
    if not framework.sequence_parallel:
        closed.add("tensor")  # wherever we split products we split norms along the sequence
    return allowed | dict.fromkeys(closed, (1,))


def inside_framework(params: Limits, problem: Problem) -> Limits:
    """Return the limits of a search inside what the framework runs, each value once.

    Raises
    ------
    InputError
        When what is given leaves nothing that the framework runs.
    """
    framework = problem.framework.limits
    lists = [entry.name for entry in fields(params) if isinstance(entry.default, tuple)]
    once: dict[str, Any] = {name: tuple(dict.fromkeys(getattr(params, name))) for name in lists}
    params = replace(params, **once)
    for axis in AXES:
        given: tuple[int, ...] = getattr(params, axis)
        beyond = min((degree for degree in given if degree > 1), default=0)
        if not beyond:
            continue
        if axis not in framework.degrees_for(problem.graph):
            why = problem.graph.single(axis) or " for weights that embedding and head share" * (axis in framework.degrees)
            raise outside(problem, f"{axis} degree {beyond}", f"{framework.lacks(axis)}{why}")
        if axis == "tensor" and not framework.sequence_parallel:
            why = "no sequence parallelism, which the search puts beside every tensor degree"
            raise outside(problem, f"tensor degree {beyond}", why)
    usual = params.schedules == Limits().schedules
    schedules = tuple(
        word
        for word in (SCHEDULES if usual and framework.schedules else params.schedules)
        if (not framework.schedules or word in framework.schedules)
        and (framework.virtual_stages or word not in VIRTUAL)
        and not (in_pairs(word) and (usual or not framework.paired_tasks))
    )
    if not framework.paired_tasks and (beside := [word for word in params.schedules if in_pairs(word)]):
        other = "" if problem.framework_asked else " (assumed; --for names another)"
        raise outside(problem, f"schedules {', '.join(beside)}", f"no forward task beside a backward task{other}")
    if schedules and all(map(in_pairs, schedules)) and largest_degrees(problem.graph)["expert"] == 1:
        raise InputError(f"schedules {', '.join(schedules)}: {problem.graph.name} has no experts to spread, so nothing to hide")
    if not schedules:
        raise outside(problem, f"schedules {', '.join(params.schedules)}", f"schedules {', '.join(framework.schedules)}")
    shard = tuple(level for level in params.shard if level in framework.shards)
    known = framework.exchanges(problem.graph)
    if params.context_exchange and not set(params.context_exchange) & set(known):
        raise outside(
            problem, f"context exchange {', '.join(params.context_exchange)}", f"for this model {', '.join(known) or 'none'}"
        )
    if not shard:
        raise outside(problem, f"sharding levels {params.shard}", f"sharding levels {framework.shards}")
    if not set(params.offload) <= set(framework.offloads):
        other = "" if problem.framework_asked else " (assumed; --for names another)"
        raise outside(problem, f"offload {', '.join(params.offload)}", f"offload {', '.join(framework.offloads)}{other}")
    if reason := _no_host(params, problem):
        raise InputError(f"offload {', '.join(params.offload)}: {reason}")
    return replace(params, schedules=schedules, shard=shard, uniform=params.uniform or not framework.uneven_stages)


def _no_host(params: Limits, problem: Problem) -> str:
    """Return why what is asked for cannot be on the host; empty where it can, and where nothing is asked for."""
    if "optimizer" in params.offload:
        return analytic.unknown_host(problem)
    return "" if params.offload == ("none",) else analytic.no_host(problem)


def outside(problem: Problem, given: str, has: str) -> InputError:
    """Return the error that something given is not in the framework of a problem."""
    return InputError(f"{given}: not in framework {problem.framework.word}, which has {has}; leave the option out")
