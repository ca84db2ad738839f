"""Products in a shorter type than the weights: which types there are, and PyTorch's autocast around a part of a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from meshwright.base.errors import InputError
from meshwright.runtime.ranks.plan_file import PlanFile

__all__ = ["autocast", "check_weights", "difference", "dtype_of"]


def dtype_of(word: str) -> torch.dtype | None:
    """Return the type that ``--precision`` names; None where it names none, and for fp32.

    Raises `InputError` when it is another word.
    """
    types = {"": None, "fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
    if word not in types:
        raise InputError(f"--precision {word}: must be bf16, fp16 or fp32, or left out for the type of the model's own weights")
    return types[word]


def autocast(device: torch.device, precision: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context in which products run in a type; one that does nothing for None."""
    return nullcontext() if precision is None else torch.autocast(device.type, dtype=precision)


def check_weights(model: torch.nn.Module, place: str) -> None:
    """Refuse weights in fp16: an optimizer's small steps would be rounded away.

    Raises `InputError` when the model has such weights.
    """
    name = next((name for name, parameter in model.named_parameters() if parameter.dtype == torch.float16), None)
    if name is not None:
        raise InputError(
            f"{place}: weight '{name}' is float16, in which updates are rounded away; keep weights in float32 and give "
            "--precision fp16, which runs products in it and scales the loss"
        )


def difference(read: PlanFile, model: torch.nn.Module, word: str) -> list[str]:
    """Return a sentence where the run computes in another precision than the plan was made for.

    `word`: of ``--precision``.
    """
    training = read.entry.get("training")
    measured = read.entry.get("costs") == "profiled"  # of layers as they are
    planned = training.get("precision", "") if isinstance(training, dict) and not measured else ""
    own = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    found = word or next((own.get(p.dtype, str(p.dtype)) for p in model.parameters() if p.is_floating_point()), planned)
    if not planned or planned == found:
        return []
    how = f"give --precision {planned} for the plan's" if planned in ("bf16", "fp16") else "plan with --precision " + found
    return [f"the plan was made for {planned}, but products run in {found}; {how}"]
