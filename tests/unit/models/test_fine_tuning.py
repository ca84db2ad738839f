"""Models trained in part: gradients, state and kept activations of frozen weights and adapters, worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.flops import forward_flops, model_flops, passes
from meshwright.core.graph import Graph
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic

SEQUENCE = 128


def _graph(freeze: tuple[str, ...] = (), lora: str = "", name: str = "llama-3.2-1b") -> Graph:
    return api.read(name, sequence_length=SEQUENCE, freeze=freeze, lora=lora).graph


def _products(graph: Graph) -> float:
    return sum(passes(part) * forward_flops(part) for op in graph.ops for part in op.body if part.kind == "matmul")


def test_adapters_alone_are_trained() -> None:
    """Two matrices of rank 4 beside each of two products: 4 x (2048 + 2048) and 4 x (2048 + 512) weights in 16 layers."""
    whole, graph = _graph(), _graph(lora="r=4,targets=q_proj,v_proj")
    assert graph.n_trained_parameters == 16 * 4 * (2048 + 2048 + 2048 + 512)
    assert graph.n_frozen_parameters == whole.n_parameters
    first, later = graph.ops[1], graph.ops[2]
    assert (first.like, later.like, graph.ops[16].like) == (1, 2, 2)
    # nothing below the first layer is trained: its product has no gradient at all, those of later layers that of their input
    by_name = {part.name: part for part in first.body}
    assert not by_name["attention.query_key_value"].has_backward and by_name["attention.core"].input_gradient
    assert {part.name: passes(part) for part in later.body}["attention.query_key_value"] == 2.0


def test_below_the_first_trained_weight_nothing_is_computed_backward_or_kept() -> None:
    graph = _graph(("embed", "layers.0", "layers.1"), name="llama-3.1-8b")
    whole = _graph(name="llama-3.1-8b")
    assert [op.has_backward for op in graph.ops[:4]] == [False, False, False, True]
    assert all(part.saved_elements == part.saved_extra_bytes == 0 for op in graph.ops[:3] for part in op.body)
    assert sum(part.saved_elements for part in graph.ops[3].body) == sum(part.saved_elements for part in whole.ops[3].body)
    assert graph.n_trained_parameters == sum(op.n_parameters for op in whole.ops[3:])
    layer = sum(forward_flops(part) for part in whole.ops[1].body if part.kind == "matmul")
    # two layers lose both gradients, the third none: its norm before the first product is trained
    assert _products(whole) - _products(graph) == 2 * 2 * layer
    assert model_flops(graph) < model_flops(whole)


def test_inputs_that_only_a_weight_gradient_reads_are_not_kept() -> None:
    """Of a frozen feed-forward network the outputs of norm and activation are kept for nothing; the rest is."""
    part = {part.name: part for part in _graph(("layers.*.mlp.in", "layers.*.mlp.out")).ops[2].body}
    whole = {part.name: part for part in _graph().ops[2].body}
    for name, operator in whole.items():
        expected = 0 if name in ("mlp.norm", "mlp.activation") else operator.saved_elements
        assert part[name].saved_elements == expected, name
    assert part["mlp.norm"].n_trained_parameters == 2048


def test_a_stage_holds_gradients_and_state_of_what_is_trained() -> None:
    spec = api.read("llama-3.2-1b", sequence_length=SEQUENCE, lora="r=4,targets=output")
    problem = api.make_problem(spec, "dgx-h100:2", batch=Batch(2))
    n = len(spec.graph.ops)
    for strategy, weights, state in ((Strategy(), 1, 1), (Strategy(data=2, shard=1), 1, 2), (Strategy(data=2, shard=3), 2, 2)):
        plan = Plan((Stage(tuple(range(n)), tuple(range(strategy.data)), strategy),), 1, 1, global_batch=2)
        load = analytic.stage_costs(problem, plan)[0]
        trained, held = spec.graph.n_trained_parameters, spec.graph.n_parameters  # the table of both ends once
        wider = 2 * trained / state if strategy.shard == 3 else 0  # the fp32 copy of what is trained is the weight
        assert load.weight_bytes == pytest.approx(2 * held / weights + wider)
        assert load.gradient_bytes == pytest.approx(4 * trained / (state if strategy.shard == 3 else 1))
        assert load.optimizer_bytes == pytest.approx((12 * trained - 2 * wider * state) / state)


def test_stages_below_everything_trained_send_and_get_no_gradient() -> None:
    from meshwright.sim import transfers

    spec = api.read("llama-3.1-8b", sequence_length=SEQUENCE, freeze=("embed", "layers.?"))
    problem = api.make_problem(spec, "dgx-h100:4", batch=Batch(4))
    cuts = (0, 6, 11, 20, 34)
    stages = tuple(Stage(tuple(range(a, b)), (i,), Strategy()) for i, (a, b) in enumerate(itertools.pairwise(cuts)))
    plan = Plan(stages, 4, 1, global_batch=4)
    loads = analytic.stage_costs(problem, plan)
    assert [load.output_gradient for load in loads] == [False, False, True, True]
    assert [load.backward_total_seconds > 0 for load in loads] == [False, False, True, True]
    assert [load.activation_bytes > 0 for load in loads] == [False, False, True, True]
    sent = transfers.transfers(problem, plan, loads).bytes
    assert (sent[0, :3] > 0).all() and list(sent[1, 1:] > 0) == [False, False, True]


@pytest.mark.parametrize("word", ["full", "selective", "none"])
def test_what_has_no_backward_pass_is_not_recomputed(word: str) -> None:
    spec = api.read("llama-3.1-8b", sequence_length=SEQUENCE, freeze=("embed", "layers.?"))
    problem = api.make_problem(spec, "dgx-h100:1", batch=Batch(1))
    load = analytic.row_costs(problem, Strategy(), range(1), 1)[1, word]
    assert load.recompute_seconds == load.activation_bytes == load.backward_total_seconds == 0.0


def test_nothing_is_reduced_or_gathered_of_frozen_weights() -> None:
    spec = api.read("llama-3.2-1b", sequence_length=SEQUENCE, lora="r=4,targets=output")
    problem = api.make_problem(spec, "dgx-h100:2", batch=Batch(2))
    trained = 4 * (2048 + 2048)  # of one layer
    for shard, parts in ((0, {"reduce": 4}), (1, {"reduce": 4, "gather": 2})):
        plan = Plan((Stage(tuple(range(18)), (0, 1), Strategy(data=2, shard=shard)),), 1, 1, global_batch=2)
        load = analytic.stage_costs(problem, plan)[0]
        found = {one.part: one.n_bytes * one.n_times for one in load.collectives if one.part in ("reduce", "gather")}
        assert found == pytest.approx({part: width * trained * 16 for part, width in parts.items()})


@pytest.mark.parametrize(
    ("freeze", "lora", "why"),
    [
        ((), "targets=query", "r must be one whole number"),
        ((), "r=0,targets=query", "r must be one whole number"),
        ((), "r=4", "targets are missing"),
        ((), "r=4,targets=querry", "no target"),
        ((), "r=4,r=5,targets=query", "each once"),
        ((), "r=4,alpha=2,targets=query", "'alpha' is not known"),
        ((), "r=4,targets=query,query_key_value", "a part of it"),
        (("embed",), "r=4,targets=query", "give one of them"),
        (("blocks.*",), "", "no weights of llama-3.2-1b are called so"),
        (("*",), "", "nothing of llama-3.2-1b is left to train"),
        (("embed",), "", "one table"),
    ],
)
def test_nonsense_is_refused_in_one_line(freeze: tuple[str, ...], lora: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        _graph(freeze, lora)
    assert "\n" not in str(refused.value)


def test_what_counts_all_weights_refuses_a_model_trained_in_part() -> None:
    spec = api.read("llama-3.2-1b", sequence_length=SEQUENCE, lora="r=4,targets=output")
    with pytest.raises(InputError, match=r"--for megatron: 1.236 B of the .* are frozen"):
        api.make_problem(spec, "dgx-h100:8", framework="megatron")
    with pytest.raises(InputError, match=r"search piper: .* are frozen"):
        api.plan(spec, "dgx-h100:8", search="piper", batch=Batch(8))
    with pytest.raises(InputError, match=r"costs sharded: .* are frozen"):
        api.make_problem(spec, "dgx-h100:8", costs="sharded")
    with pytest.raises(InputError, match=r"--lora: .* have no names to freeze by"):
        api.read("pase:alexnet", lora="r=4,targets=output")


@pytest.mark.parametrize(
    ("model", "word", "targets"),
    [
        ("llama-3.2-1b", "all", "query,key,value,output,gate,up,down"),
        ("llama-3.2-1b", "all-linear", "query,key,value,output,gate,up,down"),
        ("llama-3.2-1b", "mlp", "gate,up,down"),
        ("gpt2", "attention", "query_key_value,output"),  # transformers' GPT-2 has one product for the three
        ("gpt2", "all", "query_key_value,output,up,down"),
        ("mixtral-8x7b", "all", "query,key,value,output"),
    ],
)
def test_words_for_several_targets_are_those_that_the_model_has(model: str, word: str, targets: str) -> None:
    found, named = (api.read(model, sequence_length=64, lora=f"r=4,targets={one}") for one in (word, targets))
    assert found.graph == named.graph and found.lora == named.lora == f"r=4,targets={targets}"
    assert any(f"adapters of {', '.join(targets.split(','))}" in note for note in found.notes)


def test_words_for_several_targets_are_refused_where_products_have_no_names() -> None:
    with pytest.raises(InputError, match="latent attention"):
        api.read("deepseek-v2-lite", lora="r=4,targets=all")
    with pytest.raises(InputError, match="no products of mlp"):
        api.read("mixtral-8x7b", lora="r=4,targets=mlp")
