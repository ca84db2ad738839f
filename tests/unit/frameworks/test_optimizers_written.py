"""Optimizers other than Adam: written by each framework's name and read back the same, refused where it has none."""

from __future__ import annotations

import ast
import json
import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.api import advise
from meshwright.api.evaluation import evaluate
from meshwright.base.errors import ExportError, InputError
from meshwright.core.optimizers import OPTIMIZERS
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem, Stop
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.frameworks import _optimizers

SUFFIX = {"fsdp2": "py", "transformers": "py", "deepspeed": "sh", "accelerate": "yaml", "megatron": "sh", "torchtitan": "py"}
HELD = {
    "fsdp2": ("adam", "adamw", "sgd", "sgd-momentum", "adam-8bit"),
    "transformers": ("adam", "adamw", "sgd", "sgd-momentum", "adafactor", "lion", "adam-8bit"),
    "deepspeed": ("adam", "adamw", "sgd", "sgd-momentum", "lion"), "accelerate": ("adam", "adamw"),
    "megatron": ("adam", "adamw"), "torchtitan": ("adam", "adamw"),
}  # fmt: skip


def posed(name: str, word: str, precision: str = "bf16") -> Problem:
    training = MixedPrecision.of(precision).updated_by(word)
    return api.make_problem(
        "llama-3.2-1b", "dgx-h100:8", framework=name, batch=Batch(64, 1), training=training,
    )  # fmt: skip


def planned(problem: Problem, shard: int) -> Plan:
    last = len(problem.graph.ops) - 1
    stage = Stage(tuple(range(last + 1)), tuple(range(8)), Strategy(8, shard=shard), ("none",) * (last + 1))
    return Plan((stage,), 8, 1, "1f1b", 64)


@pytest.mark.parametrize("name", sorted(HELD))
@pytest.mark.parametrize("word", sorted(OPTIMIZERS))
def test_an_optimizer_is_written_and_read_back_or_refused_by_name(name: str, word: str, tmp_path: pathlib.Path) -> None:
    module, path = frameworks.load(name), str(tmp_path / f"plan.{SUFFIX[name]}")
    shard = 0 if name == "transformers" and word in ("adafactor", "lion") else 2 if name != "megatron" else 1
    if word not in HELD[name]:
        with pytest.raises(InputError, match=f"it has no optimizer {word}"):
            posed(name, word)
        elsewhere = posed("", word)
        with pytest.raises(ExportError, match=f"optimizer {word}; it has"):
            module.write(Result(elsewhere, "best", 0, Answer(planned(elsewhere, shard))), path)
        return
    for precision in ("bf16", "fp32"):
        problem = posed(name, word, precision)
        plan = planned(problem, shard)
        module.write(Result(problem, "best", 0, Answer(plan)), path)
        said = module.read(path, problem.graph, 8)
        training = said.training or MixedPrecision.of(said.precision)
        assert said.plan == plan and training.optimizer in (word, "adamw" if word == "adam" else word)
        back = posed(name, training.optimizer, precision)
        ran, asked = evaluate(back, said.plan)[1], evaluate(problem, plan)[1]
        assert ran is not None and asked is not None
        assert (ran.step_seconds, ran.peak_bytes) == (asked.step_seconds, asked.peak_bytes)


def test_state_of_other_bytes_is_refused(tmp_path: pathlib.Path) -> None:
    training = MixedPrecision().updated_by("lion", state_bytes=2)
    problem = api.make_problem("llama-3.2-1b", "dgx-h100:8", framework="deepspeed", batch=Batch(64, 1), training=training)
    with pytest.raises(ExportError, match="state bytes 2; it has 4"):
        frameworks.load("deepspeed").write(Result(problem, "best", 0, Answer(planned(problem, 2))), str(tmp_path / "a.json"))


def test_weights_in_parts_are_no_place_for_whole_matrices(tmp_path: pathlib.Path) -> None:
    for word, said in (("adafactor", "transformers' Adafactor beside sharded"), ("lion", "bitsandbytes' Lion beside sharded")):
        problem = posed("transformers", word)
        assert problem.framework.limits.shards == (0,), "searches keep to what the trainer takes"
        with pytest.raises(ExportError, match=said):
            frameworks.load("transformers").write(
                Result(problem, "best", 0, Answer(planned(problem, 3))), str(tmp_path / "a.py")
            )


@pytest.mark.parametrize(
    ("said", "word", "note"),
    [
        ({}, "adamw", ""), ({"optim": "adamw_8bit"}, "adam-8bit", ""), ({"optim": "adamw_hf"}, "adamw", ""),
        ({"optim": "paged_adamw_8bit"}, "adam-8bit", "its state is priced on the device"),
        ({"optim": "sgd", "optim_args": "momentum=0.0"}, "sgd", ""),
        ({"optim": "sgd", "optim_args": "dampening=0, momentum=0.95"}, "sgd-momentum", ""),
        ({"optim": "galore_adamw"}, "", "optim is galore_adamw: the state of AdamW in fp32 is priced"),
    ],
)  # fmt: skip
def test_the_trainers_names_are_known(said: dict[str, str], word: str, note: str) -> None:
    found, notes = _optimizers.of_trainer(said, "a.py")
    assert found == word and (note in notes[0] if note else notes == ())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("torch.optim.SGD(w, lr=1)", "sgd"), ("SGD(w, lr=1, momentum=0)", "sgd"), ("SGD(w, momentum=m)", "sgd-momentum"),
        ("Lion(w)", "lion"), ("torch.optim.Adam(w)", "adam"), ("Shampoo(w)", ""), ("make()", ""),
    ],
)  # fmt: skip
def test_what_a_script_makes_is_known(text: str, word: str) -> None:
    found, notes = _optimizers.of_torch(ast.parse(text, mode="eval").body, "a.py")
    assert found == word and bool(notes) == (not word)


def test_deepspeeds_entry_is_read_and_what_is_unknown_said(tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "ds.json", api.read("llama-3.2-1b").graph
    own = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    for entry, word in (({"type": "Lion"}, "lion"), ({"type": "SGD", "params": {"momentum": 0.9}}, "sgd-momentum")):
        path.write_text(json.dumps(own | {"optimizer": entry}))
        training = frameworks.load("deepspeed").read(str(path), graph, 8).training
        assert training is not None and training.optimizer == word
    path.write_text(json.dumps(own | {"optimizer": {"type": "OneBitAdam"}}))
    said = frameworks.load("deepspeed").read(str(path), graph, 8)
    assert said.training is None and any("optimizer.type is OneBitAdam" in text for text in said.warnings)
    path.write_text(json.dumps(own | {"optimizer": "Adam"}))
    with pytest.raises(InputError, match="must be a table of type and params"):
        frameworks.load("deepspeed").read(str(path), graph, 8)


def test_a_script_of_megatron_with_another_optimizer_is_no_plan_of_its(tmp_path: pathlib.Path) -> None:
    path, words = tmp_path / "run.sh", "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --micro-batch-size 1"
    path.write_text(f"{words} --global-batch-size 8 --bf16 --overlap-grad-reduce --optimizer sgd\n")
    said = frameworks.load("megatron").read(str(path), api.read("llama-3.2-1b").graph)
    assert said.training is not None and said.training.optimizer == "sgd-momentum"
    with pytest.raises(InputError, match="it has no optimizer sgd-momentum"):
        advise.advise(str(path), "dgx-h100:8", "llama-3.2-1b")
    path.write_text(path.read_text().replace("--optimizer sgd", "--optimizer soap"))
    with pytest.raises(InputError, match="--optimizer is soap; priced are adam, sgd"):
        frameworks.load("megatron").read(str(path), api.read("llama-3.2-1b").graph)


def test_advice_prices_the_optimizer_that_a_file_says(tmp_path: pathlib.Path) -> None:
    peaks = {}
    for word in ("adamw_torch", "sgd"):
        path = tmp_path / f"{word}.py"
        path.write_text(
            f"TrainingArguments(per_device_train_batch_size=1, gradient_accumulation_steps=4, bf16=True, optim='{word}',"
            " fsdp=True, fsdp_config={'version': 2})\n"
        )
        found = advise.advise(str(path), "dgx-h100:8", "llama-3.2-1b", sequence_length=512, stop=Stop(n_iterations=1))
        assert found.result.timeline is not None and not found.refusals
        peaks[word] = max(found.result.timeline.peak_bytes)
    assert peaks["adamw_torch"] - peaks["sgd"] > 0.8 * 8 * api.read("llama-3.2-1b").graph.n_parameters / 8


def test_a_file_called_like_a_framework_is_not_taken_for_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accelerate").write_text("#!/bin/bash\nexec accelerate $*\n")
    monkeypatch.chdir(tmp_path)
    assert frameworks.find("accelerate").name == "accelerate" and frameworks.find("deepspeed:sc21").variant == "sc21"


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_the_script_runs_in_the_precision_of_deepspeeds_file(precision: str, tmp_path: pathlib.Path) -> None:
    """transformers compares the two, and ends where they differ."""
    problem, path = posed("deepspeed", "adamw", precision), tmp_path / "plan.sh"
    frameworks.load("deepspeed").write(Result(problem, "best", 0, Answer(planned(problem, 3))), str(path))
    text = path.read_text()
    for word in ("bf16", "fp16"):
        assert (f"--{word} True" in text) == (f'"{word}": {{' in text) == (word == precision)
