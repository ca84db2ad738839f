"""Piper (NeurIPS 2021): its figures and tables on its own inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType

from meshwright import published
from meshwright.base import options as _params
from meshwright.core.problem import ModelSpec, Stop
from meshwright.core.result import Answer
from meshwright.planners.piper import solve
from meshwright.planners.piper.costs.piper import evaluate
from meshwright.planners.piper.menu import Options
from meshwright.planners.piper.problem import PiperInstance
from meshwright.planners.piper.readers.piper_json import flat_cluster, with_limits
from meshwright.planners.piper.search import piper_equal_split
from meshwright.published.claims import Case, Claim, divided

__all__ = ["CASES"]

_GIB = 2.0**30
_VARIANTS = MappingProxyType({
    "noDP": ("no data parallelism", Options(exact=False, data_parallel=False)),
    "noTP": ("no tensor parallelism", Options(exact=False, tensor_parallel=False)),
    "noAR": ("no recomputation", Options(exact=False, recompute="never")),
})  # fmt: skip
_SPLITS = MappingProxyType({
    "equi": ("equal split", ()),
    "equi_noTP": ("equal split, no tensor parallelism", (("tensor_parallel", "false"),)),
})  # fmt: skip
_RESNET = tuple(
    (devices, memory)
    for devices, memories in (
        (8, (4, 8, 16)), (16, (1.5, 2, 4, 8, 16)), (32, (1.5, 2, 4, 8, 16)), (64, (1, 1.5, 2, 4, 8, 16)),
        (128, (1, 1.5, 2, 4, 8, 16)),
    )
    for memory in memories
)  # fmt: skip
"""Devices and their GiB in the table of ResNet, as the authors' program asks them; 7,680 samples, 25 GiB/s."""


def _spec(api: ModuleType, name: str) -> ModelSpec:
    """Return an input of the paper; ``bert96`` is BERT-32 grown."""
    grown = {"bert48": "#layers=48", "bert64": "#layers=64", "bert96": "#layers=96"}
    file = "bert32a100" if name in grown else name
    spec: ModelSpec = api.read(published.path(f"piper/{file}.json") + grown.get(name, ""))
    return spec


def _asked(spec: ModelSpec, row: Mapping[str, str]) -> ModelSpec:
    """Return an input with the limits of a row."""
    instance = spec.instance
    assert isinstance(instance, PiperInstance)
    n = row.get("mbsInBatch") or row["N"]
    limited = with_limits(
        instance, n_devices=int(row["maxDevices"]), n_microbatches=int(n), bandwidth=float(row["bandwidth"]),
        memory_bytes=float(row["memory"]),
    )  # fmt: skip
    return replace(spec, instance=limited, cluster=flat_cluster(limited))


def _solved(spec: ModelSpec, options: Options) -> tuple[float | None, float | None]:
    """Return the time of the best plan, None where nothing fits, and what is proven."""
    instance = spec.instance
    assert isinstance(instance, PiperInstance)
    solution = solve.solve(instance, options, nearly_ratio=0.0)
    return (evaluate(instance, solution.stages).seconds if solution.stages else None), solution.lower_seconds


def _split(api: ModuleType, spec: ModelSpec, row: Mapping[str, str], **more: str) -> float | None:
    """Return the time of the best equal split, None where none fits."""
    n = row.get("mbsInBatch") or row["N"]
    settings = {"max_devices": row["maxDevices"], "n_microbatches": n, "bandwidth": row["bandwidth"], "memory": row["memory"]}
    params = _params.parse(piper_equal_split.Params, settings | more, "search piper_equal_split")
    answer = piper_equal_split.search(api.make_problem(spec), params, seed=0, stop=Stop())
    return None if answer.objective is None else answer.objective.value


def _best(api: ModuleType, spec: ModelSpec) -> float | None:
    """Return what search best answers."""
    answer: Answer = api.plan(spec, search="best").answer
    return None if answer.objective is None else answer.objective.value


def _shown(row: Mapping[str, str]) -> str:
    return f"{row['maxDevices']} devices of {float(row['memory']) / _GIB:.3g} GiB, batch {row.get('mbsInBatch') or row['N']}"


def _rows(experiment: str, *variants: str, name: str = "") -> list[dict[str, str]]:
    """Return rows of the authors' program that have an answer, or are known to have none."""
    return [
        row
        for row in published.rows("piper/piper.csv")
        if row["experiment"] == experiment and row["variant"] in variants and name in ("", row["input"])
        and (row["objective_time_per_sample"] or row["infeasible"] == "1")
    ]  # fmt: skip


def _plans(experiment: str, name: str) -> Callable[[Claim, ModuleType], Iterator[Case]]:
    """Return what yields the time of Piper's plan for every row of an experiment."""

    def cases(claim: Claim, api: ModuleType) -> Iterator[Case]:
        spec = _spec(api, name)
        for row in _rows(experiment, "piper", name=name):
            asked = _asked(spec, row)
            claimed = float(row["objective_time_per_sample"]) if row["objective_time_per_sample"] else None
            greedy, _ = _solved(asked, Options(exact=False))
            exact, bound = _solved(asked, Options())
            note = "" if row["source"] == "algo.cpp" else "published value: an independent program's"
            note = "nothing fits, there and here" if claimed is None and exact is None else note
            best = None if exact is None else _best(api, asked)
            yield Case(_shown(row), claimed, greedy, exact, best, None if exact is None else bound, note)

    return cases


def figure_1_gains(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield how much slower the variants and equal splits are, of rows in which they fit."""
    spec = _spec(api, "bert32a100")
    of = {(row["variant"], row["maxDevices"], row["memory"]): row for row in _rows("plots", "piper", *_VARIANTS, *_SPLITS)}
    for (variant, devices, memory), row in of.items():
        whole = of.get(("piper", devices, memory))
        ample = float(memory) >= 8 * _GIB and int(devices) <= 1024
        if variant == "piper" or whole is None or not ample or not row["objective_time_per_sample"]:
            continue
        claimed = float(row["objective_time_per_sample"]) / float(whole["objective_time_per_sample"])
        asked = _asked(spec, row)
        ours, _ = _solved(asked, Options(exact=False))
        if variant in _VARIANTS:
            words, options = _VARIANTS[variant]
            other, _ = _solved(asked, options)
        else:
            words, more = _SPLITS[variant]
            other = _split(api, asked, row, **dict(more))
        yield Case(f"{words}, {_shown(row)}", claimed, divided(other, ours))


def figure_3(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield CPU seconds of planning."""
    for name in ("bert32a100", "bert96"):
        spec = _spec(api, name)
        for row in _rows("scalability", "piper", name=name):
            if row["mbsInBatch"] != "1920" or row["source"] != "algo.cpp":
                continue
            asked, seconds = _asked(spec, row), []
            for options in (Options(exact=False), Options()):
                started = time.process_time()
                _solved(asked, options)
                seconds.append(time.process_time() - started)
            note = "theirs was stopped there" if row["cpu_s"].startswith(">") else ""
            layers = "BERT-96" if name == "bert96" else "BERT-32"
            yield Case(
                f"{layers}, {row['maxDevices']} devices", float(row["cpu_s"].lstrip(">")), seconds[0], seconds[1], note=note
            )


def figure_4(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the given plans, and beside each the best plan of its question."""
    spec = _spec(api, "bert32a100")
    for row in published.rows("piper/piper_fixed_plans.csv"):
        asked = _asked(spec, row)
        fixed = {
            "recompute": "always" if row["recompute"] == "all" else "never", "stages": row["stages"], "data": row["d"],
            "separate": "true" if row["separate"] == "1" else "false", "tensor": row["t"],
        }  # fmt: skip
        exact, bound = _solved(asked, Options())
        name = f"{row['stages']} stages of {row['d']} x {row['t']} devices, batch {row['N']}"
        yield Case(name, float(row["objective"]), _split(api, asked, row, **fixed), exact, _best(api, asked), bound)


def resnet(claim: Claim, api: ModuleType) -> Iterator[Case]:
    """Yield the least and the largest gain over equal splits of ResNet's table."""
    spec, gains, n_nothing, n_split = _spec(api, "resnet"), [], 0, 0
    for devices, memory in _RESNET:
        row = {
            "maxDevices": str(devices), "mbsInBatch": "7680", "bandwidth": repr(25 * _GIB), "memory": repr(memory * _GIB)
        }  # fmt: skip
        asked = _asked(spec, row)
        ours, _ = _solved(asked, Options(exact=False))
        equal = None if ours is None else _split(api, asked, row, layers="true", tensor_parallel="false")
        n_nothing += ours is None
        n_split += ours is not None and equal is None
        found = divided(equal, ours)
        gains += [found] if found is not None else []
    note = f"{len(_RESNET)} questions: nothing fits in {n_nothing}, no equal split in {n_split} more"
    ends = (min(gains, default=math.nan), max(gains, default=math.nan))
    for (name, claimed), value in zip(claim.values.items(), ends, strict=True):
        yield Case(name, claimed, value, note=note)


CASES: Mapping[str, Callable[[Claim, ModuleType], Iterator[Case]]] = MappingProxyType(
    {
        "figure-1": _plans("plots", "bert32a100"),
        "figure-1-gains": figure_1_gains,
        "figure-2": _plans("parallel-devices", "bert32a100"),
        "figure-3": figure_3,
        "figure-4": figure_4,
        "gnmt": _plans("gnmt", "gnmt"),
        "resnet": resnet,
    }
)
"""What computes each claim."""
