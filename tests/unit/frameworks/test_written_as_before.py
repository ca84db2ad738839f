"""What every framework is told of plans given by hand, as it was when this was written; texts only, no figure of a cost."""

from __future__ import annotations

import functools
import pathlib
import re
import zlib
from dataclasses import replace
from typing import Any

import pytest

from meshwright import api, frameworks
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from recorded import Recorded

SUFFIX = {
    "accelerate": "yaml", "deepspeed": "json", "fsdp2": "py", "maxtext": "yml", "megatron": "sh", "megatron_bridge": "py",
    "nanotron": "yaml", "torchtitan": "py", "transformers": "py",
}  # fmt: skip
MODELS = (
    "llama-3.1-8b", "mixtral-8x7b", "gpt2-xl", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-2-9b", "bert-large", "t5-large",
    "vit-large", "gpt-oss-20b", "phi-3-mini", "opt-350m",
)  # fmt: skip


@functools.cache
def posed(model: str, name: str) -> Problem:
    return api.make_problem(model, "flat:64", framework=name, batch=Batch(64, 1))


def dealt(problem: Problem, strategy: Strategy, n_stages: int = 1, n_ranks: int = 1, **said: Any) -> Plan:
    """Return a plan whose inner layers are dealt evenly to the stages, the first ones one more."""
    last, size, first, stages = len(problem.graph.ops) - 1, strategy.n_devices, 1, []
    words = said.get("words", ("none",))
    for i in range(n_stages):
        count = (last - 1 + n_stages - 1 - i) // n_stages
        ops = [0] * (i == 0) + list(range(first, first + count)) + [last] * (i == n_stages - 1)
        first += count
        devices = tuple(range(i % n_ranks * size, (i % n_ranks + 1) * size))
        recompute = tuple("none" if op in (0, last) else words[k % len(words)] for k, op in enumerate(ops))
        stages.append(Stage(tuple(ops), devices, strategy, recompute))
    n, micro = said.get("n", 4), said.get("micro", 2)
    return Plan(tuple(stages), n, micro, said.get("schedule", "1f1b"), n * micro * strategy.data)


def plans(problem: Problem) -> dict[str, Plan]:
    """Return plans that differ in one thing each."""
    two = Strategy(2, 2)
    split = Strategy(2, 4, sequence_parallel=True, shard=1)
    several = {
        "one": Strategy(), "data": Strategy(8), "zero1": Strategy(8, shard=1), "hybrid": Strategy(8, shard=3, shard_degree=2),
        "tensor": Strategy(2, 4), "hybrid 1": Strategy(8, shard=1, shard_degree=4), "expert": Strategy(8, 1, 1, 4, shard=1),
        "sequence": split, "context": Strategy(2, 2, 2), "context 3": Strategy(2, 1, 4, shard=3),
    }  # fmt: skip
    return {
        **{name: dealt(problem, strategy) for name, strategy in several.items()},
        "zero2": dealt(problem, Strategy(8, shard=2), n=1), "zero3": dealt(problem, Strategy(8, shard=3), micro=1),
        "pipeline": dealt(problem, two, 2, 2), "five ranks": dealt(problem, two, 5, 5),
        "virtual": dealt(problem, replace(two, shard=1), 4, 2, schedule="interleaved_1f1b"),
        "gpipe": dealt(problem, two, 2, 2, schedule="gpipe"), "zero bubble": dealt(problem, two, 2, 2, schedule="zb_h1"),
        "full": dealt(problem, Strategy(4, shard=2), words=("full",)),
        "mixed": dealt(problem, Strategy(4), words=("full", "none")),
        "selective": dealt(problem, Strategy(4), words=("selective",)),
        "many": dealt(problem, Strategy(2, 2, 1, 2, True, 1), 4, 4, words=("full",), n=8, micro=1),
    }  # fmt: skip


def written(name: str, problem: Problem, plan: Plan, folder: pathlib.Path) -> str:
    """Return what a framework is told, or why it is not."""
    lacks = frameworks.refusals(problem.framework, plan, problem)
    if lacks:
        return "cannot: " + "; ".join(lacks)
    path = folder / f"plan.{SUFFIX[name]}"
    try:
        notes = frameworks.load(name).write(Result(problem, "best", 0, Answer(plan)), str(path))
    except (ExportError, InputError) as error:
        return f"refused: {error}"
    return "\n".join((path.read_text(), *(notes or ()))).replace(str(folder), "")


def short(text: str) -> Any:
    """Return a refusal as it is, of a text how long it is, its settings' sum and that of all of it."""
    if text.startswith(("cannot: ", "refused: ")):
        return text[:150]
    plain = re.sub(r"meshwright \d[\w.]*", "meshwright", text)
    return [plain.count("\n"), sum(int(n) for n in re.findall(r"\b\d{1,9}\b", plain)), zlib.crc32(plain.encode())]


@pytest.mark.parametrize("name", sorted(SUFFIX))
def test_plans_are_told_as_before(name: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    problem = posed("llama-3.1-8b", name)
    recorded({key: short(written(name, problem, plan, tmp_path)) for key, plan in plans(problem).items()})


@pytest.mark.parametrize("name", sorted(SUFFIX))
def test_models_are_told_as_before(name: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    found = {}
    for model in MODELS:
        problem = posed(model, name)
        level = max(problem.framework.limits.shards)
        for strategy in (Strategy(8, shard=level), Strategy(2, 2, shard=min(level, 1)), Strategy(4, 1, 1, 2, shard=level)):
            text = written(name, problem, dealt(problem, strategy), tmp_path)
            found[f"{model} {strategy.data} {strategy.expert}"] = short(text)
    recorded(found)


@pytest.mark.parametrize("name", sorted(SUFFIX))
def test_precisions_are_told_as_before(name: str, tmp_path: pathlib.Path, recorded: Recorded) -> None:
    problem = posed("llama-3.1-8b", name)
    found = {}
    for precision in ("bf16", "fp16", "fp8", "fp32", "tf32"):
        told = replace(problem, training=MixedPrecision.of(precision))
        plan = dealt(told, Strategy(4, shard=min(problem.framework.limits.shards)))
        found[precision] = short(written(name, told, plan, tmp_path))
    recorded(found)
