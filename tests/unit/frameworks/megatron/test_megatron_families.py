"""Megatron-LM's options of every family that is written out, against the weights that Megatron-LM would make of them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from meshwright import models
from meshwright.base.errors import ExportError
from meshwright.frameworks.megatron import contradictions, families, model, parser, shape
from meshwright.models.readers import huggingface

KNOWN = parser.known()
DECODER: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24,
    "intermediate_size": 200, "vocab_size": 1003, "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 56, "num_experts": 8, "num_experts_per_tok": 3}
LATENT = {
    "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 6, "intermediate_size": 200,
    "vocab_size": 1003, "max_position_embeddings": 256, "q_lora_rank": 40, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 56, "first_k_dense_replace": 2, "n_group": 2, "topk_group": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
GLM = {
    **DECODER, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 56,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
NO_HEAD = {name: value for name, value in DECODER.items() if name != "head_dim"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("arcee", DECODER), ("deepseek_v2", LATENT), ("deepseek_v3", LATENT), ("deepseek_v3", {**LATENT, "q_lora_rank": None}),
    ("ernie4_5", NO_HEAD), ("ernie4_5", {**DECODER, "use_bias": True, "tie_word_embeddings": False}),
    ("glm", {**NO_HEAD, "attention_bias": True}), ("glm4_moe", {**GLM, "use_qk_norm": True, "attention_bias": True}),
    ("glm4_moe", GLM), ("gpt_oss", {**DECODER, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 128}),
    ("kimi_k2", LATENT), ("llama", {**DECODER, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", NO_HEAD), ("mistral", DECODER), ("mixtral", {**DECODER, "num_local_experts": 8, "num_experts_per_tok": 3}),
    ("nemotron", DECODER), ("phi3", NO_HEAD), ("qwen2", NO_HEAD),
    ("qwen2_moe", {**DECODER, **EXPERTS, "shared_expert_intermediate_size": 72}), ("qwen3", DECODER),
    ("qwen3_moe", {**DECODER, **EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("seed_oss", NO_HEAD), ("smollm3", NO_HEAD),
]  # fmt: skip


def told(folder: pathlib.Path, family: str, fields: dict[str, Any], length: int = 64) -> tuple[dict[str, list[str]], Any]:
    """Return the options of a configuration with their values, and its graph."""
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": family, **fields}))
    graph = models.read(str(path), sequence_length=length).graph
    found: dict[str, list[str]] = {}
    for entry in model.arguments(str(path), graph)[0]:
        for word in entry:
            if word.startswith("--"):
                found[name := word] = []
            else:
                found[name].append(word)
    return found, graph


def weights(options: dict[str, list[str]]) -> int:
    """Return the weights of the model that Megatron-LM makes of its options, from how its modules are built."""

    def number(name: str, default: int = 0) -> int:
        return int(options.get(f"--{name}", [str(default)])[0])

    hidden, heads = number("hidden-size"), number("num-attention-heads")
    biased, gated = "--disable-bias-linear" not in options, bool({"--swiglu", "--quick-geglu"} & set(options))
    norm = hidden * (2 if options.get("--normalization") == ["LayerNorm"] else 1)

    def feed_forward(width: int) -> int:
        return hidden * width * (3 if gated else 2) + biased * ((1 + gated) * width + hidden)

    n_layers, experts = number("num-layers"), number("num-experts")
    layers = json.loads(options.get("--moe-layer-freq", [json.dumps([1] * n_layers)])[0])
    mixture = hidden * experts + biased * experts + experts * ("--moe-router-enable-expert-bias" in options)
    mixture += experts * feed_forward(number("moe-ffn-hidden-size"))
    shared = number("moe-shared-expert-intermediate-size")
    mixture += (feed_forward(shared) if shared else 0) + hidden * ("--moe-shared-expert-gate" in options)
    n_sparse = sum(layers) if experts else 0
    total = n_sparse * mixture + (n_layers - n_sparse) * feed_forward(number("ffn-hidden-size"))
    total += n_layers * (_attention(options, hidden, heads, number) + 2 * norm) + norm
    words = number("vocab-size") * hidden
    return total + words * (1 + ("--untie-embeddings-and-output-weights" in options))


def _attention(options: dict[str, list[str]], hidden: int, heads: int, number: Any) -> int:
    biased = "--disable-bias-linear" not in options
    if "--multi-latent-attention" in options:
        head, rank, turned = number("qk-head-dim"), number("kv-lora-rank"), number("qk-pos-emb-head-dim")
        query = number("q-lora-rank")
        found = hidden * query + query + query * heads * (head + turned) if query else hidden * heads * (head + turned)
        found += hidden * (rank + turned) + rank + rank * heads * (head + number("v-head-dim"))
        return int(found + heads * number("v-head-dim") * hidden)
    size, groups = number("kv-channels"), number("num-query-groups", heads)
    found = hidden * (heads + 2 * groups) * size + heads * size * hidden
    found += (biased or "--add-qkv-bias" in options) * (heads + 2 * groups) * size + biased * hidden
    found += heads * (options.get("--softmax-type") == ["learnable"])
    return int(found + 2 * size * ("--qk-layernorm" in options))


@pytest.mark.parametrize(("family", "fields"), CASES, ids=[family for family, _ in CASES])
def test_megatron_would_make_as_many_weights_as_the_model_has(
    family: str, fields: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    options, graph = told(tmp_path, family, fields)
    assert weights(options) == graph.n_parameters
    assert set(options) <= KNOWN
    if "--squared-relu" not in options:
        again = shape.fields_of({name: tuple(values) for name, values in options.items()}, "run.sh")
        assert huggingface.graph_of(again, "again", sequence_length=64).n_parameters == graph.n_parameters


def test_every_family_is_counted() -> None:
    assert {family for family, _ in CASES} == set(families.FAMILIES)


def test_positions_are_rotated_as_the_family_does(tmp_path: pathlib.Path) -> None:
    assert told(tmp_path, "glm", NO_HEAD)[0].keys() >= {"--rotary-percent", "--rotary-interleaved"}
    said = told(tmp_path, "glm4_moe", {**GLM, "partial_rotary_factor": 0.25})[0]
    assert said["--rotary-percent"] == ["0.25"] and "--rotary-interleaved" not in said
    assert "--rotary-percent" not in told(tmp_path, "llama", DECODER)[0]
    assert told(tmp_path, "smollm3", NO_HEAD)[0]["--no-rope-freq"] == ["[0,0,0,1]"]
    assert told(tmp_path, "smollm3", {**NO_HEAD, "no_rope_layers": [1, 0, 1, 1]})[0]["--no-rope-freq"] == ["[0,1,0,0]"]


def test_windows_reach_as_far_as_the_family_says(tmp_path: pathlib.Path) -> None:
    oss = {**DECODER, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 32}
    said = told(tmp_path, "gpt_oss", oss)[0]
    assert said["--window-size"] == ["31,0"]  # the token itself is among the 32
    assert said["--window-attn-skip-freq"] == ["[1,0,1,0]"]
    said = told(tmp_path, "mistral", {**DECODER, "sliding_window": 16})[0]
    assert said["--window-size"] == ["15,0"] and "--window-attn-skip-freq" not in said
    assert "--window-size" not in told(tmp_path, "mistral", {**DECODER, "sliding_window": 64})[0]


def test_gates_and_routers_are_those_of_the_family(tmp_path: pathlib.Path) -> None:
    oss = {**DECODER, "num_local_experts": 8, "num_experts_per_tok": 3, "swiglu_limit": 5.0}
    said = told(tmp_path, "gpt_oss", oss)[0]
    assert said["--activation-func-clamp-value"] == ["5"] and said["--glu-linear-offset"] == ["1"] and "--swiglu" not in said
    assert "--squared-relu" in told(tmp_path, "nemotron", DECODER)[0]
    assert told(tmp_path, "nemotron", DECODER)[0].keys() >= {"--apply-layernorm-1p"}
    mixture = {**DECODER, **EXPERTS}
    assert "--moe-router-pre-softmax" in told(tmp_path, "qwen2_moe", mixture)[0]
    assert "--moe-router-pre-softmax" not in told(tmp_path, "qwen3_moe", mixture)[0]
    assert "--moe-router-pre-softmax" in told(tmp_path, "qwen3_moe", {**mixture, "norm_topk_prob": False})[0]
    assert told(tmp_path, "glm4_moe", GLM)[0]["--moe-router-score-function"] == ["sigmoid"]


@pytest.mark.parametrize(
    ("family", "fields", "reason"),
    [
        ("llama", {"attention_bias": True}, "biases of queries, keys and values and attention's output only"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu' of a llama model has no option; silu has"),
        ("nemotron", {"hidden_act": "silu"}, "hidden_act 'silu' of a nemotron model"),
        ("gemma2", {}, "of the family gemma2, whose architecture is not written out"),
    ],
)
def test_what_has_no_option_is_refused(family: str, fields: dict[str, Any], reason: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ExportError, match=reason):
        told(tmp_path, family, {**DECODER, **fields})


def test_windows_of_two_sizes_are_refused() -> None:
    assert families.windows((0, 64, 0), 64) == ()
    with pytest.raises(ExportError, match="sliding windows of 16, 32 tokens"):
        families.windows((16, 32, 0), 64)


def test_yarn_is_told_in_full_and_read_back(tmp_path: pathlib.Path) -> None:
    """The values of GPT-OSS are those of Megatron-LM's own functional test of it."""
    spec = "gpt-oss-20b"
    options, notes = model.arguments(spec, models.read(spec).graph)
    flat = [word for entry in options for word in entry]
    begin = flat.index("--rotary-base")
    assert " ".join(flat[begin : begin + 15]) == (
        "--rotary-base 150000 --rotary-scaling-factor 32 --yarn-original-max-position-embeddings 4096 --yarn-beta-fast 32 "
        "--yarn-beta-slow 1 --mscale 1 --mscale-all-dim 0 --no-yarn-correction-range-round-to-int"
    )
    assert notes == () and flat[flat.index("--position-embedding-type") + 1] == "yarn"
    starts = [k for k, word in enumerate(flat) if word.startswith("--")]
    told = {flat[k]: tuple(flat[k + 1 : end]) for k, end in zip(starts, [*starts[1:], len(flat)], strict=True)}
    told |= {"--bf16": ()}
    assert list(contradictions.found(told)) == []
    for name in ("--yarn-beta-fast", "--yarn-beta-slow", "--yarn-original-max-position-embeddings"):
        left = {option: words for option, words in told.items() if option != name}
        assert list(contradictions.found(left)) == [
            ("--position-embedding-type", f" yarn: Megatron-LM asks for {name} beside it; add it")
        ]


@pytest.mark.parametrize(
    ("scaling", "expected", "note"),
    [
        ({"factor": 4.0, "original_max_position_embeddings": 64},
         {"--rotary-scaling-factor": ["4"], "--yarn-original-max-position-embeddings": ["64"], "--mscale": ["1"],
          "--mscale-all-dim": ["0"], "--yarn-correction-range-round-to-int": []}, ""),
        ({"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 16},
         {"--mscale": ["0.7"], "--mscale-all-dim": ["0.7"], "--yarn-beta-fast": ["16"],
          "--yarn-original-max-position-embeddings": ["256"]}, ""),
        ({"factor": 4.0, "mscale": 0.7}, {"--mscale": ["1"], "--mscale-all-dim": ["0"]}, ""),
        ({"factor": 4.0, "attention_factor": 1.5}, {"--rotary-scaling-factor": ["4"]}, "attention_factor 1.5 of YaRN"),
        ({"factor": 4.0, "attention_factor": 1.138629436}, {"--rotary-scaling-factor": ["4"]}, ""),
    ],
)  # fmt: skip
def test_yarn_of_a_configuration(
    tmp_path: pathlib.Path, scaling: dict[str, Any], expected: dict[str, list[str]], note: str
) -> None:
    fields = {**DECODER, "rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **scaling}}
    options, graph = told(tmp_path, "qwen3", fields)
    assert {name: options[name] for name in expected} == expected
    _, notes = model.arguments(str(tmp_path / "config.json"), graph)
    assert [one[: len(note)] for one in notes] == ([note] if note else [])


def test_yarn_of_part_of_a_head_is_refused_and_other_ways_to_stretch_are_told(tmp_path: pathlib.Path) -> None:
    yarn = {"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(ExportError, match="rotates all of a head by halves"):
        told(tmp_path, "nemotron", {**DECODER, **yarn})
    with pytest.raises(ExportError, match="need positions of the type rope"):
        told(tmp_path, "glm4_moe", {**GLM, **yarn, "partial_rotary_factor": 1.0, "num_nextn_predict_layers": 1})
    linear = {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert told(tmp_path, "llama", {**DECODER, **linear})[0]["--rotary-seq-len-interpolation-factor"] == ["8"]
    latent = {"rope_theta": 1e4, "rope_scaling": {**yarn["rope_scaling"], "original_max_position_embeddings": 8192}}
    _, graph = told(tmp_path, "deepseek_v3", {**LATENT, **latent})
    (note,) = model.arguments(str(tmp_path / "config.json"), graph)[1]
    assert note.startswith("YaRN of latent attention has no option for original_max_position_embeddings 8192")
