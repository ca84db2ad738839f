"""Adapters beside frozen weights in four bits (QLoRA): bytes, widening before products, exchange, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright import api, frameworks
from meshwright.api import training_states
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.models.fine_tuning import NF4_BYTES

LORA = "r=8,targets=query,value"
LAYER = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192  # products of a layer of Llama 3.2 1B
QUANTISED = 16 * LAYER


def _problem(base: bool, n_devices: int = 2, length: int = 128) -> Problem:
    spec = api.read("llama-3.2-1b", sequence_length=length, lora=training_states.adapters(LORA, "4bit" if base else ""))
    return api.make_problem(spec, f"dgx-h100:{n_devices}", batch=Batch(2))


def _load(problem: Problem, strategy: Strategy, word: str = "none") -> StageCost:
    n = len(problem.graph.ops)
    stage = Stage(tuple(range(n)), tuple(range(strategy.n_devices)), strategy, ("none", *[word] * (n - 2), "none"))
    return analytic.stage_costs(problem, Plan((stage,), 2 // strategy.data, 1, global_batch=2))[0]


def test_a_weight_has_as_many_bits_as_published() -> None:
    assert abs(8 * NF4_BYTES - 4.127) < 5e-4


def test_products_of_layers_are_held_in_four_bits_and_all_else_as_before() -> None:
    plain, packed = (_load(_problem(base), Strategy()) for base in (False, True))
    assert plain.weight_bytes - packed.weight_bytes == pytest.approx(QUANTISED * (2 - NF4_BYTES))
    for name in ("gradient_bytes", "optimizer_bytes", "activation_bytes", "model_flops", "backward_weight_seconds"):
        assert getattr(plain, name) == getattr(packed, name), name
    graph = _problem(True).graph
    assert sum(part.n_parameters for op in graph.ops for part in op.body if part.frozen_weight_bytes) == QUANTISED
    assert not any(part.frozen_weight_bytes for op in (graph.ops[0], graph.ops[-1]) for part in op.body)
    assert graph.ops[2].like == graph.ops[3].like == 2 and graph.ops[3].body == graph.ops[2].body


def test_weights_are_widened_before_every_product() -> None:
    """Forward all of them, backward those whose input has a gradient, again where the forward pass is repeated."""
    device = _problem(True).required_cluster.device(0)
    once = (NF4_BYTES + 2.0) / (device.memory_bytes_per_second * device.memory_ratio)
    long = [_problem(base, length=4096) for base in (False, True)]  # so that issuing kernels hides nothing
    fused = [replace(one, framework=replace(one.framework, issue_seconds=1e-12)) for one in long]
    plain, packed = (_load(one, Strategy(), "full") for one in fused)
    first = 2048 * (2048 + 2 * 512)  # the first product's input needs no gradient
    assert packed.forward_seconds - plain.forward_seconds == pytest.approx(QUANTISED * once)
    assert packed.backward_input_seconds - plain.backward_input_seconds == pytest.approx((QUANTISED - first) * once)
    last = sum(
        part.n_parameters for op in long[1].graph.ops for part in op.body if part.name == "mlp.out"
    )  # does not run again
    assert packed.recompute_seconds - plain.recompute_seconds == pytest.approx((QUANTISED - last) * once)


def test_sharded_weights_travel_packed_and_scales_stand_whole() -> None:
    strategy = Strategy(data=2, shard=3)
    plain, packed = (_load(_problem(base), strategy) for base in (False, True))
    scales = QUANTISED * (NF4_BYTES - 0.5)
    assert plain.weight_bytes - packed.weight_bytes == pytest.approx(QUANTISED / 2 * 1.5 - scales)
    sent = [sum(one.n_bytes * one.n_times for one in load.collectives if one.kind == "all_gather") for load in (plain, packed)]
    assert sent[0] - sent[1] == pytest.approx(2 * QUANTISED * 1.5)  # forward and backward
    widest = 2 * 2048 * 16384  # one product in bf16, beside less of what is gathered
    assert packed.working_bytes < plain.working_bytes + 1.05 * widest


def test_a_widened_product_is_working_memory() -> None:
    plain, packed = (_load(_problem(base, length=4), Strategy()) for base in (False, True))
    assert packed.working_bytes - plain.working_bytes > 0.0
    assert packed.working_bytes >= 2 * 2048 * 16384


def test_what_cannot_be_is_refused() -> None:
    assert "four bits" in analytic.illegal(_problem(True), Strategy(tensor=2))
    assert analytic.illegal(_problem(False), Strategy(tensor=2)) == ""
    with pytest.raises(InputError, match="routed experts"):
        api.read("mixtral-8x7b", lora=f"{LORA},base=4bit")
    with pytest.raises(InputError, match="base is 8bit; it must be 4bit"):
        api.read("llama-3.2-1b", lora=f"{LORA},base=8bit")
    with pytest.raises(InputError, match="--base 4bit: is what --lora's frozen weights are held in"):
        training_states.adapters("", "4bit")
    with pytest.raises(InputError, match="--for fsdp2: it holds no frozen weights in four bits"):
        api.make_problem("llama-3.2-1b", "dgx-h100:2", batch=Batch(2), lora=f"{LORA},base=4bit", framework="fsdp2")


def test_transformers_is_told_how_to_load_it(tmp_path: object) -> None:
    from meshwright.api.export import export

    posed = api.make_problem(
        "llama-3.2-1b", "dgx-h100:2", batch=Batch(4, 1, 512), lora=f"{LORA},base=4bit", framework="transformers"
    )
    result = api.plan(posed)
    assert frameworks.refusals(posed.framework, result.plan, posed) == ()
    notes = export(result, "transformers", f"{tmp_path}/arguments.py")
    assert any("load_in_4bit" in note for note in notes)
    with pytest.raises((ExportError, InputError), match="four bits"):
        export(result, "transformers", f"{tmp_path}/arguments.json")
