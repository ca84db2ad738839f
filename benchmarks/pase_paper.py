"""PaSE's evaluation again: optima, proofs and planning time on its five graphs, and on graphs that it could not solve.

Run: ``python benchmarks/pase_paper.py [--large]``. CPU seconds of the second call (kernels compiled, imports done); the paper's
seconds are those of its table of planning times. ``--large`` adds 1024 processors, memory limits
and models of ours on device meshes.
"""

from __future__ import annotations

import csv
import pathlib
import resource
import sys
import time

from meshwright import api
from meshwright.core.problem import Batch

TABLE = pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference" / "pase" / "pase_paper_planning_seconds.csv"
"""The paper's planning times: a row for each number of processors, columns ``GRAPH_PaSE``."""


def paper_seconds() -> dict[tuple[str, int], float]:
    """Return the paper's seconds by graph and number of processors."""
    columns = {"alexnet": "alexnet", "inception3": "inception", "rnnlm": "rnnlm", "transformer": "transformer"}
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(graph, int(row["p"])): float(row[f"{name}_PaSE"]) for graph, name in columns.items() for row in rows}


def timed(model: str, place: str | None = None, batch: int = 0, **settings: str):
    """Plan twice; return the second result and its CPU seconds."""
    for _ in range(2):
        started = time.process_time()
        result = api.plan(model, place, search="pase", batch=Batch(global_batch=batch), settings=settings)
    return result, time.process_time() - started


def published(graphs: tuple[tuple[str, int], ...]) -> None:
    """Print one line for each of PaSE's graphs."""
    print(f"{'graph':12s} {'p':>5s} {'labels':>7s} {'optimum':>20s} {'gap':>8s} {'proof':12s} {'CPU s':>7s} {'paper s':>8s}"
          f" {'vs data parallel':>17s} {'vs one weird trick':>19s}")  # fmt: skip
    seconds_of_paper = paper_seconds()
    for graph, p in graphs:
        result, seconds = timed(f"pase:{graph}", n_processors=str(p))
        answer = result.answer
        value, base = answer.objective.value, answer.extra["baselines"]
        trick = f"{base['one_weird_trick'] / value:.2f}x" if "one_weird_trick" in base else "-"
        paper = seconds_of_paper.get((graph, p), "-")
        gap = abs(answer.bound.gap_ratio(answer.objective))
        print(
            f"{graph:12s} {p:5d} {answer.extra['n_configurations']:7d} {value:20.2f} {gap:8.1e} {answer.bound.method:12s} "
            f"{seconds:7.3f} {paper!s:>8s} {base['data_parallel'] / value:16.2f}x {trick:>19s}"
        )


def limited() -> None:
    """Print optima under a memory limit."""
    print(f"\n{'graph':12s} {'p':>5s} {'limit':>10s} {'optimum':>20s} {'gap':>8s} {'proof':16s} {'CPU s':>7s}")
    for graph, p, memory in (("alexnet", 32, "57.1 MB"), ("rnnlm", 16, "2.86 GB"), ("inception3", 8, "1.6929 GB"),
                             ("resnet101", 8, "3.23 GB"), ("transformer", 8, "6.133 GB")):  # fmt: skip
        started = time.process_time()
        answer = api.plan(f"pase:{graph}", settings={"n_processors": str(p), "memory": memory}).answer
        seconds = time.process_time() - started
        print(f"{graph:12s} {p:5d} {memory:>10s} {answer.objective.value:20.2f} {answer.bound.gap_ratio(answer.objective):8.1e}"
              f" {answer.bound.method:16s} {seconds:7.2f}")  # fmt: skip


def ours() -> None:
    """Print shardings of models of ours on device meshes."""
    print(
        f"\n{'model':16s} {'cluster':14s} {'batch':>5s} {'operators':>9s} {'step':>8s} {'simulated':>9s} {'gap':>8s} "
        f"{'proof':14s} {'CPU s':>7s}"
    )
    for model, place, batch in (
        ("gpt3-175b", "dgx-h100:64", 64),
        ("gpt3-175b", "dgx-a100:256", 256),
        ("llama-3.1-8b", "dgx-h100:64", 64),
        ("llama-3.1-70b", "dgx-h100:64", 64),
        ("mixtral-8x7b", "dgx-h100:64", 128),
    ):
        result, seconds = timed(model, place, batch)
        answer = result.answer
        simulated = f"{result.timeline.step_seconds:9.3f}" if result.timeline is not None else "-"
        print(f"{model:16s} {place:14s} {batch:5d} {len(answer.extra['operators']):9d} {answer.objective.value:8.3f} "
              f"{simulated:>9s}"
              f" {answer.bound.gap_ratio(answer.objective):8.1e} {answer.bound.method:14s} {seconds:7.2f}")  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    graphs = tuple(
        (graph, p) for graph in ("alexnet", "rnnlm", "resnet101", "inception3", "transformer") for p in (4, 16, 32, 64)
    )
    published(graphs)
    if "--large" in sys.argv:
        published((("transformer", 256), ("transformer", 1024)))
        print(f"peak memory so far: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
        limited()
        ours()


if __name__ == "__main__":
    main()
