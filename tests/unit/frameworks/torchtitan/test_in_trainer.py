"""The functions of a torchtitan model under a plan: what they hand on and what they refuse, with stand-ins for torchtitan."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import meshwright
from meshwright import api
from meshwright.base.errors import ExportError, MissingExtraError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
ZERO_2 = Strategy(2, shard=2)
WORDS = ("none", "none", "full", "every_second_product", "none", "none")


@dataclass
class Training:
    local_batch_size: int = 8
    global_batch_size: int = -1
    seq_len: int = 2048
    mixed_precision_param: str = "bfloat16"
    disable_cuda_graphs: bool = False
    enable_cpu_offload: bool = False


@dataclass
class Parallelism:
    data_parallel_replicate_degree: int = 1
    data_parallel_shard_degree: int = -1
    context_parallel_degree: int = 1
    tensor_parallel_degree: int = 1
    expert_parallel_degree: int = 1
    pipeline_parallel_degree: int = 1
    enable_sequence_parallel: bool = True
    fsdp_reshard_after_forward: str = "default"
    pipeline_parallel_microbatch_size: int = 1
    pipeline_parallel_schedule: str = "1F1B"
    module_fqns_per_model_part: Any = None
    pipeline_parallel_schedule_csv: str | None = ""


@dataclass
class Spec:
    parallelize_fn: Any
    pipelining_fn: Any
    name: str = "stand-in"


class Weight(int):
    def numel(self) -> int:
        return self


class Model:
    """As many layers and weights as torchtitan's."""

    def __init__(self, n_layers: int, n_weights: int) -> None:
        self.layers, self.weights = range(n_layers), [Weight(n_weights)]

    def parameters(self) -> list[Weight]:
        return self.weights


class Kind:
    """A policy of checkpointing and, by ``Config().build(...)``, its configuration."""

    def __init__(self, config: object = None, dump_folder: str = "") -> None: ...

    @classmethod
    def Config(cls) -> Any:
        return SimpleNamespace(build=lambda dump_folder: cls())

    def _wrap_block(self, block: str, *, base_fqn: str) -> str:
        return f"{type(self).__name__}({block})"


class FullAC(Kind): ...


class SelectiveAC(Kind): ...


@pytest.fixture
def problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Problem:
    """The question, where torchtitan 0.3.0 seems to be installed."""
    known, package = importlib.metadata.version, ModuleType("torchtitan.distributed")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.3.0" if name == "torchtitan" else known(name))
    package.activation_checkpoint = SimpleNamespace(  # type: ignore[attr-defined]
        ActivationCheckpointing=Kind, FullAC=FullAC, SelectiveAC=SelectiveAC
    )
    monkeypatch.setitem(sys.modules, "torchtitan", ModuleType("torchtitan"))
    monkeypatch.setitem(sys.modules, "torchtitan.distributed", package)
    (tmp_path / "config.json").write_text(str(LLAMA).replace("'", '"').replace("False", "false"))
    path = str(tmp_path / "config.json")
    return api.make_problem(path, "flat:4", framework="torchtitan:functions", batch=Batch(16, 2, 32))


def piped(problem: Problem, schedule: str = "v_half", strategy: Strategy = ZERO_2, **said: Any) -> Result:
    """Return a plan of four stages there and back on two ranks."""
    cut, on = ((0, 1), (2,), (3, 4), (5,)), said.pop("on", (0, 1, 1, 0))
    stages = tuple(
        Stage(ops, tuple(range(2 * rank, 2 * rank + 2)), strategy, tuple(WORDS[op] for op in ops))
        for ops, rank in zip(cut, on, strict=True)
    )
    plan = replace(Plan(stages, 4, 2, schedule, 16), **said)
    return Result(problem, "best", 0, Answer(plan))


def configured(result: Result, calls: list[dict[str, Any]]) -> SimpleNamespace:
    def keep(model: Any, **given: Any) -> str:
        path = given["parallelism"].pipeline_parallel_schedule_csv
        calls.append({"model": model, **given, "rows": Path(path).read_text() if path else ""})
        if "parallelize_fn" in given:
            common = ("parallel_dims", "training", "compile_config", "ac_config", "dump_folder")
            given["parallelize_fn"]("part", parallelism="anything", **{name: given[name] for name in common})
        return "made"

    config = SimpleNamespace(
        model_spec=Spec(keep, keep), training=Training(), parallelism=Parallelism(), activation_checkpoint="selective",
        compile=SimpleNamespace(enable=False, enable_async_tensor_parallel=False),
    )  # fmt: skip
    return meshwright.torchtitan_config(result, config)  # type: ignore[no-any-return]


def call(config: SimpleNamespace, model: Model, degrees: dict[str, int], **other: Any) -> object:
    """Call what torchtitan's trainer calls."""
    given = {
        "parallel_dims": SimpleNamespace(**degrees), "training": config.training, "parallelism": config.parallelism,
        "compile_config": config.compile, "ac_config": config.activation_checkpoint, "dump_folder": "here",
    } | other  # fmt: skip
    spec = config.model_spec
    if degrees["pp"] == 1:
        return spec.parallelize_fn(model, **given)
    given |= {"device": "cpu", "model_config": None, "loss_fn": None, "parallelize_fn": spec.parallelize_fn}
    return spec.pipelining_fn(model, **given)


DEGREES = {"dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 1, "ep": 1, "pp": 2}


def test_functions_hand_the_plan_to_the_model_s_own(problem: Problem) -> None:
    calls: list[dict[str, Any]] = []
    config = configured(piped(problem), calls)
    said = config.training
    assert (said.local_batch_size, said.global_batch_size, said.seq_len, said.disable_cuda_graphs) == (8, 16, 32, True)
    assert (config.activation_checkpoint, config.compile.enable) == (None, True)
    assert call(config, Model(4, problem.graph.n_parameters), DEGREES) == "made"
    whole, part = calls
    assert whole["parallelism"].module_fqns_per_model_part == [
        ["tok_embeddings", "layers.0"], ["layers.1"], ["layers.2", "layers.3"], ["norm", "lm_head"],
    ]  # fmt: skip
    assert whole["parallelism"].pipeline_parallel_schedule == "ZBVZeroBubble" and whole["rows"].startswith("0F0,")
    assert part["model"] == "part" and part["parallelism"].fsdp_reshard_after_forward == "never" and not part["rows"]
    policy = part["ac_config"].build(dump_folder="here")
    found = [policy._wrap_block(f"b{i}", base_fqn=f"layers.{i}") for i in range(4)]
    assert found == ["b0", "FullAC(b1)", "SelectiveAC(b2)", "b3"]


def test_schedules_that_torchtitan_names_need_no_order(problem: Problem) -> None:
    calls: list[dict[str, Any]] = []
    config = configured(piped(problem, "interleaved_1f1b", on=(0, 1, 0, 1)), calls)
    call(config, Model(4, problem.graph.n_parameters), DEGREES)
    assert calls[0]["parallelism"].pipeline_parallel_schedule == "Interleaved1F1B" and not calls[0]["rows"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"training": {"seq_len": 64}}, r"training.seq_len=32 \(it is 64\)"),
        ({"training": {"enable_cpu_offload": True}}, "training.enable_cpu_offload=False"),
        ({"parallelism": {"pipeline_parallel_microbatch_size": 1}}, r"pipeline_parallel_microbatch_size=2 \(it is 1\)"),
        ({"parallelism": {"pipeline_parallel_schedule": "GPipe"}}, "pipeline_parallel_schedule='ZBVZeroBubble'"),
        ({"parallelism": {"module_fqns_per_model_part": [["norm"]]}}, "module_fqns_per_model_part: leave it out"),
        ({"parallelism": {"fsdp_reshard_after_forward": "always"}}, "fsdp_reshard_after_forward: leave it out"),
        ({"degrees": {"dp_shard": 4}}, r"data_parallel_shard_degree=2 \(it is 4\)"),
        ({"ac_config": SelectiveAC()}, r"activation_checkpoint=None \(it is SelectiveAC\)"),
        ({"model": (5, 0)}, "has 5 layers, and the plan is for 4"),
        ({"model": (4, 1000)}, "has 1,000 weights, and the plan is for"),
    ],
)
def test_a_configuration_that_says_otherwise_is_refused(problem: Problem, change: dict[str, Any], word: str) -> None:
    calls: list[dict[str, Any]] = []
    config = configured(piped(problem), calls)
    for key, value in change.get("training", {}).items():
        setattr(config.training, key, value)
    for key, value in change.get("parallelism", {}).items():
        setattr(config.parallelism, key, value)
    model = Model(*change.get("model", (4, problem.graph.n_parameters)))
    other = {"ac_config": change["ac_config"]} if "ac_config" in change else {}
    with pytest.raises(ExportError, match=word):
        call(config, model, DEGREES | change.get("degrees", {}), **other)
    assert not calls


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"strategy": Strategy(2, shard=1)}, "sharding level 1"),
        ({"schedule": "looped_bfs", "on": (0, 0, 1, 1)}, "neither in turn nor there and back"),
        ({"schedule": "combined_1f1b", "on": (0, 1, 0, 1)}, "no forward task beside a backward task"),
    ],
)
def test_what_the_trainer_cannot_do_is_refused(problem: Problem, said: dict[str, Any], word: str) -> None:
    with pytest.raises(ExportError, match=word):
        meshwright.torchtitan_functions(piped(problem, **said), Spec(None, None))


def test_selective_recomputation_is_ours_alone(problem: Problem) -> None:
    result = piped(problem)
    stages = tuple(replace(stage, recompute=("selective",) * len(stage.ops)) for stage in result.plan.stages[1:3])
    plan = replace(result.plan, stages=(result.plan.stages[0], *stages, result.plan.stages[3]))
    with pytest.raises(ExportError, match="selective"):
        meshwright.torchtitan_functions(Result(problem, "best", 0, Answer(plan)), Spec(None, None))


def test_one_stage_is_sharded_as_it_is(problem: Problem) -> None:
    calls: list[dict[str, Any]] = []
    plan = Plan((Stage(tuple(range(6)), (0, 1, 2, 3), Strategy(4, shard=3), WORDS),), 2, 2, "1f1b", 16)
    config = configured(Result(problem, "best", 0, Answer(plan)), calls)
    assert (config.training.local_batch_size, config.parallelism.data_parallel_shard_degree) == (2, 4)
    assert call(config, Model(4, problem.graph.n_parameters), DEGREES | {"dp_shard": 4, "pp": 1}) == "made"
    assert calls[0]["parallelism"].fsdp_reshard_after_forward == "always" and isinstance(calls[0]["model"], Model)


def test_another_release_or_none_is_refused(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.4.0")
    with pytest.raises(ExportError, match=r"torchtitan 0\.4\.0 is installed; plans run inside 0\.3\.0"):
        meshwright.torchtitan_functions(piped(problem), Spec(None, None))

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingExtraError, match="running a plan inside torchtitan"):
        meshwright.torchtitan_functions(piped(problem), Spec(None, None))


def test_plans_for_the_functions_are_searched_and_not_exported(problem: Problem, tmp_path: Path) -> None:
    result = meshwright.plan(
        problem.model_spec.spec, "flat:4", framework="torchtitan:functions", batch=Batch(16, 2, 32),
        settings={"schedules": "zb_h2", "pipeline": "2", "tensor": "1"},
    )  # fmt: skip
    assert result.feasible and result.plan.schedule == "zb_h2"
    with pytest.raises(ExportError, match=r"schedule zb_h2.*it runs by meshwright\.torchtitan_functions instead"):
        meshwright.export(result, "torchtitan", str(tmp_path / "plan.py"))


def test_the_page_has_the_example() -> None:
    root = Path(__file__).parents[4]
    assert (root / "examples" / "in_torchtitan.py").read_text() in (root / "docs" / "howto" / "export_a_plan.md").read_text()
