"""Korthikanti et al.: activation memory of a layer by technique, in percent of none, and GiB per device.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198, Figs. 1 and 7,
   Table 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import MixedPrecision, ModelSpec, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.validation._points import Point, Skipped, ratio
from meshwright.validation._runs import clusters, gpt

__all__ = ["COLUMNS", "points"]

COLUMNS = ("model", "mode", "value_pct_or_GiB")

TENSOR = 8
"""Tensor degree of every model [1, Table 3]."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A row of Table 3 of [1]: sizes, pipeline degree, virtual stages and micro-batch."""

    hidden: int
    heads: int
    n_layers: int
    pipeline: int
    virtual: int
    micro_batch: int

    @property
    def in_flight(self) -> float:
        """Activations of the first pipeline rank in units of all of the model's layers [1, section 4.2.3]."""
        return 1.0 + (self.pipeline - 1) / (self.pipeline * self.virtual) if self.virtual > 1 else 1.0


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted memory of every row; percentages are compared as such."""
    models = {
        "megatron-22B": _Model(6144, 64, 48, 1, 1, 4),
        "gpt3-175B": _Model(12288, 96, 96, 8, 3, 1),
        "turing-530B": _Model(20480, 128, 105, 35, 3, 1),
        "megatron-1T": _Model(25600, 160, 128, 64, 1, 1),
    }
    cluster = clusters()(f"dgx-a100:{TENSOR}")
    priced: dict[str, dict[str, StageCost]] = {}
    found: list[Point | Skipped] = []
    for i, fields in enumerate(rows, 1):
        try:
            measured, name = ratio(fields, "value_pct_or_GiB"), fields["model"]
            if name not in models:
                raise InputError(f"no model called '{name}' is in the paper's table")
            if name not in priced:
                model = models[name]
                graph = gpt(name, hidden=model.hidden, layers=2, heads=model.heads, sequence=2048, vocabulary=51200)
                problem = Problem(
                    ModelSpec(name, "validation", name, graph),
                    cluster,
                    training=MixedPrecision("fp16", fragmentation_ratio=0.0),
                )
                priced[name] = _layer(problem, graph, model.micro_batch)
            predicted, unit = _predicted(fields["mode"], priced[name], models[name])
        except InputError as error:
            found.append(Skipped(i, str(error)))
        else:
            found.append(Point(i, 0.0, 0.0, measured * unit, predicted * unit))
    return found


def _layer(problem: Problem, graph: Graph, micro_batch: int) -> dict[str, StageCost]:
    """Return the load of one layer by technique, as the figure names them."""
    row = next(i for i, op in enumerate(graph.ops) if op.kind not in ("embedding", "head"))
    plain = analytic.row_costs(problem, Strategy(tensor=TENSOR), range(TENSOR), micro_batch)
    split = analytic.row_costs(problem, Strategy(tensor=TENSOR, sequence_parallel=True), range(TENSOR), micro_batch)
    return {
        "none": plain[row, "none"], "seq": split[row, "none"], "sel": plain[row, "selective"],
        "seqsel": split[row, "selective"],
        "full": plain[row, "full"],
    }  # fmt: skip


def _predicted(mode: str, layer: dict[str, StageCost], model: _Model) -> tuple[float, float]:
    """Return our figure and its unit: percent of none (1), or GiB (2**30 bytes)."""
    gib = 2.0**30
    if mode in layer:
        return 100.0 * layer[mode].activation_bytes / layer["none"].activation_bytes, 1.0
    if mode == "fig1_param_opt_GiB":
        return layer["none"].static_bytes * model.n_layers / model.pipeline / gib, gib
    technique = mode.removeprefix("fig1_act_").removesuffix("_GiB")
    if technique not in layer:
        raise InputError(f"mode '{mode}' is not one of the paper's figures")
    return layer[technique].activation_bytes * model.n_layers * model.in_flight / gib, gib
