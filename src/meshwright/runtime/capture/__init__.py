"""Capture: any PyTorch module as our graph, forward and backward, without weights and without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.base.errors import InputError, MissingExtraError, UnknownNameError

if TYPE_CHECKING:
    from meshwright.runtime.capture.layers import Captured

__all__ = ["LEVELS", "capture"]

LEVELS = ("layers", "operator")
"""What a node of the captured graph is."""


def capture(
    name: str,
    *,
    batch: int = 0,
    sequence_length: int = 0,
    shapes: tuple[str, ...] = (),
    level: str = "layers",
    precision: str = "bf16",
) -> Captured:
    """Trace the module that a callable makes, forward and backward, and return its graph.

    `name`: ``package.module:callable``; it returns an ``nn.Module``, or one and its inputs.
    `batch`: samples to trace with; 0 for those of the inputs that came with the module, or one.
    `sequence_length`: tokens per sample of a language model; 0 for its own.
    `shapes`: shapes of inputs as after ``--input``.
    `level`: ``layers`` or ``operator``.
    `precision`: type of weights that the callable does not decide: ``bf16``, ``fp16``, ``fp32``.
    Returns: graph and figures.
    Raises `MissingExtraError` without PyTorch.
    Raises `InputError` when the callable cannot be called, inputs are missing, or the module does what cannot be traced.
    """
    import importlib.util

    if level not in LEVELS:
        raise UnknownNameError("level", level, LEVELS)
    if precision not in ("bf16", "fp16", "fp32"):
        raise UnknownNameError("precision", precision, ("bf16", "fp16", "fp32"))
    for value, option in ((batch, "--batch"), (sequence_length, "--sequence-length")):
        if not 0 <= value <= 10**9:
            raise InputError(f"{option} {value}: must be between 0 and {10**9}")
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("capturing a module", "torch")
    from meshwright.runtime.capture import session

    return session.run(name, batch=batch, sequence_length=sequence_length, shapes=shapes, level=level, precision=precision)
