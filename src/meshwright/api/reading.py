"""A model from whatever names it: what readers know, and, where they do not know a family, what its own code computes."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright import models
from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec

__all__ = ["model"]

_CAPTURED = "captured_config"
"""`ModelSpec.format` of configurations that were captured: see `meshwright.runtime.capture.configurations`."""


def model(
    spec: str,
    *,
    file_format: str = "",
    sequence_length: int = 0,
    freeze: Sequence[str] = (),
    lora: str = "",
    objective: str = "",
) -> ModelSpec:
    """Read a model, or capture it.

    Parameters
    ----------
    spec, file_format, sequence_length, freeze, lora, objective
        As of `meshwright.models.read`.

    Returns
    -------
    ModelSpec
        The model; the notes of one that was captured begin with what that rests on.

    Raises
    ------
    InputError
        As `meshwright.models.read`; for a ``config.json`` of a family that no reader knows, when it cannot be captured either.
    """
    from meshwright.models.readers.huggingface import UnreadFamilyError

    if not isinstance(spec, str):
        raise InputError(f"model {spec!r}: must be a name or a path as text, as in read('llama-3.1-8b'), or what read returned")
    file_format = "" if file_format == _CAPTURED else file_format  # as plan files name it
    try:
        return models.read(
            spec, file_format=file_format, sequence_length=sequence_length, freeze=freeze, lora=lora, objective=objective
        )
    except UnreadFamilyError as error:
        from meshwright.core.source import Source

        source = Source(spec, sequence_length)
        if file_format or source.path is None or not isinstance(source.json, dict) or not source.json.get("model_type"):
            raise
        if objective:
            raise InputError(
                f"--objective {objective}: operators of {spec}, which is captured, are not known by name; it needs a family "
                "that is read ('meshwright list models')"
            ) from error
        if freeze or lora:
            raise InputError(
                f"{spec}: --freeze and --lora name operators of families that are read; this one is captured: freeze its "
                "parameters in PyTorch (requires_grad_(False)) and use 'meshwright capture'"
            ) from error
        from meshwright.runtime.capture import configurations

        fields = source.json
        own = str(fields.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
        folder = source.path.resolve().parent.name if source.path.name == "config.json" else source.path.stem
        return configurations.read(
            spec, fields, own or folder, sequence_length=sequence_length, attention=str(fields.get("_attn_implementation", "")),
            refused=str(error).partition("; there are: ")[0],
        )  # fmt: skip
