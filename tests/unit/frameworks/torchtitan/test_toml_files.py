"""torchtitan's TOML files and launch scripts are read field by field; what runs uncompiled is priced so."""

from __future__ import annotations

import pathlib

import pytest

from meshwright import api, frameworks, models
from meshwright.api.advise import framework_of_file
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan
from meshwright.core.problem import Batch
from meshwright.core.result import Answer, Result
from meshwright.core.run_config import RunConfig
from meshwright.core.strategy import Strategy

TOML = """[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
"""
GRAPH = api.make_problem("llama-3.1-8b", "dgx-h100:8", framework="torchtitan", batch=Batch(0, 0, 8192)).graph


def read(folder: pathlib.Path, text: str, name: str = "mine.toml") -> RunConfig:
    path = folder / name
    path.write_text(text)
    assert framework_of_file(str(path)) == "torchtitan"
    return frameworks.load("torchtitan").read(str(path), GRAPH, 8)


def words(plan: Plan) -> list[str]:
    return [word for stage in plan.stages for word in stage.recompute][1:-1]


def test_a_toml_file_says_the_plan_and_the_model(tmp_path: pathlib.Path) -> None:
    said = read(tmp_path, TOML)
    (stage,) = said.plan.stages
    assert stage.strategy == Strategy(4, 2, 1, 1, True, 3) and set(words(said.plan)) == {"every_second_product"}
    assert (said.plan.micro_batch, said.plan.global_batch, said.sequence_length) == (4, 16, 8192)
    assert (said.precision, said.variant) == ("bf16", "")
    assert [one for one in said.warnings if "releases up to 0.2" not in one] == []
    assert frameworks.load("torchtitan").model_of(str(tmp_path / "mine.toml")).name == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[compile]\nenable = true", "[compile]\nenable = false", {"variant": "eager"}),
        ("[compile]\nenable = true", "[compile]\nenable = true\ncomponents = ['loss']", {"variant": "eager"}),
        ("tensor_parallel_degree = 2", "tensor_parallel_degree = 2\nenable_async_tensor_parallel = true",
         {"variant": "async_tensor"}),
        ('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]', {"precision": "fp8"}),
        ('flavor = "8B"', 'flavor = "8B"\nconverters = ["quantize.linear.mx"]', {"precision": "mxfp8"}),
        ('"op"', '"1"', {"words": ["full"] * 32}), ('"op"', '"4"', {"words": ["none", "none", "none", "full"] * 8}),
        ('mode = "selective"', 'mode = "none"', {"words": ["none"] * 32}),
        ("local_batch_size", "batch_size", {"batch": 16}),
        ("[parallelism]\n", "[experimental]\npipeline_parallel_degree = 2\n[parallelism]\n", {"stages": [17, 17]}),
        ("tensor_parallel_degree = 2", "pipeline_parallel_degree = 2\npipeline_parallel_first_stage_less_layers = 3",
         {"stages": [16, 18]}),
        ("tensor_parallel_degree = 2", "pipeline_parallel_degree = 2\npipeline_parallel_split_points = ['layers.20']",
         {"stages": [21, 13]}),
        ("tensor_parallel_degree = 2",
         "pipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'\npipeline_parallel_layers_per_stage = 6",
         {"stages": [6, 6, 6, 6, 5, 5]}),
    ],
)  # fmt: skip
def test_every_field_that_decides_a_plan_is_read(old: str, new: str, said: dict[str, object], tmp_path: pathlib.Path) -> None:
    assert old in TOML
    found = read(tmp_path, TOML.replace(old, new))
    stages = [len(stage.ops) for stage in found.plan.stages]
    own = {
        "variant": found.variant, "precision": found.precision, "words": words(found.plan), "batch": found.plan.global_batch,
        "stages": stages,
    }  # fmt: skip
    assert {name: own[name] for name in said} == said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seq_len = 8192", "seq_len = 8192\nenable_cpu_offload = true", "line 9: training.enable_cpu_offload"),
        ('mode = "selective"', 'mode = "memory_budget"', "line 13: activation_checkpoint.mode"),
        ('"op"', '"ops"', "line 14: activation_checkpoint.selective_ac_option"),
        ("[compile]", '[optimizer]\nname = "Muon"\n[compile]', "line 16: optimizer.name"),
        ("[model]", "[model", "is no TOML"),
        ('mode = "selective"', "mode = [1]", "line 13: activation_checkpoint.mode is [1]"),
        (
            "tensor_parallel_degree = 2",
            "pipeline_parallel_degree = 2\nmodule_fqns_per_model_part = 3",
            "must be a list of lists",
        ),
        (
            "tensor_parallel_degree = 2",
            "pipeline_parallel_degree = 2\npipeline_parallel_split_points = 3",
            "must be a list of names",
        ),
        (
            "tensor_parallel_degree = 2",
            "pipeline_parallel_degree = 2\npipeline_parallel_split_points = ['layer.20']",
            "layer.20",
        ),
    ],
)
def test_what_no_plan_stands_for_is_one_line(old: str, new: str, message: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TOML.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        frameworks.load("torchtitan").read(str(path), GRAPH, 8)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nweather = 3\n", "line 7: training.weather: nothing is known"),
        ("[weather]\nfine = true\n", "weather.fine: nothing is known"),
        ("[parallelism]\ndisable_loss_parallel = true\n", "line 10: parallelism.disable_loss_parallel: the loss is priced"),
        ("[float8]\nenable_fsdp_float8_all_gather = true\n", "weights are priced as gathered in bf16"),
    ],
)
def test_what_is_unknown_or_priced_otherwise_is_named_with_its_line(text: str, message: str, tmp_path: pathlib.Path) -> None:
    section = text.split("\n")[0]
    content = TOML.replace(f"{section}\n", text) if section in TOML else TOML + text
    assert any(message in one for one in read(tmp_path, content).warnings), read(tmp_path, content).warnings


SCRIPT = """NGPU=${NGPU:-"4"}
CONFIG_FILE=${CONFIG_FILE:-"./train_configs/mine.toml"}
torchrun --nproc_per_node=${NGPU} -m torchtitan.train --job.config_file ${CONFIG_FILE} \\
  --parallelism.tensor_parallel_degree 4 --training.seq_len=4096 --compile.no-enable --training.weather 3 "$@"
"""


def test_a_launch_script_sets_fields_over_those_of_its_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.toml").write_text(TOML)
    said = read(tmp_path, SCRIPT, "run.sh")
    assert said.plan.stages[0].strategy == Strategy(1, 4, 1, 1, True, 0) and said.plan.n_devices == 4
    assert (said.sequence_length, said.variant, said.plan.micro_batch) == (4096, "eager", 4)
    assert any("line 4: training.weather" in one for one in said.warnings)
    (tmp_path / "mine.toml").unlink()
    with pytest.raises(InputError, match=r"mine\.toml, which is not there"):
        frameworks.load("torchtitan").read(str(tmp_path / "run.sh"), GRAPH, 8)


def test_a_function_of_the_registry_brings_its_own_values(tmp_path: pathlib.Path) -> None:
    """torchtitan 0.3.0, models/llama3/config_registry.py: Llama 3 8B with one sample of 8,192 tokens, not compiled."""
    said = read(tmp_path, "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.local_batch_size 2\n", "run.sh")
    assert said.plan.stages[0].strategy == Strategy(8, shard=3) and set(words(said.plan)) == {"every_second_product"}
    assert (said.plan.micro_batch, said.sequence_length, said.variant) == (2, 8192, "eager")
    module = (
        "from torchtitan.models.llama3.config_registry import llama3_8b\nc = llama3_8b()\nc.training.global_batch_size = 16\n"
    )
    said = read(tmp_path, module, "mine.py")
    assert (said.plan.micro_batch, said.plan.n_microbatches, said.sequence_length) == (1, 2, 8192)


@pytest.mark.parametrize("name", ["torchtitan", "torchtitan:async_tensor", "torchtitan:eager"])
def test_a_module_runs_the_variant_that_its_plan_was_priced_as(name: str, tmp_path: pathlib.Path) -> None:
    problem = api.make_problem("llama-3.1-8b", "dgx-h100:8", framework=name, batch=Batch(8, 1))
    found = api.plan(problem, fix={"tensor": 2, "pipeline": 1})
    path = tmp_path / "plan.py"
    frameworks.load("torchtitan").write(Result(problem, "best", 0, Answer(found.plan)), str(path))
    said = frameworks.load("torchtitan").read(str(path), problem.graph, 8)
    assert said.plan == found.plan and f"torchtitan{':' * bool(said.variant)}{said.variant}" == name


def test_parts_of_a_module_that_nothing_is_known_of_are_warnings(tmp_path: pathlib.Path) -> None:
    module = """from torchtitan.config import ParallelismConfig
config.parallelism = ParallelismConfig(data_parallel_shard_degree=8)
config.optimizer.lr = 3
config.weather = "fine"
config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config()])
config.training.dtype = "bfloat16"
"""
    said = read(tmp_path, module, "mine.py")
    texts = [one.removeprefix(f"{tmp_path}/mine.py: ") for one in said.warnings]
    assert said.precision == "fp8" and "line 4: weather: nothing is known of it; it is left out" in texts
    assert not any("optimizer" in one for one in texts) and any(one.startswith("line 6: training.dtype") for one in texts)


def test_fields_of_releases_of_2024_are_read_where_they_stood(tmp_path: pathlib.Path) -> None:
    old = TOML.replace("local_batch_size", "batch_size").replace(
        "[parallelism]\ndata_parallel_shard_degree", "data_parallel_degree"
    )
    said = read(tmp_path, old + "[float8]\nenable_float8_linear = true\n")
    assert said.plan.stages[0].strategy == Strategy(4, 2, 1, 1, True, 3) and said.precision == "fp8"
    assert not [one for one in said.warnings if "nothing is known" in one]
    for degree, told in ((1, 0), (2, 1)):
        text = TOML.replace(
            "tensor_parallel_degree = 2", f"tensor_parallel_degree = 2\nexpert_tensor_parallel_degree = {degree}"
        )
        warnings = read(tmp_path, text).warnings
        assert sum("experts are priced as whole" in one for one in warnings) == told and "nothing is known" not in "".join(
            warnings
        )


def test_gradients_scattered_in_half_are_said_and_a_pipeline_runs_once_a_step(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.toml"
    head = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 8\nmixed_precision_reduce = 'bfloat16'\n"
    path.write_text(head + "[parallelism]\nfsdp_reshard_after_forward = 'always'\n")
    graph, module = models.read("llama-3-8b").graph, frameworks.load("torchtitan")
    told = module.read(str(path), graph, 8).warnings
    assert f"{path}: training.mixed_precision_reduce is bfloat16; gradients are priced as scattered in float32" in told
    path.write_text(head + "global_batch_size = 64\n[parallelism]\npipeline_parallel_degree = 2\n")
    with pytest.raises(
        InputError, match="64 runs the pipeline 2 times a step, which is not priced; say 32, or a local_batch_size of 16"
    ):
        module.read(str(path), graph, 8)


def test_eight_bits_beside_weights_in_fp32_are_said(tmp_path: pathlib.Path) -> None:
    graph = models.read("llama-3.1-8b").graph
    for dtype, said in (("bfloat16", False), ("float32", True)):
        (tmp_path / "run.toml").write_text(
            f"[model]\nname = 'llama3'\nflavor = '8B'\nconverters = ['float8']\n[training]\nmixed_precision_param = '{dtype}'\n"
        )
        found = frameworks.load("torchtitan").read(str(tmp_path / "run.toml"), graph, 8)
        assert found.precision == "fp8"
        assert any("mixed_precision_param is float32: weights are gathered" in text for text in found.warnings) is said
        plain = (tmp_path / "run.toml").read_text().replace("converters = ['float8']\n", "")
        (tmp_path / "plain.toml").write_text(plain)
        without = frameworks.load("torchtitan").read(str(tmp_path / "plain.toml"), graph, 8)
        assert "weights are gathered" not in " ".join(without.warnings)
