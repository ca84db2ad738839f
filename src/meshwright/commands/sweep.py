"""``meshwright sweep``: one search over many global batch sizes, as one table and one plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.commands import _options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshwright.api.sweep import Row

__all__ = ["register"]


def _status(rows: Sequence[Row]) -> int:
    """Return the exit status: 0 where a row has a plan, 3 where nothing fits in one, 2 where all answered were refused."""
    refused = all(not row.note.startswith(("nothing fits", "no plan that fits")) for row in rows)
    return 0 if any(row.stages for row in rows) else 2 if refused else 3


_TimeLimit = Annotated[str, typer.Option(metavar="SECONDS", help="Stop the search of each row then, with its best plan (30s).")]


def _write(name: str, entries: list[dict[str, Any]], out: str, plot: str) -> None:
    """Write the table and the plot of speed-ups that were asked for; name the rows that Ctrl-C left unanswered."""
    import sys

    from meshwright.api import sweep as sweeping
    from meshwright.base import files
    from meshwright.report import sweep_table

    left = [str(entry["global_batch"]) for entry in entries if entry["note"] == sweeping.NOT_ANSWERED]
    if left:
        print(f"meshwright: stopped; not answered: batch sizes {', '.join(left)}", file=sys.stderr)
    if out:
        files.write(out, sweep_table.csv(entries))
    if plot:
        files.write(plot, sweep_table.svg(name, entries))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def sweep(
        model: _options.ModelName,
        global_batches: str = typer.Option(help="Sizes: 64,128,256 or FIRST:LAST:STEP."),
        cluster: _options.ClusterName = "",
        search: str = typer.Option("", help="The recipe; default: the one that suits the input."),
        costs: _options.CostsName = "",
        file_format: _options.FileFormat = "",
        micro_batch: _options.MicroBatch = 0,
        sequence_length: _options.SequenceLength = 0,
        freeze: _options.Freeze = [],  # noqa: B006  typer copies it
        lora: _options.Lora = "",
        base: _options.Base = "",
        objective: _options.Objective = "",
        precision: _options.Precision = "",
        optimizer: _options.OptimizerName = "",
        state_precision: _options.StatePrecision = "",
        set_: _options.Settings = [],  # noqa: B006  typer copies it
        for_: _options.For = "",
        time_limit: _TimeLimit = "",
        seed: _options.Seed = 0,
        jobs: int = typer.Option(-1, help="Rows at once; -1: every core."),
        backend: _options.Backend = "loky",
        scheduler: _options.Scheduler = "",
        out: str = typer.Option("", help="Write the table to this CSV file."),
        plot: str = typer.Option("", help="Write a plot of the speed-ups to this SVG file."),
        json_: _options.AsJson = False,
    ) -> int:
        """Plan for many global batch sizes: data parallel, data parallel with overlap, and the plan found, side by side."""
        import json
        from dataclasses import asdict

        from meshwright import api
        from meshwright.api import sweep as sweeping
        from meshwright.api import training_states
        from meshwright.base import files
        from meshwright.commands import _early
        from meshwright.commands.plan import settings_of
        from meshwright.core.problem import Batch
        from meshwright.report import sweep_table, text

        files.check_targets([("--out", out), ("--plot", plot)], (model, cluster, for_))
        sizes, seconds = sweeping.batches(global_batches), _early.seconds_of(time_limit)
        problem = api.make_problem(
            model, cluster or None, costs=costs, batch=Batch(sizes[0], micro_batch, sequence_length),
            training=precision, file_format=file_format, framework=for_, freeze=freeze, objective=objective,
            lora=training_states.adapters(lora, base), optimizer=optimizer, state_precision=state_precision,
        )  # fmt: skip
        name = (search or problem.model_spec.search).replace("-", "_")
        with text.progress(f"planning {problem.model_spec.name}") as told:
            rows = sweeping.sweep(
                problem, sizes, search=name, settings=settings_of(set_), seed=seed, jobs=jobs, backend=backend,
                scheduler=scheduler, time_limit_seconds=seconds, keep=True,
                done=lambda done, n: told.count(done, n, "batch sizes"),
            )  # fmt: skip
        entries = [asdict(row) | {"plan": row.plan} for row in rows]
        with _early.interruptible(True, _early.WRITING):
            _write(problem.model_spec.name, entries, out, plot)
            shown = {"format": "meshwright/sweep/1", "search": name, "seed": seed, "rows": entries}
            print(json.dumps(shown) if json_ else text.render(sweep_table.table(problem.model_spec.name, entries)))
        return _status(rows)
