"""PaSE (IPDPS 2021): planning times, optima, and the speed-ups over data parallelism."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from meshwright import clusters, published
from meshwright.base.errors import InputError
from meshwright.core.result import Answer
from meshwright.planners.pase import networks
from meshwright.planners.pase.answer import expert_splits
from meshwright.planners.pase.layer_costs import data_parallel_splits
from meshwright.planners.pase.on_cluster import step_seconds
from meshwright.published.claims import Case, Claim

__all__ = ["CASES"]

_GRAPHS = (("alexnet", "alexnet"), ("inception3", "inception"), ("rnnlm", "rnnlm"), ("transformer", "transformer"))
"""Graphs, and what the table of planning times calls them."""


def _answer(api: ModuleType, graph: str, n_processors: str, batch: str = "128", search: str = "pase") -> tuple[Answer, float]:
    """Return an answer in PaSE's cost model, and the CPU seconds it took."""
    settings = {"n_processors": n_processors, "batch": batch}
    started = time.process_time()
    answer: Answer = api.plan(f"pase:{graph}", search=search, costs="pase", settings=settings).answer
    return answer, time.process_time() - started


def _value(answer: Answer) -> float | None:
    return None if answer.objective is None else answer.objective.value


def planning_times(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the seconds of every graph and number of processors of the paper's table."""
    _answer(api, "alexnet", "4")  # the first call loads kernels
    for row in published.rows("pase/pase_paper_planning_seconds.csv"):
        for graph, column in _GRAPHS:
            answer, seconds = _answer(api, graph, row["p"])
            bound = answer.bound
            proof = "not proven" if bound is None else f"gap {abs(bound.gap_ratio(answer.objective)):.0e}"  # type: ignore[arg-type]
            note = f"proof: {proof}"
            yield Case(f"{graph}, {row['p']} processors", float(row[f"{column}_PaSE"]), None, seconds, note=note)


def optima(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the cost of the best strategy of every graph that the released program could solve."""
    for row in published.rows("pase/pase.csv"):
        if row["algo"] != "0" or row["status"] != "ok":
            continue
        answer, _ = _answer(api, row["graph"], row["p"], row["batch"])
        try:
            naive = _value(_answer(api, row["graph"], row["p"], row["batch"], "pase_naive")[0])
            note = f"by the paper's naive recurrence: {naive!r}"
        except InputError:
            note = ""  # its tables would be too large
        best = api.plan(f"pase:{row['graph']}", search="best", settings=None).answer if row["p"] == "8" else None
        yield Case(
            f"{row['graph']}, {row['p']} processors", float(row["best_cost"]), _value(answer), _value(answer),
            None if best is None else _value(best), None if answer.bound is None else answer.bound.value, note,
        )  # fmt: skip


_FIGURE_GRAPHS = MappingProxyType(
    {"AlexNet": "alexnet", "Inception": "inception3", "RNNLM": "rnnlm", "Transformer": "transformer"}
)
_MACHINES = MappingProxyType({"1080Ti": "gtx-1080-ti", "2080Ti": "rtx-2080-ti"})
_BATCH = MappingProxyType({"alexnet": 128, "inception3": 128, "rnnlm": 64, "transformer": 64})
"""Samples of a step in the paper's experiments."""


def _bars(gpu: str, strategy: str) -> Iterator[tuple[str, int, float]]:
    """Yield graph, processors and measured speed-up of the bars of one strategy."""
    for row in published.rows("pase/pase_paper_speedups.csv"):
        if row["gpu"] == gpu and row["strategy"] == strategy:
            yield _FIGURE_GRAPHS[row["model"]], int(row["p"]), float(row["speedup_over_dp_digitised_from_vector_pdf"])


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's correlation of two columns; equal values share the mean of their ranks."""
    columns = np.array(pairs).T
    ranks = [np.array([((column < one).sum() + (column <= one).sum()) / 2.0 for one in column]) for column in columns]
    return float(np.corrcoef(ranks)[0, 1])


def _gain_on_machine(gpu: str, graph: str, p: int, splits: Sequence[np.ndarray[Any, np.dtype[np.int64]]]) -> tuple[float, str]:
    """Return how many times quicker than data parallelism splits are on the machine by our costs, and both times in words."""
    network, cluster = networks.build(graph, _BATCH[graph]), clusters.cluster(f"{_MACHINES[gpu]}:{p}")
    plain = [data_parallel_splits(operator, p)[0] for operator in network.operators]
    theirs, ours = (step_seconds(network, one, cluster).step_seconds for one in (plain, splits))
    return theirs / ours, f"{theirs * 1e3:.3g} and {ours * 1e3:.3g} ms"


def figure_6(gpu: str) -> Callable[[Claim, ModuleType], Iterator[Case]]:
    """Return what yields the bars of one half of figure 6: as ratios of PaSE's costs, and of seconds on the machine.

    Parameters
    ----------
    gpu : str
        ``1080Ti`` or ``2080Ti``.
    """

    def cases(claim: Claim, api: ModuleType) -> Iterator[Case]:
        by_cost, by_seconds = [], []
        for graph, p, claimed in _bars(gpu, "PaSE"):
            answer, _ = _answer(api, graph, str(p), str(_BATCH[graph]))
            baselines, value, held = answer.extra["baselines"], _value(answer), answer.extra["shardings"]
            assert isinstance(baselines, dict) and isinstance(held, dict) and value is not None
            gain, note = _gain_on_machine(gpu, graph, p, [np.array(parts, dtype=np.int64) for parts in held.values()])
            by_cost.append((claimed, baselines["data_parallel"] / value))
            by_seconds.append((claimed, gain))
            yield Case(f"{graph}, {p} processors", claimed, by_cost[-1][1], gain, note=note)
        yield Case(
            "rank correlation (Spearman) of the bars above", None, _rank_correlation(by_cost), _rank_correlation(by_seconds)
        )

    return cases


def experts(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the bars of the experts' strategies of both machines, as ratios of seconds."""
    for gpu in _MACHINES:
        pairs = []
        for graph, p, claimed in _bars(gpu, "Expert"):
            splits = expert_splits(networks.build(graph, _BATCH[graph]), p)
            gain, note = _gain_on_machine(gpu, graph, p, splits)
            pairs.append((claimed, gain))
            yield Case(f"{graph}, {p} {gpu}", claimed, None, gain, note=note)
        yield Case(f"rank correlation (Spearman) of the bars of {gpu}", None, None, _rank_correlation(pairs))


CASES: Mapping[str, Callable[[Claim, ModuleType], Iterator[Case]]] = MappingProxyType(
    {
        "planning-times": planning_times,
        "optima": optima,
        "figure-6-1080ti": figure_6("1080Ti"),
        "figure-6-2080ti": figure_6("2080Ti"),
        "experts": experts,
    }
)
"""What computes each claim."""
