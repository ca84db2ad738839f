"""What the user named as a model, looked at only as far as a reader asks: the word, the file, its content."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError

__all__ = ["Source"]


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

    def __init__(self, spec: str, sequence_length: int = 0, attention: str = "") -> None:
        self.spec = spec
        self.sequence_length = sequence_length
        self.attention = attention

    @property
    def fragment(self) -> str:
        """The part after ``#``, which picks one of several models in a file; empty for none."""
        return "" if Path(self.spec).exists() else self.spec.partition("#")[2]

    @property
    def path(self) -> Path | None:
        """The file named, or None when the spec names no file that exists."""
        try:
            for text in (self.spec, self.spec.partition("#")[0]):
                if text and Path(text).exists() and not Path(text).is_dir():
                    return Path(text)
        except OSError as error:
            raise InputError(f"{self.spec[:80]}: cannot be read: {error.strerror}") from None
        return None

    @cached_property
    def content(self) -> bytes | None:
        """The bytes of the file; None where there is no file."""
        return None if self.path is None else files.read_bytes(self.path)

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
            return (None, "") if self.text is None else files.load_json(self.text)
        except (ValueError, RecursionError):
            return None, ""
