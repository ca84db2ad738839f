"""The space of search best by its definition (docs/explanation/best.md), listed for the check of its answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.core.framework import AXES
from meshwright.core.graph import Graph
from meshwright.core.problem import Problem
from meshwright.core.strategy import RECOMPUTE, Strategy
from meshwright.costs import analytic
from meshwright.planners.best.check.device_pools import CheckedPool, host_fillings

__all__ = [
    "CheckedChain", "CheckedMesh", "Form", "RecomputeSpace", "chain_of", "even_counts", "exchanged", "exchanges", "forms",
    "inside", "meshes", "ranks_of", "recompute_spaces", "runnable", "split_counts", "strategies",
]  # fmt: skip

_LARGEST_TENSOR, _TOKENS_OF_A_CONTEXT_RANK = 64, 1024
_SAMPLES, _MOST_TOKENS = 8, 65_536  # of a micro-batch that nobody asked for
_USUAL_SCHEDULES = ("1f1b", "interleaved_1f1b", "zb_h1", "zb_v")
_ALL_SCHEDULES = (
    "gpipe", "1f1b", "early_backward_b", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min",
    "dualpipe_v", "combined_1f1b", "combined_dualpipe_v",
)  # fmt: skip
_PAIRED = ("combined_1f1b", "combined_dualpipe_v")
_IN_A_V = ("zb_v", "v_half", "v_min", "dualpipe_v", "combined_dualpipe_v")
_SPLIT = ("zb_h1", "zb_h2", *_IN_A_V)
_SEVERAL_STAGES = ("interleaved_1f1b", "looped_bfs", "combined_1f1b", *_IN_A_V)


class CheckedMesh(NamedTuple):
    """Degrees and micro-batch: what all ranks of a pipeline share."""

    tensor: int
    context: int
    expert: int
    micro_batch: int
    data: int
    pipeline: int

    @property
    def rank_size(self) -> int:
        """Devices of a pipeline rank."""
        return self.tensor * self.context * self.data

    @property
    def whole_experts(self) -> bool:
        """Whether experts are spread over the tensor axis too, each whole on its device."""
        return self.data * self.context % self.expert > 0


class Form(NamedTuple):
    """What runs a mesh: schedule, and stages of each rank."""

    schedule: str
    n_chunks: int

    @property
    def is_split(self) -> bool:
        """Whether weight gradients are tasks of their own, if not all of them."""
        return self.schedule in _SPLIT

    @property
    def is_mixed(self) -> bool:
        """Whether some backward passes are whole; then the order of tasks does not depend on how long they last."""
        return self.schedule in ("dualpipe_v", "combined_dualpipe_v")

    @property
    def is_paired(self) -> bool:
        """Whether forward tasks run beside backward tasks, so that all-to-alls of experts may cost next to nothing."""
        return self.schedule in _PAIRED

    @property
    def is_fitted(self) -> bool:
        """Whether what ranks hold depends on how long tasks last."""
        return self.is_split and self.n_chunks > 1 and not self.is_mixed

    def lead(self, n_behind: int) -> int:
        """Return how many forward passes a rank with so many behind it runs before its first backward pass, if there are as many."""
        return 2 * n_behind + 1 if self.schedule in ("zb_h2", "early_backward_b") else n_behind + 1


class CheckedChain(NamedTuple):
    """The model as a chain: what is pinned to the first stage, the layers, what is pinned to the last; `rows` names like layers."""

    prefix: tuple[int, ...]
    layers: tuple[int, ...]
    suffix: tuple[int, ...]
    rows: tuple[int, ...]
    main_row: int

    @property
    def is_equal(self) -> bool:
        """Whether all layers are alike."""
        return len(set(self.rows)) == 1


def chain_of(graph: Graph) -> CheckedChain:
    """Return the model as a chain: from the first layer that occurs again to the last one; where none does, all but the embedding
    it begins with and the head it ends with.
    """
    order = list(graph.topological_order())
    row = {i: graph.ops[i].like if graph.ops[i].like >= 0 else i for i in order}
    often: dict[int, int] = {}
    for i in order:
        often[row[i]] = often.get(row[i], 0) + 1
    again = [place for place, i in enumerate(order) if often[row[i]] > 1]
    if not again:
        ends = [graph.ops[i].kind in ("embedding", "head") for i in order]
        again = [place for place, is_end in enumerate(ends) if not is_end] or [0, len(order) - 1]
    layers = order[again[0] : again[-1] + 1]
    most = max(often[row[i]] for i in layers)
    main = min(row[i] for i in layers if often[row[i]] == most)
    return CheckedChain(
        tuple(order[: again[0]]), tuple(layers), tuple(order[again[-1] + 1 :]), tuple(row[i] for i in layers), main
    )


class RecomputeSpace(NamedTuple):
    """What layers may recompute in a space of its own: any mixture of the words, or blocks of them.

    `words`: the least first; one where all layers recompute alike.
    `blocks`: whether the first layers of every stage recompute the second word, equally many of each, and the others the first.
    """

    words: tuple[str, ...]
    blocks: bool

    @property
    def one_way(self) -> bool:
        """Whether a split of the layers leaves one plan, but for the number of layers in a block."""
        return self.blocks or len(self.words) == 1


def inside(problem: Problem, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the search as far as the framework runs them: schedules, shardings, and whether stages are alike.

    Values that were given twice count once.

    Degrees that it lacks are left out by `meshes`, layouts and sharding over some of the ranks by `strategies`.
    """
    framework = problem.framework.limits
    limits = {name: tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value for name, value in limits.items()}
    asked = tuple(limits["schedules"])
    if framework.schedules and asked == _USUAL_SCHEDULES:
        asked = tuple(word for word in _ALL_SCHEDULES if word not in _PAIRED)
    allowed = [word for word in asked if not framework.schedules or word in framework.schedules]
    allowed = [word for word in allowed if framework.virtual_stages or word not in _SEVERAL_STAGES]
    allowed = [word for word in allowed if framework.paired_tasks or word not in _PAIRED]
    return {
        **limits,
        "schedules": tuple(allowed),
        "shard": tuple(level for level in limits["shard"] if level in framework.shards),
        "uniform": limits["uniform"] or not framework.uneven_stages,
    }


def recompute_spaces(problem: Problem, limits: Mapping[str, Any]) -> list[RecomputeSpace]:
    """Return the spaces into which the plans fall by what their layers recompute.

    Where each layer recomputes by itself, any mixture is one space. Where a framework tells one setting for the whole plan, each
    setting that repeats something else is a space, and blocks of full recomputation (none and all layers included) are one.
    """
    framework, asked = problem.framework.limits, tuple(limits["recompute"])
    known = analytic.distinct_settings(problem.graph, framework.recompute)
    words = tuple(word for word in known if asked == RECOMPUTE or word in asked)
    if framework.recompute_scope == "layer":
        return [RecomputeSpace(words, blocks=False)]
    chain = chain_of(problem.graph)
    pinned = {problem.graph.ops[i].kind for i in (*chain.prefix, *chain.suffix)} - {"embedding", "head"}
    blocks = framework.block_recompute and {"none", "full"} <= set(words) and not limits["uniform"] and not pinned
    alike = [RecomputeSpace((word,), blocks=False) for word in words if not (blocks and word in ("none", "full"))]
    return ([RecomputeSpace(("none", "full"), blocks=True)] if blocks else []) + alike


def _divisors(number: int) -> list[int]:
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def meshes(problem: Problem, pool: CheckedPool, n_layers: int, limits: Mapping[str, Any]) -> Iterator[CheckedMesh]:
    """Yield every mesh of a pool: degrees that divide heads, experts and batch, on all of its devices or fewer.

    Parameters
    ----------
    problem : Problem
        The question.
    pool : CheckedPool
        The devices.
    n_layers : int
        Layers that stages are made of.
    limits : mapping
        The options of the search.
    """
    n, batch, framework = pool.n_devices, problem.batch.global_batch, problem.framework.limits
    limits = {**limits, **{axis: (1,) for axis in AXES if axis not in framework.degrees}}
    reference = any(operator.reference for op in problem.graph.ops for operator in op.body)
    if reference or (problem.graph.n_shared_parameters and not framework.tied_pipeline):
        limits["pipeline"] = (1,)
    if problem.graph.n_sequences > 1:
        limits["context"] = (1,)
    if not framework.sequence_parallel:  # a tensor degree splits norms along the sequence
        limits["tensor"] = (1,)
    heads = experts = 0
    for op in problem.graph.ops:
        for operator in op.body:
            heads = math.gcd(heads, operator.size("heads", 0))
            experts = math.gcd(experts, operator.size("experts", 0) if operator.expert else 0)
    context = [2**i for i in range(11) if 2**i <= min(n, max(1, problem.graph.sequence_length // _TOKENS_OF_A_CONTEXT_RANK))]
    micro = [problem.batch.micro_batch] if problem.batch.micro_batch else _usual_sizes(batch, problem.graph.n_tokens)
    fillings = host_fillings(problem)
    tensors = _given(limits["tensor"], [size for size in _divisors(heads or 1) if size <= min(n, _LARGEST_TENSOR)])
    contexts, micros = _given(limits["context"], context), _given(limits["micro_batch"], micro)
    every_expert = _given(limits["expert"], [size for size in _divisors(experts or 1) if size <= n])
    for tensor in tensors:
        for own in contexts:
            for data in _given(limits["data"], _divisors(batch)):
                size = tensor * own * data
                # where ranks run over the devices in order, none is left over before the last kind
                left_over = not framework.any_order and any(len(devices) % size for devices in pool.devices[:-1])
                most = 0 if batch % data or tensor * own > n or left_over else pool.n_ranks(size)
                first = max(1, most if len(pool.devices) > 1 else 1)  # with several kinds, as many ranks as there are
                pipelines = [p for p in range(first, min(most, n_layers) + 1) if fillings is None or p * size in fillings]
                allowed = [p for p in pipelines if not limits["pipeline"] or p in limits["pipeline"]]
                shares = [size for size in micros if (batch // data) % size == 0]
                for expert in every_expert:
                    whole = framework.experts_over_tensor and size % expert == 0 and expert % tensor == 0
                    if whole or data * own % expert == 0:
                        yield from (CheckedMesh(tensor, own, expert, share, data, p) for share in shares for p in allowed)


def _usual_sizes(batch: int, n_tokens: int) -> list[int]:
    """Return the micro-batches that are tried where none is asked for: small ones, and the first beyond where those end early."""
    found: list[int] = []
    for size in _divisors(batch):
        if size > _SAMPLES and size * n_tokens > _MOST_TOKENS:
            return found if 2 * found[-1] * n_tokens >= _MOST_TOKENS else [*found, size]
        found.append(size)
    return found


def _given(asked: tuple[int, ...], usual: list[int]) -> list[int]:
    """Return what is asked for, each once; else what is usual."""
    return list(dict.fromkeys(asked)) if asked else usual


def forms(mesh: CheckedMesh, n_microbatches: int, n_layers: int, limits: Mapping[str, Any]) -> Iterator[Form]:
    """Yield the schedules of a mesh: every stage needs a layer, virtual stages enough micro-batches, and pairs of tasks experts that
    are spread.
    """
    p = mesh.pipeline
    for schedule in dict.fromkeys(limits["schedules"]):
        every = [1]
        if (p == 1 and schedule != "1f1b") or (schedule in _PAIRED and mesh.expert == 1):
            continue
        if p > 1 and schedule in _IN_A_V:
            every = [2] if n_layers >= 2 * p and n_microbatches >= 2 * p else []
        elif p > 1 and schedule in _SEVERAL_STAGES:
            whole = [
                v for v in range(2, (n_layers + 2) // p + 1) if v <= 4 or 0 in (n_layers % (v * p), (n_layers + 2) % (v * p))
            ]
            every = whole if schedule == "looped_bfs" or n_microbatches % p == 0 else []
        yield from (Form(schedule, v) for v in every if not limits["uniform"] or n_layers % (p * v) == 0)


def strategies(problem: Problem, mesh: CheckedMesh, limits: Mapping[str, Any], n_kinds: int) -> Iterator[tuple[Strategy, str]]:
    """Yield every sharding, context exchange and offload of a mesh with every layout: ranks as blocks of neighbours (``pipeline``), or
    replicas (``data``).
    """
    cluster = problem.required_cluster
    base = Strategy(mesh.data, mesh.tensor, mesh.context, mesh.expert, mesh.tensor > 1)
    apart = mesh.pipeline > 1 and mesh.data > 1 and mesh.expert == 1 and n_kinds == 1
    framework = problem.framework.limits
    in_node = int((cluster.node_of_device == cluster.node_of_device[0]).sum()) // (mesh.tensor * mesh.context)
    levels = [level for level in dict.fromkeys(limits["shard"]) if level == 0 or mesh.data * mesh.context > 1] or [0]
    places = [place for place in dict.fromkeys(limits["offload"]) if place != "activations"] or ["none"]  # layers say these
    every = [(kind, place) for kind in exchanges(problem, mesh, limits) for place in places]
    for exchange, offload in every:
        own = exchanged(base, exchange, offload)
        for level in levels:
            hybrid = level == 3 and level in framework.hybrid_shards and 1 < in_node < mesh.data and mesh.data % in_node == 0
            for degree in (0, in_node) if hybrid else (0,):
                for layout in ("pipeline", "data") if apart and "data" in framework.layouts else ("pipeline",):
                    yield sharded(own, level, degree), layout


def exchanges(problem: Problem, mesh: CheckedMesh, limits: Mapping[str, Any]) -> list[str]:
    """Return how a mesh may exchange keys and values over its context axis; empty where none is legal for the model.

    Without a context axis that is told as a ring. By heads every device needs whole ones, of queries, keys and values. Gathered keys
    and values are part of the space where nothing is asked for and the framework has no ring, or where they are asked for. By heads
    and a ring at once needs more than one rank for each, and to be asked for.
    """
    if mesh.context == 1:
        return ["ring"]
    framework, cores = problem.framework.limits, _cores(problem.graph)
    known = list(framework.context_exchanges)
    if any(head != value for _, _, head, value, _ in cores):
        known = [kind for kind in known if kind in framework.latent_exchanges]
    if any(windowed for *_, windowed in cores):
        known = [kind for kind in known if kind in framework.window_exchanges]
    if limits["context_exchange"]:
        known = [kind for kind in dict.fromkeys(limits["context_exchange"]) if kind in known]
    else:
        known = [kind for kind in known if kind != "all_to_all+ring" and (kind != "all_gather" or "ring" not in known)]
    parts = [n for n in range(2, mesh.context + 1) if mesh.context % n == 0]
    whole = [n for n in parts if all(heads % (mesh.tensor * n) == keys % (mesh.tensor * n) == 0 for heads, keys, *_ in cores)]
    refused = {"all_to_all": mesh.context not in whole, "all_to_all+ring": not whole or mesh.context in whole}
    return [kind for kind in known if not refused.get(kind)]


def _cores(graph: Graph) -> set[tuple[int, int, int, int, bool]]:
    """Return heads, key heads and their sizes of every attention, and whether queries see fewer keys than there are."""
    found = set()
    for op in {op.like if op.like >= 0 else i: op for i, op in enumerate(graph.ops)}.values():  # like layers have like bodies
        for one in op.body:
            if one.kind in ("attention", "causal_attention"):
                heads, size = one.size("heads"), one.size("head")
                length = one.size("sequence")
                windowed = one.size("key_sequence", length) < length
                found.add((heads, one.size("kv_heads", heads), size, one.size("value", size), windowed))
    return found


def exchanged(base: Strategy, exchange: str, offload: str = "none") -> Strategy:
    """Return a strategy with another exchange over the context axis, and what lies on the host."""
    return Strategy(
        base.data,
        base.tensor,
        base.context,
        base.expert,
        base.sequence_parallel,
        base.shard,
        base.shard_degree,
        exchange,
        offload,
    )


def runnable(problem: Problem, mesh: CheckedMesh, limits: Mapping[str, Any], n_kinds: int) -> Iterator[tuple[Strategy, str]]:
    """Yield those of `strategies` whose degrees the framework runs beside each other."""
    for strategy, layout in strategies(problem, mesh, limits, n_kinds):
        if not problem.framework.limits.unpaired(strategy):
            yield strategy, layout


def sharded(base: Strategy, level: int, degree: int = 0) -> Strategy:
    """Return a strategy with another sharding."""
    degrees = (base.data, base.tensor, base.context, base.expert, base.sequence_parallel)
    return Strategy(*degrees, level, degree, base.context_exchange, base.offload)


def ranks_of(pool: CheckedPool, mesh: CheckedMesh, layout: str) -> tuple[list[NDArray[np.int64]], list[int]]:
    """Return the devices of every rank in mesh order, and its kind of device (its place in the pool)."""
    size, p = mesh.rank_size, mesh.pipeline
    if layout == "data":
        width = mesh.tensor * mesh.context
        block = pool.devices[0][: p * size].reshape(mesh.data, p, width)
        return [np.ascontiguousarray(block[:, i].ravel()) for i in range(p)], [0] * p
    found = [
        (own[i * size : (i + 1) * size], kind) for kind, own in enumerate(pool.devices) for i in range(len(own) // size)
    ][:p]  # fmt: skip
    return [devices for devices, _ in found], [kind for _, kind in found]


def even_counts(n_layers: int, n_stages: int) -> list[int]:
    """Return the layers of virtual stages: the quotient, what is left over first to middle stages in order, then to the ends."""
    quotient, rest = divmod(n_layers, n_stages)
    counts = [quotient] * n_stages
    for stage in [*range(1, n_stages - 1), *sorted({0, n_stages - 1})][:rest]:
        counts[stage] += 1
    return counts


def split_counts(chain: CheckedChain, form: Form, n_ranks: int, limits: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return every spread of the layers over virtual stages that is part of the space, the even one first.

    The last stage may have up to two layers fewer than in the even one, and then the first one fewer too, as long as a stage to
    which nothing is pinned keeps one; all other layers go to the stages between, the quotient to each and what is left over to the first of them.
    """
    even = even_counts(len(chain.layers), n_ranks * form.n_chunks)
    found = [tuple(even)]
    if form.n_chunks == 1 or limits["uniform"]:
        return found
    for first in (even[0], even[0] - 1):
        for last in range(even[-1], even[-1] - 3, -1):
            if last == even[-1]:
                continue
            if (first < even[0] and first < (not chain.prefix)) or last < (not chain.suffix):
                continue
            quotient, rest = divmod(len(chain.layers) - first - last, len(even) - 2)
            found.append((first, *[quotient + 1] * rest, *[quotient] * (len(even) - 2 - rest), last))
    return found
