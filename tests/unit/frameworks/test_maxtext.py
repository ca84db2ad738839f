"""MaxText's file, written and read: axes of its mesh, batches of a device, its models, and what is wrong in one line."""

from __future__ import annotations

import functools
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
from meshwright.frameworks.maxtext import config

MODULE = frameworks.load("maxtext")


@functools.cache
def posed(model: str = "llama-3.2-1b", precision: str = "bf16", cluster: str = "dgx-h100:64") -> Problem:
    return api.make_problem(model, cluster, framework="maxtext", batch=Batch(64, 1), training=MixedPrecision.of(precision))


def planned(problem: Problem, strategy: Strategy, word: str = "none", *, n: int = 4, micro: int = 1) -> Plan:
    last = len(problem.graph.ops) - 1
    words = tuple("none" if op in (0, last) else word for op in range(last + 1))
    stage = Stage(tuple(range(last + 1)), tuple(range(strategy.n_devices)), strategy, words)
    return Plan((stage,), n, micro, "1f1b", n * micro * strategy.data)


def written(problem: Problem, plan: Plan, path: pathlib.Path) -> dict[str, object]:
    assert MODULE.write(Result(problem, "best", 0, Answer(plan)), str(path)) == ()
    content: dict[str, object] = yaml.safe_load(path.read_text())
    return content


def test_random_plans_with_experts_are_read_back_the_same_or_refused(tmp_path: pathlib.Path) -> None:
    chance, path, told, refused = random.Random(7), tmp_path / "plan.yml", 0, 0
    for _ in range(80):
        problem = posed(chance.choice(["llama-3.2-1b", "qwen3-30b-a3b"]), chance.choice(["bf16", "fp8", "fp32"]))
        data, expert = chance.choice([1, 2, 4, 8]), chance.choice([1, 1, 2, 4]) if problem.graph.name != "llama-3.2-1b" else 1
        tensor, context = chance.choice([1, 1, 2]), chance.choice([1, 1, 2, 3])
        level = chance.choice([0, 1, 3, 3]) if data * context > 1 else 0
        degree = 2 if level == 3 and data > 2 and chance.random() < 0.4 else 0
        strategy = Strategy(data, tensor, context, expert, tensor > 1 and chance.random() < 0.5, level, degree)
        plan = planned(problem, strategy, chance.choice(["none", "full"]), n=chance.randint(1, 3), micro=chance.randint(1, 3))
        if (data * context) % expert or MODULE.refusals(plan, problem):
            refused += 1
            continue
        try:
            content = written(problem, plan, path)
        except ExportError as error:  # an axis that no host divides
            assert ("every host is a slice" in str(error) or "different sizes" in str(error)) and context == 3
            refused += 1
            continue
        said = MODULE.read(str(path), problem.graph)
        assert (said.plan, said.precision, said.warnings) == (plan, problem.training.precision, ())
        assert content["ici_data_parallelism"] == 1 or level < 3 or degree
        told += 1
    assert told >= 30 and refused >= 10


def test_axes_are_those_of_its_mesh(tmp_path: pathlib.Path) -> None:
    problem = posed()
    content = written(problem, planned(problem, Strategy(8, 2, 2, 1, True, 3, 4), micro=2), tmp_path / "a")
    axes = {name: content[f"ici_{name}_parallelism"] for name in ("data", "fsdp", "context", "tensor_sequence", "expert")}
    assert axes == {"data": 1, "fsdp": 2, "context": 2, "tensor_sequence": 2, "expert": 1}  # of a host, which is a slice
    assert {name: size for name, size in content.items() if name.startswith("dcn")} == {
        "dcn_data_parallelism": 2, "dcn_fsdp_parallelism": 2
    }  # fmt: skip
    assert content["per_device_batch_size"] == 0.5 and content["context_parallel_strategy"] == "ring"
    assert (content["hardware"], content["attention"]) == ("gpu", "cudnn_flash_te")
    content = written(posed("qwen3-30b-a3b"), planned(posed("qwen3-30b-a3b"), Strategy(8, expert=4, shard=3)), tmp_path / "b")
    assert (content["ici_fsdp_parallelism"], content["ici_expert_parallelism"]) == (2, 4)
    tpu = posed(cluster="tpu-v4:4")
    content = written(tpu, planned(tpu, Strategy(4, shard=1)), tmp_path / "c")
    assert (content["hardware"], content["shard_optimizer_over_data"], content["ici_data_parallelism"]) == ("tpu", True, 4)


def test_what_no_axes_say_is_refused() -> None:
    problem = posed("qwen3-30b-a3b")
    for strategy, said in (
        (Strategy(4, 1, 2), "beside a context or expert axis"),
        (Strategy(4, expert=2, shard=1), "beside a context or expert axis"),
        (Strategy(4, 2, 1, 2, shard=3), "inside of them"), (Strategy(8, 1, 1, 4, False, 3, 2), "must divide the ranks"),
    ):  # fmt: skip
        assert any(said in reason for reason in MODULE.refusals(planned(problem, strategy), problem))


def test_models_are_told_by_name_or_dimensions_or_refused(tmp_path: pathlib.Path) -> None:
    content = written(posed(), planned(posed(), Strategy(8, shard=3)), tmp_path / "a")
    assert (content["base_emb_dim"], content["base_num_decoder_layers"], content["decoder_block"]) == (2048, 16, "llama2")
    assert content["rope_type"] == "llama3.1" and content["logits_via_embedding"] is True and "model_name" not in content
    problem = posed("deepseek-v3-mtp")
    content = written(problem, planned(problem, Strategy(64, shard=3)), tmp_path / "b")
    assert (content["model_name"], content["mtp_num_layers"]) == ("deepseek3-671b", 1)
    assert MODULE.read(str(tmp_path / "b"), problem.graph).plan.n_devices == 64
    with pytest.raises(InputError, match="deepseek3-671b has 61"):
        MODULE.read(str(tmp_path / "b"), posed().graph)
    with pytest.raises(ExportError, match="family gpt2"):
        written(posed("gpt2"), planned(posed("gpt2"), Strategy(8, shard=3)), tmp_path / "c")
    assert not (tmp_path / "c").exists() and set(content) <= set(config.known()["fields"])


FILE = """base_config: "base.yml"
base_num_decoder_layers: 16
dcn_data_parallelism: -1
ici_fsdp_parallelism: 4
ici_tensor_parallelism: 2
per_device_batch_size: 1.5
max_target_length: 512
"""


def test_open_axes_are_the_rest_and_open_entries_are_base_yml(tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "a.yml", posed().graph
    path.write_text(FILE)
    said = MODULE.read(str(path), graph, 16)  # two slices of eight
    assert said.plan.stages[0].strategy == Strategy(8, 2, 1, 1, False, 3, 4)
    assert (said.plan.micro_batch, said.plan.n_microbatches, said.plan.stages[0].recompute[1]) == (3, 1, "full")
    assert MODULE.read(str(path), graph).plan.stages[0].strategy == Strategy(4, 2, shard=3)
    path.write_text(FILE.replace("ici_fsdp_parallelism: 4\n", ""))
    assert MODULE.read(str(path), graph, 32).plan.stages[0].strategy == Strategy(16, 2, shard=3)
    path.write_text(FILE.replace("dcn_data", "dcn_fsdp").replace("-1", "2"))
    assert MODULE.read(str(path), graph, 16).plan.stages[0].strategy == Strategy(8, 2, shard=3)
    path.write_text(f"{FILE}remat_policy: minimal\nweather: 3\nici_context_parallelism: 2\n")
    said = MODULE.read(str(path), graph)
    assert f"{path}: line 9: nothing is known of weather; it is left out" in said.warnings and len(said.warnings) == 3
    assert said.plan.stages[0].recompute[1] == "none" and said.plan.stages[0].strategy.context == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ici_fsdp_parallelism: 4", "ici_fsdp_parallelism: 0", "ici_fsdp_parallelism is 0"),
        ("layers: 16", "layers: 15", "another model?"), ("size: 1.5", "size: big", "a number above 0"),
        ("size: 1.5", "size: 0.3", "makes 2 samples"), ("size: 1.5", "size: 0.01", "makes 0 samples"),
        ("ici_tensor", "ici_pipeline", "only 1 is read"),
        ("max_target", "dtype: int8\nmax_target", "dtype is int8"),
        ("max_target", "quantization: int8\nmax_target", "fp8_full"),
        ("max_target", "remat_policy: custom\nmax_target", "remat_policy is custom"),
        ("base_config:", "base_config: [", "no YAML"),
        ("ici_fsdp_parallelism: 4", "ici_fsdp_parallelism: -1", "say on which cluster"),
        ("max_target", "dcn_tensor_parallelism: 2\nmax_target", "only axes outside of those that slices split"),
        ("max_target", "ici_tensor_sequence_parallelism: 2\nmax_target", "both split"),
        ("max_target", "optimizer_memory_host_offload: true\nmax_target", "nothing on the host"),
    ],
)  # fmt: skip
def test_wrong_files_are_one_line_with_the_entry(old: str, new: str, said: str, tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "a.yml", posed().graph
    path.write_text(FILE.replace(old, new, 1))
    assert old in FILE
    with pytest.raises(InputError) as error:
        MODULE.read(str(path), graph)
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_a_file_is_recognised_as_no_other() -> None:
    names = [
        name for name in frameworks.names()
        if hasattr(frameworks.load(name), "recognises") and frameworks.load(name).recognises(FILE)
    ]  # fmt: skip
    assert names == ["maxtext"]


def test_entries_that_change_a_step_are_priced_or_said(tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "run.yml", posed().graph
    head = "model_name: llama3.2-1b\nici_fsdp_parallelism: 8\nper_device_batch_size: 1\n"
    path.write_text(f"{head}attention: dot_product\nopt_type: sgd\nmu_dtype: bfloat16\nnum_vocab_tiling: 1\nbase_mlp_dim: 9\n")
    said = MODULE.read(str(path), graph, 8)
    assert said.attention == "unfused"
    assert [one.partition("run.yml: ")[2] for one in said.warnings] == [
        "line 5: opt_type is sgd; the state of AdamW in fp32 is priced",
        "line 6: mu_dtype is bfloat16; moments are priced in four bytes",
        "line 8: base_mlp_dim: the sizes of model_name are priced; give --model for others",
    ]
    path.write_text(f"{head}override_model_config: true\nbase_num_decoder_layers: 4\n")
    with pytest.raises(InputError, match=r"base_num_decoder_layers is 4, but .* has 16 layers: another model"):
        MODULE.read(str(path), graph, 8)


@pytest.mark.parametrize(
    ("strategy", "inside", "over"),
    [
        (Strategy(16, shard=3), {"fsdp": 8}, {"fsdp": 2}),
        (Strategy(16, shard=0), {"data": 8}, {"data": 2}),
        (Strategy(4, 4, 1, 1, True), {"data": 2, "tensor_sequence": 4}, {"data": 2}),
        (Strategy(8, shard=3), {"fsdp": 8}, {}),
        (Strategy(2, 16, 1, 1, True), {"tensor_sequence": 8}, {"data": 2, "tensor_sequence": 2}),
    ],
)
def test_sizes_inside_multiply_to_the_devices_of_a_host_and_those_over_hosts_to_the_hosts(
    strategy: Strategy, inside: dict[str, int], over: dict[str, int], tmp_path: pathlib.Path
) -> None:
    """As in MaxText's own configuration of two hosts, ``configs/a3/llama_2_7b/2vm.sh``; read again, it is the same plan."""
    problem = posed()
    plan = planned(problem, strategy, micro=16)
    content = written(problem, plan, tmp_path / "a.yml")
    sizes = {
        place: {
            name.split("_", 1)[1].removesuffix("_parallelism"): size
            for name, size in content.items()
            if name.startswith(f"{place}_") and size != 1
        }
        for place in ("ici", "dcn")
    }
    assert sizes == {"ici": inside, "dcn": over}
    assert content["dcn_data_parallelism"] == over.get("data", 1)
    assert MODULE.read(str(tmp_path / "a.yml"), problem.graph).plan == plan


def test_axes_that_do_not_fill_the_hosts_are_said_of_a_file(tmp_path: pathlib.Path) -> None:
    path, problem = tmp_path / "a.yml", posed(cluster="dgx-h100:16")

    def judged(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        path.write_text(text)
        found: tuple[tuple[str, ...], tuple[str, ...]] = MODULE.on_devices(
            MODULE.read(str(path), problem.graph, 16), problem, str(path)
        )
        return found

    assert judged(FILE) == ((), ())
    (reason,), notes = judged(FILE.replace("ici_fsdp_parallelism: 4", "ici_fsdp_parallelism: 8"))
    assert notes == () and reason.startswith("axes inside slices (ici_) of 16 devices, where every host with 8 GPUs is a slice")
    refusals, (note,) = judged(FILE.replace("ici_fsdp_parallelism: 4\n", ""))
    assert refusals == () and "is read with axes inside slices" in note
    tpu = posed(cluster="tpu-v4:16")
    assert MODULE.on_devices(MODULE.read(str(path), tpu.graph, 16), tpu, str(path)) == ((), ())
