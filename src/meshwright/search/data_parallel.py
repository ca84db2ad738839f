"""Data parallelism: every device a replica, the batch split over all; the baseline of every paper."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from meshwright.base import registry
from meshwright.core.problem import Problem, Stop
from meshwright.core.result import Answer

__all__ = ["FROZEN", "STATES", "STOPS_EARLY", "Params", "search"]

FROZEN = STATES = True

STOPS_EARLY = True


@dataclass(frozen=True, slots=True)
class Params:
    """Options of published graphs, handed on to the search that reads them; other models have nothing to set.

    Parameters
    ----------
    n_processors : int
        Devices; 0 for the cluster's, or 8 where there is none.
    batch : int
        Samples per step; 0 for ``--global-batch``, or 128.
    model : int
        Scales every hidden width by ``model / 128`` (the published program ignores it).
    flops : float
        FLOP/s of one device. A bare number below a million is in TFLOP/s, the unit of the published program.
    bandwidth : float
        Bytes per second of one device. A bare number below a million is in GB/s, the unit of the published program.
    """

    n_processors: int = field(default=0, metadata={"minimum": 1})
    batch: int = field(default=0, metadata={"minimum": 1})
    model: int = field(default=128, metadata={"minimum": 1})
    flops: float = field(default=10e12, metadata={"unit": "flops_per_second"})
    bandwidth: float = field(default=16e9, metadata={"unit": "bytes_per_second"})


def search(problem: Problem, params: Params, *, seed: int, stop: Stop) -> Answer:
    """Return the plan that splits only the batch, over all devices.

    Parameters
    ----------
    problem : Problem
        A model of ours on a cluster, or a published graph whose search offers ``data_parallel(problem, settings, stop)``.
    params : Params
        Options of published graphs.
    seed : int
        Not used: deterministic.
    stop : Stop
        As in search best; not used for published graphs, where there is nothing to choose.

    Returns
    -------
    Answer
        The plan and its cost, without a bound: no plan of another kind was looked for.

    Raises
    ------
    InputError
        When the devices do not divide the batch, or options are given that the model has not.
    """
    asked = registry.load("search", problem.model_spec.search, "search")
    if not hasattr(asked, "data_parallel"):
        asked = registry.load("search", "best", "search")
    given = {option.name: getattr(params, option.name) for option in fields(params)}
    settings = {name: value for name, value in given.items() if value != getattr(Params(), name)}
    answer: Answer = asked.data_parallel(problem, settings, stop)
    return answer
