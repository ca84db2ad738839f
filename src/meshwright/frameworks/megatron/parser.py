"""What is known of every option of Megatron-LM's parser, and what its parser and ``validate_args`` refuse."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.frameworks.megatron import contradictions

__all__ = ["check", "known", "table"]

Options = Mapping[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def _content() -> Mapping[str, Any]:
    return MappingProxyType(files.read_toml(Path(__file__).parents[1] / "data" / "megatron_options.toml"))


def table(name: str) -> Mapping[str, Any]:
    """Return a table of the data file: ``refused``, ``unpriced``, ``without_effect`` or ``choices``, by option."""
    return MappingProxyType(_content()[name])


def known() -> frozenset[str]:
    """Return every option that the parser has."""
    content = _content()
    return frozenset([*content["read"], *content["neutral"], *content["refused"], *content["unpriced"]])


def check(options: Options, place: str, lines: Mapping[str, int]) -> None:
    """Refuse what the parser or ``validate_args`` refuses: values, options that are gone, and such as contradict each other.

    `lines`: where each option stands.

    Raises
    ------
    InputError
        When an option is of that kind.
    """

    def wrong(name: str, what: str) -> InputError:
        return InputError(f"{place}: line {lines.get(name, 1)}: {name}{what}")

    flags, choices = frozenset(_content()["flags"]), _content()["choices"]
    for name, words in options.items():
        if name in flags and words and "$" not in words[0]:
            raise wrong(name, f" takes no value, and '{' '.join(words)}' follows it; leave out one of them")
        if name in choices and words and words[0] not in choices[name] and "$" not in words[0]:
            raise wrong(name, f" is '{' '.join(words)}'; it must be one of {', '.join(choices[name])}")
    for name, what in contradictions.found(options):
        raise wrong(name, what)
