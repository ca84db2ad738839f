"""``meshwright plan``: the best plan for a model on a cluster, explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from meshwright.core.problem import Problem
    from meshwright.core.result import Result

__all__ = ["register"]


def settings_of(pairs: list[str]) -> dict[str, str]:
    """Return ``--set KEY=VALUE`` options as a mapping.

    Raises `InputError` when one has no ``=`` or a key is given twice.
    """
    from meshwright.base.errors import InputError

    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair}: write KEY=VALUE")
        if key in settings:
            raise InputError(f"--set {key}: given twice")
        settings[key] = value
    return settings


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a plan is written: files (empty for none), what would help, and one JSON object in place of a text."""

    out: str
    trace: str
    report: str
    what_if: bool
    json: bool


def search_best(problem: Problem, search: str, settings: dict[str, str], seed: int, top: int) -> Result:
    """Return the best plan with at most `top` alternatives, telling how the search goes on."""
    from meshwright import api
    from meshwright.api import targets
    from meshwright.report import text as reports

    with reports.progress(f"planning {problem.model_spec.name}"):
        result = api.plan(problem, search=search, settings=settings, seed=seed)
    result = replace(result, answer=replace(result.answer, alternatives=result.answer.alternatives[:top]))
    return targets.with_targets(result)


def show(result: Result, outputs: Outputs) -> int:
    """Write and print a plan as asked; return the exit status.

    Raises
    ------
    ExportError
        When there is nothing in seconds to draw.
    """
    import json
    import sys

    from meshwright.api import sensitivity as what_ifs
    from meshwright.base.errors import ExportError
    from meshwright.report import text as reports
    from meshwright.writers import chrome_trace, plan_json, report_html

    out, trace, report = outputs.out, outputs.trace, outputs.report
    changes: tuple[what_ifs.Change, ...] = ()
    if outputs.what_if and result.feasible and (report or not outputs.json):
        with reports.progress("planning what would help"):
            changes = what_ifs.changes(result)
    drawn = trace or report
    if drawn and result.feasible and result.timeline is None:
        costs = result.problem.costs
        raise ExportError(f"{drawn}: there is no timeline to draw, costs {costs} say nothing in seconds; leave the option out")
    if drawn and not result.feasible:
        print(f"meshwright: nothing fits, so {' and '.join(filter(None, (trace, report)))} cannot be drawn", file=sys.stderr)
    if out:
        plan_json.write(result, out)
    if trace and result.feasible:
        chrome_trace.write(result, trace)
    if report and result.feasible:
        report_html.write(result, report, changes=[reports.change_row(change) for change in changes])
    print(json.dumps(plan_json.as_json(result)) if outputs.json else reports.explain(result, changes))
    return 0 if result.feasible else 3


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def plan(
        model: str = typer.Argument(help="A built-in name, a config.json, or a file of any known format."),
        cluster: str = typer.Option("", help="A built-in kind (dgx-h100:64), a topology (torus:4x4x4) or a YAML file."),
        search: str = typer.Option("", help="The recipe; default: the one that suits the input (best)."),
        costs: str = typer.Option("", help="The cost model; default: the one the input asks for."),
        file_format: str = typer.Option("", "--format", help="Format of MODEL where it should not be recognised."),
        global_batch: int = typer.Option(0, help="Samples per step over all devices; 0: left to the search."),
        micro_batch: int = typer.Option(0, help="Samples per micro-batch and replica; 0: left to the search."),
        sequence_length: int = typer.Option(0, help="Tokens per sample; 0: the model's own."),
        precision: str = typer.Option("", help="Of matrix products: bf16, fp16, fp8, fp32; default: bf16, or fp16 without it."),
        set_: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="An option of the search; may be repeated."),
        for_: str = typer.Option("", "--for", help="The framework that will run the plan (list frameworks), or a TOML file."),
        memory_risk: str = typer.Option("1%", help="Chance that memory does not suffice; 50%: peaks as predicted."),
        top: int = typer.Option(3, help="How many alternatives to show."),
        seed: int = typer.Option(0, help="Seed of everything random."),
        out: str = typer.Option("", help="Write the plan to this file."),
        trace: str = typer.Option("", help="Write a Chrome trace of the simulated step to this file."),
        report: str = typer.Option("", help="Write a report as one HTML page to this file."),
        what_if: bool = typer.Option(True, help="Plan again with faster links, more memory, a larger batch (not for --json)."),
        json_: bool = typer.Option(False, "--json", help="Print exactly one JSON object."),
    ) -> int:
        """Find the best plan, say how fast it runs and whether it fits, and explain it."""
        from meshwright import api
        from meshwright.base import files
        from meshwright.base.errors import InputError
        from meshwright.core.problem import Batch

        files.check_targets(
            [(option, path) for option, path in (("--out", out), ("--trace", trace), ("--report", report)) if path]
        )
        if top < 0:
            raise InputError(f"--top {top}: must be at least 0")
        problem = api.make_problem(
            model, cluster or None, costs=costs, batch=Batch(global_batch, micro_batch, sequence_length),
            training=api.training(precision) if precision else None, file_format=file_format, framework=for_, memory_risk=memory_risk,
        )  # fmt: skip
        result = search_best(problem, search, settings_of(set_), seed, top)
        return show(result, Outputs(out, trace, report, what_if, json_))
