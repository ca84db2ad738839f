"""Inputs of a module that came without any: from shapes that were typed, or from a Hugging Face configuration."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

from meshwright.errors import InputError, UnknownNameError

__all__ = ["inputs", "typed"]

_LONGEST = 4096
_TYPES = ("int64", "int32", "bool", "float32", "float16", "bfloat16")
_SAME_LABELS = re.compile(r"For(CausalLM|MaskedLM|ConditionalGeneration|TokenClassification)$|LMHeadModel$|ForPreTraining$")


def typed(shapes: tuple[str, ...], weight: torch.dtype) -> Any:
    """Return tensors without memory for ``--input`` options: ``8,3,224,224``, ``8,128:int64`` or ``mask=8,128:bool``.

    Raises
    ------
    InputError
        When a shape or a type is wrong, or only some of several have names.
    """
    named: dict[str, torch.Tensor] = {}
    bare: list[torch.Tensor] = []
    for text in shapes:
        name, equals, rest = text.rpartition("=")
        sizes, colon, word = rest.partition(":")
        if not re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", sizes) or 0 in (shape := tuple(int(size) for size in sizes.split(","))):
            raise InputError(
                f"--input {text}: write sizes of at least 1, samples first, for example 8,3,224,224 or ids=8,128:int64"
            )
        if colon and word not in _TYPES:
            raise UnknownNameError(f"type (of --input {text})", word, _TYPES)
        tensor = torch.empty(shape, dtype=getattr(torch, word) if word else weight, device="meta")
        if equals:
            named[name] = tensor
        else:
            bare.append(tensor)
    if named and bare:
        raise InputError("--input: give names to all inputs or to none")
    return named or tuple(bare)


def inputs(module: torch.nn.Module, batch: int, sequence_length: int, weight: torch.dtype) -> dict[str, torch.Tensor] | None:
    """Return inputs of a Hugging Face model, read off its configuration; None for any other module.

    Parameters
    ----------
    module : torch.nn.Module
        With ``config`` and ``input_ids`` or ``pixel_values`` among its arguments.
    batch : int
        Samples.
    sequence_length : int
        Tokens per sample; 0 for the smaller of the model's longest and 4096.
    weight : torch.dtype
        Type of images.

    Raises
    ------
    InputError
        When a sequence is longer than a table of positions.
    """
    config = getattr(module, "config", None)
    arguments = inspect.signature(module.forward).parameters
    if config is None or not hasattr(config, "model_type"):
        return None
    found: dict[str, torch.Tensor] = {}
    if "pixel_values" in arguments and "input_ids" not in arguments:
        side = getattr(config, "image_size", None) or 224
        height, width = side if isinstance(side, (tuple, list)) else (side, side)
        found["pixel_values"] = torch.empty(
            batch, getattr(config, "num_channels", 3), height, width, dtype=weight, device="meta"
        )
        labels: tuple[int, ...] = (batch,)
    elif "input_ids" in arguments:
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
        tokens = sequence_length or min(int(longest), _LONGEST)
        if tokens > longest and any("position" in name for name, _ in module.named_parameters()):
            raise InputError(f"--sequence-length {tokens}: the model's table of positions holds {longest}")
        found["input_ids"] = torch.empty(batch, tokens, dtype=torch.int64, device="meta")
        labels = (batch, tokens) if _SAME_LABELS.search(type(module).__name__) else (batch,)
    else:
        return None
    if "labels" in arguments:
        found["labels"] = torch.empty(labels, dtype=torch.int64, device="meta")
    if "next_sentence_label" in arguments:
        found["next_sentence_label"] = torch.empty((batch,), dtype=torch.int64, device="meta")
    return found
