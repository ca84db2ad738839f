"""What every cost model promises: a signature, and loads that are finite, not negative and one per stage."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import samples

from meshwright import api, clusters
from meshwright.api.evaluation import judged
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.models.readers import huggingface

MODELS = (
    {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128, "vocab_size": 512},
    {
        "model_type": "mixtral", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 512,
        "max_position_embeddings": 128,
    },
)  # fmt: skip


@pytest.mark.parametrize("name", registry.names("costs"))
def test_a_cost_model_has_the_rooms_one_function(name: str) -> None:
    module = registry.load("costs", name, "cost model")
    assert list(inspect.signature(module.stage_costs).parameters)[:2] == ["problem", "plan"]
    assert module.__doc__


@pytest.mark.parametrize("fields", MODELS, ids=lambda fields: fields["model_type"])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize("shard", [0, 1, 2, 3])
def test_loads_of_real_layers_on_a_real_network_are_finite_and_one_per_stage(fields: dict, precision: str, shard: int) -> None:
    graph = huggingface.graph_of(fields, "small", sequence_length=128)
    problem = Problem(
        ModelSpec("small", "huggingface", "small", graph), clusters.cluster("dgx-h100:16"), training=MixedPrecision(precision)
    )
    n = len(graph.ops)
    expert = 2 if fields["model_type"] == "mixtral" else 1
    strategy = Strategy(data=2, tensor=2, context=2, expert=expert, sequence_parallel=True, shard=shard)
    stages = (
        Stage(tuple(range(n // 2)), tuple(range(8)), strategy, ("full",) * (n // 2)),
        Stage(tuple(range(n // 2, n)), tuple(range(8, 16)), strategy, ("selective",) * (n - n // 2)),
    )
    stage_costs = analytic.stage_costs(problem, Plan(stages, n_microbatches=2, micro_batch=2))
    assert len(stage_costs) == 2
    for load in stage_costs:
        for field in dataclasses.fields(load):
            value = getattr(load, field.name)
            if field.name == "collectives":
                value = tuple((one.kind, amount) for one in value for amount in (one.n_bytes, one.n_times, one.seconds))
            values = [amount for _, amount in value] if isinstance(value, tuple) else [value]
            assert all(math.isfinite(value) and value >= 0.0 for value in values), field.name
        assert load.forward_seconds > 0 and load.weight_bytes > 0
    assert stage_costs[0].output_bytes == 2 * 128 * 256 * 2 / 2 / 2  # half by context, half by sequence parallelism


@cache
def _planned() -> tuple[Result, ...]:
    """Return what the samples of all readers are answered by the search that each asks for, as they are and on two devices."""
    found, specs = [], [spec for name in registry.names("readers") for spec in samples.of_reader(name)]
    others = set(registry.names("costs")) - {samples.read(spec).costs for spec in specs}  # which no format asks for
    for spec in specs:
        for devices in (0, 2):
            model = samples.read(spec)
            for costs in sorted({model.costs, *others} if model.costs == "analytic" else {model.costs}):
                try:
                    result = api.plan(model, f"flat:{devices}" if devices else None, costs=costs, batch=Batch(8 * devices))
                except InputError:
                    continue
                if result.feasible:
                    found.append(result)
    return tuple(found)


def _priced_by(name: str) -> tuple[Result, ...]:
    """Return plans made with other costs as a cost model prices them that no search without more than its promises reads."""
    found = [
        judged(dataclasses.replace(result, problem=dataclasses.replace(result.problem, costs=name)))
        for result in _planned()
        if result.problem.costs == "analytic"
    ]
    return tuple(result for result in found if result.stage_costs)


def _numbers(noun: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number that a noun holds, however deep, with the field that it stands in."""
    if dataclasses.is_dataclass(noun):
        for field in dataclasses.fields(noun):
            yield from _numbers(getattr(noun, field.name), field.name)
    elif isinstance(noun, tuple):
        for one in noun:
            yield from _numbers(one, name)
    elif isinstance(noun, (int, float)):
        yield name, noun


def _priced(name: str, micro_batch: int = 1, **more: Any) -> tuple[StageCost, ...] | None:
    """Return what the sample of a transformer costs on two devices; None where the model cannot price it."""
    (spec,) = samples.of_reader("huggingface")
    problem = api.make_problem(spec, "flat:2", batch=Batch(4), **more)
    n = len(problem.graph.ops)
    stage = Stage(tuple(range(n)), (0, 1), Strategy(data=2), ("none",) * n)
    plan = Plan((stage,), 2 // micro_batch, micro_batch, "1f1b", 4)
    stage_costs = registry.load("costs", name, "cost model").stage_costs
    try:
        found: tuple[StageCost, ...] = stage_costs(dataclasses.replace(problem, costs=name), plan)
    except InputError as error:
        assert "\n" not in str(error)
        return None
    return found


@pytest.mark.parametrize("name", registry.names("costs"))
def test_stages_of_known_operators_cost_otherwise_with_other_micro_batches(name: str) -> None:
    """Published files give times of a micro-batch as it is; from dimensions alone, twice the samples are twice the tensors."""
    once, twice = _priced(name), _priced(name, 2)
    assert not once or once != twice, "micro_batch is ignored"


@pytest.mark.parametrize("name", registry.names("costs"))
def test_a_strategy_that_cannot_run_the_model_is_refused_in_one_line(name: str) -> None:
    """A tensor degree above what any tensor of the model can be split into; models without seconds say nothing."""
    (spec,) = samples.of_reader("huggingface")
    problem = dataclasses.replace(api.make_problem(spec, "flat:64", batch=Batch(1)), costs=name)
    n = len(problem.graph.ops)
    plan = Plan((Stage(tuple(range(n)), tuple(range(64)), Strategy(tensor=64), ("none",) * n),), 1, 1, "1f1b", 1)
    try:
        assert registry.load("costs", name, "cost model").stage_costs(problem, plan) == ()
    except InputError as error:
        assert "\n" not in str(error) and str(error)


CLAIMS: dict[str, dict[str, Any]] = {
    "FROZEN": {"lora": "r=4,targets=query"}, "STATES": {"optimizer": "sgd-momentum"},
    "FRAMEWORKS": {"framework": "megatron_deepspeed"},
}  # fmt: skip
"""What a cost model says that it heeds, and a question in which that makes a difference."""


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("name", registry.names("costs"))
def test_what_a_cost_model_says_that_it_heeds_changes_what_a_stage_costs(name: str, claim: str) -> None:
    if getattr(registry.load("costs", name, "cost model"), claim, False):
        usual, told = _priced(name), _priced(name, **CLAIMS[claim])
        assert usual is None or usual != told, f"{claim} is true, and nothing changes"


@pytest.mark.parametrize("name", registry.names("costs"))
def test_a_cost_model_that_says_that_it_reads_choices_refuses_those_that_are_none(name: str) -> None:
    module = registry.load("costs", name, "cost model")
    if not getattr(module, "CHOICES", False):
        return
    for result in [one for one in _planned() if one.problem.costs == name] or _priced_by(name):
        stages = tuple(dataclasses.replace(stage, choices=("none of these",) * len(stage.ops)) for stage in result.plan.stages)
        with pytest.raises(InputError, match="none of these"):
            module.stage_costs(result.problem, dataclasses.replace(result.plan, stages=stages))


@pytest.mark.parametrize("name", registry.names("costs"))
def test_every_stage_of_a_plan_has_finite_loads_the_same_each_time(name: str) -> None:
    module, priced = registry.load("costs", name, "cost model"), 0
    own = [result for result in _planned() if result.problem.costs == name]
    for result in own or _priced_by(name):
        stage_costs = module.stage_costs(result.problem, result.plan)
        priced += 1
        assert repr(stage_costs) == repr(module.stage_costs(result.problem, result.plan)) == repr(result.stage_costs)
        assert len(stage_costs) in (0, len(result.plan.stages))
        for load in stage_costs:
            for word, value in _numbers(load):
                assert math.isfinite(value) and value >= 0.0, word
            assert load.overlap_ratio <= 1.0, "more than all of a reduction runs beside the backward pass"
    assert priced, f"no sample of any reader is planned or priced with --costs {name}"
