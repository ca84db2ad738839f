"""Sailor: OPT-350M and GPT-Neo-2.7B on GH200 nodes and on unlike workstations, 1F1B with uneven stages; seconds and largest memory."""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.clusters import wires
from meshwright.core.cluster import Cluster
from meshwright.core.graph import Graph
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.validation._machines import Machine, machines
from meshwright.validation._points import Point, Skipped, count, counts, ratio
from meshwright.validation._runs import Clusters, Run, clusters, gpt, point, predict

__all__ = ["COLUMNS", "points"]

COLUMNS = (
    "file",
    "gpu_types",
    "nodes",
    "pp",
    "layers_per_stage",
    "dp",
    "tp",
    "mbs",
    "gbs",
    "real_iter_s",
    "grad_reduce_s",
    "max_mem_bytes",
)

TRAINING = MixedPrecision("tf32", activation_bytes=4, weight_bytes=4, gradient_bytes=4, optimizer_bytes=8)
"""The set does not tell the precision; its memory column is that of four-byte activations without drop-out, hence this reading."""  # noqa: E501

SINGLE = replace(TRAINING, precision="fp32")
"""On the workstations, whose older kinds have no tf32."""

WORKSTATIONS = (("RTX-2080", "rtx-2080-ti-11gb"), ("RTX-3090", "rtx-3090-24gb"), ("Titan-RTX", "titan-rtx-24gb"))
"""Devices of the unlike machines: name in the set, name in ours."""

ETHERNET_BYTES_PER_SECOND = 0.105e9
"""Between the unlike machines: gigabit Ethernet, whose TCP carries 0.94 of 125 MB/s at most; the set's own column of gradient reduction
says 97 to 105 MB/s wherever no machine waits for another."""  # noqa: E501

HOST_BYTES_PER_SECOND = 2.2e9
"""Between the devices of one such machine: no direct copies, everything goes through the host, at the rate of g5-a10g (its data file)."""  # noqa: E501

SAID = "the set does not tell which machine runs which stage: kinds of device taken in the order it names them, again from the first"  # noqa: E501
"""What a row on unlike machines says about itself."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds and memory of every row; the set's memory is what nvidia-smi showed, context included."""  # noqa: E501
    place, trained_by = clusters(), frameworks.variant("megatron_deepspeed", "fp32")
    return [_point(i, fields, place, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        measured, held = ratio(fields, "real_iter_s"), ratio(fields, "max_mem_bytes")
        tensor, pipeline, batch = count(fields, "tp"), count(fields, "pp"), count(fields, "gbs")
        degrees = set(counts(fields, "dp"))
        if len(degrees) != 1:
            raise InputError("stages of different data degrees are not modelled")
        data = degrees.pop()
        stages = counts(fields, "layers_per_stage")
        for end in (0, -1):
            stages[end] -= 1  # the set counts the embedding and the head as layers
        graph = _graph(sum(stages))
        gpus = data * tensor * pipeline
        unlike = fields["gpu_types"] != "GH-96"
        cluster = _workstations(fields["gpu_types"], gpus // tensor, tensor) if unlike else place(f"alps-gh200:{max(4, gpus)}")
        run = Run(
            graph, cluster, (Strategy(data, tensor),), pipeline=pipeline, layers_per_stage=tuple(stages),
            micro_batch=count(fields, "mbs"), global_batch=batch, training=SINGLE if unlike else TRAINING, framework=trained_by,
        )  # fmt: skip
        predicted = predict(run)
    except InputError as error:
        return Skipped(row, str(error))
    return point(
        row,
        measured,
        predicted,
        held_bytes=held,
        group=f"{graph.name} {gpus} {batch}",
        note=SAID if unlike and pipeline > 1 else "",
    )


def _workstations(kinds: str, n_machines: int, n_devices: int) -> Cluster:
    """Return unlike machines of so many devices each, on one Ethernet switch; Sailor's plans keep the tensor axis inside one."""  # noqa: E501
    known, found = dict(WORKSTATIONS), []
    for kind in kinds.split("+"):
        if kind not in known:
            raise InputError(f"gpu_types is '{kinds}'; known are GH-96 and, with + between them, {', '.join(known)}")
        found.append(Machine(wires.device(known[kind]), n_devices, HOST_BYTES_PER_SECOND))
    nodes = [found[i % len(found)] for i in range(n_machines)]
    return machines(f"workstations of {kinds}", nodes, ETHERNET_BYTES_PER_SECOND)


def _graph(n_layers: int) -> Graph:
    """Return the model of a row, attention not fused, without drop-out: the number of layers tells which of the two."""
    if n_layers == 24:
        return gpt(
            "opt-350m", hidden=1024, layers=24, heads=16, sequence=2048, vocabulary=50272, resid_pdrop=0.0, attn_pdrop=0.0
        )
    if n_layers == 32:
        return gpt(
            "gpt-neo-2.7b", hidden=2560, layers=32, heads=20, sequence=2048, vocabulary=50257, resid_pdrop=0.0, attn_pdrop=0.0
        )
    raise InputError(f"layers_per_stage add up to {n_layers + 2}; known are 26 (OPT-350M) and 34 (GPT-Neo-2.7B)")
