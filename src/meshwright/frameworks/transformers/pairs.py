"""Preference pairs among a training script's arguments, as TRL and LLaMA-Factory call them."""

from __future__ import annotations

import re
from typing import Any

from meshwright.base.errors import InputError

__all__ = ["taken"]

_SCRIPT = re.compile(r"\btrl\s+dpo\b|[\w./-]*\bdpo(?:_\w+)?\.py\b|[\w./-]*_dpo\.py\b|--stage[ =]dpo\b")
_CALLS = re.compile(r"\bDPO(?:Config|Trainer)\(")
_COPIED = re.compile(r"\bref_model\s*=\s*(?!None\b)\w")
_PRECOMPUTED = "precompute_ref_log_probs"
_WITHOUT_EFFECT = (
    "beta", "loss_type", "loss_weights", "label_smoothing", "f_divergence_type", "f_alpha_divergence_coef", "ld_alpha",
    "use_weighting", "discopop_tau", "disable_dropout", "dataset_num_proc", "truncation_mode", "pad_token",
    "precompute_ref_batch_size", "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps", "max_prompt_length",
    "max_completion_length", "model_init_kwargs", "ref_model_init_kwargs",
)  # fmt: skip
"""Arguments of ``DPOConfig`` that change no shape: TRL 1.16, trl/trainer/dpo_config.py, and earlier releases."""

USUAL_LENGTH = 1024
"""Tokens of each sequence of a pair where ``DPOConfig`` does not say: TRL 1.16, max_length."""


def taken(said: dict[str, Any], text: str, path: str) -> tuple[str, tuple[str, ...]]:
    """Take the arguments of preference pairs out of others; return the objective as after ``--objective``, and what is to be
    said of it. Both empty where a file trains on single sequences.

    `said`: the arguments; `text`: the file.

    Raises
    ------
    InputError
        When an argument is wrong, or asks for what is not priced.
    """
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if not (_CALLS.search(lines) or _SCRIPT.search(lines)):
        return "", ()
    before = said.pop(_PRECOMPUTED, False)
    if str(before) not in ("True", "False", "true", "false", ""):
        raise InputError(f"{path}: {_PRECOMPUTED} is {before!r}; it must be True or False")
    if said.get("sync_ref_model") not in (None, False, "False", "false"):
        raise InputError(f"{path}: sync_ref_model: a reference that follows the model is not priced; leave it out")
    for name in _WITHOUT_EFFECT:
        said.pop(name, None)
    if all(said.get(name) is None for name in ("activation_checkpointing", "gradient_checkpointing")):
        said["activation_checkpointing"] = not _wrapped(said)
    if not any(said.get(name) is not None for name in ("bf16", "fp16", "tf32")):
        said["bf16"] = True
    copied = "dpo,reference=copy" if _COPIED.search(lines) else "dpo"
    objective = "dpo,reference=precomputed" if str(before) in ("True", "true", "") else copied
    return objective, (
        f"{path}: trains on pairs (DPO): two sequences of max_length tokens a sample; where it does not say, layers are "
        f"recomputed, products are in bf16 and max_length is {USUAL_LENGTH}, as TRL has them",
    )


def _wrapped(said: dict[str, Any]) -> bool:
    """Return whether the configuration of FSDP says itself what is recomputed."""
    config = said.get("fsdp_config")
    return isinstance(config, dict) and any(str(key).endswith("activation_checkpointing") for key in config)
