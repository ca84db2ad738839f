"""``meshwright list``: what there is to name."""

from __future__ import annotations

import typer

from meshwright.commands import _options

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command(name="list")
    def list_(
        kind: str = typer.Argument(
            help="models, clusters, searches, costs, schedules, topologies, frameworks, formats, exports or measured."
        ),
        verbose: bool = typer.Option(False, "--verbose", "-v", help="All figures of clusters with their sources."),
        json_: _options.AsJson = False,
    ) -> int:
        """List what can be named on the command line, each with a line about it."""
        import json

        from meshwright.api import listing
        from meshwright.base.errors import UnknownNameError

        rooms = listing.rooms()
        if kind not in rooms:
            raise UnknownNameError("list", kind, rooms)
        entries = rooms[kind]()
        if json_:
            print(json.dumps({"format": "meshwright/list/1", kind: dict(entries)}))
        else:
            width = max((len(name) for name, _ in entries), default=0)
            for name, line in entries:
                print(f"{name:{width}}  {line if verbose else line.partition(chr(10))[0]}")
            if not verbose and any("\n" in line for _, line in entries):
                print("\n-v, or --json, adds every figure and its source")
        return 0
