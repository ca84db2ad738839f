"""``meshwright export``: a plan for another program."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def export(
        plan: str = typer.Argument(help="A plan file, as 'meshwright plan --out' writes it."),
        to: str = typer.Option(..., help="The program's format: piper_json, megatron_args, chrome_trace, dot, ..."),
        out: str = typer.Option(..., help="The file to write."),
        cluster: str = typer.Option("", help="Another cluster than the plan's own."),
        model: str = typer.Option("", help="Where the model lies, if no longer where the plan says."),
        launch: str = typer.Option("", help="Also write what starts a framework on the plan's hosts: slurm, torchrun, k8s."),
    ) -> int:
        """Write a plan for another program, and say what its format could not say."""
        import sys

        from meshwright.api import export as exporting
        from meshwright.base import files

        files.check_targets([("--out", out)], (plan, cluster, model))

        notes = exporting.export(plan, to, out, cluster=cluster, model=model, launch=launch)
        named = exporting.several(to)
        for note in notes[named:]:
            print(f"note: {note}", file=sys.stderr)
        print(f"{notes[0] if named else out}: written")
        if launch:
            print(f"{exporting.launch_path(out, launch)}: written")
        return 0
