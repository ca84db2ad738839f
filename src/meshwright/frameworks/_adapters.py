"""Adapters as peft's ``LoraConfig`` says them: written for a plan's model, and read from literal arguments."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import ExportError, InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import Problem
from meshwright.frameworks import _python_file
from meshwright.models import fine_tuning
from meshwright.models.readers import huggingface
from meshwright.models.weight_tensors import product_parts

__all__ = ["config", "in_python", "refusals", "text_of"]

_SPLIT = MappingProxyType({
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "gate": "gate_proj", "up": "up_proj",
    "down": "down_proj",
})  # fmt: skip
_EARLIER = MappingProxyType({"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"})
_MODULES: Mapping[str, Mapping[str, str]] = MappingProxyType({
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mixtral", "qwen3_moe"), _SPLIT),
    "gpt2": MappingProxyType({"query_key_value": "c_attn", "output": "attn.c_proj", "up": "c_fc", "down": "mlp.c_proj"}),
    "gpt_neo": MappingProxyType({**_EARLIER, "up": "c_fc", "down": "c_proj"}),
    "gpt_neox": MappingProxyType({"query_key_value": "query_key_value", "output": "attention.dense", "up": "dense_h_to_4h",
                                  "down": "dense_4h_to_h"}),
    "opt": MappingProxyType({**_EARLIER, "up": "fc1", "down": "fc2"}),
    "phi3": MappingProxyType({"query_key_value": "qkv_proj", "output": "o_proj", "gate_up": "gate_up_proj",
                              "down": "down_proj"}),
})  # fmt: skip
"""What transformers calls the products that have an adapter, by family."""

_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: (word,) for modules in _MODULES.values() for word, name in modules.items()},
        "c_proj": ("output", "down"),
        "dense": ("output",),
    }
)
"""The products that each module is, whatever the family."""

_EVERY = ("query", "key", "value", "output", "gate", "up", "down")
_WITHOUT_EFFECT = (
    "lora_alpha", "lora_dropout", "task_type", "inference_mode", "fan_in_fan_out", "init_lora_weights", "use_rslora",
    "base_model_name_or_path", "revision", "peft_type", "auto_mapping", "peft_version", "runtime_config",
)  # fmt: skip
"""Arguments that change no shape: peft 0.21, tuners/lora/config.py."""


def refusals(problem: Problem, *, tensor: int, quantised: bool) -> tuple[str, ...]:
    """Return what of a model's frozen weights and adapters cannot be told, a sentence without a full stop each.

    `tensor`: the tensor degree. `quantised`: whether frozen weights in four bits can be.
    """
    if not problem.graph.tuned_in_part:
        return ()
    spec = problem.model_spec
    if not spec.lora:
        return ("weights frozen by name (--freeze), which are not written; adapters (--lora) are",)
    found = []
    lora = fine_tuning.parse_lora(spec.lora)
    if lora.base and not quantised:
        found.append("frozen weights in four bits, which are not written; 'transformers' has them")
    if tensor > 1:
        found.append("adapters over a tensor axis, which peft's layers are not split over; plan with --set tensor=1")
    if spec.format == "huggingface" and spec.spec:
        family = str(huggingface.said_of(spec.spec).get("model_type"))
        known = _MODULES.get(family, {})
        missing = [word for word in lora.targets if word not in known]
        if missing:
            have = f"{', '.join(known)}" if known else "none"
            found.append(f"an adapter of '{missing[0]}', which is no module of its own in the family {family} (there: {have})")
    return tuple(found)


def config(problem: Problem) -> dict[str, Any]:
    """Return the arguments of ``LoraConfig`` of a plan's model; empty where all weights are trained.

    Raises
    ------
    ExportError
        When a target is no module of the family.
    """
    spec = problem.model_spec
    if not spec.lora:
        return {}
    reasons = refusals(problem, tensor=1, quantised=True)
    if reasons:
        raise ExportError(f"adapters: {'; '.join(reasons)}")
    lora = fine_tuning.parse_lora(spec.lora)
    modules = _MODULES[str(huggingface.said_of(spec.spec)["model_type"])]
    return {
        "r": lora.rank, "lora_alpha": 2 * lora.rank, "target_modules": [modules[word] for word in lora.targets],
        "task_type": "CAUSAL_LM",
    }  # fmt: skip


def text_of(
    entry: Mapping[str, Any],
    graph: Graph,
    place: str,
    *,
    four_bits: bool = False,
    rank: str = "r",
    targets: str = "target_modules",
) -> tuple[str, tuple[str, ...]]:
    """Return adapters as after ``--lora``, and what is to be said of them.

    Parameters
    ----------
    entry : mapping of str to object
        Arguments of ``LoraConfig``.
    graph : Graph
        The model, all of it trained.
    place : str
        Where they stand, for messages.
    four_bits : bool
        Whether frozen products are held in four bits.
    rank, targets : str
        What the arguments of the rank and of the modules are called there.

    Raises
    ------
    InputError
        When an argument is wrong, or makes other adapters than those that plans have.
    """
    r, modules = entry.get(rank, 8), entry.get(targets)  # 8: peft's own
    if isinstance(r, bool) or not isinstance(r, int) or r < 1:
        raise InputError(f"{place}: {rank} is {r!r}; it must be a whole number from 1 on")
    others = [
        name for name in entry if name not in (*_WITHOUT_EFFECT, rank, targets) and entry[name] not in (None, False, [], {})
    ]
    others = [name for name in others if (name, entry[name]) != ("bias", "none")]
    if others:
        raise InputError(f"{place}: {others[0]} is {entry[others[0]]!r}; plans have plain adapters of rank {rank} only")
    have = {word for op in graph.ops for part in op.body for word, _ in product_parts(op.body, part)}
    said: tuple[str, ...] = ()
    if modules in ("all-linear", "all"):
        words = [word for word in _EVERY if word in have]
        said = (f"{place}: {targets} is {modules}: adapters of {', '.join(words)} are priced",)
    elif modules is None:
        words = [word for word in ("query", "value") if word in have]
        said = (f"{place}: {targets} is not set: peft chooses by family; query and value are priced",)
    else:
        words = _named(modules, targets, place)
    base = ",base=4bit" if four_bits else ""
    return f"r={r},targets={','.join(dict.fromkeys(words))}{base}", said


def _named(modules: Any, name: str, place: str) -> list[str]:
    """Return the products that modules are."""
    if not isinstance(modules, Sequence) or isinstance(modules, str) or not modules:
        raise InputError(f"{place}: {name} is {modules!r}; write the names of modules in a list, or all-linear")
    words: list[str] = []
    for module in modules:
        last = str(module).rpartition(".")[2]
        found = _WORDS.get(str(module)) or _WORDS.get(".".join(str(module).split(".")[-2:])) or _WORDS.get(last)
        if not found:
            raise InputError(f"{place}: {name} has {module!r}; known are {', '.join(sorted(_WORDS))}")
        words += found
    return words


def in_python(tree: ast.Module, graph: Graph, path: str, named: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the adapters that a script's one ``LoraConfig`` makes, as `text_of`; empty where it has none.

    `named`: constants of the script.

    Raises
    ------
    InputError
        When there are several, or their arguments are no constants.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    own = [node for node in calls if ast.unparse(node.func).rpartition(".")[2] == "LoraConfig"]
    if not own:
        return "", ()
    place = f"{path}: line {own[0].lineno}: LoraConfig"
    if len(own) > 1:
        raise InputError(f"{path}: line {own[1].lineno}: makes LoraConfig {len(own)} times; leave one in a file of its own")
    entry = _literal(own[0], named, place)
    packed = [node for node in calls if ast.unparse(node.func).rpartition(".")[2] == "BitsAndBytesConfig"]
    quantised = _literal(packed[0], named, f"{path}: line {packed[0].lineno}: BitsAndBytesConfig") if packed else {}
    if quantised.get("load_in_8bit"):
        raise InputError(f"{path}: line {packed[0].lineno}: load_in_8bit: frozen weights in eight bits are not priced")
    return text_of(entry, graph, place, four_bits=bool(quantised.get("load_in_4bit")))


def _literal(call: ast.Call, named: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the keywords of a call; those that are no constant are refused unless they change no shape."""
    found: dict[str, Any] = {}
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise InputError(f"{place}: takes arguments out of others; write them out by name")
    for keyword in call.keywords:
        name = str(keyword.arg)
        try:
            found[name] = _python_file.value(keyword.value, named)
        except ValueError:
            if name in _WITHOUT_EFFECT or name.startswith("bnb_4bit_"):
                continue
            raise InputError(f"{place}: {name} is no constant but {ast.unparse(keyword.value)}") from None
    return found
