"""Weights that layers share: once on a rank that holds several of these layers, and on each rank that holds one."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace

import pytest

from meshwright import api
from meshwright.base.errors import InputError
from meshwright.core.graph import Graph, SharedWeights
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.models.weight_tensors import weight_tensors

BATCH = 8
TIED = ("gpt2", "llama-3.2-1b", "gemma-7b", "bert-base", "opt-350m", "t5-small", "gpt-neo-125m", "deepseek-v3-mtp")


def on_one_device(problem: Problem) -> Plan:
    """Return the plan of one device."""
    return Plan((Stage(problem.graph.topological_order(), (0,), Strategy()),), BATCH, 1, "1f1b", BATCH)


def apart(problem: Problem) -> Problem:
    """Return the problem with a table of its own for each layer: their number is known, not where they lie."""
    graph = replace(problem.graph, shared=())
    return replace(problem, model_spec=replace(problem.model_spec, graph=graph))


@pytest.mark.parametrize("name", TIED)
def test_one_device_holds_every_weight_once(name: str) -> None:
    problem = api.make_problem(name, "dgx-h100:1", batch=Batch(BATCH))
    graph, training = problem.graph, problem.training
    load = analytic.stage_costs(problem, on_one_device(problem))[0]
    assert graph.n_shared_parameters == graph.n_located_parameters > 0
    assert load.weight_bytes == training.weight_bytes * graph.n_parameters
    assert load.optimizer_bytes == training.optimizer_bytes * graph.n_parameters
    twice = analytic.stage_costs(apart(problem), on_one_device(problem))[0]
    assert twice.weight_bytes - load.weight_bytes == training.weight_bytes * graph.n_shared_parameters
    state = training.weight_bytes + training.gradient_bytes + training.optimizer_bytes
    copies = training.weight_bytes if "mtp" in name else 0  # of a second look-up, whose gradient stands beside the main one
    assert twice.static_bytes - load.static_bytes == (state + copies) * graph.n_shared_parameters
    for figure in ("forward_total_seconds", "backward_total_seconds", "activation_bytes", "working_bytes", "output_bytes"):
        assert getattr(load, figure) == getattr(twice, figure)
    assert load.optimizer_seconds < twice.optimizer_seconds


@pytest.mark.parametrize("family", ["GPT2", "Llama", "Gemma", "Qwen2"])
def test_one_device_holds_as_many_weights_as_transformers_makes(family: str, tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    sizes = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": True}  # fmt: skip
    if family == "GPT2":
        sizes = {"vocab_size": 1000, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}
    config = getattr(transformers, f"{family}Config")(**sizes)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}{'LMHeadModel' if family == 'GPT2' else 'ForCausalLM'}")(config)
        model.tie_weights()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(sizes | {"model_type": config.model_type}))
    problem = api.make_problem(str(file), "dgx-h100:1", batch=Batch(BATCH, 1, 128))
    load = analytic.stage_costs(problem, on_one_device(problem))[0]
    assert load.weight_bytes == problem.training.weight_bytes * sum(weight.numel() for weight in model.parameters())


def test_only_layers_at_the_ends_count_once_and_others_are_said_to_count_twice() -> None:
    from meshwright.costs.analytic.shared_weights import counted_twice

    problem = api.make_problem("gpt2", "dgx-h100:1", batch=Batch(BATCH))
    graph = replace(
        problem.graph, n_shared_parameters=4 * 768 * 768, shared=(SharedWeights(((1, "mlp.in"), (2, "mlp.in")), 4 * 768 * 768),)
    )
    assert not analytic.spare_rows(graph, ends_together=True)
    assert counted_twice(graph, on_one_device(problem)) == 4 * 768 * 768
    assert counted_twice(problem.graph, on_one_device(problem)) == 0
    assert counted_twice(replace(problem.graph, shared=()), on_one_device(problem)) == 50257 * 768


def test_a_bias_of_the_head_stays_its_own() -> None:
    """BERT's head has a bias of the vocabulary beside the shared table: a vector to optimizers that look at shapes."""
    problem = api.make_problem("bert-base", "dgx-h100:1", batch=Batch(BATCH))
    from meshwright.costs.analytic.shared_weights import body_without

    (head,) = analytic.spare_rows(problem.graph, ends_together=True)
    body = body_without(problem.graph, head)
    (bias,) = (operator for operator in body if operator.name == "unembedding")
    assert bias.n_parameters == 30522 and [own.n_weights for own in weight_tensors(body, bias) or ()] == [30522]
    adafactor = replace(problem, training=problem.training.updated_by("adafactor"))
    load = analytic.stage_costs(adafactor, on_one_device(adafactor))[0]
    twice = analytic.stage_costs(apart(adafactor), on_one_device(adafactor))[0]
    assert twice.optimizer_bytes - load.optimizer_bytes == 4 * 768 * 30522 + 4 * (768 + 30522)  # and sums of rows and columns


@pytest.mark.parametrize(
    ("places", "n", "word"),
    [
        (((0, "words"), (13, "nothing")), 10, "no operator"),
        (((0, "words"), (99, "x")), 10, "no operator"),
        (((0, "words"), (13, "unembedding")), 10**9, "no operator"),
        (((0, "words"), (13, "unembedding"), (0, "words")), 50257 * 768, "located"),
    ],
)
def test_shared_weights_that_are_not_there_are_refused(places: tuple[tuple[int, str], ...], n: int, word: str) -> None:
    graph = api.make_problem("gpt2", "dgx-h100:1", batch=Batch(BATCH)).graph
    with pytest.raises(InputError, match=word):
        Graph(
            graph.name,
            graph.ops,
            graph.edges,
            graph.sequence_length,
            graph.n_shared_parameters,
            shared=(SharedWeights(places, n),),
        )
