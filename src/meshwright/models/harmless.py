"""Fields of Hugging Face configurations that change neither layers, nor their sizes, nor what is computed enough to count."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["HARMLESS", "ORDINARY", "is_harmless"]

HARMLESS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "of the library and of the file, not of the model": (
        "architectures", "auto_map", "dtype", "gradient_checkpointing", "model_max_length", "output_attentions",
        "output_hidden_states", "output_past", "output_router_logits", "return_dict", "tf_legacy_loss", "torch_dtype",
        "torchscript", "transformers_version", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
    ),
    "of texts and their tokens": (
        "bos_token_id", "boi_token_index", "cls_token_id", "decoder_start_token_id", "eoi_token_index", "eos_token_id",
        "image_token_index", "mask_token_id", "pad_token_id", "prefix", "sep_token_id", "tokenizer_class", "unk_token_id",
    ),
    "of the generation of text": (
        "bad_words_ids", "begin_suppress_tokens", "cache_implementation", "diversity_penalty", "do_sample", "early_stopping",
        "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
        "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
        "suppress_tokens", "task_specific_params", "temperature", "top_k", "top_p", "typical_p",
    ),
    "of classifiers and poolers, which training on text has not": (
        "classifier_dropout", "directionality", "encoder_stride", "finetuning_task", "id2label", "label2id", "num_labels",
        "pooler_act", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_output_size",
        "pooler_size_per_head", "pooler_type", "problem_type", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj",
    ),
    "the weights before the first step": (
        "init_method", "init_std", "initializer_cutoff_factor", "initializer_factor", "initializer_range",
    ),
    "numbers inside an operator: angles, scales, the smallest divisor": (
        "attention_multiplier", "attn_logit_softcapping", "clip_qkv", "embedding_multiplier", "final_logit_softcapping",
        "initial_context_length", "layer_norm_eps", "layer_norm_epsilon", "logit_scale", "logits_scaling",
        "max_sequence_length", "no_rope_layer_interval", "no_rope_layers", "norm_eps", "norm_epsilon",
        "original_max_position_embeddings", "partial_rotary_factor", "position_embedding_type", "query_pre_attn_scalar",
        "relative_attention_max_distance", "residual_multiplier", "rms_norm_eps", "rope_interleave", "rope_local_base_freq",
        "rope_parameters", "rope_pct", "rope_scaling", "rope_theta", "rotary_dim", "rotary_emb_base", "rotary_pct",
        "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "scale_decoder_outputs", "seq_length", "swiglu_alpha",
        "swiglu_limit",
    ),
    "which function is applied to every element": (
        "activation", "activation_function", "hidden_act", "hidden_activation",
    ),
    "which experts a token visits, not how many": (
        "aux_loss_alpha", "ep_size", "n_group", "norm_topk_prob", "routed_scaling_factor", "router_aux_loss_coef",
        "router_jitter_noise", "scoring_func", "seq_aux", "topk_group", "topk_method",
    ),
    "how exactly sums are done, with the same products": (
        "attention_softmax_in_fp32", "masked_softmax_fusion", "reorder_and_upcast_attn", "skip_bias_add", "skip_bias_add_qkv",
        "slow_but_exact",
    ),
    "drop-out behind the embedding, taken to be as that of the layers; of whole layers, not taken into account": (
        "embd_pdrop", "embed_dropout", "embedding_dropout", "layerdrop",
    ),
})  # fmt: skip
"""Names by the reason why nobody needs to know."""

ORDINARY: Mapping[str, object] = MappingProxyType({
    "enable_bias": True, "layer_norm_elementwise_affine": True, "mlp_type": "default", "norm_type": "layer_norm",
    "order_of_interleaved_layers": "local_attn_first", "qkv_bias": True, "rotary": True, "use_embedding_sharing": True,
    "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
})  # fmt: skip
"""Fields of one family and the value with which its layers are as they are read."""


def is_harmless(name: str, value: Any) -> bool:
    """Return whether a field that nobody reads leaves the model as it is read.

    Parameters
    ----------
    name : str
        The field.
    value : object
        As the parser gave it; nothing, false, 0, 1, and what is empty say that something is off.
    """
    if name in ORDINARY:
        return value is None or bool(value == ORDINARY[name])
    if any(name in names for names in HARMLESS.values()):
        return True
    return value is None or (value is not True and value in (0, 1, "", [], {}))
