"""``meshwright show``: what a file or a name holds, whichever of ours or theirs it is."""

from __future__ import annotations

import typer

from meshwright.commands import _options

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def show(
        kind: str = typer.Argument(help="A model, a cluster, a plan, or a file of any known format."),
        file_format: str = typer.Option("", "--format", help="Format where it should not be recognised."),
        json_: _options.AsJson = False,
    ) -> int:
        """Show what a file or a name holds: layers and parameters, devices and links, or a plan."""
        import json

        from meshwright.api import inspect

        entry = inspect.describe(kind, file_format)
        print(json.dumps(entry) if json_ else inspect.text(entry))
        return 0
