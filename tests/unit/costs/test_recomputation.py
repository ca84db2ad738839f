"""What settings of recomputation repeat and keep, against the frameworks' code in words and closed forms."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest

from meshwright import api, models
from meshwright.base.errors import InputError
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.graph import Operator
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.stage_cost import StageCost
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.analytic.recomputation import repeated_parts
from small_clusters import boxes
from small_models import question

SETTINGS = (
    "none", "core_attn", "layernorm", "mla_up_proj", "mlp", "core_attn+mlp", "moe", "moe_act", "shared_experts", "full",
    "every_second_product",
)  # fmt: skip
FRAMEWORK = Framework(name="all", limits=FrameworkLimits(recompute=SETTINGS))
SEQUENCE, HIDDEN, WIDTH, HEADS = 8192, 4096, 14336, 32
WASTE = 1.05  # of the allocator


def posed(model: str) -> Problem:
    return replace(api.make_problem(model, "dgx-h100:16"), framework=FRAMEWORK)


def body_of(model: str, layer: int) -> tuple[Operator, ...]:
    return models.read(model).graph.ops[layer].body


def layer(problem: Problem, strategy: Strategy, word: str, row: int = 1) -> StageCost:
    return analytic.row_costs(problem, strategy, range(strategy.n_devices), 1)[analytic.rows(problem)[row], word]


def again(model: str, row: int, word: str) -> set[str]:
    body = body_of(model, row)
    return {operator.name for operator, part in zip(body, repeated_parts(body, word), strict=True) if part.work_ratio > 0.0}


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_the_feed_forward_module_repeats_both_products_and_their_collectives_and_keeps_its_input_alone(tensor: int) -> None:
    problem, strategy = posed("llama-3.1-8b"), Strategy(tensor=tensor, sequence_parallel=tensor > 1)
    none, mlp, full = (layer(problem, strategy, word) for word in ("none", "mlp", "full"))
    dropped = 2.0 * SEQUENCE * (HIDDEN + 3 * WIDTH) / tensor
    assert none.activation_bytes - mlp.activation_bytes == pytest.approx(WASTE * dropped)
    assert mlp.working_bytes - none.working_bytes == pytest.approx(WASTE * dropped)
    flops = 6.0 * SEQUENCE * HIDDEN * WIDTH / tensor
    peak = problem.required_cluster.device(0).peak("bf16")
    assert flops / peak < mlp.recompute_seconds < min(2.0 * flops / peak, full.recompute_seconds)
    there, back = dict(none.forward_communication).get("tensor", 0.0), dict(none.backward_communication).get("tensor", 0.0)
    assert (there > 0.0) == (tensor > 1)
    # a layer has two pairs of a gathering and a scattering, one of them in the module
    assert dict(mlp.backward_communication).get("tensor", 0.0) == pytest.approx(back + there / 2.0)
    assert mlp.forward_total_seconds == none.forward_total_seconds


def test_attention_itself_repeats_no_product_with_weights_and_frees_only_its_statistics_where_it_is_fused() -> None:
    problem = posed("llama-3.1-8b")
    none, core = (layer(problem, Strategy(), word) for word in ("none", "core_attn"))
    assert none.activation_bytes - core.activation_bytes == pytest.approx(WASTE * 4.0 * HEADS * SEQUENCE)
    assert core.backward_communication == none.backward_communication
    flops = 2.0 * SEQUENCE * SEQUENCE * HIDDEN
    assert core.recompute_seconds > flops / problem.required_cluster.device(0).peak("bf16")
    ring = Strategy(context=2)
    without, repeated = (dict(layer(problem, ring, word).backward_communication) for word in ("none", "core_attn"))
    assert repeated.keys() == without.keys()


def test_settings_that_a_layer_does_not_have_change_nothing() -> None:
    problem = posed("llama-3.1-8b")
    none = layer(problem, Strategy(), "none")
    for word in ("layernorm", "mla_up_proj", "moe", "moe_act", "shared_experts"):
        assert layer(problem, Strategy(), word) == none
    both = layer(problem, Strategy(), "core_attn+mlp")
    assert both.recompute_seconds == pytest.approx(
        sum(layer(problem, Strategy(), word).recompute_seconds for word in ("core_attn", "mlp"))
    )


def test_modules_of_a_mixture_with_latent_attention_are_those_that_megatron_checkpoints() -> None:
    routed = {
        "mlp.router", "mlp.routing", "mlp.dispatch", "mlp.experts.in", "mlp.experts.activation", "mlp.experts.out",
        "mlp.combine",
    }  # fmt: skip
    shared = {"mlp.shared.in", "mlp.shared.activation", "mlp.shared.out"}
    model, dense, sparse = "deepseek-v3", 1, 10
    assert again(model, sparse, "moe") == routed | shared
    assert again(model, sparse, "shared_experts") == shared
    assert again(model, sparse, "moe_act") == {"mlp.experts.activation"}
    assert again(model, sparse, "layernorm") == {"attention.norm", "mlp.norm"}
    assert again(model, dense, "layernorm") == {"attention.norm"}
    assert again(model, sparse, "mla_up_proj") == {
        "attention.query_norm", "attention.query_up", "attention.key_value_norm", "attention.key_value_up", "attention.rotary",
    }  # fmt: skip
    assert again(model, sparse, "mlp") == set()
    assert again(model, dense, "mlp") == {"mlp.norm", "mlp.in", "mlp.activation", "mlp.out"}
    assert again("mixtral-8x7b", 1, "layernorm") == {"mlp.norm"}  # the norm before attention is fused with its product


def test_every_second_product_counts_a_gate_and_the_product_beside_it_as_two() -> None:
    body = body_of("llama-3.1-8b", 1)
    parts = {operator.name: part for operator, part in zip(body, repeated_parts(body, "every_second_product"), strict=True)}
    products = ("attention.query_key_value", "attention.output", "mlp.in", "mlp.out")
    assert [parts[name].work_ratio for name in products] == [0.0, 1.0, 0.5, 0.0]
    assert parts["mlp.in"].kept_ratio == 0.5
    assert parts["attention.core"].work_ratio == 0.0 and parts["mlp.activation"].work_ratio == 1.0
    assert all("reduce_scatter" not in part.collectives for part in parts.values())
    problem, split = posed("llama-3.1-8b"), Strategy(tensor=4, sequence_parallel=True)
    none, every = (layer(problem, split, word) for word in ("none", "every_second_product"))
    there, back = dict(none.forward_communication)["tensor"], dict(none.backward_communication)["tensor"]
    # gatherings are repeated, scatterings are not: about half of the forward pass' seconds
    assert back + 0.4 * there < dict(every.backward_communication)["tensor"] < back + 0.6 * there
    # the layer's input, the fused product's output, the attention's, the gate's, and the last product's
    kept = 2.0 * SEQUENCE * (HIDDEN + 6144 + HIDDEN + WIDTH + HIDDEN) / 4 + 4.0 * HEADS * SEQUENCE / 4
    assert every.activation_bytes == pytest.approx(WASTE * kept)


def test_settings_that_repeat_the_same_are_one() -> None:
    graph = models.read("llama-3.1-8b").graph
    assert analytic.distinct_settings(graph, SETTINGS) == (
        "none", "core_attn", "mlp", "core_attn+mlp", "full", "every_second_product",
    )  # fmt: skip
    assert analytic.distinct_settings(graph, ("none", "moe", "mlp+moe", "mlp")) == ("none", "mlp+moe")


def test_a_plan_may_combine_the_modules_of_its_framework_and_nothing_else() -> None:
    problem = posed("llama-3.1-8b")
    ops = tuple(range(len(problem.graph.ops)))

    def seconds(word: str) -> float:
        words = ("none", *(word for _ in ops[1:-1]), "none")
        return analytic.stage_costs(problem, Plan((Stage(ops, (0,), recompute=words),)))[0].recompute_seconds

    assert seconds("mlp+moe") == seconds("mlp") > 0.0
    plain = replace(problem, framework=Framework())
    words = ("none", *("mlp" for _ in ops[1:-1]), "none")
    with pytest.raises(InputError, match=r"'mlp' is none of the framework assumed.*--for"):
        analytic.stage_costs(plain, Plan((Stage(ops, (0,), recompute=words),)))


def test_the_host_issues_every_expert_of_a_grouped_product_anew(tmp_path: pathlib.Path) -> None:
    """Two grouped products of four experts, a second each: eight there, eight back for each kind of gradient, eight again."""
    posed = question("experts", boxes([2, 2]), tmp_path)
    slow = replace(posed, framework=replace(posed.framework, expert_issue_seconds=1.0))
    loads = analytic.row_costs(slow, Strategy(), (0,), 1)
    of = {word: load for (row, word), load in loads.items() if row == 1}
    assert of["full"].forward_seconds == pytest.approx(8.0, rel=1e-3)
    assert of["full"].backward_input_seconds == of["full"].backward_weight_seconds == pytest.approx(8.0, rel=1e-3)
    assert of["full"].recompute_seconds == pytest.approx(8.0, rel=1e-3)
    assert of["selective"].recompute_seconds < 0.1 and of["none"].recompute_seconds == 0.0
    split = analytic.row_costs(slow, Strategy(data=2, expert=2), (0, 1), 1)
    assert split[1, "full"].recompute_seconds == pytest.approx(4.0, rel=1e-3)
