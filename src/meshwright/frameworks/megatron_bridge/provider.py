"""Which provider of Megatron-Bridge builds a model, as Python: from its bridge, one of its own, or one written out in full."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwright.base.errors import ExportError
from meshwright.core.problem import Problem
from meshwright.frameworks.megatron import model
from meshwright.frameworks.megatron_bridge import fields
from meshwright.models.readers import huggingface

__all__ = ["provider"]

_FIELDS: Mapping[str, str] = MappingProxyType({
    "--num-layers": "num_layers", "--hidden-size": "hidden_size", "--ffn-hidden-size": "ffn_hidden_size",
    "--num-attention-heads": "num_attention_heads", "--kv-channels": "kv_channels", "--seq-length": "seq_length",
    "--vocab-size": "vocab_size", "--norm-epsilon": "layernorm_epsilon", "--num-query-groups": "num_query_groups",
    "--attention-dropout": "attention_dropout", "--hidden-dropout": "hidden_dropout", "--rotary-base": "rotary_base",
    "--num-experts": "num_moe_experts", "--moe-ffn-hidden-size": "moe_ffn_hidden_size", "--moe-router-topk": "moe_router_topk",
    "--moe-shared-expert-intermediate-size": "moe_shared_expert_intermediate_size", "--moe-layer-freq": "moe_layer_freq",
    "--rotary-percent": "rotary_percent", "--no-rope-freq": "no_rope_freq", "--window-attn-skip-freq": "window_attn_skip_freq",
})  # fmt: skip
_WORDS: Mapping[str, str] = MappingProxyType({
    "--position-embedding-type": "position_embedding_type", "--normalization": "normalization",
    "--moe-token-dispatcher-type": "moe_token_dispatcher_type",
})  # fmt: skip
_FLAGS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "--swiglu": ("gated_linear_unit=True", "activation_func=torch.nn.functional.silu"),
    "--disable-bias-linear": ("add_bias_linear=False",), "--add-qkv-bias": ("add_qkv_bias=True",),
    "--qk-layernorm": ("qk_layernorm=True",), "--moe-grouped-gemm": ("moe_grouped_gemm=True",),
    "--moe-shared-expert-gate": ("moe_shared_expert_gate=True",), "--moe-router-pre-softmax": ("moe_router_pre_softmax=True",),
    "--squared-relu": ("activation_func=squared_relu",), "--rotary-interleaved": ("rotary_interleaved=True",),
    "--apply-layernorm-1p": ("layernorm_zero_centered_gamma=True",),
    "--untie-embeddings-and-output-weights": ("share_embeddings_and_output_weights=False",), "--group-query-attention": (),
})  # fmt: skip
_KIMI: Mapping[str, int] = MappingProxyType({
    "num_hidden_layers": 61, "hidden_size": 7168, "n_routed_experts": 384, "moe_intermediate_size": 2048, "vocab_size": 163840,
})  # fmt: skip
_LEFT_OUT = ("--max-position-embeddings",)  # a provider takes seq_length for it


def provider(problem: Problem) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Return how a model's provider is made, as lines of Python.

    Returns
    -------
    imports : list of str
        Lines that import what it needs.
    made : list of str
        The expression, over one or more lines.
    notes : tuple of str
        What of the model's configuration is not told.

    Raises
    ------
    ExportError
        When no bridge or provider of it builds the family.
    """
    spec, families = problem.model_spec, fields.known()["families"]
    said = huggingface.said_of(spec.spec)
    family = str(said.get("model_type"))
    if family not in families:
        raise ExportError(
            f"megatron_bridge: {spec.spec} is of the family {family}, which has no bridge in 0.3.1 and is not written out; "
            f"{', '.join(sorted(families))} are"
        )
    told = families[family]["told"]
    if told == "AutoBridge":
        made = ["AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)"]
        return ["from megatron.bridge import AutoBridge"], made, ()
    if told == "KimiK2Provider":
        other = [name for name, own in _KIMI.items() if said.get(name) != own]
        if other:
            raise ExportError(
                f"megatron_bridge: {spec.spec} has {other[0]} {said.get(other[0])}; KimiK2Provider has {_KIMI[other[0]]}, and "
                "0.3.1 has no bridge for others of the family"
            )
        return ["from megatron.bridge.models.kimi import KimiK2Provider"], ["KimiK2Provider()"], ()
    options, notes = model.arguments(spec.spec, problem.graph)
    made = _written(options)
    head = [
        *(["import torch"] if any("torch." in one for one in made) else []),
        "from megatron.bridge.models.gpt_provider import GPTModelProvider",
        *(["from megatron.core.activations import squared_relu"] if "activation_func=squared_relu" in made else []),
    ]
    return head, ["GPTModelProvider(", *(f"    {one}," for one in made), ")"], notes


def _written(options: model.Options) -> list[str]:
    """Return Megatron-LM's options of an architecture as fields of a provider."""
    words = [word for option in options for word in option]
    found: list[str] = []
    while words:
        name = words.pop(0)
        if name in _FLAGS:
            found += _FLAGS[name]
        elif name == "--use-rope-scaling":
            found.append("rope_scaling=True")
        elif name == "--rope-scaling-factor":
            found.append(f"rope_scaling_factor={words.pop(0)}")
        elif name == "--window-size":
            found.append(f"window_size=({words.pop(0).replace(',', ', ')})")
        elif name in _FIELDS:
            found.append(f"{_FIELDS[name]}={words.pop(0)}")
        elif name in _WORDS:
            found.append(f'{_WORDS[name]}="{words.pop(0)}"')
        elif name in _LEFT_OUT:
            words.pop(0)
        else:
            raise ExportError(f"megatron_bridge: no field of GPTModelProvider is known for {name}")
    return found
