"""What PyTorch's and Hugging Face's own functions would only decide with values: stand-ins while a module is traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

__all__ = ["standing_in"]

_CHECKPOINTS = "checkpoints inside the module were left out: the plan chooses what is recomputed"
_ONE_SEQUENCE = "every sample is taken to be one sequence: no packing, no padding"


@contextmanager
def standing_in(notes: dict[str, None]) -> Iterator[None]:
    """Run checkpointed parts as if they were not, and let Hugging Face models find no packed sequences.

    `notes`: what was assumed is added.
    """

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
