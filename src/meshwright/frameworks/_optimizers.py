"""Optimizers by the names that programs have for them, and how numbers are held with each."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.problem import MixedPrecision

__all__ = ["TRAINER", "held", "in_torch", "of_deepspeed", "of_torch", "of_trainer", "to_deepspeed"]

_USUAL = ("", "adam", "adamw")

TRAINER: Mapping[str, tuple[str, str]] = MappingProxyType({
    "adamw": ("adamw_torch_fused", ""), "adam": ("adamw_torch_fused", ""), "sgd": ("sgd", ""),
    "sgd-momentum": ("sgd", "momentum=0.9"), "adafactor": ("adafactor", ""), "lion": ("lion_32bit", ""),
    "adam-8bit": ("adamw_torch_8bit", ""),
})  # fmt: skip
"""``optim`` and ``optim_args`` of transformers 5.23 (training_args.py: OptimizerNames; trainer_optimizer.py)."""

_TRAINER_TOO: Mapping[str, str] = MappingProxyType({
    "adamw_torch": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw", "adamw_bnb_8bit": "adam-8bit",
    "adamw_8bit": "adam-8bit", "paged_adamw_32bit": "adamw", "paged_adamw_8bit": "adam-8bit", "paged_adamw": "adamw",
    "paged_lion_32bit": "lion", "adamw_torch_xla": "adamw",
})  # fmt: skip

_TORCH: Mapping[str, str] = MappingProxyType({
    "adamw": "torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)",
    "adam": "torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)",
    "sgd": "torch.optim.SGD(model.parameters(), lr=1e-2)",
    "sgd-momentum": "torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)",
    "adam-8bit": "AdamW8bit(model.parameters(), lr=3e-4, weight_decay=0.1)",
})  # fmt: skip
"""How a script makes each, torchao's where PyTorch has none."""


def held(precision: str, word: str) -> MixedPrecision | None:
    """Return how numbers are held with an optimizer; None for Adam, with or without decoupled decay."""
    return None if word in _USUAL else MixedPrecision.of(precision).updated_by(word)


def in_torch(word: str) -> str:
    """Return the expression that makes an optimizer in a script of PyTorch."""
    return _TORCH[word]


def of_torch(node: ast.expr, place: str) -> tuple[str, tuple[str, ...]]:
    """Return the optimizer that an expression makes, and what is to be said of it."""
    call = node if isinstance(node, ast.Call) else None
    name = ast.unparse(call.func).rpartition(".")[2] if call else ""
    momentum = any(
        keyword.arg == "momentum" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value == 0)
        for keyword in (call.keywords if call else ())
    )
    known = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd-momentum" if momentum else "sgd", "Adafactor": "adafactor",
             "AdamW8bit": "adam-8bit", "Adam8bit": "adam-8bit", "Lion": "lion"}  # fmt: skip
    if name in known:
        return known[name], ()
    return "", (f"{place}: optimizer is {ast.unparse(node)[:60]}: the state of AdamW in fp32 is priced",)


def of_trainer(said: Mapping[str, Any], path: str) -> tuple[str, tuple[str, ...]]:
    """Return the optimizer that ``optim`` and ``optim_args`` are, and what is to be said of it."""
    name, options = str(said.get("optim") or "adamw_torch"), str(said.get("optim_args") or "")
    if name == "sgd":
        entries = dict(one.partition("=")[::2] for one in options.replace(" ", "").split(",") if one)
        return ("sgd-momentum" if entries.get("momentum", "0").strip("0.") else "sgd"), ()
    word = {own: one for one, (own, _) in TRAINER.items()}.get(name, _TRAINER_TOO.get(name, ""))
    if not word:
        return "", (f"{path}: optim is {name}: the state of AdamW in fp32 is priced",)
    paged = (f"{path}: optim is {name}: its state is priced on the device",) if name.startswith("paged_") else ()
    return word, paged


def to_deepspeed(word: str) -> dict[str, Any]:
    """Return the entries of DeepSpeed's configuration that say an optimizer; none for the training script's own, AdamW.

    transformers fills in what is ``auto`` (integrations/deepspeed.py: trainer_config_process).
    """
    if word in _USUAL:
        return {}
    if word == "lion":  # deepspeed/runtime/engine.py: LION_OPTIMIZER
        return {"optimizer": {"type": "Lion", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}}}
    momentum = {"momentum": 0.9} if word == "sgd-momentum" else {}
    return {
        "optimizer": {"type": "SGD", "params": {"lr": "auto", "weight_decay": "auto", **momentum}},
        "zero_allow_untested_optimizer": True,
    }


def of_deepspeed(content: Mapping[str, Any], path: str) -> tuple[str, tuple[str, ...]]:
    """Return the optimizer that DeepSpeed's configuration says, empty where it says none, and what is to be said of it.

    Raises
    ------
    InputError
        When the entry is no table.
    """
    entry = content.get("optimizer")
    if entry is None:
        return "", ()
    if not isinstance(entry, dict) or not isinstance(entry.get("params", {}), dict):
        raise InputError(f"{path}: optimizer is {entry!r}; it must be a table of type and params")
    kind, momentum = str(entry.get("type")), entry.get("params", {}).get("momentum", 0)
    known = {"adam": "adam", "adamw": "adamw", "lion": "lion", "sgd": "sgd-momentum" if momentum else "sgd"}
    if kind.lower() in known:
        return known[kind.lower()], ()
    return "", (f"{path}: optimizer.type is {kind}: the state of AdamW in fp32 is priced",)
