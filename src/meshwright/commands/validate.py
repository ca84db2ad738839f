"""``meshwright validate``: predict every row of measured runs, print the errors, draw them."""

from __future__ import annotations

import typer

from meshwright.commands import _options

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def validate(
        runs: list[str] = typer.Argument(
            help="CSV files of measured runs, each recognised by its columns; names of built-in sets (meshwright list "
            "measured); or all."
        ),
        worst: int = typer.Option(0, min=0, help="Also print so many of the worst rows of each set, with their causes."),
        report: str = typer.Option("", help="Write a page with every row, predicted against measured, to this HTML file."),
        for_: str = typer.Option("", "--for", help="The framework that trained your own runs, where they do not name it."),
        time_limit: str = typer.Option("", metavar="T", help="Stop then (30s); sets predicted until then are shown."),
        json_: _options.AsJson = False,
    ) -> int:
        """Predict every row of measured runs and print how far the predictions are off."""
        import json
        import sys

        from meshwright import validation
        from meshwright.base import files
        from meshwright.commands import _early
        from meshwright.report.progress import progress

        files.check_targets([("--report", report)], (*runs, for_))
        words = [name for word in runs for name in (validation.set_names() if word == "all" else (word,))]
        reports: list[validation.Report] = []
        with _early.limited(time_limit), progress("predicting measured runs") as told:
            try:
                for word in words:
                    told.count(len(reports), len(words), f"sets, now {word}")
                    reports.append(validation.validate(word, framework=for_))
            except KeyboardInterrupt as stopped:
                if not reports:
                    raise
                left = ", ".join(words[len(reports) :])
                print(f"meshwright: {_early.ended_by(stopped)}; not predicted: {left}", file=sys.stderr)
        if report:
            validation.write_page(reports, report)
        if json_:
            print(json.dumps(validation.as_json(reports) | {"complete": len(reports) == len(words)}))
        else:
            print(validation.explain(reports))
            if worst:
                print(validation.explain_worst(reports, worst))
        return 0
