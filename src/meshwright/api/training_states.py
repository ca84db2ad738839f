"""What users tell of the state that training keeps: the optimizer, and the precision of what it works on."""

from __future__ import annotations

from dataclasses import replace

from meshwright.api import targets
from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.problem import MixedPrecision, Problem

__all__ = ["adapters", "told", "with_states"]

_WIDTHS = (("fp32", 4), ("bf16", 2))
_KEYS = ("moments", "gradients", "copy")


def adapters(lora: str, base: str) -> str:
    """Return what ``--lora`` says together with ``--base``, which is a part of it.

    Raises
    ------
    InputError
        When there is a base without adapters.
    """
    if base and not lora:
        raise InputError(
            f"--base {base}: is what --lora's frozen weights are held in; give adapters: --lora r=16,targets=query"
        )
    return f"{lora},base={base}" if base else lora


def told(problem: Problem, optimizer: str = "", state_precision: str = "") -> Problem:
    """Return a problem with another optimizer, or other precisions of its state.

    Parameters
    ----------
    problem : Problem
        As posed.
    optimizer, state_precision : str
        As of `with_states`; empty for the problem's own.

    Raises
    ------
    InputError
        When one is unknown, they do not go together, or costs, framework or model do not suit them.
    """
    if not optimizer and not state_precision:
        return problem
    return targets.trainable(replace(problem, training=with_states(problem.training, optimizer, state_precision)))


def with_states(training: MixedPrecision, optimizer: str = "", state_precision: str = "") -> MixedPrecision:
    """Return how numbers are held with what is told after ``--optimizer`` and ``--state-precision``.

    Parameters
    ----------
    training : MixedPrecision
        How they are held else.
    optimizer : str
        One of `meshwright.core.optimizers.OPTIMIZERS`; empty for the same.
    state_precision : str
        ``moments=bf16,gradients=bf16,copy=none``, each once or not at all; one word alone is that of moments.

    Raises
    ------
    InputError
        When a word is unknown, or says what cannot be.
    """
    place, said = f"--state-precision {state_precision}", _entries(state_precision)
    state_bytes, gradient_bytes = (_width(said[key], place, key) if key in said else 0 for key in ("moments", "gradients"))
    copy = said.get("copy")
    if copy not in (None, "fp32", "none"):
        raise InputError(f"{place}: copy is {copy}; it must be fp32 or none")
    if training.weight_bytes >= 4 and (copy or gradient_bytes == 2):
        raise InputError(f"{place}: weights of {training.precision} training have four bytes: no copy, and gradients like them")
    return training.updated_by(
        optimizer, state_bytes=state_bytes, gradient_bytes=gradient_bytes, copy=None if copy is None else copy == "fp32"
    )


def _entries(text: str) -> dict[str, str]:
    """Return what is said by key."""
    said: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.strip().partition("=")
        key, value = (key, value) if equals else ("moments", key)
        if key not in _KEYS:
            raise UnknownNameError("key (of --state-precision)", key, _KEYS)
        if key in said:
            raise InputError(f"--state-precision {text}: {key} is given twice")
        said[key] = value
    return said


def _width(word: str, place: str, key: str) -> int:
    """Return the bytes of a number."""
    known = dict(_WIDTHS)
    if word not in known:
        raise InputError(f"{place}: {key} is {word or 'nothing'}; it must be {' or '.join(known)}")
    return known[word]
