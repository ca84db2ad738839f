"""How words of the command line become options: as typer does it, but one that is given twice is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from meshwright.base.errors import InputError

__all__ = ["Command", "Program"]


class Command(TyperCommand):
    """A command whose options are given once, but for those that take several values; else the last one would silently win."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of one call.

        Raises `InputError` when an option that takes one value is there twice.
        """
        values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for i, option in enumerate(given):
            if option in given[:i] and option.param_type_name == "option" and not getattr(option, "multiple", False):
                raise InputError(f"{max(option.opts, key=len)}: is given more than once; it takes one value")
        for option in given:  # a parser's own words, of which the library would only keep that the value is invalid
            read, value = getattr(option.type, "func", None), values.get(option.name or "")
            if read is not None and isinstance(value, str):
                _read(read, value, max(option.opts, key=len))
        return super().parse_args(ctx, args)


def _read(read: Callable[[str], Any], value: str, option: str) -> None:
    """Read a value, so that what is wrong with it is said under the option's name."""
    try:
        read(value)
    except InputError as error:
        said = str(error)
        raise InputError(said if said.startswith(option) else f"{option}: {said}") from None


class Program(typer.Typer):
    """A program whose commands are of the class `Command`."""

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any) -> Callable[..., Any]:
        """Return a decorator that adds a command."""
        return super().command(name, cls=cls or Command, **options)
