"""Models as Hugging Face configurations: a ``config.json``, or the name of one that comes with this package."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.graph import Graph
from meshwright.core.problem import ModelSpec
from meshwright.models import dense_families, encoder_families, llama4, llama_variants, mixture_families
from meshwright.models.config import ModelConfig

if TYPE_CHECKING:
    from meshwright.core.source import Source

__all__ = [
    "MODEL_TYPES",
    "OTHER_FIELDS",
    "Architecture",
    "UnreadFamilyError",
    "configuration",
    "describe",
    "graph_of",
    "names",
    "read",
    "recognises",
    "said_of",
    "unknown",
]

MODEL_TYPES = tuple(sorted((
    "bert", "dbrx", "deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3", "gemma3_text", "glm4_moe", "gpt2", "gpt_neo",
    "gpt_neox",
    "gpt_oss", "kimi_k2", "llama", "llama4", "llama4_text", "mistral", "mistral3",
    "mixtral", "opt", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "t5", "vit", "yi", *dict(llama_variants.FAMILIES),
)))  # fmt: skip
"""Families of models that can be read, as ``model_type`` in their configurations names them."""

OTHER_FIELDS = True
"""A configuration holds much that only the library of models reads."""

_WITH_PICTURES = ("gemma3", "llama4", "mistral3")
_DEFAULT_SEQUENCE = 4096
_LONGEST_SEQUENCE = 10**9


class UnreadFamilyError(InputError):
    """A configuration of a family that is not read here; `meshwright.api.read` captures it where transformers knows it."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a configuration says about a model besides its graph; `ModelSpec.instance` stays empty, this is for listings.

    `name`: the name it is listed under.
    `model_type`: its family.
    `n_parameters`, `n_active_parameters`: weights, and those that a token meets.
    `sequence_length`, `max_sequence_length`: tokens per sample by default, and the longest that the model was made for (0: no
    limit).
    `published_parameters`: weights as published; 0 where unknown.
    `source`: where configuration and published number are from.
    """

    name: str
    model_type: str
    n_parameters: int
    n_active_parameters: int
    sequence_length: int
    max_sequence_length: int
    published_parameters: int
    source: str


@cache
def names() -> tuple[str, ...]:
    """Return the built-in models' names, sorted; looked up once."""
    folder = Path(__file__).parents[1] / "data"
    return tuple(sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json")))


def unknown(name: str) -> UnknownNameError:
    """Return the error that answers a name that is no built-in model."""
    return UnknownNameError("model", name, names())


def said_of(spec: str) -> dict[str, Any]:
    """Return the configuration of a built-in name or a file; empty for what is neither.

    Parameters
    ----------
    spec : str
        As on the command line.
    """
    from meshwright.core.source import Source

    source = Source(spec)
    if source.path is not None:
        return source.json if isinstance(source.json, dict) else {}
    return dict(configuration(spec)) if spec in names() else {}


def describe(name: str) -> Architecture:
    """Return what is known about a built-in model.

    Raises `UnknownNameError` when there is no such model.
    """
    config = _built_in(name)
    graph = _graph(config, name, _length(config, 0), True)
    return Architecture(
        name,
        _family(config),
        graph.n_parameters,
        graph.n_active_parameters or graph.n_parameters,
        graph.sequence_length,
        _longest(config),
        config.integer("_published_parameters", "weights as published", 0, minimum=0, maximum=10**15),
        config.text("_source", "where the configuration is from", ""),
    )


def recognises(source: Source) -> bool:
    """Return whether the source is a built-in name or a JSON object with ``model_type`` or ``architectures``."""
    if source.path is None:
        return source.spec in names()
    return isinstance(source.json, dict) and ("model_type" in source.json or "architectures" in source.json)


def read(source: Source) -> ModelSpec:
    """Read a built-in model or a ``config.json``.

    `Source.sequence_length` 0 means the model's own: ``_sequence_length`` of a built-in, otherwise the smaller of
    ``max_position_embeddings`` and 4096. An empty `Source.attention` means the configuration's own (``_attn_implementation:
    eager`` asks for the unfused one). Costs ``analytic``, search ``best``.
    Raises `InputError` when a field is missing or wrong, the family is not supported, or the sequence length is not positive.
    """
    if source.path is None:
        config, name = _built_in(source.spec), source.spec
    else:
        if not isinstance(source.json, dict):
            raise InputError(f"{source.path}: is not a Hugging Face configuration: a JSON object with model_type is needed")
        config = ModelConfig(str(source.path), source.json)
        name = config.text("_name", "the model's name", "") or _name_of(config, source)
    config = _language_model(config)
    sequence = _length(config, source.sequence_length)
    graph = _graph(config, name, sequence, _fused(config, source.attention))
    return ModelSpec(name, "huggingface", source.spec, graph, notes=_notes(config, name, sequence))


def configuration(name: str) -> dict[str, Any]:
    """Return the configuration of a built-in model, to be changed at will.

    Raises `UnknownNameError` when there is no such model.
    """
    return dict(_built_in(name).fields)


def graph_of(fields: Mapping[str, Any], name: str, *, sequence_length: int = 0, attention: str = "") -> Graph:
    """Return the graph of a configuration that is in no file.

    `fields`: the content of a ``config.json``.
    `sequence_length`: tokens per sample; 0 for the model's own.
    `attention`: ``flash``, ``unfused``, or empty for the configuration's own.
    Raises `InputError` as `read`.
    """
    config = _language_model(ModelConfig(name, fields))
    return _graph(config, name, _length(config, sequence_length), _fused(config, attention))


def _length(config: ModelConfig, wanted: int) -> int:
    """Tokens per sample: those wanted, or the model's own.

    Raises `InputError` when what is wanted is negative or huge, or any length for a model of images.
    """
    if not 0 <= wanted <= _LONGEST_SEQUENCE:
        raise InputError(f"sequence length {wanted}: must be between 1 and {_LONGEST_SEQUENCE}")
    if _family(config) == "vit":
        tokens = encoder_families.vit_sequence(config)[1]
        if wanted not in (0, tokens):
            raise InputError(
                f"{config.place}: sequence length {wanted}: an image gives {tokens} tokens; change image_size instead"
            )
        return tokens
    if wanted:
        return wanted
    own = config.integer("_sequence_length", "tokens per sample in training", 0, minimum=0, maximum=_LONGEST_SEQUENCE)
    longest = _longest(config) or _DEFAULT_SEQUENCE
    return own or min(longest, 512 if _family(config) == "t5" else _DEFAULT_SEQUENCE)


def _longest(config: ModelConfig) -> int:
    """Longest sequence the model was made for; 0 where the configuration names none."""
    return config.integer(
        "max_position_embeddings|n_positions|n_ctx|max_seq_len", "longest sequence", 0, maximum=_LONGEST_SEQUENCE
    )


def _built_in(name: str) -> ModelConfig:
    """The configuration of a built-in model."""
    if name not in names():
        raise unknown(name)
    file = Path(__file__).parents[1] / "data" / f"{name}.json"
    return ModelConfig(f"model {name}", json.loads(file.read_text(encoding="utf-8")))


def _name_of(config: ModelConfig, source: Source) -> str:
    """A name for a file: its folder's where it is called config.json, otherwise its own."""
    assert source.path is not None
    stem = source.path.resolve().parent.name if source.path.name == "config.json" else source.path.stem
    return config.text("_name_or_path", "where the model was loaded from", "").rstrip("/").rpartition("/")[2] or stem


def _fused(config: ModelConfig, wanted: str) -> bool:
    """Whether attention is one kernel."""
    if wanted not in ("", "flash", "unfused"):
        raise UnknownNameError("attention", wanted, ("flash", "unfused"))
    own = config.text("_attn_implementation|attn_implementation", "how attention is computed", "")
    return wanted != "unfused" if wanted else own != "eager"


def _family(config: ModelConfig) -> str:
    """The family, from ``model_type`` or the first of ``architectures``."""
    family = config.text("model_type", "family of the model", "")
    family = family.lower() if family == "Yi" else family
    if not family:
        class_name = next(iter(config.words("architectures", "classes of the model")), "")
        stem = re.split(r"For[A-Z]|LMHead|Model$", class_name)[0].lower()
        family = next((kind for kind in MODEL_TYPES if kind.replace("_", "") == stem), class_name)
    if family not in MODEL_TYPES:
        raise UnreadFamilyError(
            f"{config.place}: model_type '{family}' is not supported; there are: {', '.join(MODEL_TYPES)}. "
            "A model of another family can be captured from its PyTorch code: meshwright capture"
        )
    return family


def _language_model(config: ModelConfig) -> ModelConfig:
    """The configuration of the language model inside one of several parts, with the defaults that published files rely on."""
    if _family(config) not in _WITH_PICTURES or not config.given("text_config"):
        return config
    part = config.part("text_config")
    if _family(config) in ("llama4", "mistral3"):
        return part.changed(model_type=_family(config))
    defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    return part.changed(**{**defaults, **part.fields, "model_type": "gemma3"})


def _notes(config: ModelConfig, name: str, sequence: int) -> tuple[str, ...]:
    """What the user should know about this reading."""
    notes = []
    longest = _longest(config)
    family = _family(config)
    if longest and sequence > longest and family != "t5":  # T5 has no table of positions
        tables = family in ("bert", "gpt2", "gpt_neo", "opt")
        effect = "; the table of learned positions was made as long" if tables else ""
        notes.append(f"{name}: {sequence} tokens per sample are more than the {longest} the model was made for{effect}")
    if family in _WITH_PICTURES:
        notes.append(f"{name}: only the language model is planned; the vision tower is left out")
    left = config.unread()
    if left:
        these = "this field" if len(left) == 1 else "these fields"
        notes.append(
            f"{config.place}: {', '.join(left)}: nothing is known here of {these}, so "
            f"layers of {family} were taken as they are without; 'meshwright capture' takes any module"
        )
    predicts = family in ("deepseek_v2", "deepseek_v3", "glm4_moe", "kimi_k2")
    ahead = config.integer("num_nextn_predict_layers", "layers that predict further tokens", 0, minimum=0) if predicts else 0
    if ahead:
        notes.append(
            f"{name}: num_nextn_predict_layers is {ahead}: these layers are trained and counted too, which published sizes "
            "often leave out; 0 leaves them out"
        )
    return tuple(notes)


def _graph(config: ModelConfig, name: str, sequence: int, fused: bool) -> Graph:
    """The graph, by family."""
    family = _family(config)
    config = config.changed(model_type=family)
    families = {
        "gpt2": dense_families.gpt2,
        "gpt_neo": dense_families.gpt_neo,
        "gpt_oss": mixture_families.gpt_oss,
        "gpt_neox": dense_families.gpt_neox,
        "opt": dense_families.opt,
        "bert": encoder_families.bert,
        "t5": encoder_families.t5,
        "vit": encoder_families.vit,
        "dbrx": mixture_families.dbrx,
        "mixtral": mixture_families.mixtral,
        "qwen2_moe": mixture_families.qwen_moe,
        "qwen3_moe": mixture_families.qwen_moe,
        "deepseek_v2": mixture_families.deepseek,
        "deepseek_v3": mixture_families.deepseek,
        "kimi_k2": mixture_families.deepseek,
        "glm4_moe": mixture_families.glm4_moe,
        "llama4": llama4.llama4,
        "llama4_text": llama4.llama4,
        **dict(llama_variants.FAMILIES),
    }
    return families.get(family, dense_families.llama_like)(config, name, sequence, fused)
