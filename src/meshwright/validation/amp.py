"""AMP: GPT-2 on sixteen T4, or V100 and T4 mixed; a time of infinity means that the run failed for memory.

References
----------
.. [1] Li et al., "AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness", NeurIPS 2022, section 4; sizes
   and clusters as in the scripts published with it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from meshwright import topologies
from meshwright.cluster import Cluster, Links
from meshwright.errors import InputError
from meshwright.problem import Training
from meshwright.strategy import Strategy
from meshwright.validation._points import Point, Skipped, count
from meshwright.validation._programs import program
from meshwright.validation._runs import Run, gpt, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = ("experiment", "model", "gbs", "tp", "dp", "pp", "mbs", "layer_bounds", "amp_pred_s", "real_s")

LAYERS, BEFORE = 24, 3
"""Layers of the model, and modules before them in DeepSpeed's pipeline (a cast, the embedding, a transposition), which bounds count."""

OPTIMIZER_BYTES = 16
"""DeepSpeed's fp16 optimizer holds an fp32 copy of the gradients beside the fp32 weights and two moments."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row, and whether it failed for memory."""
    trained_by = program("megatron_deepspeed")
    graph = gpt("gpt2-24x1024", hidden=1024, layers=LAYERS, heads=16, sequence=1024, vocabulary=52256)
    homogeneous, mixed = topologies.cluster("g4dn-t4:16"), _mixed()
    found: list[Point | Skipped] = []
    for i, fields in enumerate(rows, 1):
        try:
            if "gpt" not in fields["model"].lower() and fields["model"].strip():
                raise InputError(f"the model '{fields['model']}' is not modelled; only GPT-2 is")
            text = fields["real_s"].strip().lower()
            measured = math.inf if text in ("inf", "infinity") else float(text)
            if not measured > 0.0:
                raise InputError(f"real_s is {text}; it must be above 0")
            experiment = fields["experiment"].lower()
            uneven = "het" in experiment and "model" not in experiment
            pipeline, batch = count(fields, "pp"), count(fields, "gbs")
            run = Run(
                graph, mixed if uneven else homogeneous, (Strategy(data=count(fields, "dp"), tensor=count(fields, "tp")),),
                pipeline=pipeline, layers_per_stage=_layers(fields["layer_bounds"], pipeline), micro_batch=count(fields, "mbs"),
                global_batch=batch, training=Training("fp16", gradient_bytes=2, optimizer_bytes=OPTIMIZER_BYTES),
                program=trained_by,
            )  # fmt: skip
            predicted = predict(run)
        except (InputError, ValueError) as error:
            found.append(Skipped(i, str(error)))
        else:
            ran = math.isfinite(measured)
            found.append(
                Point(
                    i,
                    measured,
                    predicted.seconds,
                    group=f"{experiment} {batch}",
                    fits=predicted.fits,
                    ran=ran,
                    device=predicted.device,
                )
            )
    return found


def _layers(text: str, pipeline: int) -> tuple[int, ...]:
    """Return the layers of each stage from the bounds of its modules; empty (even stages) where none are given."""
    bounds = [int(number) for number in re.findall(r"\d+", text)]
    if not bounds:
        return ()
    if len(bounds) == pipeline + 1 and bounds[0] == 0:
        before = BEFORE if bounds[-1] > LAYERS else 0
        inner = [min(max(bound - before, 0), LAYERS) for bound in bounds]
        inner[0], inner[-1] = 0, LAYERS
        return tuple(b - a for a, b in itertools.pairwise(inner))
    if len(bounds) == pipeline and sum(bounds) == LAYERS:
        return tuple(bounds)
    raise InputError(f"layer_bounds '{text}' are not the bounds of {pipeline} stages")


def _mixed() -> Cluster:
    """Three P3 nodes of four V100 each and a G4dn node of four T4 [1, section 4.2], joined by the network of the slower ones."""
    parts = (topologies.cluster("p3-v100:4"), topologies.cluster("g4dn-t4:4"))
    n_nodes, per_node = 4, 4
    n_devices = n_nodes * per_node
    kinds = tuple(part.kinds[0] for part in parts)
    node = np.arange(n_devices) // per_node
    devices = np.arange(n_devices)
    fast, slow, network = 20e9, 6e9, 1.2e9  # one NVLink pair or PCIe per device; 10 Gb/s per P3 node [1]
    rate = np.where(node < 3, fast, slow)
    inside = n_devices + node
    uplink = n_devices + np.arange(n_nodes)
    spine = np.full(n_nodes, n_devices + n_nodes)
    source = np.concatenate([devices, inside, uplink, spine])
    target = np.concatenate([inside, devices, spine, uplink])
    bandwidth = np.concatenate([rate, rate, np.full(n_nodes, network), np.full(n_nodes, network)])
    latency = np.concatenate([np.full(2 * n_devices, 4e-6), np.full(2 * n_nodes, 2e-5)])
    return Cluster(
        "p3-and-g4dn", kinds, (node == 3).astype(np.int64), n_nodes + 1, Links(source, target, bandwidth, latency),
        node.reshape(1, -1), forwards=False, launch_seconds=parts[0].launch_seconds, algorithms=parts[0].algorithms,
    )  # fmt: skip
