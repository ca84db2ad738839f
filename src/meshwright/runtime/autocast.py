"""Products in a shorter type than the weights: which types there are, and PyTorch's autocast around a part of a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from meshwright.errors import InputError
from meshwright.runtime.plan_file import PlanFile

__all__ = ["autocast", "difference", "dtype_of"]


def dtype_of(word: str) -> torch.dtype | None:
    """Return the type that ``--precision`` names; None where it names none, and for fp32.

    Raises
    ------
    InputError
        When it is another word.
    """
    if word not in ("", "fp32", "bf16"):
        raise InputError(
            f"--precision {word}: must be bf16 or fp32, or left out for the type of the model's own weights "
            "(fp16 needs losses scaled, which is not done)"
        )
    return torch.bfloat16 if word == "bf16" else None


def autocast(device: torch.device, precision: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context in which products run in a type; one that does nothing for None."""
    return nullcontext() if precision is None else torch.autocast(device.type, dtype=precision)


def difference(read: PlanFile, model: torch.nn.Module, word: str) -> list[str]:
    """Return a sentence where the run computes in another precision than the plan was made for.

    Parameters
    ----------
    read : PlanFile
        The plan.
    model : torch.nn.Module
        The model.
    word : str
        Of ``--precision``.
    """
    training = read.entry.get("training")
    planned = training.get("precision", "") if isinstance(training, dict) else ""
    own = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    found = word or next((own.get(p.dtype, str(p.dtype)) for p in model.parameters() if p.is_floating_point()), planned)
    if not planned or planned == found:
        return []
    how = "give --precision bf16 for the plan's" if planned == "bf16" else "plan with --precision " + found
    return [f"the plan was made for {planned}, but products run in {found}; {how}"]
