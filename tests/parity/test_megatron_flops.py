"""FLOPs per token against NVIDIA's published throughputs:
TFLOP/s per GPU over tokens/s per GPU is what Megatron counts per token.
"""

from __future__ import annotations

import csv
import statistics

import pytest

from meshwright import models, validation
from meshwright.core.flops import model_flops

BUILT_IN = (  # Megatron trains DeepSeek V3 with its layer that predicts a second token unless told otherwise
    ("DeepSeekV3", "deepseek-v3-mtp"),
    ("DeepSeekV3 (w/ MTP)", "deepseek-v3-mtp"),
    ("Kimi_K2", "kimi-k2"),
    ("LLAMA3.1_405B", "llama-3.1-405b"),
    ("LLAMA3_8B", "llama-3-8b"),
    ("Qwen3_235B_a22B", "qwen3-235b-a22b"),
    ("Qwen3_30B_a3B (tokendrop)", "qwen3-30b-a3b"),
)


def number(text: str) -> float:
    return float(text.split()[0].replace(",", "")) if text else 0.0


@pytest.mark.parametrize(("published", "name"), BUILT_IN)
def test_a_token_costs_what_megatron_counts(published: str, name: str) -> None:
    with validation.set_file("megatron_bridge_perf").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == published and "Pre-Training" in row["section"]]
    counted: dict[int, list[float]] = {}
    for row in rows:
        tokens, tera = number(row["tokens_per_sec_per_gpu"]), number(row["model_tflop_per_sec_per_gpu"])
        if tokens and tera:
            counted.setdefault(int(row["sequence_length"]), []).append(tera * 1e12 / tokens)
    assert counted
    for length, values in counted.items():
        graph = models.read(name, sequence_length=length).graph
        ours = model_flops(graph, halve_causal=True) / length
        assert ours == pytest.approx(statistics.median(values), rel=0.01)  # the published figures have three digits
