"""Settings that once were passed over without a word: each is priced, refused or said."""

from __future__ import annotations

import json
import pathlib

import pytest

from meshwright import api, frameworks
from meshwright.base.errors import InputError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Batch
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.frameworks.megatron import contradictions, surroundings
from meshwright.frameworks.torchtitan import toml_file


@pytest.mark.parametrize("word", ["deepspeed", "transformers:deepspeed"])
def test_zero_holds_and_reduces_gradients_in_two_bytes(word: str) -> None:
    """Level 0 has 4 a weight and as many of a copy; level 2 a share of 2 and of the copy's 4."""
    problem = api.make_problem("llama-3.2-1b", "dgx-h100:8", framework=word, batch=Batch(64, 1))
    ops = tuple(range(len(problem.graph.ops)))
    n_weights = sum(op.n_parameters for op in problem.graph.ops) - problem.graph.n_shared_parameters
    held = []
    for shard in (0, 2, 3):
        plan = Plan((Stage(ops, tuple(range(8)), Strategy(8, shard=shard)),), 4, 1, "1f1b", 32)
        (load,) = analytic.stage_costs(problem, plan)
        held.append(load.gradient_bytes / n_weights)
    assert held[1:] == pytest.approx([6 / 8, 2 / 8], rel=1e-3) and held[0] > 8


def test_deepspeeds_wider_gradients_are_said(tmp_path: pathlib.Path) -> None:
    path, graph = tmp_path / "a.json", api.make_problem("llama-3.2-1b", "dgx-h100:8").graph
    said = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    for dtype, told in (("fp32", True), ("bf16", False)):
        path.write_text(json.dumps(said | {"data_types": {"grad_accum_dtype": dtype}}))
        warnings = frameworks.load("deepspeed").read(str(path), graph, 8).warnings
        assert any("grad_accum_dtype: gradients are priced in two bytes" in one for one in warnings) == told
        assert not any("nothing is known" in one for one in warnings)


TOML = '[job]\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\n{}\n[experimental]\npipeline_parallel_degree = 1\n'


def test_torchtitans_older_degrees_are_read_and_contradictions_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TOML.format("data_parallel_shard_degree = 4\ndata_parallel_replicate_degree = 2"))
    fields = toml_file.of_toml(str(path))
    found = fields.found["parallelism"]
    assert (found["data_parallel_shard_degree"], found["data_parallel_replicate_degree"]) == (4, 2)
    assert not any("nothing is known" in one for one in fields.warnings)
    path.write_text(TOML.format("") + "[parallelism]\npipeline_parallel_degree = 2\n")
    with pytest.raises(InputError, match=r"pipeline_parallel_degree is 2, but experimental\.pipeline_parallel_degree, which"):
        toml_file.of_toml(str(path))


def test_torchtitans_slower_settings_are_said(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TOML.format("") + '[debug]\ndeterministic = true\n[optimizer]\nimplementation = "for-loop"\n')
    told = "\n".join(toml_file.of_toml(str(path)).warnings)
    assert "debug.deterministic: kernels are priced as without it" in told and "for-loop: the update is priced as fused" in told


def test_variables_that_change_collectives_memory_or_attention_are_said() -> None:
    environment = {
        "NCCL_ALGO": ("Tree", 1), "NCCL_PROTO": ("Simple", 2), "NCCL_SHM_DISABLE": ("1", 3), "NCCL_MAX_NCHANNELS": ("1", 4),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", 5), "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", 6),
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0", 7),
    }  # fmt: skip
    assert sorted(line for line, _ in surroundings.slowed(environment)) == list(range(1, 8))
    usual = {"NCCL_SHM_DISABLE": ("0", 1), "TORCH_DISTRIBUTED_DEBUG": ("OFF", 2), "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("1", 3)}
    assert not list(surroundings.slowed(usual))


def test_a_mixture_beside_a_tensor_axis_asks_for_sequence_parallelism_whatever_the_expert_degree() -> None:
    options = {"--num-experts": ("8",), "--tensor-model-parallel-size": ("2",)}
    asked = "Megatron-LM asks for --sequence-parallel"
    assert any(asked in what for _, what in contradictions.found(options))
    assert not any(asked in what for _, what in contradictions.found(options | {"--sequence-parallel": ()}))
    assert not any(asked in what for _, what in contradictions.found({"--tensor-model-parallel-size": ("2",)}))


def test_maxtexts_unfused_attention_is_that_of_the_model_that_a_file_names(tmp_path: pathlib.Path) -> None:
    path, kept = tmp_path / "a.yaml", []
    for attention in ("dot_product", "cudnn_flash_te"):
        path.write_text(
            f'model_name: "llama3.1-8b"\nmax_target_length: 2048\nattention: "{attention}"\nici_fsdp_parallelism: 8\n'
        )
        graph = frameworks.load("maxtext").model_of(str(path)).graph
        kept.append(sum(operator.saved_elements for op in graph.ops for operator in op.body))
    assert kept[0] > 1.5 * kept[1]
