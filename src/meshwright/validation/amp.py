"""AMP: GPT-2 on sixteen T4, or V100 and T4 mixed; a time of infinity means that the run failed for memory.

References
----------
.. [1] Li et al., "AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness", NeurIPS 2022, section 4;
sizes
   and clusters as in the scripts published with it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright import clusters, frameworks, sim
from meshwright.base.errors import InputError
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._machines import Machine, machines
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Run, gpt, point, predict

__all__ = ["BUILT_IN", "COLUMNS", "points"]

BUILT_IN = False
"""No run of it comes with the package; who has them predicts them by these columns."""

COLUMNS = ("experiment", "model", "gbs", "tp", "dp", "pp", "mbs", "layer_bounds", "amp_pred_s", "real_s")

BEFORE = 3
"""Modules before the layers in DeepSpeed's pipeline (a cast, the embedding, a transposition), which bounds count."""

HEADS = 16
"""Of every size: the published scripts fix it."""

TRAINING = MixedPrecision("fp16", gradient_bytes=4, optimizer_bytes=10, loss_bytes=10, fragmentation_ratio=0.1)
"""20 bytes a weight, 4 of them the framework's copy of the gradients: it and its gradient in fp16; of DeepSpeed's fp16
optimizer the weight, two moments and the gradient in
fp32, which
is what is reduced (``fp32_allreduce`` in the published configuration). 14 bytes a logit: in fp16 of this micro-batch and of
the one before, which the pipeline's buffers hold, their gradient, the fp32 copy, and 4 for a second one that Megatron-LM 1.1.5
does not need: a margin, as nothing here is measured. The allocator of that time had no expandable segments: it held a tenth
more than the tensors (stages of Mist, allocated and reserved, 11 % in the mean)."""

CONTEXT_BYTES = 2.0 * 2**30
"""CUDA before 11.7 loads every kernel of PyTorch, Apex and DeepSpeed with the context, about 1 GiB; DeepSpeed's pipeline adds
an NCCL
communicator for each pair of stages to those of the tensor and data axes. Estimate."""

FAILED = ("inf", "infinity", "oom", "fail", "failed")
"""What a run that failed for memory has for a time."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row, and whether it failed for memory."""
    homogeneous, mixed = (_with_context(cluster) for cluster in (clusters.cluster("g4dn-t4:16"), _mixed()))
    graphs: dict[str, Graph] = {}
    run_by = frameworks.variant("megatron_deepspeed", "")
    return [_point(i, fields, homogeneous, mixed, graphs, run_by) for i, fields in enumerate(rows, 1)]


def _point(
    row: int, fields: Mapping[str, str], homogeneous: Cluster, mixed: Cluster, graphs: dict[str, Graph], run_by: Framework
) -> Point | Skipped:
    try:
        measured = math.inf if fields["real_s"].strip().lower() in FAILED else ratio(fields, "real_s")
        name, experiment = fields["model"], fields["experiment"].lower()
        if name not in graphs:
            graphs[name] = _graph(name)
        cluster = mixed if "het" in experiment and "model" not in experiment else homogeneous
        pipeline, batch = count(fields, "pp"), count(fields, "gbs")
        n_layers = len(graphs[name].ops) - 2
        run = Run(
            graphs[name], cluster, (Strategy(data=count(fields, "dp"), tensor=count(fields, "tp")),),
            pipeline=pipeline, layers_per_stage=_layers(fields["layer_bounds"], pipeline, n_layers),
            micro_batch=count(fields, "mbs"), global_batch=batch, training=TRAINING, framework=run_by,
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    # which node of a mixed cluster runs which stage is not told: every stage has to fit the smallest device
    fits = predicted.reserved_bytes <= sim.free_bytes(cluster.kinds)
    return point(row, measured, predicted, group=f"{experiment} {name} {batch}", fits=fits, ran=math.isfinite(measured))


def _with_context(cluster: Cluster) -> Cluster:
    """Return a cluster with what a process of that time held on every device."""
    return replace(cluster, kinds=tuple(replace(kind, reserved_bytes=CONTEXT_BYTES) for kind in cluster.kinds))


def _graph(model: str) -> Graph:
    """Return a model by its name in the set; GPT-2 stands for the size in the published scripts, 24 layers of 1,024."""
    sizes = {
        "": (1024, 24),
        "gpt": (1024, 24),
        "gpt2": (1024, 24),
        "gpt2medium": (1024, 24),
        "gpt2large": (1280, 36),
        "gpt2xl": (1600, 48),
    }
    word = re.sub(r"[^a-z0-9]", "", model.lower())
    if word not in sizes:
        known = ", ".join(name for name in sizes if name)
        raise InputError(f"the model '{model}' is not modelled; there are: {known}")
    hidden, layers = sizes[word]
    return gpt(f"gpt2-{layers}x{hidden}", hidden=hidden, layers=layers, heads=HEADS, sequence=1024, vocabulary=52256)


def _layers(text: str, pipeline: int, n_layers: int) -> tuple[int, ...]:
    """Return the layers of each stage from the bounds of its modules, or from its layers; empty (even stages) where none are
    given.
    """
    bounds = [int(float(number)) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    if not bounds:
        return ()
    if len(bounds) == pipeline and sum(bounds) == n_layers:
        return tuple(bounds)
    if len(bounds) == pipeline and bounds[-1] >= n_layers:
        bounds = [0, *bounds]  # ends only
    if len(bounds) == pipeline + 1 and bounds[0] == 0 and bounds == sorted(bounds) and bounds[-1] >= n_layers:
        before = BEFORE if bounds[-1] > n_layers else 0
        inner = [min(max(bound - before, 0), n_layers) for bound in bounds]
        inner[0], inner[-1] = 0, n_layers
        return tuple(b - a for a, b in itertools.pairwise(inner))
    raise InputError(f"layer_bounds '{text}' are not the bounds of {pipeline} stages of {n_layers} layers")


def _mixed() -> Cluster:
    """Three P3 nodes of four V100 each and a G4dn node of four T4 [1, section 4.2], joined by the network of the slower ones."""  # noqa: E501
    volta, turing = (clusters.cluster(name).kinds[0] for name in ("p3-v100:4", "g4dn-t4:4"))
    # one NVLink pair or PCIe per device; 10 Gb/s per P3 node [1]
    return machines("p3-and-g4dn", (*(Machine(volta, 4, 20e9),) * 3, Machine(turing, 4, 6e9)), 1.2e9)
