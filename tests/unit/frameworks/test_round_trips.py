"""What every framework's configuration says is read back: the same plan and the same step, for all models and random plans."""

from __future__ import annotations

import ast
import functools
import json
import pathlib
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright import api, frameworks
from meshwright.api.evaluation import evaluate
from meshwright.base.errors import ExportError, InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch, Problem
from meshwright.core.result import Answer, Result
from meshwright.core.strategy import Strategy
from meshwright.models.readers import huggingface

NAMES = ("accelerate", "deepspeed", "fsdp2", "maxtext", "megatron", "megatron_bridge", "nanotron", "torchtitan", "transformers")
SUFFIX = {
    "accelerate": "yaml", "deepspeed": "json", "fsdp2": "py", "maxtext": "yml", "megatron": "sh", "megatron_bridge": "py",
    "nanotron": "yaml", "torchtitan": "py", "transformers": "py",
}  # fmt: skip


@functools.cache
def posed(model: str, name: str, cluster: str = "dgx-h100:64") -> Problem:
    return api.make_problem(model, cluster, framework=name, batch=Batch(64, 1))


def cut(problem: Problem, strategy: Strategy, counts: list[int], n_ranks: int, **said: object) -> Plan:
    """Return a plan of stages of so many layers, dealt out to the ranks in turn, or there and back for those in a V."""
    last, size, first, stages = len(problem.graph.ops) - 1, strategy.n_devices, 1, []
    word, n, micro = str(said.get("word", "none")), int(str(said.get("n", 8))), int(str(said.get("micro", 1)))
    schedule = str(said.get("schedule", "1f1b"))
    for i, count in enumerate(counts):
        ops = [0] * (i == 0) + list(range(first, first + count)) + [last] * (i == len(counts) - 1)
        first += count
        rank = 2 * n_ranks - 1 - i if schedule in ("zb_v", "dualpipe_v") and i >= n_ranks else i % n_ranks
        devices = tuple(range(rank * size, (rank + 1) * size))
        stages.append(Stage(tuple(ops), devices, strategy, tuple("none" if op in (0, last) else word for op in ops)))
    assert first == last
    return Plan(tuple(stages), n, micro, schedule, n * micro * strategy.data)


def again(name: str, problem: Problem, plan: Plan, folder: pathlib.Path) -> Plan:
    """Return the plan after it was written and read."""
    path = str(folder / f"plan.{SUFFIX[name]}")
    module = frameworks.load(name)
    module.write(Result(problem, "best", 0, Answer(plan)), path)
    said = module.read(path, problem.graph)
    assert said.precision == problem.training.precision and said.sequence_length in (0, problem.graph.sequence_length)
    assert [text for text in said.warnings if "recomputes" not in text] == []
    return said.plan


@pytest.mark.parametrize("name", NAMES)
def test_of_every_model_that_a_framework_is_told_the_plan_read_back_takes_the_same_step(
    name: str, tmp_path: pathlib.Path
) -> None:
    limits = frameworks.plain(name).limits
    level, word = max(limits.shards), limits.recompute[-1]
    told = []
    for model in huggingface.names():
        problem = posed(model, name)
        plan = cut(problem, Strategy(64, shard=level), [len(problem.graph.ops) - 2], 1, word=word, n=1)
        if frameworks.refusals(problem.framework, plan, problem):
            continue
        try:
            got = again(name, problem, plan, tmp_path)
        except ExportError as error:
            assert model in str(error) or "family" in str(error) or "sliding windows" in str(error)
            continue
        assert got == plan
        told.append(model)
    assert len(told) >= {"torchtitan": 14, "megatron": 40, "megatron_bridge": 40, "nanotron": 12, "maxtext": 25}.get(
        name, 55
    ), told
    problem = posed(random.Random(name).choice(told), name)
    plan = cut(problem, Strategy(64, shard=level), [len(problem.graph.ops) - 2], 1, word=word, n=1)
    ran, asked = evaluate(problem, again(name, problem, plan, tmp_path))[1], evaluate(problem, plan)[1]
    assert ran is not None and asked is not None
    assert (ran.step_seconds, ran.peak_bytes) == (asked.step_seconds, asked.peak_bytes)


@st.composite
def plans(draw: st.DrawFn, name: str) -> Plan:
    """Return a plan inside a framework's limits or just outside: degrees, sharding, pipelines, recomputation, batches."""
    problem = posed("llama-3.1-8b", name, "flat:512")
    limits = problem.framework.limits
    degree = st.sampled_from((1, 2, 4))
    data = draw(degree)
    tensor = draw(degree) if "tensor" in limits.degrees else 1
    context = draw(degree) if "context" in limits.degrees else 1
    shard = draw(st.sampled_from(limits.shards)) if data * context > 1 else 0
    parts = [0, *(d for d in (1, 2) if d < data)] if shard in limits.hybrid_shards else [0]
    strategy = Strategy(
        data, tensor, context, 1, limits.sequence_parallel and tensor > 1 and draw(st.booleans()), shard,
        draw(st.sampled_from(parts)) if shard else 0,
        draw(st.sampled_from(limits.context_exchanges)) if context > 1 else "ring",
    )  # fmt: skip
    n_ranks, chunks, schedule = 1, 1, "1f1b"
    if "pipeline" in limits.degrees:
        n_ranks = draw(st.sampled_from((1, 2, 4)))
    if n_ranks > 1:
        schedule = draw(st.sampled_from(limits.schedules))
        chunks = 2 if schedule in ("dualpipe_v", "interleaved_1f1b", "looped_bfs", "zb_v") else 1
    counts = [32 // (n_ranks * chunks)] * (n_ranks * chunks)
    if len(counts) > 1 and draw(st.booleans()):
        counts[0], counts[-1] = counts[0] - 1, counts[-1] + 1
    word = draw(st.sampled_from(limits.recompute))
    plan = cut(
        problem, strategy, counts, n_ranks, word=word, n=n_ranks * draw(st.integers(1, 3)), micro=draw(st.integers(1, 2)),
        schedule=schedule,
    )  # fmt: skip
    if name == "fsdp2" and draw(st.booleans()):
        words = tuple("full" if 0 < op < 33 and draw(st.booleans()) else "none" for op in range(34))
        plan = replace(plan, stages=(replace(plan.stages[0], recompute=words),))
    return plan


@pytest.mark.parametrize("name", NAMES)
def test_random_plans_are_read_back_the_same_or_refused_without_a_file(name: str, tmp_path: pathlib.Path) -> None:
    problem = posed("llama-3.1-8b", name, "flat:512")
    told = [0]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(plans(name))
    def check(plan: Plan) -> None:
        path = tmp_path / f"plan.{SUFFIX[name]}"
        path.unlink(missing_ok=True)
        if frameworks.refusals(problem.framework, plan, problem):
            with pytest.raises(ExportError, match="cannot run this plan"):
                frameworks.load(name).write(Result(problem, "best", 0, Answer(plan)), str(path))
            assert not path.exists()
            return
        assert again(name, problem, plan, tmp_path) == plan
        told[0] += 1

    check()
    assert told[0] >= 25


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Strategy(4, shard=3, shard_degree=4), "says nothing"), (Strategy(4, shard=3, shard_degree=1), "says nothing"),
        (Strategy(1, shard=3), "single rank"),
    ],
)  # fmt: skip
def test_what_only_looks_like_sharding_is_refused(strategy: Strategy, said: str) -> None:
    problem = posed("llama-3.2-1b", "fsdp2")
    plan = cut(problem, strategy, [16], 1)
    for name in ("fsdp2", "accelerate", "torchtitan"):
        assert any(said in reason for reason in frameworks.load(name).refusals(plan, problem)), name


def test_torchtitan_refuses_what_its_degrees_cannot_say() -> None:
    problem, module = posed("qwen3-30b-a3b", "torchtitan"), frameworks.load("torchtitan")
    n = len(problem.graph.ops) - 2
    cases = {
        "beside a context axis": cut(problem, Strategy(2, context=2), [n], 1),
        "keeps each whole": cut(problem, Strategy(4, 2, 1, 4, True, 3), [n], 1),
        "must divide the 4 ranks": cut(problem, Strategy(8, 1, 1, 8, False, 3, 4), [n], 1),
        "without a pipeline": cut(problem, Strategy(2, shard=3), [n], 1, schedule="gpipe"),
        "over 2 stages on 2 ranks": cut(problem, Strategy(2, shard=3), [n // 2, n - n // 2], 2, schedule="interleaved_1f1b"),
        "whole rounds of 2": cut(problem, Strategy(2, shard=3), [n // 4] * 4, 2, schedule="interleaved_1f1b", n=3),
    }
    for said, plan in cases.items():
        reasons = module.refusals(plan, problem)
        assert any(said in reason for reason in reasons), (said, reasons)
    assert module.refusals(cut(problem, Strategy(4, 2, 1, 8, True, 3), [n], 1), problem) == (), (
        "spread over the tensor axis too"
    )


def test_a_plain_script_is_short_and_is_python(tmp_path: pathlib.Path) -> None:
    problem = posed("llama-3.1-70b", "fsdp2")
    for strategy in (Strategy(64, shard=3), Strategy(8, 4, 2, 1, True, 2, 4)):
        path = tmp_path / "train.py"
        plan = cut(problem, strategy, [80], 1, word="full")
        assert frameworks.load("fsdp2").write(Result(problem, "best", 0, Answer(plan)), str(path)) == ()
        text = path.read_text()
        ast.parse(text)
        assert len(text.splitlines()) < 100 and max(map(len, text.splitlines())) < 160


SCRIPT = """NODES, GPUS_PER_NODE = 1, 4
REPLICATE, SHARD, CONTEXT, TENSOR = 1, 4, 1, 1
SEQUENCE_PARALLEL, RESHARD_AFTER_FORWARD = False, True
MICRO_BATCH, MICRO_BATCHES = 1, 2
PRECISION, SEQUENCE_LENGTH = torch.bfloat16, 128
LAYERS = "model.layers"
CHECKPOINTED = [0, 3]
MODEL = {}
"""
MODULE = """config.activation_checkpoint = None
config.training.local_batch_size = 2
config.parallelism = ParallelismConfig(data_parallel_shard_degree=4)
"""
YAML = """# accelerate launch --config_file a.yaml run.py --per_device_train_batch_size 2 --gradient_accumulation_steps 3
distributed_type: FSDP
num_processes: 4
fsdp_config:
  fsdp_version: 2
"""
JSON = '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}'


@pytest.mark.parametrize(
    ("name", "text", "old", "new", "said"),
    [
        ("fsdp2", SCRIPT, "SHARD, CONTEXT, TENSOR = 1, 4", "SHARD, CONTEXT, TENSOR = 1, 3", "is 3, NODES x GPUS_PER_NODE 4"),
        ("fsdp2", SCRIPT, "[0, 3]", "[0, 99]", "CHECKPOINTED names 99"),
        ("fsdp2", SCRIPT, "LAYERS = ", "OTHER = ", "LAYERS is missing"),
        ("fsdp2", SCRIPT, "torch.bfloat16", "torch.int8", "PRECISION is torch.int8"),
        ("fsdp2", SCRIPT, "1, 2\n", "1, 0\n", "is 0"),
        ("fsdp2", SCRIPT, "NODES, ", "NODES ) ", "line 1: is no Python"),
        ("fsdp2", SCRIPT, "False, True", "2, True", "True or False"),
        ("torchtitan", MODULE, "=4", "=-1", "the rest of unknown"),
        ("torchtitan", MODULE, "=4", "=n", "line 3"),
        ("torchtitan", MODULE, "= None", "= Other.Config()", "line 1"),
        ("torchtitan", MODULE, "=4", "=0", "between 1 and"),
        ("torchtitan", MODULE, "_degree=4", "_degree=4, fsdp_reshard_after_forward='no'", "must be default, always or never"),
        ("torchtitan", MODULE, "=4", "=4, pipeline_parallel_degree=2, pipeline_parallel_schedule='X'", "known are 1F1B"),
        (
            "torchtitan",
            MODULE,
            "=4",
            "=4, pipeline_parallel_degree=2, module_fqns_per_model_part=[['norm'], ['lm_head']]",
            "leaves out",
        ),
        ("torchtitan", MODULE, "=4", "=4, pipeline_parallel_degree=2, pipeline_parallel_schedule_csv='a.csv'", "none of our"),
        ("torchtitan", MODULE, "size = 2", "size = 2\nconfig.training.global_batch_size = 9", "do not make"),
        (
            "accelerate",
            YAML,
            "processes: 4",
            "processes: 4\nparallelism_config:\n  parallelism_config_tp_size: 3",
            "make 3 devices",
        ),
        (
            "accelerate",
            YAML,
            "version: 2",
            "version: 3",
            "line 5: fsdp_config.fsdp_version is 3; it must be 1 or 2: take 2",
        ),
        ("accelerate", YAML, "FSDP", "[", "is no YAML"),
        ("accelerate", YAML, "version: 2", "version: 2\n  fsdp_reshard_after_forward: maybe", "true or false"),
        ("accelerate", YAML, "size 2", "size two", "'two'"),
        ("accelerate", YAML, "num_processes: 4", "mixed_precision: x", "missing"),
        ("deepspeed", JSON, ": 8", ": 9", "train_batch_size 9 is not 1"),
        ("deepspeed", JSON, "{", "", "is no JSON"),
        ("deepspeed", JSON, "{", '{"zero_optimization": {"stage": 4}, ', "0 to 3"),
        ("deepspeed", JSON, "8", '"x"', "'x'"),
        ("deepspeed", JSON, "{", '{"bf16": {"enabled": true}, "fp16": {"enabled": true}, ', "both enabled"),
        ("deepspeed", JSON, "{", '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, ', "on the host"),
        ("deepspeed", JSON, "{", '{"train_batch_size": 8, ', "stands twice"),
    ],
)
def test_wrong_files_are_one_line_with_the_entry(
    name: str, text: str, old: str, new: str, said: str, tmp_path: pathlib.Path
) -> None:
    graph = posed("llama-3.2-1b", name).graph
    path = tmp_path / f"mine.{SUFFIX[name]}"
    path.write_text(text)
    assert frameworks.load(name).read(str(path), graph).plan.n_devices == 4
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        frameworks.load(name).read(str(path), graph)
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("fsdp2", f"{SCRIPT}DROPOUT = 0.1\n", 9), ("torchtitan", f"{MODULE}config.training.weather = 3\n", 4),
        ("accelerate", f"{YAML}  fsdp_weather: 3\n", 6), ("deepspeed", JSON.replace("{", '{\n"weather": 3,'), 2),
    ],
)  # fmt: skip
def test_an_entry_that_nothing_is_known_of_is_a_warning_with_its_line(
    name: str, text: str, line: int, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / f"mine.{SUFFIX[name]}"
    path.write_text(text)
    warnings = frameworks.load(name).read(str(path), posed("llama-3.2-1b", name).graph).warnings
    assert [text for text in warnings if f"line {line}: " in text and ("weather" in text or "DROPOUT" in text)], warnings


def test_what_a_file_leaves_open_is_what_its_framework_takes(tmp_path: pathlib.Path) -> None:
    graph = posed("llama-3.2-1b", "torchtitan").graph
    path = tmp_path / "mine.py"
    path.write_text("c.parallelism = ParallelismConfig(pipeline_parallel_degree=2)\nc.training.local_batch_size = 8\n")
    said = frameworks.load("torchtitan").read(str(path), graph, 8)
    first, last = said.plan.stages
    assert (first.strategy, said.plan.n_microbatches) == (Strategy(4, shard=2), 8)
    assert (len(first.ops), len(last.ops)) == (9, 9) and "SelectiveAC" in said.warnings[0]
    path = tmp_path / "mine.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 2}}'
    )
    said = frameworks.load("deepspeed").read(str(path), graph, 8)
    assert (said.plan.stages[0].strategy, said.plan.global_batch, said.precision) == (Strategy(4, 2, shard=2), 8, "fp32")


def test_torchtitans_own_split_gives_what_is_over_to_the_first_stages(tmp_path: pathlib.Path) -> None:
    """16 layers, and the table and the head as one each: 18 on 4 stages are 5, 5, 4 and 4 [torchtitan, generate_llm_fqn_per_model_part]."""  # noqa: E501
    path = tmp_path / "mine.py"
    path.write_text("c.parallelism = ParallelismConfig(pipeline_parallel_degree=4)\nc.training.local_batch_size = 8\n")
    said = frameworks.load("torchtitan").read(str(path), posed("llama-3.2-1b", "torchtitan").graph, 4)
    assert [stage.ops for stage in said.plan.stages] == [
        (0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (10, 11, 12, 13), (14, 15, 16, 17)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "n_devices", "batches"),
    [
        ({"train_batch_size": 16, "gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": "auto"}, 2, (2, 4, 16)),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 4}, 0, None),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}, 2, (3, 4, 24)),
        ({"gradient_accumulation_steps": 5, "train_micro_batch_size_per_gpu": 3}, 2, (3, 5, 30)),
        ({"train_batch_size": 16}, 4, (4, 1, 16)),
        ({"train_batch_size": 24, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 3}, 0, (3, 2, 24)),
    ],
)
def test_of_deepspeeds_three_batch_sizes_what_is_not_said_follows_from_the_rest(
    entries: dict[str, object], n_devices: int, batches: tuple[int, int, int] | None, tmp_path: pathlib.Path
) -> None:
    """Samples of a step = of a micro-batch x micro-batches x data ranks [DeepSpeed, configuration JSON, batch size]."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(entries))
    graph = posed("llama-3.2-1b", "deepspeed").graph
    if batches is None:
        with pytest.raises(InputError, match="say on which cluster it runs"):
            frameworks.load("deepspeed").read(str(path), graph, n_devices)
        return
    plan = frameworks.load("deepspeed").read(str(path), graph, n_devices).plan
    assert (plan.micro_batch, plan.n_microbatches, plan.global_batch) == batches


def test_accelerates_replicas_and_shards_of_different_numbers_are_read_as_they_are(tmp_path: pathlib.Path) -> None:
    """HSDP: 2 replicas of 4 shards are 8 data ranks whose states are divided by 4, and written the same again."""
    path = tmp_path / "mine.yaml"
    sizes = "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n"
    path.write_text(YAML.replace("num_processes: 4", "num_processes: 8") + sizes)
    problem = posed("llama-3.2-1b", "accelerate")
    said = frameworks.load("accelerate").read(str(path), problem.graph, 8)
    assert said.plan.stages[0].strategy == Strategy(8, shard=3, shard_degree=4)
    frameworks.load("accelerate").write(Result(problem, "best", 0, Answer(said.plan)), str(tmp_path / "again.yaml"))
    assert frameworks.load("accelerate").read(str(tmp_path / "again.yaml"), problem.graph, 8).plan == said.plan


@pytest.mark.parametrize("name", ["megatron", "megatron_bridge"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen3-30b-a3b"])
def test_what_runs_without_its_overlaps_is_priced_so_and_written_back(name: str, model: str, tmp_path: pathlib.Path) -> None:
    usual = posed(model, name)
    late = posed(model, f"{name}:+plain+late_reduce")
    mixture = model == "qwen3-30b-a3b"
    assert late.framework.variant == "experts_x86+plain+late_reduce" if mixture else "plain+late_reduce"
    assert late.framework.issue_seconds == usual.framework.issue_seconds, "what circumstances choose still holds"
    counts = [len(usual.graph.ops) - 2]
    plan = cut(usual, Strategy(8, 4, sequence_parallel=True, shard=1), counts, 1, n=8)
    plan = replace(plan, n_microbatches=2, global_batch=16)
    steps, loads = [], []
    for problem in (usual, late):
        stage_costs, timeline = evaluate(problem, plan)
        assert timeline is not None
        steps.append(timeline.step_seconds)
        loads.append(stage_costs[0])
    assert loads[0].overlap_ratio > 0.5 and loads[1].overlap_ratio == 0.0
    assert steps[1] > steps[0] + 0.5 * loads[0].reduce_seconds * loads[0].overlap_ratio
    path = tmp_path / f"a.{SUFFIX[name]}"
    frameworks.load(name).write(Result(late, "best", 0, Answer(plan)), str(path))
    said = frameworks.load(name).read(str(path), late.graph, 64)
    assert said.plan == plan and said.variant == ("+" if mixture else "") + "plain+late_reduce"
    again = posed(model, f"{name}:{said.variant}")
    assert evaluate(again, said.plan)[1].step_seconds == steps[1]  # type: ignore[union-attr]


def test_only_variants_that_stand_beside_others_are_put_together() -> None:
    found = frameworks.find("megatron:experts_x86+late_reduce")
    assert not found.overlaps_reduce and found.variants == ("experts_x86", "late_reduce")
    assert found.tensor_overlap_ratio == frameworks.find("megatron").tensor_overlap_ratio > 0.0
    assert frameworks.find("megatron:+late_reduce") == frameworks.find("megatron:late_reduce")
    for wrong in ("megatron:plain+experts_x86", "torchtitan:eager+async_tensor", "megatron:plain+weather", "megatron:+"):
        with pytest.raises(InputError, match="variant of"):
            frameworks.find(wrong)
