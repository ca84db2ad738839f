"""Plans that Mist tuned, run by its authors on L4: the set tells model, devices and stages, not the plan file that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from meshwright import frameworks
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import Strategy
from meshwright.models.readers import huggingface
from meshwright.validation._completed import NOTE, cluster_of, completed
from meshwright.validation._points import Point, Skipped, ratio
from meshwright.validation._runs import Clusters, Predicted, Run, clusters, gpt, point

__all__ = ["COLUMNS", "points"]

COLUMNS = ("cluster", "family", "config", "measured_s", "stage_alloc", "stage_reserved", "plan_yaml")

MICRO_BATCHES = (1, 2, 4)
"""Micro-batches looked at: Mist tunes them, the set does not tell them."""

SAID = NOTE.format("data degree = devices of the stage, optimizer state sharded, quickest micro-batch")


def points(rows: Sequence[Mapping[str, str]]) -> list[Point | Skipped]:
    """Return measured and predicted seconds of every row, its plan completed."""
    place, trained_by = clusters(), frameworks.variant("megatron", "eager")
    return [_point(i, fields, place, trained_by) for i, fields in enumerate(rows, 1)]


def _point(row: int, fields: Mapping[str, str], place: Clusters, trained_by: Framework) -> Point | Skipped:
    try:
        measured = ratio(fields, "measured_s")
        found = re.fullmatch(r"([\d.]+)b-s_(\d+)-v_(\d+)-b_(\d+)-n_(\d+)-m_(\d+)-f_(True|False)", fields["config"].strip())
        if not found:
            raise InputError(f"config is '{fields['config']}'; SIZEb-s_N-v_N-b_N-n_N-m_N-f_True is needed")
        size, batch, gpus = found[1], int(found[4]), int(found[5]) * int(found[6])
        n_stages = fields["stage_alloc"].count("MB")
        if not n_stages or gpus % n_stages:
            raise InputError(f"stage_alloc tells {n_stages} stages, which {gpus} devices do not divide into")
        graph = _graph(fields["family"], size, int(found[2]), int(found[3]), found[7] == "True")
        data = gpus // n_stages
        best: Predicted | None = None
        for micro_batch in MICRO_BATCHES:
            if batch % (micro_batch * data):
                continue
            run = Run(
                graph, place(cluster_of(fields["cluster"], gpus)), (Strategy(data, shard=1 if data > 1 else 0),) * n_stages,
                pipeline=n_stages, micro_batch=micro_batch, global_batch=batch,
                training=MixedPrecision("fp16", gradient_bytes=2),
                overlap=True, framework=trained_by,
            )  # fmt: skip
            try:
                predicted = completed(run)
            except InputError:
                continue
            if best is None or predicted.seconds < best.seconds:
                best = predicted
        if best is None:
            raise InputError("no deal of the layers to the stages of this run fits the devices' memory")
    except InputError as error:
        return Skipped(row, str(error))
    return point(row, measured, best, note=SAID)


def _graph(family: str, size: str, sequence: int, vocabulary: int, fused: bool) -> Graph:
    """Return a model by its size; the widths are those that the set of Aceso's plans tells for the same sizes."""
    sizes = {"1.3": (2048, 24, 16), "2.7": (2560, 32, 32), "7": (4096, 32, 32), "13": (5120, 40, 40), "22": (6144, 48, 64)}
    if size not in sizes:
        raise InputError(f"no model of {size} billion weights is known; there are: {', '.join(sizes)}")
    hidden, layers, heads = sizes[size]
    if family == "gpt":
        attention = {"_attn_implementation": "flash_attention_2"} if fused else {}
        return gpt(
            f"gpt-{size}b", hidden=hidden, layers=layers, heads=heads, sequence=sequence, vocabulary=vocabulary,
            resid_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False, **attention,
        )  # fmt: skip
    if family != "llama":
        raise InputError(f"the family '{family}' is not known; there are: gpt, llama")
    config = {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": -(-8 * hidden // 3 // 128) * 128, "vocab_size": vocabulary, "max_position_embeddings": sequence,
        "num_key_value_heads": heads, "tie_word_embeddings": False,
    }  # fmt: skip
    return huggingface.graph_of(config, f"llama-{size}b", sequence_length=sequence)
