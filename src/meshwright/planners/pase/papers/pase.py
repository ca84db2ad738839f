"""PaSE (IPDPS 2021): planning times, optima, and the speed-ups over data parallelism."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, ModuleType

import numpy as np

from meshwright import published
from meshwright.base.errors import InputError
from meshwright.core.result import Answer
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
            note = f"in the published breadth-first order: {naive!r}"
        except InputError:
            note = ""  # offered on paths only: it counts operators twice where branches meet
        best = api.plan(f"pase:{row['graph']}", search="best", settings=None).answer if row["p"] == "8" else None
        yield Case(
            f"{row['graph']}, {row['p']} processors", float(row["best_cost"]), _value(answer), _value(answer),
            None if best is None else _value(best), None if answer.bound is None else answer.bound.value, note,
        )  # fmt: skip


def figure_6(gpu: str) -> Callable[[Claim, ModuleType], Iterator[Case]]:
    """Return what yields the bars of one half of figure 6, as ratios of costs.

    Parameters
    ----------
    gpu : str
        ``1080Ti`` or ``2080Ti``.
    """
    graphs = {"AlexNet": "alexnet", "Inception": "inception3", "RNNLM": "rnnlm", "Transformer": "transformer"}

    def cases(claim: Claim, api: ModuleType) -> Iterator[Case]:
        pairs = []
        for row in published.rows("pase/pase_paper_speedups.csv"):
            if row["gpu"] != gpu or row["strategy"] != "PaSE":
                continue
            answer, _ = _answer(api, graphs[row["model"]], row["p"])
            baselines, value = answer.extra["baselines"], _value(answer)
            assert isinstance(baselines, dict) and value is not None
            bound, claimed = answer.bound, float(row["speedup_over_dp_digitised_from_vector_pdf"])
            pairs.append((claimed, baselines["data_parallel"] / value))
            yield Case(
                f"{row['model']}, {row['p']} processors", claimed, pairs[-1][1], pairs[-1][1], None,
                None if bound is None or not bound.value else baselines["data_parallel"] / bound.value,
                "a ratio of costs, beside measured seconds",
            )  # fmt: skip
        ranks = np.argsort(np.argsort(np.array(pairs), axis=0), axis=0)
        related = np.asarray(np.corrcoef(ranks.T))
        yield Case("rank correlation (Spearman) of the bars above", None, float(related[0, 1]))

    return cases


CASES: Mapping[str, Callable[[Claim, ModuleType], Iterator[Case]]] = MappingProxyType(
    {
        "planning-times": planning_times,
        "optima": optima,
        "figure-6-1080ti": figure_6("1080Ti"),
        "figure-6-2080ti": figure_6("2080Ti"),
    }
)
"""What computes each claim."""
