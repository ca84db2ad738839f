"""The sharded cost model: never worse than Megatron's split in any layer, memory alike, light loads below full ones,
plans no slower.
"""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import api
from meshwright.core.problem import Batch
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic, sharded
from meshwright.costs.sharded.against_megatron import savings

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
TINY = str(DATA / "tiny_llama.json")
MIXTURE = {
    "model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "max_position_embeddings": 2048,
}  # fmt: skip
BYTES = (
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "working_bytes",
    "reserved_bytes",
    "output_bytes",
)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "mixture.json"
    path.write_text(json.dumps(MIXTURE))
    return str(path)


def _strategies() -> st.SearchStrategy[Strategy]:
    return st.builds(
        lambda data, tensor, context, expert, sequence, shard: Strategy(
            data=data * expert if context == 1 else data, tensor=tensor, context=context,
            expert=expert if context == 1 else 1, sequence_parallel=sequence and tensor > 1, shard=shard,
        ),
        st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2]),
        st.booleans(), st.sampled_from([0, 1, 3]),
    )  # fmt: skip


@settings(max_examples=8, deadline=None, derandomize=True)
@given(strategy=_strategies(), micro_batch=st.sampled_from([1, 2, 4]), cluster=st.sampled_from(["dgx-h100:32", "pcie-a100:32"]))
def test_row_by_row_no_slower_than_megatron_and_holding_as_much(
    mixture: str, strategy: Strategy, micro_batch: int, cluster: str
) -> None:
    for model in ("gpt2", mixture):
        problem = api.make_problem(model, cluster, costs="sharded", batch=Batch(64))
        if analytic.illegal(problem, strategy, micro_batch):
            continue
        devices = range(strategy.n_devices)
        plain = analytic.row_costs(problem, strategy, devices, micro_batch)
        ours = sharded.row_costs(problem, strategy, devices, micro_batch)
        light = sharded.row_costs(problem, strategy, devices, micro_batch, inside_only=True)
        least = sharded.compute_seconds(problem, strategy, micro_batch, problem.cluster.device(0))
        assert list(ours) == list(plain)
        for key, load in ours.items():
            before = plain[key]
            assert load.forward_total_seconds <= before.forward_total_seconds * (1 + 1e-12)
            assert load.backward_total_seconds <= before.backward_total_seconds * (1 + 1e-12)
            assert all(getattr(load, name) == getattr(before, name) for name in BYTES)
            assert light[key].forward_total_seconds <= load.forward_total_seconds * (1 + 1e-12)
            assert light[key].backward_total_seconds <= load.backward_total_seconds * (1 + 1e-12)
            assert load.forward_total_seconds + load.backward_total_seconds >= least[key[0]] * (1 - 1e-12)
            assert all(seconds >= 0.0 for _, seconds in (*load.forward_communication, *load.backward_communication))


def test_a_table_of_words_is_split_along_the_hidden_size_over_the_tensor_axis() -> None:
    problem = api.make_problem(TINY, "dgx-h100:8", costs="sharded", batch=Batch(8))
    strategy = Strategy(tensor=4, sequence_parallel=True)
    saved = savings(problem, strategy, 1)
    assert ("words", "none/none/vocabulary", "none/none/hidden") in saved[0].operators
    plain, ours = (module.row_costs(problem, strategy, range(4), 1)[0, "none"] for module in (analytic, sharded))
    assert ours.forward_total_seconds == pytest.approx(
        plain.forward_total_seconds - min(saved[0].forward_seconds, dict(plain.forward_communication)["tensor"]), rel=1e-12
    )
    assert ours.forward_total_seconds < plain.forward_total_seconds


def test_one_device_one_context_with_experts_and_mixed_devices_keep_megatrons_split(mixture: str) -> None:
    problem = api.make_problem(mixture, "dgx-h100:8", costs="sharded", batch=Batch(8))
    assert savings(problem, Strategy(data=8), 1) == {}
    assert savings(problem, Strategy(data=2, context=2, expert=2), 1) == {}
    mixed = api.make_problem("gpt2", str(DATA / "two_kinds.yaml"), costs="sharded", batch=Batch(8))
    assert savings(mixed, Strategy(tensor=2, sequence_parallel=True), 1) == {}
    found = api.plan(mixed, search="best", settings={"tensor": "2", "evaluations": "4"})
    assert any("several kinds" in note for note in found.answer.notes)


@pytest.mark.parametrize("cluster", ["pcie-a100:32", "dgx-h100:8"])
def test_a_split_over_experts_changes_experts_and_tables_alone(mixture: str, cluster: str) -> None:
    """Gradients are reduced over the expert and the context axis once a step, so nothing is saved by reducing fewer of them."""
    problem = api.make_problem(mixture, cluster, costs="sharded", batch=Batch(64))
    saved = savings(problem, Strategy(data=2, expert=2, tensor=2, sequence_parallel=True), 1)
    experts = (("in", "out"), ("activation", "hidden"), ("out", "in"))
    assert {row: saving.operators for row, saving in saved.items()} == {
        0: (("words", "batch/none/vocabulary", "batch/none/hidden"),),
        1: tuple((f"mlp.experts.{name}", f"experts/none/{axis}", "experts/none/experts") for name, axis in experts),
    }
    assert savings(problem, Strategy(data=2, expert=2), 1) == savings(problem, Strategy(context=2), 1) == {}


def test_contention_takes_nothing_below_what_silent_replicas_save(mixture: str) -> None:
    problem = api.make_problem(mixture, "pcie-a100:32", costs="sharded", batch=Batch(64))
    strategy = Strategy(data=8, tensor=2, expert=4, sequence_parallel=True)
    alone, together = (savings(problem, strategy, 1, alone=alone) for alone in (True, False))
    assert alone and set(together) <= set(alone)
    for row, saving in together.items():
        assert 0 <= saving.forward_seconds <= alone[row].forward_seconds
        assert 0 <= saving.backward_seconds <= alone[row].backward_seconds


WIDER = [("pcie-a100:16", {}), ("dgx-h100:4", {"tensor": "4"}), ("pcie-a100:16", {"tensor": "2"}),
         ("dgx-h100:4", {"tensor": "2", "pipeline": "2"})]  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "degrees"),
    [
        ("dgx-h100:4", {}), ("dgx-h100:4", {"tensor": "2"}), ("pcie-a100:16", {"tensor": "4"}),
        ("pcie-a100:16", {"tensor": "2", "pipeline": "2"}), *(pytest.param(*one, marks=pytest.mark.slow) for one in WIDER),
    ],
)  # fmt: skip
def test_best_is_never_slower_than_with_megatrons_split_and_says_what_differs(
    mixture: str, cluster: str, degrees: dict[str, str]
) -> None:
    for model in (TINY, mixture):
        options = {**degrees, "schedules": "1f1b", "evaluations": "20"}
        plain, ours = (
            api.plan(model, cluster, costs=costs, batch=Batch(16), search="best", settings=options)
            for costs in ("analytic", "sharded")
        )
        assert ours.answer.objective.value <= plain.answer.objective.value
        assert ours.answer.bound.value <= ours.answer.objective.value
        assert ours.timeline.step_seconds == pytest.approx(ours.answer.objective.value, rel=1e-12)
        splits = ours.answer.extra["splits"]
        assert json.loads(json.dumps(splits)) is not None
        if splits:
            assert any("split otherwise" in note for note in ours.answer.notes)
        if degrees and not any(stage.strategy.folded for stage in ours.plan.stages):  # experts over the tensor axis are left
            assert splits
            assert ours.answer.objective.value < plain.answer.objective.value
        elif model == TINY:
            again = api.plan(model, cluster, costs="sharded", batch=Batch(16), search="best", settings=options).answer
            assert (again.plan, again.objective, again.extra) == (ours.plan, ours.answer.objective, ours.answer.extra)


def test_piper_reads_the_same_rows_and_is_no_slower() -> None:
    plain, ours = (
        api.plan(TINY, "pcie-a100:8", costs=costs, batch=Batch(16), search="piper") for costs in ("analytic", "sharded")
    )
    assert ours.answer.bound.value <= plain.answer.bound.value * (1 + 1e-12)
    assert ours.answer.objective.value <= plain.answer.objective.value * (1 + 1e-9)
    assert "splits" in ours.answer.extra


def test_the_rows_are_the_analytic_ones_with_shorter_times() -> None:
    problem = api.make_problem(TINY, "dgx-h100:8", batch=Batch(8))
    shorter = 0
    for strategy in (Strategy(tensor=2, sequence_parallel=True), Strategy(data=2, tensor=4, sequence_parallel=True)):
        plain, ours = (module.row_costs(problem, strategy, range(strategy.n_devices), 1) for module in (analytic, sharded))
        for key, load in plain.items():
            assert ours[key].static_bytes == load.static_bytes
            assert ours[key].forward_total_seconds <= load.forward_total_seconds
            shorter += ours[key].forward_total_seconds < load.forward_total_seconds
    assert shorter
