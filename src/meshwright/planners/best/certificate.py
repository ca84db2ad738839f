"""The certificate of an answer: which sets of meshes the search closed by which bound, at which value. The check proves them anew."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from meshwright.core.problem import Framework, Problem
from meshwright.planners.best.layer_sums import chain_of
from meshwright.planners.best.limits import Limits, runnable
from meshwright.planners.best.question import Exchanges
from meshwright.planners.best.space import Config, DevicePool, MeshDegrees, schedules_of, spreads_of

__all__ = ["FORMAT", "Counts", "Record", "certificate", "question"]

FORMAT = "meshwright/certificate/best/1"

_ROUNDING = 1e-9
_BY = ("peak", "compute", "communication")


class Record:
    """What a search found of meshes as a whole, in order of work: peak of devices, compute of layers, communication inside them."""

    def __init__(self) -> None:
        self.bounds: dict[tuple[int, MeshDegrees], tuple[float, ...]] = {}
        self.illegal: dict[tuple[int, MeshDegrees], None] = {}

    def bound(self, pool: int, mesh: MeshDegrees, seconds: float) -> None:
        """Keep the next bound of a mesh."""
        self.bounds[pool, mesh] = (*self.bounds.get((pool, mesh), ()), seconds)


def question(problem: Problem, params: Limits) -> dict[str, Any]:
    """Return the question that a search answered, JSON-ready: all that decides its space and its prices but model and cluster.

    Parameters
    ----------
    problem : Problem
        The question, its batch decided.
    params : Limits
        What may be fixed.
    """
    usual = asdict(Framework())
    return {
        "global_batch": problem.batch.global_batch,
        "micro_batch": problem.batch.micro_batch,
        "sequence_length": problem.graph.sequence_length,
        "training": asdict(problem.training),
        "framework": {name: value for name, value in asdict(problem.framework).items() if value != usual[name]},
        "limits": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(params).items()
            if name not in ("within_ratio", "alternatives")  # which plans are shown, not which there are
            and (name, value) != ("offload", ("none",))  # as before there was a choice
        },
    }


def certificate(
    problem: Problem,
    params: Limits,
    pools: list[DevicePool],
    record: Record,
    n_layers: int,
    bound_seconds: float,
    exchanges: Exchanges | None = None,
) -> dict[str, Any]:
    """Return the certificate of a bound, JSON-ready.

    Parameters
    ----------
    problem : Problem
        The question, its batch decided.
    params : Limits
        What may be fixed.
    pools : list of DevicePool
        Devices, in the order of the record.
    record : Record
        What the search found of every mesh.
    n_layers : int
        Layers that stages are made of.
    bound_seconds : float
        What no plan stays below; inf where nothing fits.
    exchanges : Exchanges or None
        Which context exchanges meshes have; None for what `params` say.

    Returns
    -------
    dict
        ``question``, ``bound_seconds`` (None where nothing fits), and ``sets``: every mesh of the space lies in one. A set is the meshes
        of a pool of one tensor, context and expert degree and micro-batch that are closed by the same: ``illegal``; ``peak``,
        ``compute`` or ``communication`` of the mesh as a whole, with the least ``seconds`` of them; else each of its
        ``configurations``, at the bound of the answer; or ``memory`` where nothing fits.
    """
    limit, chain = bound_seconds * (1.0 - _ROUNDING), chain_of(problem.graph)
    counts = Counts(problem, params, n_layers, (bool(chain.prefix), bool(chain.suffix)))
    exchanges = exchanges or Exchanges(problem, params.context_exchange, params.state_offloads)
    sets: dict[tuple[int, int, int, int, int, str], list[Any]] = {}
    for pool, mesh in record.illegal:
        sets.setdefault((pool, *_shape(mesh), "illegal"), [0, math.inf, 0])[0] += 1
    for (pool, mesh), bounds in record.bounds.items():
        closed = [(by, seconds) for by, seconds in zip(_BY, bounds, strict=False) if seconds >= limit]
        by, seconds = closed[0] if closed else ("configurations" if math.isfinite(bound_seconds) else "memory", bound_seconds)
        own = sets.setdefault((pool, *_shape(mesh), by), [0, math.inf, 0])
        own[0] += 1
        own[1] = min(own[1], seconds)
        own[2] += 0 if closed else counts.of(pools[pool], mesh, exchanges.of(mesh))
    names = ("pool", "tensor", "context", "expert", "micro_batch", "by")
    return {
        "format": FORMAT,
        "question": question(problem, params),
        "bound_seconds": bound_seconds if math.isfinite(bound_seconds) else None,
        "sets": [
            dict(zip(names, key, strict=True))
            | {"n_meshes": n_meshes}
            | ({"seconds": seconds} if math.isfinite(seconds) else {})
            | ({"n_configurations": n_configurations} if key[-1] in ("configurations", "memory") else {})
            for key, (n_meshes, seconds, n_configurations) in sorted(sets.items())
        ],
    }


def _shape(mesh: MeshDegrees) -> tuple[int, int, int, int]:
    return mesh.tensor, mesh.context, mesh.expert, mesh.micro_batch


class Counts:
    """How many configurations meshes fall into, each of the two factors worked out once for all meshes that share it.

    Lemma: a mesh has as many as forms (schedules and spreads of the layers over virtual stages) times variants (shardings, layouts,
    exchanges, offloads). Forms depend on its pipeline degree, number of micro-batches and whether experts are spread only (`schedules_of`, `spreads_of`),
    variants on how many kinds of device the pool has, on the exchanges, whether there is a pipeline, and all degrees but that (`runnable`).

    Parameters
    ----------
    problem, params
        The question, and what may be fixed.
    n_layers : int
        Layers that stages are made of.
    pinned : tuple of bool
        Whether something is pinned to the first and to the last stage.
    """

    def __init__(self, problem: Problem, params: Limits, n_layers: int, pinned: tuple[bool, bool]) -> None:
        self._problem, self._params, self._n_layers, self._pinned = problem, params, n_layers, pinned
        self._forms: dict[tuple[int, int, bool], int] = {}
        self._variants: dict[tuple[object, ...], int] = {}

    def of(self, pool: DevicePool, mesh: MeshDegrees, exchanges: tuple[str, ...]) -> int:
        """Return how many configurations a mesh of a pool falls into."""
        n_microbatches = self._problem.batch.global_batch // (mesh.data * mesh.micro_batch)
        form = (mesh.pipeline, n_microbatches, mesh.expert > 1)
        if form not in self._forms:
            self._forms[form] = self._n_forms(mesh, n_microbatches)
        degrees = (mesh.data, mesh.context, mesh.tensor, mesh.expert)
        variant = (len(pool.devices), mesh.pipeline > 1, degrees, exchanges)
        if variant not in self._variants:
            config = Config(mesh, 0, 0, "1f1b", 1, "")
            every = runnable(config, self._problem, pool, self._params.shard, exchanges, self._params.state_offloads)
            self._variants[variant] = len(every)
        return self._forms[form] * self._variants[variant]

    def _n_forms(self, mesh: MeshDegrees, n_microbatches: int) -> int:
        """Return how many schedules and spreads of the layers a mesh has."""
        n_layers, n_ranks = self._n_layers, mesh.pipeline
        every = [chunks for _, chunks in schedules_of(mesh, n_microbatches, n_layers, self._params.schedules)]
        if self._params.uniform:
            return sum(n_layers % (n_ranks * chunks) == 0 for chunks in every)
        return sum(len(spreads_of(n_layers, n_ranks, chunks, self._pinned)) for chunks in every)
