"""Configurations of families that no reader knows, captured from transformers' code: weights and products are its own."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'meshwright[torch]'")
transformers = pytest.importorskip("transformers", reason="an optional extra: pip install 'meshwright[huggingface]'")
pytestmark = [
    pytest.mark.torch,
    # PyTorch and transformers warn about themselves
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

from meshwright import api  # noqa: E402
from meshwright.api import plan_files  # noqa: E402
from meshwright.base.errors import InputError  # noqa: E402
from meshwright.core.flops import forward_flops  # noqa: E402
from meshwright.core.problem import ModelSpec  # noqa: E402
from meshwright.writers import plan_json  # noqa: E402

LENGTH = 64
SHORT = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
WHOLE = ("zamba2", "xlnet")
"""Families whose configurations list something for each layer."""

DECODERS = (
    "apertus", "biogpt", "bitnet", "codegen", "ctrl", "exaone4", "gpt_bigcode", "mpt", "olmo3", "openai-gpt", "persimmon",
    "vaultgemma", "xglm", "xlnet", "lfm2",
)  # fmt: skip
STATE_SPACE = (
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "mamba", "mamba2", "nemotron_h",
    "qwen3_5_moe_text", "qwen3_next", "zamba2",
)  # fmt: skip
MIXTURES = (
    "cohere2_moe", "deepseek_v32", "ernie4_5_moe", "flex_olmo", "glm4_moe_lite", "granitemoe", "minimax", "minimax_m2",
    "olmoe", "phimoe",
)  # fmt: skip
ENCODERS = ("albert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
BOTH = (
    "bart", "bigbird_pegasus", "blenderbot", "longt5", "m2m_100", "marian", "mbart", "mt5", "pegasus",
    "t5gemma", "umt5", "whisper",
)  # fmt: skip
TOWERS = (
    "clip", "convnext", "dinov2", "idefics3", "internvl", "llava", "paligemma", "qwen2_vl", "qwen3_vl", "resnet", "siglip",
    "swin",
)  # fmt: skip
FAMILIES = (*DECODERS, *STATE_SPACE, *MIXTURES, *ENCODERS, *BOTH, *TOWERS)
"""68 of them; those that readers know are compared in tests/unit/models/test_huggingface_transformers.py."""

OF_WORDS_TOO = ("idefics3", "internvl", "llava", "paligemma", "qwen2_vl", "qwen3_vl")
"""Towers beside a language model: captured on words, which is compared by weights."""

WITH_EXPERTS = ("jamba", "kimi_linear", "nemotron_h", "qwen3_next")

NOT_COMPARED = ("bigbird_pegasus", "deberta-v2", "longt5", "t5gemma", "xlnet")
"""Families whose code pads to blocks, or reads values of tensors, without a trace around it."""


def _config(family: str) -> dict[str, Any]:
    """Return the default configuration of a family with few layers."""
    whole = transformers.AutoConfig.for_model(family).to_dict()
    short = {} if family in WHOLE else {field: 4 for field in SHORT if field in whole}
    try:
        return dict(transformers.AutoConfig.for_model(family, **short).to_dict())
    except (ValueError, TypeError):
        return whole


def _read(folder: pathlib.Path, fields: dict[str, Any], length: int = LENGTH) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(fields, default=str))
    return api.read(str(path), sequence_length=length)


def _module(notes: tuple[str, ...], fields: dict[str, Any]) -> Any:
    """Return the module that notes name, built by transformers alone, without memory."""
    said = notes[0]
    kind = re.search(r"captured from (\w+) of transformers", said)
    assert kind is not None
    config = transformers.AutoConfig.for_model(**fields)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if any("in fp32" in note for note in notes) else torch.bfloat16)
    try:
        with torch.device("meta"):
            return getattr(transformers, kind[1])._from_config(config)
    finally:
        torch.set_default_dtype(before)


def _weights(module: Any) -> int:
    return sum(weight.numel() for weight in {id(weight): weight for weight in module.parameters()}.values())


def _expert_weights(module: Any, n_experts: int) -> int:
    """Return the weights of stacks of experts."""
    return sum(weight.numel() for weight in module.parameters() if weight.ndim == 3 and weight.shape[0] == n_experts)


def _counted(module: Any, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the products of the forward pass as PyTorch's own counter has them, those of experts and attention left out."""
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_, **__: None)  # reads values
    monkeypatch.setattr(masking_utils, "_ignore_causal_mask_sdpa", lambda *_, **__: True)
    module.config.use_cache = False
    if hasattr(module.config, "_experts_implementation"):
        module.config._experts_implementation = "grouped_mm"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.eval()(**inputs)  # layers are left out by chance in training
    return float(sum(n for name, n in counter.get_flop_counts()["Global"].items() if str(name) in ("aten.mm", "aten.addmm")))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_family_has_the_weights_and_products_of_its_code(
    family: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = _config(family)
    found = _read(tmp_path, fields)
    graph = found.graph
    assert found.format == "captured_config" and "no reader knows" in found.notes[0]
    module = _module(found.notes, fields)
    assert graph.n_parameters == _weights(module)
    experts = [part for op in graph.ops for part in op.body if part.kind == "grouped_matmul"]
    assert bool(experts) == (
        family in MIXTURES or "moe" in family or family in ("jamba", "qwen3_next", "kimi_linear", "nemotron_h")
    )
    if experts:
        share = experts[0].size("top_k") / experts[0].size("experts")
        idle = _expert_weights(module, experts[0].size("experts")) * (1.0 - share)
        assert graph.n_active_parameters == pytest.approx(graph.n_parameters - idle, rel=0.01)
        visited = 2.0 * LENGTH * share * _expert_weights(module, experts[0].size("experts"))
        assert sum(forward_flops(part) for part in experts) == pytest.approx(visited, rel=0.01)
    if family in NOT_COMPARED or family in OF_WORDS_TOO:
        return
    from meshwright.runtime.capture import guesses

    inputs = guesses.inputs(module, 1, LENGTH, next(module.parameters()).dtype)
    assert inputs is not None
    products = [part for op in graph.ops for part in op.body if re.search(r"(^|\.)(add)?mm(_\d+)?$", part.name)]
    assert sum(map(forward_flops, products)) == pytest.approx(_counted(module, inputs, monkeypatch), rel=0.01)


SMALL = {
    "model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 4, "num_heads": 8, "head_dim": 16, "state_size": 16,
    "n_groups": 2, "vocab_size": 500, "chunk_size": 32,
}  # fmt: skip


def test_scans_are_one_kernel_that_keeps_what_it_reads_and_writes(tmp_path: pathlib.Path) -> None:
    found = _read(tmp_path, SMALL, 128)
    layer = next(op for op in found.graph.ops if op.name.endswith("layers.1"))
    scans = [part for part in layer.body if "fused_scan" in part.name]
    assert len(scans) == 1 and any("mamba-ssm" in note for note in found.notes)
    assert not any("operator by operator" in note for note in found.notes)
    # by hand: within chunks of 32 the two products of attention, and twice a state of 16 x 16 for each of 8 heads
    assert scans[0].flops == 2 * 128 * (32 * (16 * 2 + 16 * 8) + 2 * 16 * 16 * 8)
    written = 128 * 8 * 16
    read = 128 * 8 * 16 + 128 * 8 + 2 * 128 * 2 * 16
    kept = scans[0].saved_elements + scans[0].saved_extra_bytes // 2
    assert written <= kept <= 2 * (read + written)
    twice = _read(tmp_path, SMALL, 256)
    long = next(part for op in twice.graph.ops if op.name.endswith("layers.1") for part in op.body if "fused_scan" in part.name)
    assert long.flops == 2 * scans[0].flops


LLAMA4 = {
    "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "hidden_size": 96, "intermediate_size": 64,
    "intermediate_size_mlp": 160, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 1003, "num_local_experts": 8, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
    "attention_chunk_size": 16, "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip


def test_experts_that_code_runs_on_every_token_are_counted_as_the_router_chooses(tmp_path: pathlib.Path) -> None:
    from meshwright.runtime.capture import configurations

    own = _read(tmp_path, LLAMA4).graph
    captured = configurations.read(str(tmp_path / "config.json"), LLAMA4, "small", sequence_length=LENGTH)
    assert any("all 8 experts" in note and "the 2 that its router chooses" in note for note in captured.notes)
    graph = captured.graph
    assert own.n_parameters == graph.n_parameters == _weights(_module(captured.notes, LLAMA4))
    assert own.n_active_parameters == graph.n_active_parameters == own.n_parameters - 2 * 6 * 3 * 96 * 64
    for kind in ("matmul", "grouped_matmul"):
        flops = [sum(forward_flops(part) for op in one.ops for part in op.body if part.kind == kind) for one in (own, graph)]
        assert flops[0] == flops[1] > 0.0
    body = next(op.body for op in graph.ops if op.kind == "moe")
    kinds = [part.kind for part in body]
    assert kinds.count("grouped_matmul") == 2 and kinds.count("dispatch") == kinds.count("combine") == 1


def test_a_recurrence_without_its_kernel_is_refused_in_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwright.runtime.capture import recorder

    monkeypatch.setattr(recorder, "_MOST_OPERATORS", 40)
    fields = {"model_type": "biogpt", "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 99}
    with pytest.raises(InputError, match=r"runs more than 40 operators in a forward pass") as caught:
        _read(tmp_path, fields, 16)
    assert "\n" not in str(caught.value) and "'biogpt' is not supported" in str(caught.value)


def test_parameters_multiplied_head_by_head_are_no_experts(tmp_path: pathlib.Path) -> None:
    """Funnel's two segments were said to be two experts that every token visits."""
    fields = {"model_type": "funnel", "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "block_sizes": [1, 1, 1],
              "vocab_size": 99, "architectures": ["FunnelForMaskedLM"]}  # fmt: skip
    found = _read(tmp_path, fields, 16)
    assert not any("experts" in note for note in found.notes)
    assert found.graph.n_parameters == _weights(_module(found.notes, fields))


def test_what_neither_knows_is_one_line_with_near_names(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"'mambo' is not supported, and not known to transformers [\d.]+; near names: mamba"):
        _read(tmp_path, {"model_type": "mambo", "auto_map": {"AutoModel": "x--y"}})
    with pytest.raises(InputError, match=r"auto_map.* is not run"):
        _read(tmp_path, {"model_type": "mambo", "auto_map": {"AutoModel": "x--y"}})
    with pytest.raises(InputError, match="refuses this configuration"):
        _read(tmp_path, {**SMALL, "hidden_size": "wide"})
    with pytest.raises(InputError, match=r"--freeze and --lora"):
        api.read(str(tmp_path / "config.json"), freeze=("embed",))


def test_a_captured_configuration_is_planned_like_any_other(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    result = api.plan(str(path), "flat:4", global_batch=8, sequence_length=128)
    assert result.feasible and any("captured from Mamba2ForCausalLM" in note for note in result.answer.notes)
    plan_json.write(result, str(tmp_path / "plan.json"))
    again = plan_files.load(str(tmp_path / "plan.json"))
    assert again.plan == result.plan and again.problem.graph == result.problem.graph


def test_without_transformers_the_refusal_says_what_would_help(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.runtime.capture import configurations

    monkeypatch.setattr(configurations.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"'mamba2' is not supported\. .*pip install 'meshwright\[huggingface\]'"):
        _read(tmp_path, SMALL)
