"""What any program's log may say beside its timed lines: weights of the model, the device, that memory ran out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType

from meshwright.validation._logs.entries import NUMBER, Line, number

__all__ = ["device", "kind_word", "memory", "out_of_memory", "trained", "weights"]

_SCALES = MappingProxyType({"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "billion": 1e9})
_WEIGHTS = (
    re.compile(rf"Model \S+ \S+ size: ({NUMBER}) ?() ?total parameters"),  # torchtitan
    re.compile(rf"\bnumber parameters: ({NUMBER}) (billion)"),  # MaxText
    re.compile(r"\bTotal number of parameters: ([\d.]+)([KMGT]?)"),  # nanotron
    re.compile(r"\bnum_elems = ([\d.]+)([KMBT]?)"),  # DeepSpeed, ZeRO-3
)
_TRAINED = re.compile(r"\bNumber of trainable parameters = ([\d,]+)")  # the Trainer
_DEVICE = re.compile(
    r"\b(?:NVIDIA|AMD) (?:Tesla |Instinct )?([A-Z]{1,2}\d{1,4}[A-Z]?)\b(?:[ -](PCI[Ee]|NVL|SXM)|( \d+GB HBM3))?"
)
_MEMORY = re.compile(r"\bCUDA capacity: .* with (\d+(?:\.\d+)?) ?GiB memory")  # torchtitan
_KIND = re.compile(r"[A-Z]{1,2}\d{1,4}[A-Z]?")
_OUT = re.compile(r"OutOfMemoryError|CUDA out of memory|HIP out of memory|RESOURCE_EXHAUSTED: (?:Out of memory|.*allocat)")


def weights(lines: Sequence[Line]) -> float:
    """Return the weights of the whole model that a log tells; 0 for none.

    Parameters
    ----------
    lines : sequence of (int, str)
        Of the file, with their numbers.
    """
    for _, text in lines:
        for pattern in _WEIGHTS:
            if match := pattern.search(text):
                return number(match[1]) * _SCALES[match[2]]
    return 0.0


def trained(lines: Sequence[Line]) -> tuple[int, float]:
    """Return the line at which a log tells how many weights are trained, and how many; (0, 0.0) for none.

    Parameters
    ----------
    lines : sequence of (int, str)
        Of the file, with their numbers.
    """
    for row, text in lines:
        if match := _TRAINED.search(text):
            return row, number(match[1])
    return 0, 0.0


def device(lines: Sequence[Line]) -> tuple[int, str]:
    """Return the line at which a log names its device, and the kind, such as ``H100`` or ``H100 PCIE``; (0, "") for none.

    Parameters
    ----------
    lines : sequence of (int, str)
        Of the file, with their numbers.
    """
    for row, text in lines:
        if match := _DEVICE.search(text):
            form = "SXM" if match[3] else (match[2] or "").upper()  # HBM3 is on these boards only
            return row, " ".join(filter(None, (match[1], form)))
    return 0, ""


def memory(lines: Sequence[Line]) -> float:
    """Return the memory of a device that a log tells, in bytes; 0 for none.

    Parameters
    ----------
    lines : sequence of (int, str)
        Of the file, with their numbers.
    """
    for _, text in lines:
        if match := _MEMORY.search(text):
            return float(match[1]) * 2.0**30
    return 0.0


def kind_word(name: str) -> str:
    """Return what of a device's name says its kind: ``H100`` of ``H100-SXM-80GB``; empty where none is known.

    Parameters
    ----------
    name : str
        As clusters have it.
    """
    return next((part for part in name.split("-") if _KIND.fullmatch(part)), "")


def out_of_memory(lines: Sequence[Line], after: int) -> int:
    """Return the first line behind another at which a log says that a device's memory ran out; 0 for none.

    Parameters
    ----------
    lines : sequence of (int, str)
        Of the file, with their numbers.
    after : int
        Of the last timed line.
    """
    return next((row for row, text in lines if row > after and _OUT.search(text)), 0)
