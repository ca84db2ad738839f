"""``meshwright calibrate``: a framework file fitted to a few runs of one's own."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def calibrate(
        runs: str = typer.Argument(help="A CSV file of your own runs, as for validate."),
        out: str = typer.Option(..., "--out", help="Write the framework to this TOML file, which --for takes."),
        for_: str = typer.Option("", "--for", help="The framework that trained, where rows do not name it."),
        json_: bool = typer.Option(False, "--json", help="Print exactly one JSON object."),
    ) -> int:
        """Fit a framework to a few runs of your own, shrunk towards the built-in figures."""
        import dataclasses
        import json

        from meshwright import validation
        from meshwright.base import files

        files.check_target(out, "--out")
        found = validation.calibrate(runs, framework=for_)
        validation.write_calibration(found, out)
        if json_:
            print(json.dumps({"format": "meshwright/calibration/1", "out": out, **dataclasses.asdict(found)}))
            return 0
        print(f"{found.words}")
        print(f"operators take {found.compute_ratio:.3g} times what {found.framework} says; --for {out} uses it")
        if found.n_left:
            print(f"{found.n_left} rows say nothing: failed for memory, or not predicted ('meshwright validate {runs}')")
        return 0
