"""Megatron-Bridge: tokens per second and device of dense and mixture models on H100 to GB300, by release."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.models.readers import huggingface
from meshwright.validation._completed import least_recomputed
from meshwright.validation._domains import rack, racks
from meshwright.validation._points import Point, Skipped, count, ratio
from meshwright.validation._runs import Clusters, Predicted, Run, built_in, clusters, point

__all__ = ["COLUMNS", "points"]

COLUMNS = ("release", "section", "model", "system", "n_gpus", "precision", "gbs", "mbs", "sequence_length", "tp", "pp", "cp", "vp", "ep",  # noqa: E501
           "tokens_per_sec_per_gpu")  # fmt: skip


GRADIENT_BYTES = 2
"""The published recipes reduce gradients in the precision of the weights (``grad_reduce_in_fp32`` off)."""

HYBRIDS = ("nemotron3", "nemotronh", "nemotronnano", "qwen3next", "qwen3.5")
"""Models with state-space or linear attention layers, by how their plain names begin."""


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row; where a cell holds two figures, the first."""
    place = clusters()
    known: dict[Run, tuple[Predicted, str]] = {}
    graphs: dict[tuple[str, int], Graph] = {}
    return [_point(i, fields, place, _framework(fields), graphs, known) for i, fields in enumerate(rows, 1)]


def _point(
    row: int,
    fields: Mapping[str, str],
    place: Clusters,
    trained_by: Framework,
    graphs: dict[tuple[str, int], Graph],
    known: dict[Run, tuple[Predicted, str]],
) -> Point | Skipped:
    """Return one row; releases repeat configurations, which are predicted once."""
    fields = {name: re.sub(r"\s*\(.*\)", "", cell) for name, cell in fields.items()}
    try:
        if "lora" in f"{fields['section']} {fields['model']}".lower():
            raise InputError("LoRA trains adapters beside frozen weights, which is not modelled")
        gpus, batch, sequence = count(fields, "n_gpus"), count(fields, "gbs"), count(fields, "sequence_length")
        measured = batch * sequence / (ratio(fields, "tokens_per_sec_per_gpu") * gpus)
        tensor, pipeline, context = count(fields, "tp", 1), count(fields, "pp", 1), count(fields, "cp", 1)
        ranks = tensor * pipeline * context
        if gpus % ranks:
            raise InputError(f"{gpus} devices do not divide by tensor times pipeline times context degree, {ranks}")
        named = fields["model"], sequence
        graph = graphs.setdefault(named, graphs.get(named) or _graph(*named))
        data = gpus // ranks
        sharded = 3 if count(fields, "fsdp", 0) > 0 else 1
        strategy = Strategy(
            data, tensor, context, count(fields, "ep", 1), tensor > 1, shard=sharded if data * context > 1 else 0
        )
        cluster = place(_cluster(fields["system"], gpus))
        run = Run(
            graph, cluster, (strategy,), pipeline=pipeline,
            virtual=count(fields, "vp", 1) if pipeline > 1 else 1, micro_batch=count(fields, "mbs"), global_batch=batch,
            training=MixedPrecision(_precision(fields["precision"]), gradient_bytes=GRADIENT_BYTES), overlap=True,
            used_of_domain=rack(cluster), framework=trained_by,
        )  # fmt: skip
        predicted, note = known[run] if run in known else known.setdefault(run, least_recomputed(run))
    except InputError as error:
        return Skipped(row, str(error))
    group = f"{graph.name} {fields['system']} {gpus} {batch} {sequence} {fields['precision']} by {fields['release']}"
    return point(row, measured, predicted, group=group, note=note)


def _precision(text: str) -> str:
    """Return the precision of products; releases that name none publish fp8."""
    if "FP4" in text.upper():
        return "fp4"
    if text.upper().startswith("MX") or text.upper().startswith("FP8-MX"):
        return "mxfp8"
    return "bf16" if text.upper().startswith("BF16") else "fp8"


def _framework(fields: Mapping[str, str]) -> Framework:
    """Return the framework of a row, in the variant that its release, its hosts and what it does with experts ask for."""
    return frameworks.find("megatron", {
        "experts": fields["ep"].strip() not in ("", "n/a", "1"),
        "drops_tokens": fields["model"].endswith("(tokendrop)"),
        "host": "x86" if fields["system"] in ("DGX-H100", "DGX-B200", "DGX-B300") else "arm",
        "release": fields["release"],
    })  # fmt: skip


def _cluster(system: str, gpus: int) -> str:
    """Return the cluster of a system."""
    kinds = {
        "DGX-H100": "dgx-h100",
        "DGX-B200": "dgx-b200",
        "DGX-B300": "dgx-b300",
        "DGX-GB200": "gb200-nvl72",
        "DGX-GB300": "gb300-nvl72",
    }
    if system not in kinds:
        raise InputError(f"no figures of {system} are known")
    return f"{kinds[system]}:{racks(gpus) if 'nvl72' in kinds[system] else max(8, gpus)}"


def _graph(model: str, sequence: int) -> Graph:
    """Return a model by the name of the summary: the built-in one whose name it begins with, of several the longest."""
    word = _plain(model)
    matching = [name for name in huggingface.names() if word.startswith(_plain(name))]
    if not matching and word.startswith(HYBRIDS):
        raise InputError("a hybrid of state-space layers, which are not modelled")
    if not matching:
        raise InputError(f"the model '{model}' is not known")
    return built_in(max(matching, key=len), sequence)


def _plain(name: str) -> str:
    """Return a model's name in small letters, digits and dots alone."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())
