"""``meshwright validate``: predict every row of files of measured runs, print the errors."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def validate(
        files: list[str] = typer.Argument(help="CSV files of measured runs, each recognised by its columns."),
        json_: bool = typer.Option(False, "--json", help="Print exactly one JSON object."),
    ) -> int:
        """Predict every row of files of measured runs and print how far the predictions are off."""
        import json

        from meshwright import validation

        reports = [validation.validate(path) for path in files]
        print(json.dumps(validation.as_json(reports)) if json_ else validation.explain(reports))
        return 0
