"""transformers' Trainer, told by ``TrainingArguments``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from meshwright.base import files
from meshwright.core import framework_file
from meshwright.core.framework import FrameworkLimits
from meshwright.core.graph import Graph
from meshwright.core.launch import StartCommand
from meshwright.core.plan import Plan
from meshwright.core.problem import ModelSpec, Problem
from meshwright.core.result import Result
from meshwright.core.run_config import RunConfig
from meshwright.frameworks import accelerate

__all__ = ["FRAMEWORK", "VARIANTS", "limits_for", "model_of", "program", "read", "recognises", "refusals", "write"]

_DATA = Path(__file__).parents[1] / "data" / "transformers.toml"
FRAMEWORK, VARIANTS = framework_file.of_content(files.read_toml(_DATA), _DATA.stem, _DATA.name, accelerate.FRAMEWORK)

_IN_BF16 = "load the model with dtype=torch.bfloat16: frozen weights are priced in two bytes"
_FOUR_BITS = "load the model with quantization_config=quantised() (load_in_4bit): the Trainer's arguments do not say so"
_PAIRS = (
    "DPO by TRL: every pair is priced as two sequences of max_length tokens, and logits whole: TRL 1.16 makes them in tiles, "
    "and pads to the longest of a batch, so it takes less memory and, with shorter sequences, less time"
)
_WHOLE_ONLY: Mapping[str, str] = MappingProxyType({"adafactor": "transformers' Adafactor", "lion": "bitsandbytes' Lion"})
"""Optimizers that take no parts of weights."""
_COPY = (
    "give DPOTrainer a ref_model loaded with dtype=torch.bfloat16: TRL loads it as the model, and it is priced in two bytes a "
    "weight"
)


def refusals(plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return what of a plan is outside its limits, those of its DeepSpeed where that is meant, or no arguments say. A context
    axis beside sharded weights is inside: searches leave it out only because level 0 has none.
    """
    from meshwright.frameworks import _adapters, _exact

    limits, one = _limits(problem), plan.stages[0].strategy
    if one.context > 1 and one.shard and not problem.framework.variant.startswith("deepspeed"):
        limits = replace(limits, degrees=(*limits.degrees, "context"))
    found = _exact.unsaid(limits, plan, problem)
    if one.context > 1 and not one.shard:
        found += ("sharding level 0 beside a context axis; weights are always sharded over it",)
    found += _adapters.refusals(problem, tensor=one.tensor, quantised=True)
    found += _pairs(problem, one.shard)
    if one.shard and problem.training.optimizer in _WHOLE_ONLY:
        name = _WHOLE_ONLY[problem.training.optimizer]
        found += (f"{name} beside sharded weights, whose parts it does not take; plan with --set shard=0",)
    if one.tensor > 1 and "tensor" not in limits.degrees:
        found += ("a tensor axis is told where the model is loaded, not by its arguments; accelerate's file says one",)
    for axis in ("tensor", "context"):
        if getattr(one, axis) > 1 and axis in limits.degrees and axis not in _split(limits, problem.model_spec).degrees:
            found += (f"a {axis} axis; transformers up to 5.23 on PyTorch splits no {problem.model_spec.name} over one",)
    return found


def limits_for(limits: FrameworkLimits, spec: ModelSpec, optimizer: str) -> FrameworkLimits:
    """Return its limits for a model and an optimizer: some take no sharded weights."""
    own = _split(limits, spec)
    return replace(own, shards=(0,)) if optimizer in _WHOLE_ONLY and 0 in own.shards else own


def _split(limits: FrameworkLimits, spec: ModelSpec) -> FrameworkLimits:
    """Return limits for a model: transformers and PyTorch split only some families over a tensor or context axis."""
    own = accelerate.limits_for(replace(limits, degrees=("tensor", "context")), spec, "").degrees
    return replace(limits, degrees=tuple(axis for axis in limits.degrees if axis in own or axis not in ("tensor", "context")))


def _pairs(problem: Problem, level: int) -> tuple[str, ...]:
    """Return what TRL does otherwise with a reference than it is priced."""
    if not problem.graph.has_copy or level != 3 or problem.framework.variant.startswith("deepspeed"):
        return ()
    return (
        "a copy as reference beside weights sharded by level 3: TRL's prepare_fsdp shards it as one unit, which stands whole "
        "on every device while it runs; plan with --set shard=2, --objective dpo,reference=precomputed, or for "
        "transformers:deepspeed",
    )


def _limits(problem: Problem) -> FrameworkLimits:
    """Return the limits of the variant that a problem is posed for; the plain ones where it is posed for another framework."""
    own = problem.framework
    return own.limits if own.name == FRAMEWORK.name else FRAMEWORK.limits


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write a Python module with its arguments, or, where the name ends in ``.json``, the file that run_clm.py takes."""
    from meshwright.frameworks import _exact
    from meshwright.frameworks.transformers import arguments

    reasons, graph = refusals(result.plan, result.problem), result.problem.graph
    if graph.tuned_in_part and path.endswith(".json"):
        what = f"adapters beside frozen weights{' in four bits' if graph.quantised else ''}"
        reasons += (f"{what}, which run_clm.py has no option for; write to a name that ends in .py",)
    if graph.n_sequences > 1 and path.endswith(".json"):
        reasons += ("pairs of sequences, which run_clm.py does not train on; write to a name that ends in .py",)
    _exact.check("transformers", reasons)
    held = _FOUR_BITS if graph.quantised else _IN_BF16
    adapted = graph.tuned_in_part and result.problem.training.precision in ("bf16", "fp16")
    pairs: tuple[str, ...] = (_PAIRS,) if graph.n_sequences > 1 else ()
    pairs += (_COPY,) if graph.has_copy else ()
    return (*arguments.write(result, path), *((held,) if adapted else ()), *pairs)


def program(result: Result, path: str) -> StartCommand:
    """Return what every host starts: ``run_clm.py`` with the file that was written.

    Raises
    ------
    ExportError
        When `path` is a module of arguments, which a script of one's own imports.
    """
    import shlex

    from meshwright.base.errors import ExportError
    from meshwright.frameworks import _exact

    if not path.endswith(".json"):
        raise ExportError(f"transformers: {path} is imported by a script of yours; with --launch, name a file ending in .json")
    return StartCommand(_exact.torchrun("transformers", result, f"run_clm.py {shlex.quote(Path(path).name)}"))


def read(path: str, graph: Graph, n_devices: int = 0) -> RunConfig:
    """Return what such a file says; `n_devices`: how many there are, where no command in it says so."""
    from meshwright.frameworks.transformers import told

    return told.read(path, graph, n_devices)


def model_of(path: str, sequence_length: int = 0) -> ModelSpec:
    """Return the model that a script or a JSON file names."""
    from meshwright.frameworks.transformers import told

    return told.model_of(path, sequence_length)


def recognises(text: str) -> bool:
    """Return whether a file's text calls ``TrainingArguments``, is a JSON file of them, or a shell script with them."""
    from meshwright.frameworks.transformers import command

    return (
        command.starts(text)
        or re.search(r'(TrainingArguments|DPOConfig)\(|"(per_device_train_batch_size|fsdp_config)"\s*:', text) is not None
    )
