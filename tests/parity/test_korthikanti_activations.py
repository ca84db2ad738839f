"""Activation memory of four GPT models against Korthikanti et al., arXiv 2205.05198, figures 1 and 7."""

from __future__ import annotations

import csv

import pytest

from meshwright import models, validation
from meshwright.core.graph import Op

TENSOR = 8  # degree in all of the paper's runs
BUILT_IN = (
    ("megatron-22B", "megatron-22b"),
    ("gpt3-175B", "megatron-175b"),
    ("turing-530B", "megatron-530b"),
    ("megatron-1T", "megatron-1t"),
)


def rows() -> dict[tuple[str, str], float]:
    with validation.set_file("korthikanti_activation_memory").open() as file:
        return {(row["model"], row["mode"]): float(row["value_pct_or_GiB"]) for row in csv.DictReader(file)}


def kept_bytes(op: Op, *, sequence_parallel: bool, selective: bool) -> float:
    total = 0.0
    for part in op.body:
        if not (selective and part.selective):
            split = TENSOR if part.saved_axis == "tensor" or sequence_parallel else 1
            total += (2 * part.saved_elements + part.saved_extra_bytes) / split
    return total


@pytest.mark.parametrize(("published", "name"), BUILT_IN)
def test_each_technique_leaves_the_share_of_figure_7(published: str, name: str) -> None:
    table = rows()
    graph = models.read(name, attention="unfused").graph
    whole = kept_bytes(graph.ops[1], sequence_parallel=False, selective=False)
    shares = {
        "seq": kept_bytes(graph.ops[1], sequence_parallel=True, selective=False),
        "sel": kept_bytes(graph.ops[1], sequence_parallel=False, selective=True),
        "seqsel": kept_bytes(graph.ops[1], sequence_parallel=True, selective=True),
        "full": 2.0 * graph.edges[0].n_elements,  # only the layer's input
    }
    for mode, n_bytes in shares.items():
        assert 100 * n_bytes / whole == pytest.approx(table[published, mode], abs=0.15), mode  # read off a figure


def test_the_whole_of_the_smallest_model_is_that_of_figure_1() -> None:
    table = rows()
    graph = models.read("megatron-22b", attention="unfused").graph
    layers = 4 * sum(kept_bytes(op, sequence_parallel=False, selective=False) for op in graph.ops[1:-1])  # micro-batch 4
    assert layers / 2**30 == pytest.approx(table["megatron-22B", "fig1_act_none_GiB"], rel=1e-6)
    spared = 4 * sum(kept_bytes(op, sequence_parallel=True, selective=True) for op in graph.ops[1:-1])
    assert spared / 2**30 == pytest.approx(table["megatron-22B", "fig1_act_seqsel_GiB"], rel=1e-6)
