"""Readers: from a file, or a name, to a `Reading`. One file per format; the file name is the format.

Promises of a reader module, checked by ``tests/contract/test_readers.py``:

* ``recognises(source) -> bool`` looks at the content (never only at the file's ending) and never raises;
* ``read(source) -> Reading`` raises `InputError` with file, place, value and what is allowed for anything wrong; fields that
  the format does not list are errors;
* a published format's own numbers are kept in ``Reading.instance``, unscaled, in the file's own units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meshwright import _files, _plugins
from meshwright.errors import InputError
from meshwright.problem import Reading

__all__ = ["Source", "read"]


@dataclass(frozen=True)
class Source:
    """What the user named, looked at only as far as a reader asks.

    Parameters
    ----------
    spec : str
        As typed: ``"llama-3.1-8b"``, ``"pase:alexnet"``, ``"workloads.json#dlrm16"``.
    sequence_length : int
        Tokens per sample asked for; 0 for the model's own.
    attention : str
        How attention is computed, which decides what is kept for the backward pass: ``flash``, ``unfused``, or empty for the
        model's own.
    """

    spec: str
    sequence_length: int = 0
    attention: str = ""

    @property
    def fragment(self) -> str:
        """The part after ``#``, which picks one of several models in a file; empty for none."""
        return "" if Path(self.spec).exists() else self.spec.partition("#")[2]

    @property
    def path(self) -> Path | None:
        """The file named, or None when the spec names no file that exists."""
        try:
            for text in (self.spec, self.spec.partition("#")[0]):
                if text and Path(text).is_file():
                    return Path(text)
        except OSError as error:
            raise InputError(f"{self.spec[:80]}: cannot be read: {error.strerror}") from None
        return None

    @cached_property
    def content(self) -> bytes | None:
        """The bytes of the file; None where there is no file."""
        if self.path is None:
            return None
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from None

    @cached_property
    def text(self) -> str | None:
        """The content as UTF-8 text; None where it is binary or there is no file."""
        try:
            return None if self.content is None or b"\0" in self.content else self.content.decode("utf-8")
        except UnicodeDecodeError:
            return None

    @property
    def json(self) -> Any:
        """The content as JSON; None where it is no JSON."""
        return self._loaded[0]

    @property
    def repeated_key(self) -> str:
        """Which key stands twice in one object of the JSON, for a message; empty for none."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[Any, str]:
        try:
            return (None, "") if self.text is None else _files.load_json(self.text)
        except (ValueError, RecursionError):
            return None, ""


def read(spec: str, *, form: str = "", sequence_length: int = 0, attention: str = "") -> Reading:
    """Read a model from a built-in name, a file of any known format, or a generator like ``pase:alexnet``.

    Parameters
    ----------
    spec : str
        What to read.
    form : str
        Name of the format where it should not be recognised from the content.
    sequence_length : int
        Tokens per sample; 0 for the model's own.
    attention : str
        ``flash``, ``unfused``, or empty for the model's own.

    Returns
    -------
    Reading
        The model and whatever else the content holds.

    Raises
    ------
    InputError
        When nothing is called or recognised so, or the content is wrong.
    """
    if not spec:
        raise InputError("the name of the model is empty; see 'meshwright list models', or name a file")
    source = Source(spec, sequence_length, attention)
    if source.repeated_key:
        raise InputError(f"{source.path}: {source.repeated_key}")
    if form:
        reading: Reading = _plugins.load("readers", form, "format").read(source)
        return reading
    for name in _plugins.names("readers"):
        module = _plugins.load("readers", name, "format")
        if module.recognises(source):
            recognised: Reading = module.read(source)
            return recognised
    raise InputError(_unrecognised(source))


def _unrecognised(source: Source) -> str:
    """Say why no reader took the source and what to do."""
    known = ", ".join(_plugins.names("readers"))
    if source.path is None:
        if Path(source.spec).is_dir():
            return f"{source.spec}: is a folder; name a file in it, for example {source.spec.rstrip('/')}/config.json"
        if "/" in source.spec or source.spec.endswith((".json", ".txt", ".yaml")):
            return f"{source.spec}: no such file"
        from meshwright.readers import huggingface

        return str(huggingface.unknown(source.spec))
    if source.text is None:
        return f"{source.path}: is a binary file that no reader knows (formats: {known})"
    if str(source.path).endswith(".json") and source.json is None:
        return f"{source.path}: is not valid JSON (cut off?); formats: {known}"
    return f"{source.path}: not recognised as any of {known}; name the format with --format"
