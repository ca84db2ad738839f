"""``meshwright calibrate``: a framework file fitted to a few runs of one's own."""

from __future__ import annotations

import typer

from meshwright.commands import _options

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def calibrate(
        runs: list[str] = typer.Argument(
            help="CSV files of your own runs, as for validate; logs of Megatron-LM, torchtitan, DeepSpeed, the Hugging Face "
            "Trainer."
        ),
        out: str = typer.Option(..., "--out", help="Write the framework to this TOML file, which --for takes."),
        for_: str = typer.Option(
            "", "--for", help="The framework that trained, where rows do not name it; of logs: who wrote them."
        ),
        model: str = typer.Option("", help="What the runs of logs trained: a built-in name or a config.json."),
        cluster: str = typer.Option("", help="Where the runs of logs trained, as of 'meshwright plan'."),
        config: str = typer.Option(
            "", help="Configuration of the logs' runs, or a plan file, where logs do not tell the plan."
        ),
        time_limit: _options.EndAt = "",
        json_: _options.AsJson = False,
    ) -> int:
        """Fit a framework to a few runs of your own, shrunk towards the built-in figures."""
        import dataclasses
        import json

        from meshwright import validation
        from meshwright.base import files
        from meshwright.commands import _early
        from meshwright.report.progress import progress

        files.check_targets([("--out", out)], (*runs, for_, model, cluster, config))
        with _early.limited(time_limit), progress("fitting a framework"):
            found = validation.calibrate(runs, framework=for_, model=model, cluster=cluster, config=config)
        validation.write_calibration(found, out)
        if json_:
            print(json.dumps({"format": "meshwright/calibration/1", "out": out, **dataclasses.asdict(found)}))
            return 0
        for note in found.notes:
            print(f"note: {note}")
        print(f"{found.words}")
        print(f"operators take {found.compute_ratio:.3g} times what {found.framework} says; --for {out} uses it")
        if found.n_left:
            rows = f"{found.n_left} row{'s' * (found.n_left != 1)} say{'s' * (found.n_left == 1)} nothing"
            print(f"{rows}: failed for memory, or not predicted")
        return 0
