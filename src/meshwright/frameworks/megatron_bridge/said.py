"""What a configuration of Megatron-Bridge or NeMo sets, and the plan that its fields make, whatever file they stand in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meshwright.base.errors import InputError
from meshwright.core.graph import Graph
from meshwright.core.problem import MixedPrecision
from meshwright.core.run_config import RunConfig
from meshwright.frameworks.megatron import aside
from meshwright.frameworks.megatron import told as megatron_told
from meshwright.frameworks.megatron_bridge import fields

__all__ = ["RecipeFields"]

_PLANNED = (
    "optimizer.use_distributed_optimizer", "comm_overlap.tp_comm_overlap", "comm_overlap.overlap_moe_expert_parallel_comm",
    "comm_overlap.overlap_grad_reduce",
    "mixed_precision.grad_reduce_in_fp32",
    "ddp.grad_reduce_in_fp32",
    "optimizer.optimizer", "model.tp_comm_overlap", "model.moe_layer_recompute", "comm_overlap.data_parallel_size",
)  # fmt: skip
_OTHER_PARTS = (
    "model.cpu_offloading", "model.fine_grained_activation_offloading", "ddp.use_torch_fsdp2", "dist.use_torch_fsdp2",
    "optimizer.optimizer_cpu_offload", "optimizer.offload_optimizer_states", "model.is_hybrid_model",
    "model.heterogeneous_block_specs", "model.experimental_attention_variant", "model.hierarchical_context_parallel_sizes",
    "model.hybrid_context_parallel",
)  # fmt: skip
"""Fields of what plans have nothing like: they must be unset."""

_FP8_RECIPES: Mapping[str, str] = MappingProxyType({
    "tensorwise": "bf16_with_fp8_current_scaling_mixed", "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed",
})  # fmt: skip
"""The recipe of mixed precision that each ``fp8_recipe`` is."""


class RecipeFields:
    """What a configuration sets: values of fields by their dotted names, with the place of each."""

    def __init__(self, path: str) -> None:
        self.path, self.found, self.precision = path, dict[str, Any](), "bf16_mixed"
        self.warnings: list[str] = []
        self.lines: dict[str, int] = {}
        self.planned = {*fields.VALUES.values(), *fields.FLAGS.values(), *fields.ASIDE.values(), *_PLANNED, *_OTHER_PARTS}

    def put(self, part: str, name: str, value: Any, line: int) -> None:
        """Keep a field that plans, or what is said of them, depend on."""
        if f"{part}.{name}" in self.planned:
            self.found[f"{part}.{name}"] = value
            self.lines[f"{part}.{name}"] = line

    def unknown(self, part: str, name: str, line: int) -> None:
        """Warn of a field that nothing is known of."""
        self.warnings.append(f"{self.path}: line {line}: nothing is known of {part}.{name}; it is left out")

    def mixed(self, word: str | None, line: int) -> None:
        """Keep which recipe of mixed precision is taken, by its name; None for none.

        Raises
        ------
        InputError
            When it is none that plans have.
        """
        name = (word or "").removesuffix("()").rpartition(".")[2].replace("-", "_")
        if word is None:
            self.precision = ""
        elif name in ("bf16_with_fp8_delayed_scaling_mixed", "bf16_with_fp8_subchannel_scaling_mixed"):
            self.precision = "bf16_with_fp8_current_scaling_mixed"
            self.warnings.append(f"{self.path}: line {line}: {name} is priced as products in fp8")
        elif name in fields.PRECISIONS:
            self.precision = name
        else:
            known = ", ".join(fields.PRECISIONS)
            raise InputError(f"{self.path}: line {line}: mixed_precision is {word}; it must be None, {known}")

    def numbers(self, entry: Mapping[str, Any], line: int) -> None:
        """Keep the precision that flags say: those of mixed precision, or of the model where there is none.

        Raises
        ------
        InputError
            When the recipe of fp8 is none that is known.
        """
        recipe = str(entry.get("fp8_recipe") or "tensorwise")
        if entry.get("fp4"):
            self.precision = "bf16_with_nvfp4_mixed"
        elif entry.get("fp8"):
            if recipe not in _FP8_RECIPES:
                raise InputError(
                    f"{self.path}: line {line}: fp8_recipe is '{recipe}'; it must be one of {', '.join(_FP8_RECIPES)}"
                )
            self.mixed(_FP8_RECIPES[recipe], line)
        else:
            self.precision = "bf16_mixed" if entry.get("bf16") else "fp16_mixed" if entry.get("fp16") else ""
        low = bool(entry.get("fp8") or entry.get("fp4"))
        for name, what in (("first_last_layers_bf16", "all layers are priced in the precision of products"),
                           ("fp8_param_gather", "weights are priced as held and gathered in bf16")):  # fmt: skip
            if low and (entry.get(name) or (name == "fp8_param_gather" and entry.get("fp8_param"))):
                self.warnings.append(f"{self.path}: {name} is True; {what}")

    def config(self, graph: Graph, n_devices: int, length: int = 0) -> RunConfig:
        """Return the plan that the fields make. `length`: of samples, where the data says so.

        Raises
        ------
        InputError
            When a field is wrong or sets what plans have nothing like, or fields contradict each other or the model.
        """
        path = self.path
        for field in _OTHER_PARTS:
            if self.found.get(field):
                raise InputError(f"{path}: {field} is set; plans have nothing like it: leave it out")
        options = self._options(graph)
        if "--micro-batch-size" in options and "--global-batch-size" not in options:
            raise InputError(f"{path}: train.global_batch_size is missing")
        try:
            plan = megatron_told.plan_of(options, path, n_devices)
        except InputError as error:
            raise InputError(_in_fields(str(error))) from None
        n_layers = sum(len(stage.ops) for stage in plan.stages) - 2
        if n_layers != len(graph.ops) - 2:
            raise InputError(
                f"{path}: model.num_layers: makes {n_layers} layers, but {graph.name} has {len(graph.ops) - 2}: another model?"
            )
        if self.found.get("comm_overlap.tp_comm_overlap", self.found.get("model.tp_comm_overlap", False)):
            options["--tp-comm-overlap"] = ()
        reduce = self.found.get("comm_overlap.overlap_grad_reduce", self.found.get("ddp.overlap_grad_reduce")) is not False
        variant = megatron_told.variant_of(graph, plan, tensor="--tp-comm-overlap" in options, reduce=reduce)
        for name, what in aside.notes(options, plan):
            if what.startswith("is not taken without --recompute"):
                continue  # a dump has its default
            field = fields.ASIDE.get(name) or fields.VALUES.get(name) or fields.FLAGS.get(name, name)
            if field in self.found or name not in fields.FLAGS:
                self.warnings.append(f"{path}: {aside.sentence(field, what.replace('is not set', 'is False'))}")
        optimizer = self.found.get("optimizer.optimizer", "adam")
        if optimizer != "adam":
            raise InputError(f"{path}: optimizer.optimizer is {optimizer!r}; plans of Megatron-Core have adam")
        own = self.found.get("model.seq_length") or 0
        if length and own and length != own:
            self.warnings.append(f"{path}: samples have {length} tokens, model.seq_length is {own}: {length} are priced")
        precision = fields.PRECISIONS.get(self.precision, "fp32")
        training = self._training(precision)
        return RunConfig(plan, precision, length or own, tuple(self.warnings), variant, training=training)

    def _training(self, precision: str) -> MixedPrecision | None:
        """Return how numbers are held where gradients are summed in two bytes; None where as usual."""
        narrow = self.found.get("mixed_precision.grad_reduce_in_fp32") is False
        if not narrow and self.found.get("ddp.grad_reduce_in_fp32") is False:
            self.warnings.append(
                f"{self.path}: ddp.grad_reduce_in_fp32 is False, and the recipe of mixed precision sets it True"
            )
        return MixedPrecision.of(precision).updated_by(gradient_bytes=2) if narrow and precision != "fp32" else None

    def _options(self, graph: Graph) -> dict[str, tuple[str, ...]]:
        """Return Megatron-LM's options that the fields are; what is left open is as a bare configuration has it."""
        found, ahead = dict(self.found), sum(op.name.startswith("mtp.") for op in graph.ops)
        found.setdefault("model.num_layers", len(graph.ops) - 2 - ahead)
        if ahead:
            found.setdefault("model.mtp_num_layers", ahead)
        if found.get("optimizer.use_distributed_optimizer") or "ddp.use_distributed_optimizer" not in found:
            found["ddp.use_distributed_optimizer"] = found.get("optimizer.use_distributed_optimizer", True)
        found.setdefault("ddp.data_parallel_sharding_strategy", "no_shard")
        if found.get("model.mtp_num_layers") in (None, 0):
            found.pop("model.mtp_num_layers", None)
        if found.get("model.moe_layer_recompute"):
            found |= {"model.recompute_granularity": "selective", "model.recompute_modules": ["moe"]}
        options: dict[str, tuple[str, ...]] = {}
        for option, field in fields.VALUES.items():
            value = found.get(field)
            if isinstance(value, list) and field.endswith("layout"):
                value = _layout(value, self.path)
            if value is not None:
                options[option] = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
        for option, field in fields.FLAGS.items():
            value = found.get(field, False)
            if not isinstance(value, bool) and value is not None:
                raise InputError(f"{self.path}: {field} is {value!r}; it must be True or False")
            if value:
                options[option] = ()
        return options | _aside(found)


def _aside(found: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the options of fields that cut layers or are priced otherwise."""
    options: dict[str, tuple[str, ...]] = {}
    if found.get("comm_overlap.overlap_moe_expert_parallel_comm") is True:
        options["--overlap-moe-expert-parallel-comm"] = ()
    for option, field in fields.ASIDE.items():
        value = found.get(field)
        if value is True:
            options[option] = ()
        elif value and value != "no_shard":
            options[option] = tuple(map(str, value if isinstance(value, list) else [value]))
    return options


def _layout(stages: list[Any], path: str) -> str:
    """Return a layout that is written as lists of words as Megatron-LM's option has it."""
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    parts = [one if isinstance(one, list) else [one] for one in stages]
    unknown = [word for part in parts for word in part if word not in letters]
    if unknown:
        raise InputError(f"{path}: model.pipeline_model_parallel_layout names {unknown[0]}; there are {', '.join(letters)}")
    return "|".join("".join(letters[word] for word in part) for part in parts)


def _in_fields(text: str) -> str:
    """Return a message with fields in place of options."""
    every = {**fields.VALUES, **fields.FLAGS, **fields.ASIDE}
    for option, field in sorted(every.items(), key=lambda one: -len(one[0])):
        text = re.sub(rf"{option}(?![\w-])", field, text)
    return text
