"""What users tell of the state that training keeps: the optimizer, and the precision of what it works on."""

from __future__ import annotations

from meshwright.base.errors import InputError, UnknownNameError
from meshwright.core.optimizers import optimizer as optimizer_named
from meshwright.core.problem import MixedPrecision

__all__ = ["adapters", "with_states"]

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
    if not optimizer and not state_precision:
        return training
    place, said = f"--state-precision {state_precision}", _entries(state_precision)
    state_bytes, gradient_bytes = (_width(said[key], place, key) if key in said else 0 for key in ("moments", "gradients"))
    kind = optimizer_named(optimizer or training.optimizer)
    if state_bytes and state_bytes not in kind.number_bytes:
        held = " or ".join(word for word, width in (*_WIDTHS, ("8 bit", 1)) if width in kind.number_bytes)
        raise InputError(f"{place}: what {kind.name} keeps is held in {held}; leave moments out, or name another --optimizer")
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
