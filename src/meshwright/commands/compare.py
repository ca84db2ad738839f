"""``meshwright compare``: several searches on one problem, ranked on one simulated timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.base import units
from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.core.problem import Problem
    from meshwright.core.result import Result

__all__ = ["register"]


def searches_of(text: str) -> list[str]:
    """Return the searches that are compared.

    Raises `InputError` when there is none, one stands twice, or there is no such search.
    """
    from meshwright.base import registry
    from meshwright.base.errors import InputError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--searches: name at least one search, for example --searches best,data_parallel")
    for i, name in enumerate(names):
        registry.load("search", name, "search")
        if name.replace("-", "_") in [other.replace("-", "_") for other in names[:i]]:
            raise InputError(f"--searches {text}: {name} stands twice; each is compared once")
    return names


def _results(problem: Problem, names: list[str], seconds: float, seed: int) -> list[tuple[str, Result | None, str]]:
    """Return what each search answers, or why not; of those run until Ctrl-C.

    Raises `KeyboardInterrupt` where none has answered until then.
    """
    import sys

    from meshwright import api
    from meshwright.base.errors import InputError, PluginError
    from meshwright.commands import _early
    from meshwright.core.problem import Stop
    from meshwright.report.progress import progress

    results: list[tuple[str, Result | None, str]] = []
    for name in names:
        stops = _early.stops_early(problem, name)
        with progress(f"search {name} on {problem.model_spec.name}") as told, _early.interruptible(stops) as asked:
            stop = Stop(seconds=seconds, asked=asked, told=told.tell)
            try:
                results.append((name, api.plan(problem, search=name, seed=seed, stop=stop), ""))
            except (InputError, PluginError) as error:
                results.append((name, None, str(error)))
            except KeyboardInterrupt:  # of a search that cannot be stopped early
                if not results:
                    raise
        if asked() or results[-1][0] != name:
            print(f"meshwright: not run: {', '.join(names[len(results) :]) or 'none'}", file=sys.stderr)
            break
    return results


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def compare(
        model: _options.ModelName,
        cluster: _options.ClusterName = "",
        searches: str = typer.Option(help="Names of searches, separated by commas."),
        costs: _options.CostsName = "",
        file_format: _options.FileFormat = "",
        global_batch: int = typer.Option(0, parser=units.samples, metavar="N", help="Samples per step over all devices."),
        micro_batch: _options.MicroBatch = 0,
        sequence_length: _options.SequenceLength = 0,
        freeze: _options.Freeze = [],  # noqa: B006  typer copies it
        lora: _options.Lora = "",
        base: _options.Base = "",
        objective: _options.Objective = "",
        precision: _options.Precision = "",
        optimizer: _options.OptimizerName = "",
        state_precision: _options.StatePrecision = "",
        for_: _options.For = "",
        time_limit: str = typer.Option("", metavar="SECONDS", help="Stop each search then, with its best plan so far (30s)."),
        seed: _options.Seed = 0,
        json_: _options.AsJson = False,
    ) -> int:
        """Run several searches on one problem and rank their plans on one simulated timeline."""
        import json

        from meshwright import api
        from meshwright.api import training_states
        from meshwright.base.errors import InputError
        from meshwright.commands import _early
        from meshwright.core.problem import Batch
        from meshwright.report import text
        from meshwright.writers import plan_json

        names, seconds = searches_of(searches), _early.seconds_of(time_limit)
        batch = Batch(global_batch, micro_batch, sequence_length)
        problem = api.make_problem(
            model, cluster or None, file_format=file_format, costs=costs, batch=batch,
            training=precision, framework=for_, freeze=freeze, lora=training_states.adapters(lora, base), objective=objective,
            optimizer=optimizer,
            state_precision=state_precision,
        )  # fmt: skip
        results = _results(problem, names, seconds, seed)
        if all(result is None for _, result, _ in results):
            raise InputError("; ".join(why for _, _, why in results))
        if json_:
            entries = [
                {"search": name, "error": why} if result is None else plan_json.as_json(result) for name, result, why in results
            ]
            print(json.dumps({"format": "meshwright/comparison/1", "results": entries}))
        else:
            print(text.compared(results))
        return 0 if any(result is not None and result.feasible for _, result, _ in results) else 3
