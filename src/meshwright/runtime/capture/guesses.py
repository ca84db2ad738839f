"""Inputs of a module that came without any: from shapes that were typed, or from a Hugging Face configuration."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

from meshwright.base.errors import InputError, UnknownNameError

__all__ = ["inputs", "typed"]

_LONGEST = 4096
_SECOND = 16000  # values of sound as speech models sample it
_TYPES = ("int64", "int32", "bool", "float32", "float16", "bfloat16")
_SAME_LABELS = re.compile(
    r"For(CausalLM|MaskedLM|ConditionalGeneration|TokenClassification|PreTraining)$|LMHead(Model)?$|MTModel$|Decoder(Model)?$|"
    r"(To|2)Text$"
)


def typed(shapes: tuple[str, ...], weight: torch.dtype) -> Any:
    """Return tensors without memory for ``--input`` options: ``8,3,224,224``, ``8,128:int64`` or ``mask=8,128:bool``.

    Raises `InputError` when a shape or a type is wrong, or only some of several have names.
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

    `module`: with ``config``, and words, pictures or sound among its arguments.
    `sequence_length`: tokens per sample; 0 for the smaller of the model's longest and 4096.
    Raises `InputError` when a sequence is longer than a table of positions.
    """
    config = getattr(module, "config", None)
    arguments = inspect.signature(module.forward).parameters
    if config is None or not hasattr(config, "model_type"):
        return None
    text, vision = (getattr(config, part, None) or config for part in ("text_config", "vision_config"))
    marks_pictures = any(hasattr(config, name) for name in ("image_token_id", "image_token_index"))
    found: dict[str, torch.Tensor] = {}
    if "pixel_values" in arguments and ("input_ids" not in arguments or (vision is not config and not marks_pictures)):
        side = getattr(vision, "image_size", None) or 224
        sides = tuple(side) if isinstance(side, (tuple, list)) else (side, side)
        found["pixel_values"] = _empty((batch, getattr(vision, "num_channels", 3), *sides), weight)
    for name, shape in (("input_features", _spectrum(config)), ("input_values", _spectrum(config) or (_SECOND,))):
        if name in arguments and shape:
            found[name] = _empty((batch, *shape), weight)
    tokens = 0
    if "input_ids" in arguments:
        tokens = _length(module, text, sequence_length)
        found["input_ids"] = _empty((batch, tokens), torch.int64)
    elif "input_features" in found:
        tokens = sequence_length or int(getattr(config, "max_target_positions", 0))
    if not found:
        return None
    by_token = tokens and _SAME_LABELS.search(type(module).__name__)
    if "labels" in arguments and not type(module).__name__.endswith("ForCTC"):
        found["labels"] = _empty((batch, tokens) if by_token else (batch,), torch.int64)
    if "next_sentence_label" in arguments:
        found["next_sentence_label"] = _empty((batch,), torch.int64)
    return found


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _spectrum(config: Any) -> tuple[int, ...]:
    """Return the shape of a spectrum of sound: bands by time for an encoder with positions, time by bands otherwise;
    none without.
    """
    bands, positions = getattr(config, "num_mel_bins", 0), getattr(config, "max_source_positions", 0)
    if bands and positions:
        return bands, 2 * positions  # the first convolutions halve the time
    return (config.max_length, bands) if bands and getattr(config, "max_length", 0) else ()


def _length(module: torch.nn.Module, config: Any, sequence_length: int) -> int:
    """Return the tokens of a sample."""
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
    tokens = sequence_length or min(int(longest), _LONGEST)
    if tokens > longest and any("position" in name for name, _ in module.named_parameters()):
        raise InputError(f"--sequence-length {tokens}: the model's table of positions holds {longest}")
    return tokens
