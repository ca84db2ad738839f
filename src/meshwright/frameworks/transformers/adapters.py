"""Adapters among a training script's arguments, as TRL, FastChat, LLaVA and LLaMA-Factory call them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.frameworks import _adapters

__all__ = ["taken"]

_STARTED = ("use_peft", "use_lora", "lora_enable", "finetuning_type")
_RANKS, _TARGETS = ("lora_r", "lora_rank"), ("lora_target_modules", "lora_target")
_FOUR_BITS = ("load_in_4bit", "q_lora")
_BITS = ("bits", "quantization_bit")
_OTHERS = ("use_dora", "lora_modules_to_save", "load_in_8bit", "lora_bias", "additional_target", "create_new_adapter")
_WITHOUT_EFFECT = (
    "lora_alpha", "lora_dropout", "lora_task_type", "use_rslora", "use_bnb_nested_quant", "bnb_4bit_quant_type",
    "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "double_quantization", "quantization_type", "double_quant",
    "quant_type", "quantization_method", "lora_weight_path",
)  # fmt: skip


def taken(said: dict[str, Any], graph: Graph, path: str, lines: Mapping[str, int]) -> tuple[str, tuple[str, ...]]:
    """Take the arguments of adapters out of others; return them as after ``--lora``, and what is to be said of them.

    `lines`: where each argument stands. Empty where no adapters are trained.

    Raises
    ------
    InputError
        When an argument is wrong, or makes other adapters than those that plans have.
    """
    every = (*_STARTED, *_RANKS, *_TARGETS, *_FOUR_BITS, *_BITS, *_OTHERS, *_WITHOUT_EFFECT)
    own = {name: said.pop(name) for name in every if name in said}
    kind = own.get("finetuning_type", "lora" if any(own.get(name) for name in _STARTED) else "")
    if kind not in ("", "lora", "full"):
        raise _wrong("finetuning_type", own, path, lines, "it must be full or lora")
    quantised = [name for name in _FOUR_BITS if own.get(name)] + [name for name in _BITS if own.get(name) == 4]
    if kind != "lora":
        left = [name for name in (*_RANKS, *quantised) if name in own]
        if left and not any(name in own for name in _STARTED):
            raise _wrong(left[0], own, path, lines, "whether adapters are trained is not said: --use_peft, --use_lora, ...")
        return "", ()
    for name in _OTHERS:
        if own.get(name) not in (None, False, "none"):
            raise _wrong(name, own, path, lines, "plans have plain adapters only")
    for name in _BITS:
        if own.get(name) not in (None, 4, 16):
            raise _wrong(name, own, path, lines, "frozen weights have 4 bits, or 16")
    rank = next((name for name in _RANKS if name in own), "")
    if not rank:
        raise InputError(f"{path}: adapters without --lora_r: say their rank")
    target = next((name for name in _TARGETS if name in own), "")
    modules = own.get(target)
    if isinstance(modules, str) and modules not in ("all", "all-linear"):
        modules = [word for word in re.split(r"[\s,]+", modules) if word]
    entry = {"r": own[rank], "target_modules": modules}
    place = f"{path}: line {lines.get(target or rank, 1)}: --{target or rank}"
    return _adapters.text_of(entry, graph, place, four_bits=bool(quantised))


def _wrong(name: str, own: Mapping[str, Any], path: str, lines: Mapping[str, int], why: str) -> InputError:
    return InputError(f"{path}: line {lines.get(name, 1)}: --{name} is {own[name]!r}; {why}")
