"""``meshwright sweep``: one search over many global batch sizes, as one table and one plot."""

from __future__ import annotations

import typer

from meshwright.base import units

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def sweep(
        model: str = typer.Argument(help="A built-in name, a config.json, or a file of any known format."),
        global_batches: str = typer.Option(help="Sizes: 64,128,256 or FIRST:LAST:STEP."),
        cluster: str = typer.Option("", help="A built-in kind (dgx-h100:64), a topology (torus:4x4x4) or a YAML file."),
        search: str = typer.Option("", help="The recipe; default: the one that suits the input."),
        costs: str = typer.Option("", help="The cost model; default: the one the input asks for."),
        file_format: str = typer.Option("", "--format", help="Format of MODEL where it should not be recognised."),
        micro_batch: int = typer.Option(
            0, parser=units.samples, metavar="N", help="Samples per micro-batch and replica; 0: left to the search."
        ),
        sequence_length: int = typer.Option(0, parser=units.tokens, metavar="N", help="Tokens per sample; 0: the model's own."),
        precision: str = typer.Option("", help="Of matrix products: bf16, fp16, fp8, fp32; default: bf16, or fp16 without it."),
        set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="An option of the search; may be repeated."),
        for_: str = typer.Option("", "--for", help="The framework that will run the plan (list frameworks), or a TOML file."),
        time_limit: str = typer.Option(
            "", metavar="SECONDS", help="Stop the search of each row then, with its best plan (30s)."
        ),
        seed: int = typer.Option(0, help="Seed of everything random."),
        jobs: int = typer.Option(-1, help="Rows at once; -1: every core."),
        backend: str = typer.Option("loky", help="Where rows run: loky (this machine), dask, ray."),
        scheduler: str = typer.Option("", help="Address of a Dask scheduler or Ray cluster; default: one on this machine."),
        out: str = typer.Option("", help="Write the table to this CSV file."),
        plot: str = typer.Option("", help="Write a plot of the speed-ups to this SVG file."),
        json_: bool = typer.Option(False, "--json", help="Print exactly one JSON object."),
    ) -> int:
        """Plan for many global batch sizes: data parallel, data parallel with overlap, and the plan found, side by side."""
        import json
        from dataclasses import asdict

        from meshwright import api
        from meshwright.api import sweep as sweeping
        from meshwright.base import files
        from meshwright.commands import _early
        from meshwright.commands.plan import settings_of
        from meshwright.core.problem import Batch
        from meshwright.report import sweep_table, text

        files.check_targets([(option, path) for option, path in (("--out", out), ("--plot", plot)) if path])
        sizes, seconds = sweeping.batches(global_batches), _early.seconds_of(time_limit)
        problem = api.make_problem(
            model, cluster or None, costs=costs, batch=Batch(sizes[0], micro_batch, sequence_length),
            training=api.training(precision) if precision else None, file_format=file_format, framework=for_,
        )  # fmt: skip
        name = (search or problem.model_spec.search).replace("-", "_")
        with text.progress(f"planning {problem.model_spec.name} for {len(sizes)} batch sizes"):
            rows = sweeping.sweep(
                problem, sizes, search=name, settings=settings_of(set_), seed=seed, jobs=jobs, backend=backend,
                scheduler=scheduler, time_limit_seconds=seconds
            )  # fmt: skip
        entries = [asdict(row) | {"plan": row.plan} for row in rows]
        if out:
            files.write(out, sweep_table.csv(entries))
        if plot:
            files.write(plot, sweep_table.svg(problem.model_spec.name, entries))
        if json_:
            print(json.dumps({"format": "meshwright/sweep/1", "search": name, "seed": seed, "rows": entries}))
        else:
            print(text.render(sweep_table.table(problem.model_spec.name, entries)))
        refused = all(not row.note.startswith(("nothing fits", "no plan that fits")) for row in rows)
        return 0 if any(row.stages for row in rows) else 2 if refused else 3
