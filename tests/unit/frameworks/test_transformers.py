"""TrainingArguments, written and read: DDP, FSDP2 and DeepSpeed, Python and JSON, and what is wrong or unknown in one line."""

from __future__ import annotations

import ast
import functools
import json
import pathlib
import random

import pytest

from meshwright import api, frameworks
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, MixedPrecision, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy

MODULE = frameworks.load("transformers")


@functools.cache
def posed(word: str = "transformers", model: str = "llama-3.2-1b", precision: str = "bf16") -> Problem:
    return api.make_problem(model, "dgx-h100:64", framework=word, batch=Batch(64, 1), training=MixedPrecision.of(precision))


def planned(problem: Problem, strategy: Strategy, word: str = "none", *, n: int = 4, micro: int = 2) -> Plan:
    last = len(problem.graph.ops) - 1
    words = tuple("none" if op in (0, last) else word for op in range(last + 1))
    stage = Stage(tuple(range(last + 1)), tuple(range(strategy.n_devices)), strategy, words)
    return Plan((stage,), n, micro, "1f1b", n * micro * strategy.data)


def written(problem: Problem, plan: Plan, path: pathlib.Path) -> tuple[str, ...]:
    notes: tuple[str, ...] = MODULE.write(Result(problem, "best", 0, Answer(plan)), str(path))
    return notes


def test_random_plans_of_every_variant_and_both_kinds_of_file_are_read_back_the_same(tmp_path: pathlib.Path) -> None:
    chance, told = random.Random(3), dict.fromkeys(["py", "json", "deepspeed", "deepspeed_late"], 0)
    for i in range(120):
        word = chance.choice([f"transformers{one}" for one in ("", ":deepspeed", ":deepspeed_late", ":compiled")])
        precision = chance.choice(["bf16", "fp16", "fp32", *(["tf32"] if ":deepspeed" not in word else [])])
        problem = posed(word, precision=precision)
        data, tensor, context = chance.choice([1, 2, 4, 8]), 1, 1
        if ":deepspeed" not in word:
            context = chance.choice([1, 1, 2])
        else:
            tensor = chance.choice([1, 1, 2])
        level = chance.choice(problem.framework.limits.shards) if data * context > 1 else 0
        degree = 2 if data > 2 and level in problem.framework.limits.hybrid_shards and chance.random() < 0.5 else 0
        plan = planned(
            problem, Strategy(data, tensor, context, 1, False, level, degree), chance.choice(["none", "full"]),
            n=chance.randint(1, 5), micro=chance.randint(1, 3),
        )  # fmt: skip
        if MODULE.refusals(plan, problem):
            assert context > 1 and not level
            continue
        suffix = chance.choice(["py", "json"])
        path = tmp_path / f"{i}.{suffix}"
        if suffix == "json" and (degree or context > 1):
            with pytest.raises(ExportError, match=r"ends in \.py"):
                written(problem, plan, path)
            assert not path.exists()
            continue
        notes = written(problem, plan, path)
        aside = plan.n_devices < problem.cluster.n_devices
        assert ("torchrun" in notes[0] and len(notes) == 1 + aside) if suffix == "json" else notes == ()
        said = MODULE.read(str(path), problem.graph, plan.n_devices if suffix == "json" else 0)
        assert (said.plan, said.precision, said.warnings) == (plan, precision, ())
        assert said.sequence_length == problem.graph.sequence_length and said.variant == (
            ("deepspeed" if ":deepspeed" in word and data == 1 else problem.framework.variant)
            or ("context" if context > 1 else "")
        )
        told[suffix] += 1
        if said.variant in told:
            told[said.variant] += 1
    assert min(told.values()) >= 15, told


def test_deepspeed_finds_its_batch_by_itself_and_ddp_looks_for_no_unused_weights(tmp_path: pathlib.Path) -> None:
    problem = posed("transformers:deepspeed")
    written(problem, planned(problem, Strategy(4, 2, shard=1)), tmp_path / "a.json")
    entry = json.loads((tmp_path / "a.json").read_text())
    assert "train_batch_size" not in entry["deepspeed"] and entry["deepspeed"]["tensor_parallel"] == {"autotp_size": 2}
    problem = posed()
    written(problem, planned(problem, Strategy(4), "full"), tmp_path / "b.py")
    text = (tmp_path / "b.py").read_text()
    ast.parse(text)
    assert "ddp_find_unused_parameters=False" in text and "activation_checkpointing=True" in text and "fsdp" not in text


CODE = """# torchrun --nproc_per_node=4 train.py
SHARDED = {"version": 2, "reshard_after_forward": False}
args = transformers.TrainingArguments(
    learning_rate=rate(),
    fsdp=True,
    fsdp_config=SHARDED,
    per_device_train_batch_size=2,
)
"""


def test_a_file_of_ones_own_is_read_with_what_the_trainer_assumes(tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "train.py", posed().graph
    path.write_text(CODE)
    said = MODULE.read(str(path), graph)
    one = said.plan.stages[0].strategy
    assert (one, said.plan.n_microbatches, said.plan.micro_batch) == (Strategy(4, shard=2), 1, 2)
    assert (said.precision, said.sequence_length, said.warnings) == ("fp32", 0, ())
    path.write_text(CODE.replace("fsdp_config=SHARDED", "fsdp_config={'fsdp_activation_checkpointing': True}"))
    said = MODULE.read(str(path), graph)
    assert said.plan.stages[0].strategy.shard == 3 and said.plan.stages[0].recompute[1:-1] == ("full",) * 16
    path.write_text(
        CODE.replace(
            "fsdp_config=SHARDED", "bf16=True, parallelism_config=ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)"
        )
    )
    said = MODULE.read(str(path), graph)
    assert said.plan.stages[0].strategy == Strategy(4, shard=3, shard_degree=2) and said.precision == "bf16"
    path.write_text(CODE.replace("fsdp=True,\n    fsdp_config=SHARDED", "gradient_checkpointing=True"))
    assert MODULE.read(str(path), graph).plan.stages[0].strategy == Strategy(4)
    path.write_text('{"output_dir": "out", "fsdp": "shard_grad_op", "per_device_train_batch_size": 1, "block_size": 128}')
    said = MODULE.read(str(path), graph, 8)
    assert said.plan.stages[0].strategy == Strategy(8, shard=2) and said.sequence_length == 128


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("size=2", "size=0", "per_device_train_batch_size is 0"), ("# torchrun", "# run", ""),
        ("--nproc_per_node=4", "", "how many processes"), ("fsdp=True", "fsdp='hybrid'", "must be True with"),
        ('"version": 2', '"version": 1', "only version 2"), ('"version": 2', '"cpu_offload": True', "on the host"),
        ("False}", "'maybe'}", "True or False"), ("fsdp=True", "fsdp=True, deepspeed={'bf16': {}}", "keep one"),
        ("fsdp=True", "fsdp=True, bf16=True, fp16=True", "keep one"), ("fsdp=True", "bf16=chosen()", "line 5: bf16 is no"),
        ("fsdp=True", "deepspeed='ds.json'", ""), ("fsdp=True", "**more", "line 5: takes arguments out of more"),
        ("args =", "args = transformers.TrainingArguments()\nmore =", "line 4: makes TrainingArguments 2 times"),
        ("fsdp=True", "fsdp=True, parallelism_config=ParallelismConfig(dp_shard_size=3)", "make 3 devices; there are 4"),
        ("fsdp=True", "parallelism_config=ParallelismConfig(dp_shard_size=4)", "but fsdp is not set"),
        ("fsdp=True", "fsdp=True, activation_checkpointing=True", ""),
        ("SHARDED,", "{'activation_checkpointing': True}, activation_checkpointing=True,", "the Trainer takes one"),
        ("fsdp=True", "activation_checkpointing_kwargs={'every_n_layers': 2}", "all layers or none"),
        ("fsdp=True", "fsdp=True, parallelism_config=ParallelismConfig(sp_size=2)", "no such axis"),
        ("fsdp=True,\n    fsdp_config=SHARDED", "deepspeed={'zero_optimization': {'stage': 4}}", "0 to 3"),
        ("fsdp=True,\n    fsdp_config=SHARDED", "deepspeed={'tensor_parallel': {'autotp_size': 3}}", "does not divide 4"),
        ("fsdp=True,\n    fsdp_config=SHARDED", "deepspeed={'train_micro_batch_size_per_gpu': 9}", "write 'auto'"),
        ("fsdp=True", "fsdp=(", "is no Python"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_with_the_argument(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "train.py", posed().graph
    assert old in CODE
    path.write_text(CODE.replace(old, new, 1))
    if not said and "ds.json" not in new:
        assert MODULE.read(str(path), graph, 4).plan.n_devices == 4
        return
    with pytest.raises(InputError) as error:
        MODULE.read(str(path), graph)
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_what_is_unknown_or_priced_otherwise_is_a_warning(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        CODE.replace("fsdp=True", "weather=3,\n    optim='lomo', use_liger_kernel=True, fsdp=True").replace(
            '"version": 2', '"rain": 2'
        )
    )
    warnings = MODULE.read(str(path), posed().graph).warnings
    assert f"{path}: line 5: nothing is known of weather; it is left out" in warnings
    assert any("nothing is known of rain" in text for text in warnings)
    assert any("optim is lomo" in text for text in warnings) and any("liger" in text for text in warnings)


def test_files_of_the_trainer_are_no_others() -> None:
    for text in (
        CODE,
        '{"per_device_train_batch_size": 1, "deepspeed": {"zero_optimization": {}}}',
        f"{CODE}ParallelismConfig(",
    ):
        assert [
            name for name in frameworks.names()
            if hasattr(frameworks.load(name), "recognises") and frameworks.load(name).recognises(text)
        ] == ["transformers"]  # fmt: skip


def test_a_tensor_axis_of_the_mesh_is_read_and_refused(tmp_path: pathlib.Path) -> None:
    path, problem = tmp_path / "train.py", posed()
    path.write_text(CODE.replace("fsdp=True", "fsdp=True, parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2)"))
    plan = MODULE.read(str(path), problem.graph).plan
    assert plan.stages[0].strategy == Strategy(2, 2, shard=2)
    assert any("accelerate's file says one" in reason for reason in MODULE.refusals(plan, problem))
    assert any("beside a context axis" in reason for reason in MODULE.refusals(planned(problem, Strategy(2, 1, 2)), problem))


def test_weights_that_are_loaded_in_half_are_said(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.sh"
    start = "torchrun --nproc_per_node 8 run_clm.py --per_device_train_batch_size 1 --block_size 128 "
    for options, said in (
        ("--bf16 --dtype bfloat16", ("dtype is bfloat16: weights, gradients and moments are priced in fp32",)),
        ("--torch_dtype float16", ("torch_dtype is float16: weights, gradients and moments are priced in fp32, and products "
                                   "as without mixed precision",)),
        ("--bf16 --dtype float32 --torch_empty_cache_steps 4",
         ("torch_empty_cache_steps is set: caches are priced as never emptied",)),
        ("--bf16 --dtype auto", ()),
    ):  # fmt: skip
        path.write_text(start + options)
        assert MODULE.read(str(path), posed().graph, 8).warnings == tuple(f"{path}: {one}" for one in said)
