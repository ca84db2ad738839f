"""DPO in the files of TRL: written, read back to the same step, started from scripts; what other frameworks say."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.api.advise import advise
from meshwright.api.evaluation import evaluate
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.models import fine_tuning
from meshwright.models.preference_pairs import with_objective

LORA = "r=8,targets=query,value"


def _posed(word: str, objective: str, lora: str) -> Problem:
    spec = api.read("llama-3.2-1b", sequence_length=512, lora=lora, objective=objective)
    return api.make_problem(spec, "dgx-h100:8", framework=word, batch=Batch(64))


def _planned(problem: Problem, strategy: Strategy, word: str = "full") -> Plan:
    n = len(problem.graph.ops)
    stage = Stage(tuple(range(n)), tuple(range(8)), strategy, ("none", *[word] * (n - 2), "none"))
    return Plan((stage,), 4, 2, "1f1b", 64)


@pytest.mark.parametrize(
    ("name", "strategy", "objective", "lora", "word"),
    [
        ("transformers", Strategy(8), "dpo", "", "none"),
        ("transformers", Strategy(8, shard=2), "dpo", "", "full"),
        ("transformers:deepspeed", Strategy(8, shard=3), "dpo", "", "none"),
        ("transformers", Strategy(8, shard=3), "dpo,reference=precomputed", "", "full"),
        ("transformers", Strategy(8, shard=3), "dpo", LORA, "none"),
        ("transformers", Strategy(8, shard=2), "dpo,reference=copy", LORA, "full"),
        ("transformers", Strategy(8), "dpo", f"{LORA},base=4bit", "none"),
    ],
)
def test_pairs_are_read_back_and_the_step_is_the_same(
    name: str, strategy: Strategy, objective: str, lora: str, word: str, tmp_path: pathlib.Path
) -> None:
    problem, path = _posed(name, objective, lora), tmp_path / "plan.py"
    plan = _planned(problem, strategy, word)
    module = frameworks.load("transformers")
    notes = module.write(Result(problem, "best", 0, Answer(plan)), str(path))
    assert any("DPO by TRL" in note for note in notes)
    assert any("ref_model" in note for note in notes) == problem.graph.has_copy
    text = path.read_text()
    assert "from trl import DPOConfig" in text and "max_length=512" in text and "TrainingArguments" not in text
    assert module.recognises(text)
    whole = api.read("llama-3.2-1b", sequence_length=512)
    said = module.read(str(path), whole.graph)
    assert said.plan == plan and said.sequence_length == 512
    assert [warning for warning in said.warnings if "trains on pairs" not in warning] == []
    tuned = fine_tuning.fine_tuned(whole, (), said.lora) if said.lora else whole
    back = with_objective(tuned, said.objective).graph
    assert back.ops == problem.graph.ops and back.n_sequences == 2
    assert evaluate(problem, plan)[1] is not None


def test_what_trl_does_otherwise_is_refused(tmp_path: pathlib.Path) -> None:
    problem = _posed("transformers", "dpo", "")
    with pytest.raises(ExportError, match="shards it as one unit"):
        plan = _planned(problem, Strategy(8, shard=3))
        frameworks.load("transformers").write(Result(problem, "best", 0, Answer(plan)), str(tmp_path / "a.py"))
    with pytest.raises(ExportError, match=r"run_clm\.py does not train on"):
        plan = _planned(problem, Strategy(8))
        frameworks.load("transformers").write(Result(problem, "best", 0, Answer(plan)), str(tmp_path / "a.json"))
    found = api.plan(
        "llama-3.2-1b", "dgx-h100:8", global_batch=64, sequence_length=512, objective="dpo", framework="transformers"
    )
    assert found.plan.stages[0].strategy.shard in (0, 2)  # the search keeps to what TRL runs


@pytest.mark.parametrize(
    "name", ["accelerate", "deepspeed", "fsdp2", "maxtext", "megatron", "megatron_bridge", "nanotron", "torchtitan"]
)
def test_other_frameworks_refuse_pairs(name: str) -> None:
    with pytest.raises(InputError, match="trains on single sequences, not on pairs"):
        _posed(name, "dpo,reference=precomputed", "")
    problem = _posed("", "dpo,reference=precomputed", "")
    reasons = frameworks.refusals(frameworks.plain(name), _planned(problem, Strategy(8)), problem)
    assert any("pairs of a chosen and a rejected sequence" in reason for reason in reasons)


def test_scripts_of_trl_are_read_with_its_defaults(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(
        "accelerate launch --num_processes 8 trl/scripts/dpo.py --per_device_train_batch_size 2 \\\n"
        "  --gradient_accumulation_steps 4 --beta 0.1 --precompute_ref_log_probs true\n"
    )
    found = advise(str(script), "dgx-h100:8", model="llama-3.2-1b")
    problem = found.result.problem
    assert problem.model_spec.objective == "dpo,reference=precomputed" and problem.graph.sequence_length == 1024
    assert problem.training.precision == "bf16" and found.result.plan.global_batch == 64
    assert set(found.result.plan.stages[0].recompute[1:-1]) == {"full"}
    assert any("trains on pairs (DPO)" in warning for warning in found.said.warnings)
    plain = tmp_path / "sft.sh"
    plain.write_text("accelerate launch --num_processes 8 sft.py --per_device_train_batch_size 2 --bf16 true\n")
    assert advise(str(plain), "dgx-h100:8", model="llama-3.2-1b").result.problem.graph.n_sequences == 1
    wrong = tmp_path / "wrong.py"
    wrong.write_text("# torchrun --nproc-per-node 8 wrong.py\nfrom trl import DPOConfig\na = DPOConfig(sync_ref_model=True)\n")
    with pytest.raises(InputError, match="a reference that follows the model is not priced"):
        advise(str(wrong), "dgx-h100:8", model="llama-3.2-1b")
