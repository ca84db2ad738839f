"""Pairs of sequences beside a frozen reference (DPO): what is computed, held and exchanged, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.flops import forward_flops, model_flops, passes
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, ModelSpec
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.models.fine_tuning import NF4_BYTES
from meshwright.models.preference_pairs import parse_objective

LORA = "r=8,targets=query,value"
WEIGHTS = 1_235_814_400  # of Llama 3.2 1B, its one table counted once


def _spec(objective: str = "", lora: str = "", length: int = 128) -> ModelSpec:
    return api.read("llama-3.2-1b", sequence_length=length, lora=lora, objective=objective)


def _load(spec: ModelSpec, strategy: Strategy, micro_batch: int, word: str = "none") -> StageCost:
    n = len(spec.graph.ops)
    batch = micro_batch * strategy.data
    problem = api.make_problem(spec, f"dgx-h100:{strategy.n_devices}", batch=Batch(batch))
    stage = Stage(tuple(range(n)), tuple(range(strategy.n_devices)), strategy, ("none", *[word] * (n - 2), "none"))
    return analytic.stage_costs(problem, Plan((stage,), 1, micro_batch, global_batch=batch))[0]


def test_a_pair_costs_what_two_samples_do_when_the_reference_is_precomputed() -> None:
    plain, pairs = _load(_spec(), Strategy(), 4), _load(_spec("dpo,reference=precomputed"), Strategy(), 2)
    for name in StageCost.__dataclass_fields__:
        assert getattr(plain, name) == pytest.approx(getattr(pairs, name)), name


@pytest.mark.parametrize("word", ["none", "full"])
def test_a_copy_adds_one_forward_pass_and_its_weights(word: str) -> None:
    plain, pairs = _load(_spec(), Strategy(), 4, word), _load(_spec("dpo"), Strategy(), 2, word)
    assert pairs.forward_seconds == pytest.approx(2.0 * plain.forward_seconds)
    assert pairs.weight_bytes - plain.weight_bytes == pytest.approx(2 * WEIGHTS)
    for name in ("backward_input_seconds", "backward_weight_seconds", "recompute_seconds", "activation_bytes",
                 "gradient_bytes", "optimizer_bytes", "optimizer_seconds", "reduce_seconds"):  # fmt: skip
        assert getattr(plain, name) == pytest.approx(getattr(pairs, name)), name
    assert model_flops(_spec("dpo").graph) == pytest.approx(2.0 * model_flops(_spec().graph) * 4.0 / 3.0)


def test_adapters_off_takes_no_weights_and_the_forward_pass_without_them() -> None:
    strategy = Strategy(data=2)
    alone, pairs = (_load(_spec(objective, LORA), strategy, 2) for objective in ("dpo,reference=precomputed", "dpo"))
    base = _load(_spec("dpo,reference=precomputed"), strategy, 2)
    assert pairs.weight_bytes == alone.weight_bytes
    assert pairs.forward_seconds - alone.forward_seconds == pytest.approx(base.forward_seconds)
    assert pairs.forward_seconds < 2.0 * alone.forward_seconds
    assert pairs.backward_total_seconds == alone.backward_total_seconds
    graph = _spec("dpo", LORA).graph
    assert graph.n_parameters == WEIGHTS + graph.n_trained_parameters and not graph.has_copy and graph.has_reference


def _gathered(load: StageCost) -> dict[str, float]:
    found = {"forward": 0.0, "backward": 0.0}
    for one in load.collectives:
        if one.kind == "all_gather":
            found[one.part.partition("_")[0]] += one.n_bytes * one.n_times
    return found


@pytest.mark.parametrize(("lora", "base"), [("", 2.0), (LORA, 2.0), (f"{LORA},base=4bit", 0.5)])
def test_sharded_weights_of_the_reference_are_gathered_for_its_forward_pass_only(lora: str, base: float) -> None:
    strategy = Strategy(data=8, shard=3)
    alone, pairs = (_load(_spec(one, lora), strategy, 1) for one in ("dpo,reference=precomputed", "dpo"))
    before, now = _gathered(alone), _gathered(pairs)
    assert now["backward"] == pytest.approx(before["backward"])
    table = 128256 * 2048  # embedding and head gather it each
    inner = WEIGHTS - table
    products = inner - 33 * 2048
    sent = base * products + 2.0 * (inner - products) + 2.0 * 2 * table
    assert now["forward"] - before["forward"] == pytest.approx(sent, rel=1e-6)
    held = 0.0 if lora else 2.0 * WEIGHTS / 8
    assert pairs.weight_bytes - alone.weight_bytes == pytest.approx(held, rel=1e-6)
    assert NF4_BYTES > 0.5


def test_tensor_parallel_collectives_of_the_reference_are_those_of_a_forward_pass() -> None:
    strategy = Strategy(tensor=8, sequence_parallel=True)
    alone, pairs = (_load(_spec(one, length=2048), strategy, 2) for one in ("dpo,reference=precomputed", "dpo"))
    assert dict(pairs.forward_communication)["tensor"] == pytest.approx(2.0 * dict(alone.forward_communication)["tensor"])
    assert pairs.backward_communication == alone.backward_communication


def test_a_plan_is_written_read_and_checked_with_its_objective(tmp_path: Path) -> None:
    from meshwright.api.export import export
    from meshwright.api.plan_files import load

    posed = api.make_problem("llama-3.2-1b", "dgx-h100:4", batch=Batch(16, 0, 256), objective="dpo")
    result = api.plan(posed)
    file = str(tmp_path / "plan.json")
    export(result, "plan_json", file)
    again = load(file)
    assert again.problem.model_spec.objective == "dpo" and again.problem.graph.has_reference
    assert again.timeline is not None and result.timeline is not None
    assert again.timeline.step_seconds == pytest.approx(result.timeline.step_seconds)
    entry = json.loads((tmp_path / "plan.json").read_text())
    assert entry["model"]["objective"] == "dpo" and entry["batch"]["sequence_length"] == 256
    assert entry["tokens_per_second"] == pytest.approx(2 * 256 * entry["samples_per_second"])
    assert "a sample is a pair" in " ".join(entry["notes"])
    assert all(len(stage["ops"]) == len(posed.graph.ops) for stage in entry["stages"])  # no pipeline beside a reference


@pytest.mark.parametrize(
    ("objective", "lora", "message"),
    [
        ("ppo", "", "objective"),
        ("dpo,beta=0.1", "", "'beta=0.1' is not known"),
        ("dpo,reference=copy,reference=copy", "", "given twice"),
        ("dpo,reference=none", "", "must be one of copy, adapters-off, precomputed"),
        ("dpo,reference=adapters-off", "", "no adapters"),
    ],
)
def test_wrong_words_are_refused_in_a_line(objective: str, lora: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_objective(objective, adapters=bool(lora))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="no causal language model"):
        api.read("t5-3b", objective="dpo")
    with pytest.raises(InputError, match="gpt-oss-20b has routed experts"):
        api.read("gpt-oss-20b", objective="dpo")
    with pytest.raises(InputError, match="has an objective already"):
        from meshwright.models.preference_pairs import with_objective

        with_objective(_spec("dpo"), "dpo")
    with pytest.raises(InputError, match="pairs of sequences"):
        api.plan("llama-3.2-1b", "dgx-h100:2", global_batch=8, objective="dpo", lengths="lognormal:500,1")
    with pytest.raises(InputError, match="fsdp2 trains on single sequences"):
        api.make_problem("llama-3.2-1b", "dgx-h100:2", batch=Batch(2), objective="dpo", framework="fsdp2")
    graph = _spec("dpo").graph
    problem = api.make_problem(_spec("dpo"), "dgx-h100:4", batch=Batch(4))
    assert "pairs of sequences" in analytic.illegal(problem, Strategy(context=2))
    assert "pipeline" not in problem.framework.limits.degrees_for(graph)
    uneven = api.make_problem(_spec("dpo", length=130), "dgx-h100:4", batch=Batch(4))
    assert "sequence of 130" in analytic.illegal(uneven, Strategy(tensor=4, sequence_parallel=True))
    assert analytic.illegal(replace(problem), Strategy(tensor=4, sequence_parallel=True)) == ""


def test_a_reference_pass_counts_once_in_products() -> None:
    graph = _spec("dpo", LORA).graph
    for op in graph.ops:
        for part in op.body:
            if part.reference and part.kind in ("matmul", "causal_attention"):
                assert passes(part) == 1.0 and forward_flops(part) > 0.0 and not part.has_backward
