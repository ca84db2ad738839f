"""Rotary positions of a Hugging Face configuration in Megatron-LM's options: their base, and how they are stretched.

References
----------
.. [1] transformers/modeling_rope_utils.py: _compute_yarn_parameters, _compute_llama3_parameters.
.. [2] megatron/core/models/common/embeddings: rotary_pos_embedding.py, yarn_rotary_pos_embedding.py; gpt_builders.py hands the
   options over to the model (Megatron-LM of August 2026).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from meshwright.frameworks.megatron import families
from meshwright.frameworks.megatron.families import LATENT

__all__ = ["kind_of", "options", "refusal"]

Options = tuple[tuple[str, ...], ...]


def _scaling(fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return how positions are stretched, and the way's name; the fields lie in ``rope_parameters`` since transformers 5."""
    new, old = fields.get("rope_parameters") or {}, fields.get("rope_scaling") or {}
    scaling = dict(old or new)
    return scaling, str(scaling.get("rope_type") or scaling.get("type") or "default")


def kind_of(fields: Mapping[str, Any], family: str) -> str:
    """Return what ``--position-embedding-type`` is; latent attention tells YaRN by an option of its own."""
    return "yarn" if _scaling(fields)[1] == "yarn" and family not in LATENT else "rope"


def refusal(fields: Mapping[str, Any], family: str) -> str:
    """Return what YaRN does not go with in Megatron-LM, without a full stop; empty where it does."""
    if kind_of(fields, family) != "yarn":
        return ""
    if families.rotary(fields, family):
        return "YaRN rotates all of a head by halves, and this model part of it, or neighbours"
    ahead = fields.get("num_nextn_predict_layers")
    return "layers that predict further tokens need positions of the type rope, and these are YaRN's" if ahead else ""


def options(fields: Mapping[str, Any], family: str) -> tuple[Options, tuple[str, ...]]:
    """Return the options of rotary positions, and what they leave out, in words."""
    scaling, kind = _scaling(fields)
    base = fields.get("rope_theta") or (fields.get("rope_parameters") or {}).get("rope_theta")
    found: list[tuple[str, ...]] = [("--rotary-base", f"{base:.12g}")] if base else []
    notes: tuple[str, ...] = () if base else ("the configuration has no rope_theta: add --rotary-base where it is not 10000",)
    if family in LATENT:
        more, left_out = _of_latent_attention(scaling, kind)
        return (*found, *more), notes + left_out
    if kind == "yarn":
        more, left_out = _yarn(fields, scaling)
        return (*found, *more), notes + left_out
    if kind == "llama3":
        found.append(("--use-rope-scaling", "--rope-scaling-factor", f"{scaling.get('factor', 8.0):.12g}"))
        usual = (("low_freq_factor", 1.0), ("high_freq_factor", 4.0), ("original_max_position_embeddings", 8192))
        other = [f"{name} {scaling[name]:.12g}" for name, value in usual if scaling.get(name, value) != value]
        if other:
            notes += (f"--use-rope-scaling has no option for {', '.join(other)}: 1, 4 and 8192 are taken",)
    elif kind == "linear" and float(scaling.get("factor", 1.0)).is_integer():
        found.append(("--rotary-seq-len-interpolation-factor", f"{float(scaling.get('factor', 1.0)):.0f}"))
    elif kind != "default":
        notes += (f"the configuration scales rotary positions by '{kind}', which is not written: positions are not scaled",)
    return tuple(found), notes


def _yarn(fields: Mapping[str, Any], scaling: Mapping[str, Any]) -> tuple[Options, tuple[str, ...]]:
    """Return the options of YaRN: all of them, because the model is not built where one is left out."""
    length = int(scaling.get("original_max_position_embeddings") or fields["max_position_embeddings"])
    factor = float(scaling.get("factor") or int(fields["max_position_embeddings"]) / length)
    both = scaling.get("mscale") and scaling.get("mscale_all_dim")  # transformers takes them together only
    scales = (float(scaling["mscale"]), float(scaling["mscale_all_dim"])) if both else (1.0, 0.0)
    own = _attention(factor, scales[0]) / _attention(factor, scales[1])
    said, notes = scaling.get("attention_factor"), tuple[str, ...]()
    if said is not None and not math.isclose(float(said), own, rel_tol=1e-6):
        notes = (f"attention_factor {said:.12g} of YaRN has no option: {own:.6g} is taken",)
    rounded = "" if scaling.get("truncate", True) else "no-"
    return (
        ("--rotary-scaling-factor", f"{factor:.12g}"), ("--yarn-original-max-position-embeddings", str(length)),
        ("--yarn-beta-fast", f"{scaling.get('beta_fast') or 32.0:.12g}"),
        ("--yarn-beta-slow", f"{scaling.get('beta_slow') or 1.0:.12g}"),
        ("--mscale", f"{scales[0]:.12g}"), ("--mscale-all-dim", f"{scales[1]:.12g}"),
        (f"--{rounded}yarn-correction-range-round-to-int",),
    ), notes  # fmt: skip


def _attention(factor: float, scale: float) -> float:
    """Return by how much YaRN sharpens attention at a factor."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


def _of_latent_attention(scaling: Mapping[str, Any], kind: str) -> tuple[Options, tuple[str, ...]]:
    """Return the options of the rotary positions of latent attention, for which YaRN is Megatron-LM's default."""
    if kind != "yarn":  # MLATransformerConfig fuses YaRN's only, and stops otherwise
        why = "latent attention without YaRN rotates in kernels of their own (--no-rope-fusion): priced as fused"
        return (("--rope-type", "rope"), ("--no-rope-fusion",)), (why,)
    usual = (("beta_fast", 32), ("beta_slow", 1), ("original_max_position_embeddings", 4096))
    other = [f"{name} {scaling[name]:.12g}" for name, value in usual if scaling.get(name, value) != value]
    notes = (f"YaRN of latent attention has no option for {', '.join(other)}: 32, 1 and 4096 are taken",) if other else ()
    named = (
        ("factor", "--rotary-scaling-factor", 40.0), ("mscale", "--mscale", 1.0), ("mscale_all_dim", "--mscale-all-dim", 0.0),
    )  # fmt: skip
    return (("--rope-type", "yarn"), *((option, f"{scaling.get(name, value):.12g}") for name, option, value in named)), notes
