"""A configuration of a family that no reader knows: its module as the library transformers builds it, on the meta device."""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec

if TYPE_CHECKING:
    from meshwright.runtime.capture.layers import Captured

__all__ = ["FORMAT", "read"]

FORMAT = "captured_config"
"""What `ModelSpec.format` calls such a model."""

_CHANCE = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "mask_time_prob", "mask_feature_prob")
"""Chances with which layers or inputs are left out in a step."""

_AHEAD = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers", "mtp_num_hidden_layers")
"""Layers that predict further tokens, which published weights have and the library's classes leave out."""

_TASKS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "IMAGE_TEXT_TO_TEXT", "MASKED_LM", "CAUSAL_LM", "IMAGE_CLASSIFICATION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "CTC", "AUDIO_CLASSIFICATION",
)  # fmt: skip
"""What a family is trained for where its configuration names no class: the first that it has."""


def read(
    place: str, fields: Mapping[str, Any], name: str, *, sequence_length: int = 0, attention: str = "", refused: str = ""
) -> ModelSpec:
    """Return the model of a configuration as its own code computes it.

    Parameters
    ----------
    place : str
        The file, for messages.
    fields : mapping
        Content of the ``config.json``.
    name : str
        What the model is called.
    sequence_length : int
        Tokens per sample; 0 for the smaller of the model's longest and 4096.
    attention : str
        ``eager`` asks for attention written out as products; anything else for what the library does by itself.
    refused : str
        Why no reader takes it.

    Returns
    -------
    ModelSpec
        Its notes say that it was captured, with what, and what was assumed.

    Raises
    ------
    InputError
        When PyTorch or transformers are absent or do not know the family, or its code cannot be traced.
    """
    family = str(fields.get("model_type", ""))
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        raise InputError(
            f"{refused}. Where transformers is installed (pip install 'meshwright[huggingface]'), such files are captured from "
            "its code by themselves"
        )
    with _quiet():
        config, maker, kind = _class_of(place, dict(fields), family, attention)
        try:
            found = _captured(place, maker, sequence_length)
        except InputError as error:
            raise InputError(f"{refused}; and it cannot be captured from transformers' {kind}: {error}") from error
    version = importlib.metadata.version("transformers")
    said = (
        f"{name}: no reader knows model_type '{family}', so the graph was captured from {kind} of transformers {version} "
        "on the meta device: operators, weights and what is kept for the backward pass are those of its PyTorch code, not of a "
        "fused training stack"
    )
    dropped = [field for field in _CHANCE if getattr(config, field, 0)]
    chance = (f"{', '.join(dropped)}: layers or inputs left out by chance in training are counted",) if dropped else ()
    notes = (said, *found.notes, *_towers(config, found.notes), *_ahead(fields, kind, found), *chance)
    return ModelSpec(name, FORMAT, place, found.graph, notes=notes)


def _captured(place: str, maker: Any, sequence_length: int) -> Captured:
    """Capture in bf16, or in fp32 where the code does not run in bf16."""
    from meshwright.runtime.capture import session

    try:
        return session.of_maker(place, maker, sequence_length=sequence_length)
    except InputError as first:
        if "the values of a tensor" in str(first):
            raise
        try:
            found = session.of_maker(place, maker, sequence_length=sequence_length, precision="fp32")
        except InputError:
            raise first from None
        return replace(found, notes=(*found.notes, "captured in fp32: its code does not run in bf16"))


def _class_of(place: str, fields: dict[str, Any], family: str, attention: str) -> tuple[Any, Any, str]:
    """Return configuration, what makes the module, and the name of its class."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    version = transformers.__version__
    if family not in CONFIG_MAPPING:
        import difflib

        near = difflib.get_close_matches(family, list(CONFIG_MAPPING.keys()), n=3)
        hint = f"; near names: {', '.join(near)}" if near else ""
        code = "; code that comes with the weights (auto_map) is not run" if fields.get("auto_map") else ""
        raise InputError(
            f"{place}: model_type '{family}' is not supported, and not known to transformers {version}{hint}{code}. "
            "'meshwright capture' takes any PyTorch module"
        )
    fields.pop("quantization_config", None)  # weights are trained in the precision of the plan
    try:
        config = CONFIG_MAPPING[family].from_dict(copy.deepcopy(fields))
    except Exception as error:
        raise InputError(f"{place}: transformers {version} refuses this configuration: {_line(error)}") from error
    tables = [getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in _TASKS]
    tables.append(modeling_auto.MODEL_MAPPING_NAMES)
    usual = next((table[family] for table in tables if family in table), "")
    named = fields.get("architectures")
    words = [*(named if isinstance(named, list) else ()), usual if isinstance(usual, str) else usual[0]]
    kind = next((word for word in words if isinstance(word, str) and hasattr(transformers, word)), "")
    if not kind:
        raise InputError(f"{place}: transformers {version} has no class that trains model_type '{family}'")
    made = getattr(transformers, kind)
    written_out = {"attn_implementation": "eager"} if attention == "eager" else {}
    traced = copy.deepcopy(config)
    for field in _CHANCE:
        if getattr(traced, field, 0):
            setattr(traced, field, 0.0)
    return config, lambda: made._from_config(copy.deepcopy(traced), **written_out), kind


def _towers(config: Any, notes: tuple[str, ...]) -> tuple[str, ...]:
    """Say which towers of a model of several parts took no part in the step."""
    towers = [part for part in ("vision_config", "audio_config") if getattr(config, part, None) is not None]
    if not towers or not any("are not used by this call" in note for note in notes):
        return ()
    return (
        f"the step was captured on text: no pictures or sounds went through {' and '.join(towers)}, whose weights are trained "
        "and held all the same",
    )


def _ahead(fields: Mapping[str, Any], kind: str, found: Captured) -> tuple[str, ...]:
    """Say that layers which predict further tokens are in the configuration, but not in the class."""
    told = [field for field in _AHEAD if isinstance(fields.get(field), int) and fields[field] > 0]
    if not told or any("mtp" in op.name or "nextn" in op.name for op in found.graph.ops):
        return ()
    return (f"{told[0]} is {fields[told[0]]}: {kind} has no layers that predict further tokens, so none are counted",)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's advice to its users (packages that are absent, faster paths) off the terminal; errors are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
