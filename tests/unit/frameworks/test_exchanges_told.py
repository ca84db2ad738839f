"""How keys and values are exchanged over a context axis, as each framework is told it, reads it, or refuses it."""

from __future__ import annotations

import json
import pathlib
import re
from dataclasses import replace

import pytest

from meshwright import api, clusters, frameworks
from meshwright.base.errors import ExportError, InputError
from meshwright.core import framework_file
from meshwright.core.framework import Framework
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import CONTEXT_EXCHANGES, Strategy

BOTH = "all_to_all+ring"
SAID = {
    "megatron": {"ring": "", "all_gather": "--cp-comm-type all_gather", "all_to_all": "--cp-comm-type a2a"},
    "megatron_bridge": {"ring": "", "all_gather": 'cp_comm_type = "all_gather"', "all_to_all": 'cp_comm_type = "a2a"'},
    "maxtext": {"ring": "context_parallel_strategy: ring", "all_gather": "context_parallel_strategy: all_gather"},
    "accelerate": {"ring": "cp_comm_strategy: alltoall", "all_gather": "cp_comm_strategy: allgather"},
    "torchtitan": {"ring": ""},
    "fsdp2": {"ring": ""},
    "transformers": {"ring": ""},
}
SUFFIX = {"accelerate": "yaml", "maxtext": "yml", "megatron": "sh"}


def posed(name: str, model: str = "llama-3.1-8b", length: int = 8192) -> Problem:
    return api.make_problem(model, "dgx-h100:8", framework=name, batch=Batch(4, 2, length))


def planned(problem: Problem, kind: str) -> Result:
    """Four replicas of two context ranks, weights sharded."""
    n = len(problem.graph.ops)
    strategy = Strategy(4, context=2, shard=3, context_exchange=kind)
    stage = Stage(tuple(range(n)), tuple(range(8)), strategy, ("none",) * n)
    return Result(problem, "best", 0, Answer(Plan((stage,), 1, 2, "1f1b", 8)))


@pytest.mark.parametrize("kind", CONTEXT_EXCHANGES[:3])
@pytest.mark.parametrize("name", sorted(SAID))
def test_what_a_framework_is_told_is_read_back_and_what_it_has_not_is_refused(
    name: str, kind: str, tmp_path: pathlib.Path
) -> None:
    problem = posed(name)
    result, path = planned(problem, kind), tmp_path / f"plan.{SUFFIX.get(name, 'py')}"
    if kind not in SAID[name]:
        with pytest.raises(ExportError, match=f"context exchange {kind} of this model; it has ring"):
            frameworks.load(name).write(result, str(path))
        return
    frameworks.load(name).write(result, str(path))
    text = path.read_text()
    assert SAID[name][kind] in text and (kind != "ring" or "a2a" not in text)
    assert frameworks.load(name).read(str(path), problem.graph).plan == result.plan


def split_both_ways(name: str) -> Result:
    """Tensor 2 times context 8, heads over four neighbours, on 16 devices."""
    problem = replace(posed(name), cluster=clusters.cluster("dgx-h100:16"))
    n = len(problem.graph.ops)
    strategy = Strategy(1, 2, 8, sequence_parallel=True, shard=1, context_exchange=BOTH)
    stage = Stage(tuple(range(n)), tuple(range(16)), strategy, ("none",) * n)
    return Result(problem, "best", 0, Answer(Plan((stage,), 4, 2, "1f1b", 8)))


@pytest.mark.parametrize("name", sorted(set(SAID) - {"megatron"}))
def test_others_refuse_a_context_axis_that_is_split_by_heads_and_by_queries(name: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ExportError, match=re.escape(f"context exchange {BOTH} of this model; it has ring")):
        frameworks.load(name).write(split_both_ways(name), str(tmp_path / f"plan.{SUFFIX.get(name, 'py')}"))


def test_megatron_is_told_both_sizes_of_a_context_axis_and_others_than_ours_are_refused(tmp_path: pathlib.Path) -> None:
    result, path, megatron = split_both_ways("megatron"), tmp_path / "plan.sh", frameworks.load("megatron")
    megatron.write(result, str(path))
    text, graph = path.read_text(), result.problem.graph
    sizes = "--hierarchical-context-parallel-sizes 4 2"
    assert "--cp-comm-type a2a+p2p" in text and sizes in text
    said = megatron.read(str(path), graph)
    assert said.plan == result.plan and not any("context" in one for one in said.warnings)
    for old, new, why in (
        (sizes, "--hierarchical-context-parallel-sizes 2 4", "here 4 of 8; other sizes are not priced"),
        (sizes, "--hierarchical-context-parallel-sizes 4 4", "needs two numbers that make --context-parallel-size, 8"),
        (sizes, "--bf16", "needs two numbers that make --context-parallel-size, 8"),
        ("a2a+p2p", "a2a", "two context axes are of --cp-comm-type a2a+p2p"),
        ("--context-parallel-size 8", "--context-parallel-size 1", "needs two numbers that make --context-parallel-size, 1"),
    ):
        assert old in text
        path.write_text(
            text.replace(old, new, 1) if old != "--context-parallel-size 8" else text.replace(" " + old, " " + new, 1)
        )
        with pytest.raises(InputError, match=re.escape(why)):
            megatron.read(str(path), graph)


def test_latent_attention_goes_round_in_megatron(tmp_path: pathlib.Path) -> None:
    problem = posed("megatron", "deepseek-v2-lite", 4096)
    with pytest.raises(ExportError, match="context exchange all_to_all of this model; it has ring"):
        frameworks.load("megatron").write(planned(problem, "all_to_all"), str(tmp_path / "plan.sh"))


def test_windows_are_split_by_heads_and_not_by_a_ring(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "windows.json"
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
    path.write_text(json.dumps({"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": 512, **sizes}))
    problem = posed("megatron", str(path), 4096)
    module = frameworks.load("megatron")
    assert any(
        "sliding windows under a context degree" in why for why in module.refusals(planned(problem, "ring").plan, problem)
    )
    by_heads = planned(problem, "all_to_all")
    assert module.refusals(by_heads.plan, problem) == ()
    module.write(by_heads, str(tmp_path / "plan.sh"))
    assert "--cp-comm-type a2a" in (tmp_path / "plan.sh").read_text()


@pytest.mark.parametrize("said", [" ".join(["p2p a2a"] * 16), "ring"])
def test_megatron_exchanges_that_plans_do_not_have_are_refused(said: str, tmp_path: pathlib.Path) -> None:
    problem, path = posed("megatron"), tmp_path / "plan.sh"
    frameworks.load("megatron").write(planned(problem, "all_to_all"), str(path))
    every = " ".join(["p2p"] * 32)  # one for each layer
    path.write_text(path.read_text().replace("--cp-comm-type a2a", f"--cp-comm-type {every}"))
    assert frameworks.load("megatron").read(str(path), problem.graph).plan == planned(problem, "ring").plan
    path.write_text(path.read_text().replace(f"--cp-comm-type {every}", f"--cp-comm-type {said}"))
    with pytest.raises(
        InputError, match=r"--cp-comm-type is .*; plans have one of p2p, all_gather, a2a, a2a\+p2p for all layers"
    ):
        frameworks.load("megatron").read(str(path), problem.graph)


def test_defaults_of_frameworks_are_read_as_what_they_are(tmp_path: pathlib.Path) -> None:
    """Accelerate and MaxText gather where nothing is said; MaxText's is a default that a file should say."""
    for name, entry in (
        ("accelerate", "  parallelism_config_cp_comm_strategy: alltoall\n"),
        ("maxtext", "context_parallel_strategy: ring\n"),
    ):
        problem, path = posed(name), tmp_path / f"plan.{SUFFIX[name]}"
        frameworks.load(name).write(planned(problem, "ring"), str(path))
        text = path.read_text()
        assert entry in text
        path.write_text(text.replace(entry, ""))
        said = frameworks.load(name).read(str(path), problem.graph)
        assert said.plan == planned(problem, "all_gather").plan
        assert (name == "maxtext") == any("default, all_gather, is taken" in warning for warning in said.warnings)
        path.write_text(text.replace(entry, entry.replace("ring", "usp").replace("alltoall", "ulysses")))
        with pytest.raises(InputError, match=r"is '(usp|ulysses)'"):
            frameworks.load(name).read(str(path), problem.graph)


def test_a_file_of_ones_own_says_which_exchanges_there_are() -> None:
    entry = {"title": "mine", "limits": {"context_exchanges": ["all_to_all"]}, "how": {"overlaps_gather": True}}
    found, _ = framework_file.of_content(entry, "mine", "mine.toml", Framework())
    assert found.limits.context_exchanges == ("all_to_all",) and found.overlaps_gather
    entry["limits"] = {"latent_exchanges": ["ulysses"]}
    with pytest.raises(InputError, match="names ulysses; there are ring, all_gather, all_to_all"):
        framework_file.of_content(entry, "mine", "mine.toml", Framework())
