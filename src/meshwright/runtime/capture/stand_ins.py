"""What PyTorch's and Hugging Face's own functions would only decide with values: stand-ins while a module is traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from meshwright.runtime.capture.fused.attention import Notebook
from meshwright.runtime.capture.fused.scans import SCANS, stand_in

__all__ = ["standing_in"]

_CHECKPOINTS = "checkpoints inside the module were left out: the plan chooses what is recomputed"
_ONE_SEQUENCE = "every sample is taken to be one sequence: no packing, no padding"


@contextmanager
def standing_in(module: torch.nn.Module, recorder: Notebook) -> Iterator[None]:
    """Run checkpointed parts as if they were not, let Hugging Face models find no packed sequences, and have their state-space
    scans recorded as the kernels that they stand for.

    `module`: what is traced.
    `recorder`: what was assumed is added to its notes.
    """
    notes = recorder.notes

    def plainly(run: Any, _: Any, *args: Any) -> Any:
        notes[_CHECKPOINTS] = None
        return run(*args)

    def around(*_: Any, **__: Any) -> Iterator[None]:
        notes[_CHECKPOINTS] = None
        yield

    def one_sequence(*_: Any, **__: Any) -> None:
        notes[_ONE_SEQUENCE] = None

    with ExitStack() as stack:
        # `torch.utils.checkpoint.checkpoint` calls the first two by these names, the builder of masks the third
        reentrant = SimpleNamespace(apply=plainly)
        stack.enter_context(_replaced("torch.utils.checkpoint", "CheckpointFunction", reentrant))
        stack.enter_context(_replaced("torch.utils.checkpoint", "_checkpoint_without_reentrant_generator", around))
        stack.enter_context(_replaced("transformers.masking_utils", "find_packed_sequence_indices", one_sequence))
        for file in dict.fromkeys(type(part).__module__ for part in module.modules()):
            for function in SCANS if file.startswith("transformers.") else ():
                stack.enter_context(_replaced(file, function, stand_in(function, recorder)))
        yield


@contextmanager
def _replaced(module: str, name: str, stand_in: Any) -> Iterator[None]:
    """Put something else in the place of a function of a module that is loaded and has it."""
    names = vars(sys.modules[module]) if module in sys.modules else {}
    if name not in names:
        yield
        return
    before, names[name] = names[name], stand_in
    try:
        yield
    finally:
        names[name] = before
