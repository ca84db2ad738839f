"""The model that Megatron-LM's options describe, as the Hugging Face configuration of the family that has them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import ModelSpec
from meshwright.frameworks import _command_line, _exact
from meshwright.models.readers import huggingface

__all__ = ["attention_of", "fields_of", "length_of", "model_of", "unlike"]

Options = Mapping[str, tuple[str, ...]]

_PADS = "--make-vocab-size-divisible-by"
_LIST = re.compile(r"[\[\]()0-9,+* ]+")


def model_of(path: str, sequence_length: int) -> ModelSpec:
    """Return the model that a script describes, with samples of so many tokens; 0 for its own ``--seq-length``.

    Raises
    ------
    InputError
        When an option that is needed is missing or wrong, or the architecture is none that is built from options.
    """
    options = _command_line.options(_exact.read_text(path), path)
    fields = fields_of(options, path)
    length = sequence_length or length_of(options, path)
    graph = huggingface.graph_of(fields, f"the model of {path}", sequence_length=length, attention=attention_of(options))
    return ModelSpec(f"the model of {path}", "huggingface", "", graph, costs="analytic", search="best")


def length_of(options: Options, place: str) -> int:
    """Return the tokens of a sample; 0 where the options do not say. Raises `InputError` when they are wrong."""
    found = {_number(options, name, place) for name in ("--seq-length", "--encoder-seq-length") if name in options}
    if len(found) > 1:
        raise InputError(f"{place}: --seq-length and --encoder-seq-length are two lengths; keep one")
    return found.pop() if found else 0


def attention_of(options: Options) -> str:
    """Return how attention is computed: ``unfused``, or empty for one kernel.

    ``--transformer-impl local`` is Megatron-Core's own [1]_, which is never fused; older ones were with ``--use-flash-attn``.

    References
    ----------
    .. [1] Megatron-LM, megatron/core/transformer/dot_product_attention.py (2026): DotProductAttention.
    """
    told = options.get("--attention-backend", ("auto",))
    local = options.get("--transformer-impl") == ("local",) and "--use-legacy-models" not in options
    return "unfused" if told in (("unfused",), ("local",)) or local else ""


def unlike(options: Options, place: str, graph: Graph) -> list[tuple[str, str]]:
    """Return what the options say of a model that another graph, which is priced, has not: an option and a sentence.

    Of sizes that they leave to a tokenizer, the graph's count.
    """
    words = [one.size("vocabulary", 0) for op in graph.ops for one in op.body if one.kind == "embedding"]
    options = {"--vocab-size": (str(max(words, default=0)),), **options}
    try:
        own = huggingface.graph_of(fields_of(options, place), place, sequence_length=graph.sequence_length)
    except InputError:
        return []
    counts = [own.n_parameters, graph.n_parameters]
    if min(counts) > 0 and max(counts) > 1.02 * min(counts):
        said, priced = (f"{count / 1e9:.3g} billion" for count in counts)
        return [("--hidden-size", f"is of a model with {said} weights; {graph.name}, with {priced}, is priced")]
    return []


def padded(options: Options, place: str, graph: Graph, tensor: int) -> list[tuple[str, str]]:
    """Return what is to be said of a vocabulary that the run pads by over a hundredth [1]_: an option and a sentence.

    `graph`: what is priced. `tensor`: the tensor degree.

    References
    ----------
    .. [1] Megatron-LM, _vocab_size_with_padding: to a multiple of --make-vocab-size-divisible-by for
       each tensor rank.
    """
    if {"--disable-pad-vocab-size", "--no-pad-vocab-size", "--padded-vocab-size"} & set(options):
        return []
    sizes = [operator.size("vocabulary", 0) for op in graph.ops for operator in op.body]
    words = _number(options, "--vocab-size", place, max(sizes, default=0))
    multiple = _number(options, _PADS, place, 128) * tensor
    n_words = -(-words // multiple) * multiple
    if n_words <= 1.01 * words:
        return []
    return [(_PADS, f"is {multiple // tensor}, which pads the vocabulary to {n_words:,} words; {words:,} are priced")]


def fields_of(options: Options, place: str) -> dict[str, Any]:
    """Return the fields of a configuration: sizes of the layers, experts, latent attention.

    Raises
    ------
    InputError
        As `model_of`.
    """
    for name in ("--num-layers", "--hidden-size", "--num-attention-heads", "--vocab-size"):
        if name not in options:
            raise InputError(f"{place}: {name} is missing, so that the model is not known; give --model")
    if options.get("--softmax-type", ("vanilla",)) != ("vanilla",) and "--quick-geglu" not in options:
        raise InputError(
            f"{place}: --softmax-type: attention with sinks is built from options with GPT-OSS's gates only; give --model"
        )
    hidden, heads = _number(options, "--hidden-size", place), _number(options, "--num-attention-heads", place)
    gated = "--swiglu" in options or "--quick-geglu" in options
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden  # validate_args of Megatron-LM
    fields: dict[str, Any] = {
        "num_hidden_layers": _number(options, "--num-layers", place), "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": _number(options, "--ffn-hidden-size", place, usual),
        "vocab_size": _number(options, "--vocab-size", place),
        "max_position_embeddings": _number(options, "--max-position-embeddings", place, 10**6),
        "tie_word_embeddings": "--untie-embeddings-and-output-weights" not in options,
    }  # fmt: skip
    if not gated:
        if (
            options.get("--position-embedding-type", ("learned_absolute",)) != ("learned_absolute",)
            or "--num-experts" in options
        ):
            raise InputError(
                f"{place}: layers without --swiglu, but not those of GPT-2, are not built from options; give --model"
            )
        said = (("n_layer", "num_hidden_layers"), ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"),
                ("n_inner", "intermediate_size"), ("n_positions", "max_position_embeddings"))  # fmt: skip
        own = {new: fields[old] for new, old in said}
        return {"model_type": "gpt2", **own, **{name: fields[name] for name in ("vocab_size", "tie_word_embeddings")}}
    grouped = "--group-query-attention" in options
    fields["num_key_value_heads"] = _number(options, "--num-query-groups", place, 1) if grouped else heads
    fields["head_dim"] = _number(options, "--kv-channels", place, max(hidden // heads, 1))
    fields |= _windows(options, place, fields["num_hidden_layers"])
    if "--multi-latent-attention" in options:
        return fields | _latent(options, place, fields)
    if "--quick-geglu" in options:
        return fields | _clamped(options, place)
    if "--num-experts" not in options:
        if "--disable-bias-linear" not in options:
            return fields | _biased(options, place)
        family = "qwen3" if "--qk-layernorm" in options else "qwen2" if "--add-qkv-bias" in options else "llama"
        return fields | {"model_type": family}
    return fields | _experts(options, place, fields)


def _biased(options: Options, place: str) -> dict[str, Any]:
    """Return the fields of layers whose products all have biases, which is what Megatron-LM makes where nothing is said."""
    if "--qk-layernorm" in options:
        raise InputError(f"{place}: --qk-layernorm without --disable-bias-linear is not built from options; give --model")
    return {"model_type": "llama", "attention_bias": True, "mlp_bias": True}


def _experts(options: Options, place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a mixture without latent attention."""
    width = _number(options, "--moe-ffn-hidden-size", place, fields["intermediate_size"])
    found: dict[str, Any] = {
        "num_experts": _number(options, "--num-experts", place), "moe_intermediate_size": width,
        "num_experts_per_tok": _number(options, "--moe-router-topk", place, 2),
    }  # fmt: skip
    layers = _expert_layers(options, place, fields["num_hidden_layers"])
    dense = [i for i, has in enumerate(layers) if not has]
    if "--moe-router-enable-expert-bias" in options:
        return found | _with_shared(options, place, fields, layers) | {
            "model_type": "glm4_moe", "use_qk_norm": "--qk-layernorm" in options,
            "attention_bias": "--add-qkv-bias" in options,
        }  # fmt: skip
    if "--qk-layernorm" in options:
        return found | {"model_type": "qwen3_moe", "mlp_only_layers": dense}
    shared = _number(options, "--moe-shared-expert-intermediate-size", place, 0, least=0)
    if shared or "--add-qkv-bias" in options:
        return found | {"model_type": "qwen2_moe", "mlp_only_layers": dense, "shared_expert_intermediate_size": shared}
    if dense:
        raise InputError(
            f"{place}: --moe-layer-freq: experts in some layers only are not built from these options; give --model"
        )
    return {"model_type": "mixtral", "num_local_experts": found["num_experts"], "intermediate_size": width,
            "num_experts_per_tok": found["num_experts_per_tok"]}  # fmt: skip


def _latent(options: Options, place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of latent attention and its experts."""
    newer = options.get("--moe-router-score-function") == ("sigmoid",)
    found: dict[str, Any] = {
        "model_type": "deepseek_v3" if newer else "deepseek_v2",
        "q_lora_rank": _number(options, "--q-lora-rank", place, 0, least=0) or None,
        "kv_lora_rank": _number(options, "--kv-lora-rank", place, 32),
        "qk_nope_head_dim": _number(options, "--qk-head-dim", place, 128),
        "qk_rope_head_dim": _number(options, "--qk-pos-emb-head-dim", place, 64),
        "v_head_dim": _number(options, "--v-head-dim", place, 128),
    }  # fmt: skip
    if "--num-experts" not in options:
        raise InputError(f"{place}: --multi-latent-attention without --num-experts is not built from options; give --model")
    return found | _with_shared(options, place, fields, _expert_layers(options, place, fields["num_hidden_layers"]))


def _with_shared(options: Options, place: str, fields: Mapping[str, Any], layers: list[bool]) -> dict[str, Any]:
    """Return the fields of routed and shared experts behind dense layers."""
    n_dense = layers.index(True) if True in layers else len(layers)
    width = _number(options, "--moe-ffn-hidden-size", place, fields["intermediate_size"])
    shared = _number(options, "--moe-shared-expert-intermediate-size", place, 0, least=0)
    if not all(layers[n_dense:]) or shared % width:
        raise InputError(
            f"{place}: --moe-layer-freq: dense layers come first in models that are built from options; give --model"
        )
    return {
        "n_routed_experts": _number(options, "--num-experts", place), "moe_intermediate_size": width,
        "num_experts_per_tok": _number(options, "--moe-router-topk", place, 2), "n_shared_experts": shared // width,
        "first_k_dense_replace": n_dense, "num_nextn_predict_layers": _number(options, "--mtp-num-layers", place, 0, least=0),
    }  # fmt: skip


def _clamped(options: Options, place: str) -> dict[str, Any]:
    """Return the fields of GPT-OSS, whose experts alone have clamped gates."""
    if "--num-experts" not in options or options.get("--softmax-type") != ("learnable",) or "--disable-bias-linear" in options:
        raise InputError(
            f"{place}: --quick-geglu: built from options with GPT-OSS's biases, experts and sinks only; give --model"
        )
    return {
        "model_type": "gpt_oss", "num_local_experts": _number(options, "--num-experts", place),
        "intermediate_size": _number(options, "--moe-ffn-hidden-size", place),
        "num_experts_per_tok": _number(options, "--moe-router-topk", place, 2),
    }  # fmt: skip


def _windows(options: Options, place: str, n_layers: int) -> dict[str, Any]:
    """Return the fields of sliding windows: how many tokens are seen, the token itself among them, and in which layers."""
    if "--window-size" not in options:
        return {}
    text = "".join(options["--window-size"])
    found = re.fullmatch(r"\(?(\d{1,9}),0\)?", text)
    if not found:
        raise InputError(f"{place}: --window-size is '{text}'; it must be N,0 for N tokens before each")
    every = "".join(options.get("--window-attn-skip-freq", ("0",)))
    if re.fullmatch(r"\d{1,4}", every):
        within = [int(every) == 0 or (i + 1) % int(every) != 0 for i in range(n_layers)]
    else:
        within = _listed(every, place, "--window-attn-skip-freq", n_layers)
    kinds = ["sliding_attention" if one else "full_attention" for one in within]
    window = {"sliding_window": int(found[1]) + 1, "use_sliding_window": True}
    if all(within):
        return {**window, "layer_types": kinds}
    if "--num-experts" in options and "--quick-geglu" not in options and "--qk-layernorm" not in options:
        raise InputError(f"{place}: --window-attn-skip-freq: windows in some layers of a mixture are not built; give --model")
    return {**window, "layer_types": kinds}


def _expert_layers(options: Options, place: str, n_layers: int) -> list[bool]:
    """Return whether each layer has experts: k for every k-th from the first on, or an expression like ([0]*3+[1]*58)."""
    text = "".join(options.get("--moe-layer-freq", ("1",)))
    if re.fullmatch(r"[1-9]\d{0,3}", text):
        return [i % int(text) == 0 for i in range(n_layers)]
    return _listed(text, place, "--moe-layer-freq", n_layers)


def _listed(text: str, place: str, name: str, n_layers: int) -> list[bool]:
    """Return an expression's entry for every layer, such as ([0]*3+[1]*58)."""
    found: list[int] = []
    for part in re.split(r"\+", text.strip("()")) if _LIST.fullmatch(text) else []:
        items, _, count = part.partition("*")
        found += list(ast.literal_eval(items)) * int(count or 1) if re.fullmatch(r"\[[01, ]+\]", items) else []
    if len(found) != n_layers:
        raise InputError(f"{place}: {name} is '{text}'; it must be a number, or a list of 0 and 1 for {n_layers} layers")
    return [bool(one) for one in found]


def _number(options: Options, name: str, place: str, default: int | None = None, *, least: int = 1) -> int:
    """Return a whole number; `default` where the option is not given."""
    if name not in options and default is not None:
        return default
    text = " ".join(options.get(name, ()))
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
        said = f"is '{text}'" if text else "has no value"
        raise InputError(f"{place}: {name} {said}; it must be a whole number from {least} on")
    return int(text)
