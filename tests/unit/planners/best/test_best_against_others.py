"""`best` is never slower than any other search of ours, on random problems and on built-in ones."""

from __future__ import annotations

import json
import pathlib
import random

import pytest

from meshwright import api
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.problem import Batch, Problem

BUILT_IN = (
    ("gpt2", "pcie-a100:4", Batch(16)),
    ("llama-3.2-1b", "two-level:8,per_node=4,device=a100-sxm-80gb,bandwidth=5 GB/s", Batch(32, sequence_length=2048)),
    ("qwen3-30b-a3b", "dgx-h100:8", Batch(32, sequence_length=2048)),
)
OTHERS = [name for name in registry.names("search") if name not in ("best", "measured", "ensemble")]


def random_problem(seed: int, folder: pathlib.Path) -> Problem:
    """Return a small Llama on a few devices behind links of random speed."""
    draw = random.Random(seed)
    model = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": draw.choice((512, 1024, 2048)),
        "intermediate_size": draw.choice((2048, 5632)), "num_hidden_layers": draw.randint(3, 8), "num_attention_heads": 8,
        "num_key_value_heads": 8, "vocab_size": draw.choice((1000, 32000)), "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }  # fmt: skip
    path = folder / f"m{seed}.json"
    path.write_text(json.dumps(model))
    devices, per_node = draw.choice(((2, 2), (4, 2), (6, 3), (8, 4)))
    rate = draw.choice((0.2, 1, 5, 25))
    cluster = f"two-level:{devices},per_node={per_node},device=a100-pcie-80gb,bandwidth={rate} GB/s"
    return api.make_problem(str(path), cluster, batch=Batch(draw.choice((devices, 2 * devices, 24)), sequence_length=1024))


def compare(problem: Problem) -> list[str]:
    """Return the searches that answered; fail where one is faster, in the same simulator, and keeps the memory."""
    best = api.plan(problem, search="best", settings={"alternatives": "1"})
    assert best.timeline is not None and best.answer.objective is not None and best.answer.bound is not None
    asked = []
    for name in OTHERS:
        try:
            other = api.plan(best.problem, search=name)
        except InputError:
            continue
        if not other.feasible or other.timeline is None or any("does not fit" in note for note in other.answer.notes):
            continue
        if other.plan.global_batch != best.plan.global_batch or other.problem.costs != best.problem.costs:
            continue
        asked.append(name)
        rate = other.timeline.step_seconds
        assert best.timeline.step_seconds <= rate * (1 + 1e-9), (name, rate, other.plan)
        assert best.answer.bound.value <= rate * (1 + 1e-9), name
    return asked


@pytest.mark.parametrize("seed", range(4))
def test_no_search_is_faster_on_a_random_problem(seed: int, tmp_path: pathlib.Path) -> None:
    assert len(compare(random_problem(seed, tmp_path))) >= 2


@pytest.mark.parametrize(("model", "cluster", "batch"), BUILT_IN)
def test_no_search_is_faster_on_a_built_in_model(model: str, cluster: str, batch: Batch) -> None:
    assert len(compare(api.make_problem(model, cluster, batch=batch, memory_risk=0.5))) >= 2
