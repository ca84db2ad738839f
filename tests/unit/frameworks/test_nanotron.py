"""nanotron's file, written and read: its own cut of a model into stages, and what is wrong or unknown in one line."""

from __future__ import annotations

import functools
import itertools
import pathlib
import random

import pytest
import yaml

from meshwright import api, frameworks
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks.nanotron import split

MODULE = frameworks.load("nanotron")


@functools.cache
def posed(model: str = "llama-3.1-8b", precision: str = "bf16", word: str = "nanotron") -> Problem:
    return api.make_problem(model, "dgx-h100:64", framework=word, batch=Batch(64, 1), training=MixedPrecision.of(precision))


def planned(problem: Problem, strategy: Strategy, stages: list[tuple[int, ...]], word: str = "none", **said: int | str) -> Plan:
    last, size = len(problem.graph.ops) - 1, strategy.n_devices
    n, micro, schedule = int(said.get("n", 8)), int(said.get("micro", 1)), str(said.get("schedule", "1f1b"))
    made = tuple(
        Stage(ops, tuple(range(i * size, (i + 1) * size)), strategy, tuple("none" if op in (0, last) else word for op in ops))
        for i, ops in enumerate(stages)
    )
    return Plan(made, n, micro, schedule, n * micro * strategy.data)


def whole(problem: Problem) -> list[tuple[int, ...]]:
    return [tuple(range(len(problem.graph.ops)))]


def test_a_model_is_cut_where_the_cost_of_blocks_passes_each_ranks_share() -> None:
    # Llama 3.1 8B: a layer is 4 x 32 x 128 x 4096 + 3 x 14336 x 4096 = 243.3 M, the head 128256 x 4096 = 525.3 M, which is 2.16
    # layers. Of 34.16 layers two ranks have 17.08 each: the 18th layer passes the share and still is the first rank's.
    fields = split.configuration(posed())
    assert [len(ops) for ops in split.of_fields(fields, 2) or []] == [19, 15]
    # four ranks, 8.54 layers each: the 9th, 18th and 26th layer pass 8.54, 17.08 and 25.62
    assert [len(ops) for ops in split.of_fields(fields, 4) or []] == [10, 9, 8, 7]
    for n_ranks in range(1, 30):
        stages = split.of_fields(fields, n_ranks)
        assert stages is None or list(itertools.chain(*stages)) == list(range(34))
    assert split.of_fields(fields, 40) is None
    assert split.of_problem(posed("gpt2"), 2) is None


def test_random_plans_are_read_back_the_same_pipelines_cut_as_nanotron_cuts_them(tmp_path: pathlib.Path) -> None:
    chance, path, piped = random.Random(5), tmp_path / "plan.yaml", 0
    for _ in range(40):
        precision = chance.choice(["bf16", "fp32"])
        problem = posed(
            chance.choice(["llama-3.1-8b", "qwen2.5-7b"]), precision, chance.choice(["nanotron", "nanotron:async_tensor"])
        )
        n_ranks, data, tensor = chance.choice([1, 2, 4]), chance.choice([1, 2, 4]), chance.choice([1, 2, 4])
        strategy = Strategy(data, tensor, 1, 1, tensor > 1 and chance.random() < 0.6, chance.choice([0, 1]) if data > 1 else 0)
        stages = split.of_problem(problem, n_ranks)
        assert stages is not None
        plan = planned(
            problem, strategy, stages, chance.choice(["none", "full"]), n=chance.randint(1, 4), micro=chance.randint(1, 3),
            schedule=chance.choice(["1f1b", "gpipe"]) if n_ranks > 1 else "1f1b",
        )  # fmt: skip
        assert MODULE.refusals(plan, problem) == ()
        MODULE.write(Result(problem, "best", 0, Answer(plan)), str(path))
        said = MODULE.read(str(path), problem.graph)
        assert (said.plan, said.precision, said.warnings) == (plan, precision, ())
        assert said.sequence_length == problem.graph.sequence_length
        beside = problem.framework.variant if strategy.sequence_parallel else ""
        assert said.variant == beside
        piped += n_ranks > 1
    assert piped >= 15


def test_another_cut_is_refused_with_nanotrons_own_and_a_schedule_without_a_pipeline(tmp_path: pathlib.Path) -> None:
    problem = posed()
    even = planned(problem, Strategy(2), [tuple(range(17)), tuple(range(17, 34))])
    reasons = MODULE.refusals(even, problem)
    assert any("it cuts this model into 19, 15 on 2 ranks" in reason for reason in reasons)
    with pytest.raises(ExportError, match="19, 15"):
        MODULE.write(Result(problem, "best", 0, Answer(even)), str(tmp_path / "a.yaml"))
    assert not list(tmp_path.iterdir())
    alone = planned(problem, Strategy(2), whole(problem), schedule="gpipe")
    assert any("without a pipeline" in reason for reason in MODULE.refusals(alone, problem))


def test_models_are_told_by_their_dimensions_or_refused(tmp_path: pathlib.Path) -> None:
    problem = posed("qwen2.5-7b")
    notes = MODULE.write(Result(problem, "best", 0, Answer(planned(problem, Strategy(8), whole(problem)))), str(tmp_path / "a"))
    model = yaml.safe_load((tmp_path / "a").read_text())["model"]["model_config"]
    assert notes == () and model["is_qwen2_config"] and model["attention_bias"] and model["num_key_value_heads"] == 4
    problem = posed()
    notes = MODULE.write(Result(problem, "best", 0, Answer(planned(problem, Strategy(8), whole(problem)))), str(tmp_path / "b"))
    model = yaml.safe_load((tmp_path / "b").read_text())["model"]["model_config"]
    assert (
        "'llama3'" in notes[0] and model["is_llama_config"] and not model["attention_bias"] and model["rope_theta"] == 500000.0
    )
    problem = posed("gpt2")
    with pytest.raises(ExportError, match="of the family gpt2"):
        MODULE.write(Result(problem, "best", 0, Answer(planned(problem, Strategy(8), whole(problem)))), str(tmp_path / "c"))


FILE = """# torchrun --nproc_per_node=8 run_train.py --config-file a.yaml
model:
  dtype: bfloat16
  model_config:
    num_hidden_layers: 32
optimizer:
  zero_stage: 1
parallelism:
  dp: 4
  pp: 1
  tp: 2
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 2
  micro_batch_size: 1
  sequence_length: 512
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("dp: 4", "dp: 3", "make 6 devices, the command starts 8"), ("dp: 4", "dp: four", "dp is 'four'"),
        ("zero_stage: 1", "zero_stage: 3", "must be 0 or 1"), ("bfloat16", "int8", "model.dtype is int8"),
        ("REDUCE_SCATTER", "SCATTER", "tp_mode is SCATTER"), ("layers: 32", "layers: 30", "another model?"),
        ("tp: 2", "tp: 2\n  pp_engine: zb", "pp_engine is zb"), ("tp: 2", "tp: 2\n  expert_parallel_size: 2", "only 1 is read"),
        ("tp: 2", "tp: 2\n  recompute_layer: some", "true or false"), ("model:", "model: [", "is no YAML"),
        ("dp: 4\n  pp: 1", "dp: 2\n  pp: 2", "hidden_size is missing"),
        ("micro_batch_size: 1", "", "micro_batch_size is missing"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line_with_the_entry(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "a.yaml", posed().graph
    path.write_text(FILE)
    assert MODULE.read(str(path), graph).plan.stages[0].strategy == Strategy(4, 2, 1, 1, True, 1) and old in FILE
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        MODULE.read(str(path), graph)
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_what_is_unknown_is_a_warning_and_what_is_open_is_nanotrons_default(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        FILE.replace("tp: 2", "tp: 2\n  weather: 3").replace("zero_stage: 1", "zero_stage: 0\n  accumulate_grad_in_fp32: false")
    )
    said = MODULE.read(str(path), posed().graph)
    assert f"{path}: line 13: nothing is known of weather; it is left out" in said.warnings
    assert any("accumulate_grad_in_fp32" in text for text in said.warnings) and said.plan.stages[0].strategy.shard == 0
    names = [
        name for name in frameworks.names()
        if hasattr(frameworks.load(name), "recognises") and frameworks.load(name).recognises(FILE)
    ]  # fmt: skip
    assert names == ["nanotron"]


def test_a_pipeline_of_a_model_that_the_file_describes_is_legal(tmp_path: pathlib.Path) -> None:
    problem = posed()
    cut = split.of_problem(problem, 2)
    assert cut is not None
    path = str(tmp_path / "a.yaml")
    MODULE.write(Result(problem, "best", 0, Answer(planned(problem, Strategy(8), cut))), path)
    assert api.make_problem(MODULE.model_of(path, 0), "dgx-h100:16", framework="nanotron").model_spec.spec == ""
    for model in (MODULE.model_of(path, 0), "llama-3.1-8b"):
        posed_here = api.make_problem(model, "dgx-h100:16", framework="nanotron")
        plan = MODULE.read(path, posed_here.graph, 16).plan
        assert MODULE.refusals(plan, posed_here) == ()
