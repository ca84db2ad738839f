"""What sets Llama's relatives apart, in Megatron-LM's options: norms, activations, biases, positions, windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import ExportError

__all__ = ["FAMILIES", "LATENT", "head_size", "layer", "no_positions", "rotary", "weighing", "windows"]

Options = tuple[tuple[str, ...], ...]

LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2")
"""Families with latent attention, shared experts and routing by groups."""


@dataclass(frozen=True, slots=True)
class _Family:
    """What a family has where its configuration does not say, and what no field says.

    `activation`: its usual ``hidden_act``. `gated`: whether two products meet in it. `one_plus`: LayerNorm whose weight is
    kept less one, instead of RMSNorm. `biases`: fields that give queries, keys and values, attention's output, and the
    feed-forward network biases, each with its default; an empty name: the default always holds. `rotated_ratio`: share of a
    head that is rotated. `interleaved`: whether neighbours are rotated together, instead of halves. `head_norms`: the field
    that gives queries and keys norms, with its default. `head_size`: of a head where no ``head_dim`` is given; 0: the hidden
    size shared out. `weighed_before`: whether experts are weighed by a softmax over all, where ``norm_topk_prob`` is not given.
    """

    activation: str = "silu"
    gated: bool = True
    one_plus: bool = False
    biases: tuple[tuple[str, bool], ...] = (("attention_bias", False), ("attention_bias", False), ("mlp_bias", False))
    rotated_ratio: float = 1.0
    interleaved: bool = False
    head_norms: tuple[str, bool] = ("", False)
    head_size: int = 0
    weighed_before: bool = False


_NONE, _ALWAYS = ("", False), ("", True)
_QUERIES = (_ALWAYS, _NONE, _NONE)
_LATENT = (("attention_bias", False), ("attention_bias", False), _NONE)
_LIKE_GLM = (("attention_bias", False), _NONE, _NONE)

FAMILIES: Mapping[str, _Family] = MappingProxyType({
    "llama": _Family(), "mistral": _Family(), "mixtral": _Family(), "phi3": _Family(), "smollm3": _Family(),
    **dict.fromkeys(LATENT, _Family(biases=_LATENT, head_norms=("", True))),
    "deepseek_v2": _Family(biases=_LATENT, head_norms=("", True), weighed_before=True),
    "arcee": _Family(activation="relu2", gated=False),
    "ernie4_5": _Family(biases=(("use_bias", False),) * 3, interleaved=True, head_size=128),
    "glm": _Family(biases=_LIKE_GLM, rotated_ratio=0.5, interleaved=True, head_size=128),
    "glm4_moe": _Family(biases=_LIKE_GLM, rotated_ratio=0.5, head_norms=("use_qk_norm", False), head_size=128),
    "gpt_oss": _Family(biases=(("attention_bias", True), ("attention_bias", True), _ALWAYS)),
    "nemotron": _Family(activation="relu2", gated=False, one_plus=True, rotated_ratio=0.5),
    "qwen2": _Family(biases=_QUERIES), "qwen2_moe": _Family(biases=_QUERIES, weighed_before=True),
    **dict.fromkeys(("qwen3", "qwen3_moe"), _Family(head_norms=("", True))),
    "seed_oss": _Family(biases=(("attention_bias", True), ("attention_out_bias", False), ("mlp_bias", False)), head_size=128),
})  # fmt: skip
"""Families by ``model_type`` that are written out, beside GPT-2."""


def layer(fields: Mapping[str, Any], family: str) -> Options:
    """Return the options of norms, activation function and biases.

    Raises
    ------
    ExportError
        When Megatron-LM has no option for one of them.
    """
    what = FAMILIES[family]
    options: list[tuple[str, ...]] = [("--normalization", "LayerNorm" if what.one_plus else "RMSNorm")]
    if what.one_plus:
        options.append(("--apply-layernorm-1p",))
    epsilon = fields.get("norm_eps" if what.one_plus else "rms_norm_eps")
    if epsilon:
        options.append(("--norm-epsilon", f"{epsilon:.12g}"))
    if _said(fields, what.head_norms):
        options.append(("--qk-layernorm",))
    return (*options, *_activation(fields, family), *_biases(fields, family))


def _said(fields: Mapping[str, Any], field: tuple[str, bool]) -> bool:
    name, default = field
    value = fields.get(name) if name else None
    return default if value is None else bool(value)


def _activation(fields: Mapping[str, Any], family: str) -> Options:
    """Return the options of the activation function."""
    what = FAMILIES[family]
    said = str(fields.get("hidden_act") or fields.get("hidden_activation") or what.activation)
    if said.replace("swish", "silu") != what.activation:
        raise ExportError(f"megatron: hidden_act '{said}' of a {family} model has no option; {what.activation} has")
    if family == "gpt_oss":  # gated by x sigmoid(1.702 x), clamped, its other half plus one
        limit = float(fields.get("swiglu_limit") or 7.0)
        return (("--quick-geglu",), ("--glu-linear-offset", "1"), ("--activation-func-clamp-value", f"{limit:.12g}"),
                ("--softmax-type", "learnable"))  # fmt: skip
    return (("--swiglu",),) if what.gated else (("--squared-relu",),)


def _biases(fields: Mapping[str, Any], family: str) -> Options:
    """Return the options of biases: none, all, or those of queries, keys and values."""
    queries, output, inner = (_said(fields, field) for field in FAMILIES[family].biases)
    if (queries, output, inner) == (True, True, True):
        return ()
    if output or inner:
        held = [word for word, has in (("queries, keys and values", queries), ("attention's output", output),
                                       ("the feed-forward network", inner)) if has]  # fmt: skip
        raise ExportError(
            f"megatron: biases of {' and '.join(held)} only: its options are none, all, or those of queries, keys and values"
        )
    return (("--disable-bias-linear",), ("--add-qkv-bias",)) if queries else (("--disable-bias-linear",),)


def head_size(fields: Mapping[str, Any], family: str) -> int:
    """Return the elements of a head."""
    shared_out = int(fields["hidden_size"]) // int(fields["num_attention_heads"])
    return int(fields.get("head_dim") or FAMILIES[family].head_size or shared_out)


def weighing(fields: Mapping[str, Any], family: str) -> Options:
    """Return the option of routers whose softmax runs over all experts and is not shared out anew among those chosen."""
    anew = fields.get("norm_topk_prob")
    before = FAMILIES[family].weighed_before if anew is None else not anew
    softmax = family in ("deepseek_v2", "qwen2_moe", "qwen3_moe")
    return (("--moe-router-pre-softmax",),) if before and softmax else ()


def rotary(fields: Mapping[str, Any], family: str) -> Options:
    """Return the options that say which elements of a head are rotated, and how."""
    what = FAMILIES[family]
    nested = fields.get("rope_parameters") or {}
    share = float(fields.get("partial_rotary_factor") or nested.get("partial_rotary_factor") or what.rotated_ratio)
    options: list[tuple[str, ...]] = []
    if share != 1.0:
        options.append(("--rotary-percent", f"{share:.12g}"))
    if what.interleaved:
        options.append(("--rotary-interleaved",))
    return tuple(options)


def no_positions(fields: Mapping[str, Any], family: str, n_layers: int) -> Options:
    """Return which layers rotate nothing, 1 for each: SmolLM 3's every fourth, where its configuration does not list them."""
    if family != "smollm3":
        return ()
    every = int(fields.get("no_rope_layer_interval") or 4)
    rotated = fields.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(n_layers)]
    if all(rotated):
        return ()
    return (("--no-rope-freq", f"[{','.join(str(1 - int(one)) for one in rotated)}]"),)


def windows(tokens: Sequence[int], sequence_length: int) -> Options:
    """Return the options of sliding windows.

    Parameters
    ----------
    tokens : sequence of int
        The window of each layer, the token itself among them; 0 for all.
    sequence_length : int
        Windows of so many and more see everything.

    Raises
    ------
    ExportError
        When windows have several sizes.
    """
    sizes = sorted({window for window in tokens if 0 < window < sequence_length})
    if not sizes:
        return ()
    if len(sizes) > 1:
        raise ExportError(f"megatron: sliding windows of {', '.join(map(str, sizes))} tokens; all have one size there")
    within = [int(window == sizes[0]) for window in tokens]
    layers = () if all(within) else (("--window-attn-skip-freq", f"[{','.join(map(str, within))}]"),)
    return (("--window-size", f"{sizes[0] - 1},0"), *layers)
