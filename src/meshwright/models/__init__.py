"""Models: from a name, a configuration or a file of any known format to a `ModelSpec`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from meshwright.base import registry
from meshwright.base.errors import InputError, MeshwrightError, PluginError
from meshwright.core.problem import ModelSpec
from meshwright.core.source import Source

__all__ = ["read"]

_ENDINGS = (".json", ".txt", ".yaml", ".yml", ".toml", ".csv", ".prototxt", ".fbuf")
"""Of files: a name that ends so is no repository's."""


def read(
    spec: str,
    *,
    file_format: str = "",
    sequence_length: int = 0,
    attention: str = "",
    freeze: Sequence[str] = (),
    lora: str = "",
    objective: str = "",
) -> ModelSpec:
    """Read a model from a built-in name, a file of any known format, or a generator like ``pase:alexnet``.

    Parameters
    ----------
    spec : str
        What to read; ``meta-llama/Llama-3.1-8B`` stands for the built-in model that it is (`meshwright.models.hub`).
    file_format : str
        Name of the format where it should not be recognised from the content.
    sequence_length : int
        Tokens per sample; 0 for the model's own.
    attention : str
        ``flash``, ``unfused``, or empty for the model's own.
    freeze : sequence of str
        Patterns of names whose weights are frozen: see `meshwright.models.fine_tuning.fine_tuned`.
    lora : str
        Adapters that alone are trained: ``r=16,targets=query,value``; empty for none.
    objective : str
        What is trained for: ``dpo``, as of `meshwright.models.preference_pairs.parse_objective`; empty for the next token.

    Returns
    -------
    ModelSpec
        The model and whatever else the content holds.

    Raises
    ------
    InputError
        When nothing is called or recognised so, or the content is wrong.
    PluginError
        When the format named cannot be loaded.
    """
    found = _found(spec, file_format, sequence_length, attention)
    if freeze or lora:
        from meshwright.models.fine_tuning import fine_tuned

        found = fine_tuned(found, freeze, lora)
    if objective:
        from meshwright.models.preference_pairs import with_objective

        found = with_objective(found, objective)
    return found


def _found(spec: str, file_format: str, sequence_length: int, attention: str) -> ModelSpec:
    """Return the model, all of it trained."""
    if not spec:
        raise InputError("the name of the model is empty; see 'meshwright list models', or name a file")
    from meshwright.models import hub

    named = hub.built_in(spec)
    source = Source(named or spec, sequence_length, attention)
    if source.repeated_key:
        raise InputError(f"{source.path}: {source.repeated_key}")
    if file_format:
        return _read(file_format, registry.load("readers", file_format, "format"), source)
    found = _first_read(source)
    said = f"{spec} is read as the built-in model {named}, which has the same layers ('meshwright show {named}')"
    return replace(found, notes=(said, *found.notes)) if named else found


def _first_read(source: Source) -> ModelSpec:
    """Return what the first reader that recognises the source, and can read it, makes of it.

    One that recognises what is nothing is passed over with a warning. Where one cannot read what it recognises, the others are
    asked before that is an error: it may have taken another's.
    """
    failed: tuple[str, Exception] | None = None
    for name, module in registry.each("readers", "format"):
        if not _recognises(name, module, source) or _takes_everything(name, module):
            continue
        try:
            found = _read(name, module, source)
        except MemoryError:
            raise
        except Exception as error:
            failed = failed or (registry.title("readers", name, "format"), error)
            continue
        if failed is not None:
            registry.warn(
                f"{failed[0]} recognises {source.spec} and cannot read it, {name} can: {registry.one_line(failed[1])}"
            )
        return found
    if failed is not None:
        raise failed[1]
    raise InputError(_unrecognised(source))


def _takes_everything(name: str, module: ModuleType) -> bool:
    """Tell whether a reader also recognises what is nothing, and so anything; it is then passed over with a warning."""
    if not _recognises(name, module, Source("no file, no name")):
        return False
    called = registry.title("readers", name, "format")
    registry.warn(f"{called} recognises whatever it is shown; it is left out: name it (--format {name}) to have it read")
    return True


def _recognises(name: str, module: ModuleType, source: Source) -> bool:
    """Ask a reader; one that raises, which none may, is passed over with a warning."""
    try:
        return bool(module.recognises(source))
    except PluginError as error:
        registry.warn(f"{error}; it is left out")
        return False
    except MeshwrightError:
        raise
    except Exception as error:
        called = registry.title("readers", name, "format")
        registry.warn(f"{called} fails at recognising {source.spec}; it is left out: {registry.one_line(error)}")
        return False


def _read(name: str, module: ModuleType, source: Source) -> ModelSpec:
    """Let a reader read; what it returns is a `ModelSpec`."""
    read: ModelSpec = module.read(source)
    registry.checked(read, ModelSpec, "readers", name)
    if registry.package("readers", name) and not read.graph.ops and read.instance is None:
        raise PluginError(f"{registry.title('readers', name, 'format')} returned a model without layers")
    return read


def _unrecognised(source: Source) -> str:
    """Say why no reader took the source and what to do."""
    known = ", ".join(registry.names("readers"))
    if source.path is None:
        if Path(source.spec).is_dir():
            return f"{source.spec}: is a folder; name a file in it, for example {source.spec.rstrip('/')}/config.json"
        from meshwright.models import hub

        if re.fullmatch(r"[\w.-]+/[\w.-]+", source.spec) and not source.spec.endswith(_ENDINGS):
            return str(hub.unknown(source.spec))
        if "/" in source.spec or source.spec.endswith(_ENDINGS):
            return f"{source.spec}: no such file"
        from meshwright.models.readers import huggingface

        return str(huggingface.unknown(source.spec))
    if source.text is None:
        return f"{source.path}: is a binary file that no reader knows (formats: {known})"
    if source.text.strip() == "null":
        return f"{source.path}: holds null and nothing else; formats: {known}"
    if str(source.path).endswith(".json") and source.json is None:
        return f"{source.path}: is not valid JSON (cut off?); formats: {known}"
    return f"{source.path}: not recognised as any of {known}; name the format with --format"
