"""``meshwright plan``: the best plan for a model on a cluster, explained."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.base import units
from meshwright.commands import _options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from meshwright.api.sensitivity import Change
    from meshwright.core.problem import Problem
    from meshwright.core.result import Result

__all__ = ["register"]


def settings_of(pairs: list[str], option: str = "--set") -> dict[str, str]:
    """Return ``--set KEY=VALUE`` options (or those after another word) as a mapping.

    Raises `InputError` when one has no ``=`` or a key is given twice.
    """
    from meshwright.base.errors import InputError

    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"{option} {pair}: write KEY=VALUE")
        if key in settings:
            raise InputError(f"{option} {key}: given twice")
        settings[key] = value
    return settings


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a plan is written: files (empty for none), what would help, and one JSON object in place of a text.

    `left_seconds` is the time that ``--time-limit`` leaves for what would help; infinite without one.
    """

    out: str
    trace: str
    report: str
    what_if: bool
    json: bool
    verbose: bool = False
    left_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Preferences:
    """What is asked beside the question: how many alternatives, a seed, when to stop, how much slower the answer may be to be
    simpler, which degrees it is compared with, what is given of the plan, how often devices fail, which lengths documents have
    and how they become samples; the last seven as typed.
    """

    top: int = 3
    seed: int = 0
    time_limit: str = ""
    within: str = ""
    why_not: str = ""
    fix: str = ""
    mtbf: str = ""
    lengths: str = ""
    batching: str = ""


def search_best(
    problem: Problem, search: str, settings: dict[str, str], preferences: Preferences, asked: Callable[[], bool]
) -> Result:
    """Return the best plan with at most as many alternatives as wished, telling how the search goes on.

    `asked`: whether to stop.

    Raises
    ------
    InputError
        When a preference is out of range or does not suit the search.
    KeyboardInterrupt
        When it is stopped by the user before there is a plan.
    """
    from meshwright import api
    from meshwright.api import targets
    from meshwright.base.errors import InputError
    from meshwright.commands import _early
    from meshwright.core.problem import Stop
    from meshwright.report.progress import progress

    if preferences.mtbf:
        from meshwright.sizing.failures import rates

        rates(preferences.mtbf)  # what is wrong is said before the search
    usual = 0.01 if hasattr(_module(problem, search).Params(), "within_ratio") else 0.0
    within = _early.share_of(preferences.within, "--within") if preferences.within else usual
    if preferences.top < 0:
        raise InputError(f"--top {preferences.top}: must be at least 0")
    seconds = _early.seconds_of(preferences.time_limit)
    fixed = settings_of(preferences.why_not.split(","), "--why-not") if preferences.why_not else {}
    with progress(f"planning {problem.model_spec.name}") as told:
        stop = Stop(seconds=seconds, asked=asked, told=told.tell)
        result = api.plan(
            problem, search=search, settings=_with_top(problem, search, settings, preferences.top), seed=preferences.seed,
            stop=stop, within=within, fix=preferences.fix or None, lengths=preferences.lengths, batching=preferences.batching,
        )  # fmt: skip
        if asked() and not result.feasible:
            raise KeyboardInterrupt
        if fixed and result.feasible:
            from meshwright.api import why_not

            result = why_not.with_why_not(result, fixed, stop=stop)
    if preferences.mtbf:
        from meshwright.api.sizes import effective

        result = effective.with_goodput(result, preferences.mtbf)
    top = preferences.top
    shown = {key: value for key, value in result.settings.items() if key in settings or key != "alternatives"}
    result = replace(result, settings=shown if preferences.fix else settings)
    return targets.with_targets(replace(result, answer=replace(result.answer, alternatives=result.answer.alternatives[:top])))


def _with_top(problem: Problem, search: str, settings: dict[str, str], top: int) -> dict[str, str]:
    """Return the settings with as many combinations of degrees as are shown, where the search has an option for that."""
    if "alternatives" in settings or not hasattr(_module(problem, search).Params(), "alternatives"):
        return settings
    return settings | {"alternatives": str(top + 1)}


def _module(problem: Problem, search: str) -> ModuleType:
    """Return the search that will answer."""
    from meshwright.base import registry

    return registry.load("search", (search or problem.model_spec.search).replace("-", "_"), "search")


def _write(result: Result, outputs: Outputs, changes: Sequence[Change]) -> None:
    """Write the files that are asked for, as far as there is a plan to draw."""
    from meshwright.writers import plan_json

    if outputs.out:
        plan_json.write(result, outputs.out)
    if outputs.trace and result.feasible:
        from meshwright.writers import chrome_trace

        chrome_trace.write(result, outputs.trace)
    if outputs.report and result.feasible:
        from meshwright.report.text import change_row
        from meshwright.writers import report_html

        report_html.write(result, outputs.report, changes=[change_row(change) for change in changes])


def _print(result: Result, outputs: Outputs, changes: Sequence[Change]) -> None:
    """Print the answer."""
    if outputs.json:
        import json

        from meshwright.writers import plan_json

        print(json.dumps(plan_json.as_json(result)))
        return
    from meshwright.report.terminal import columns
    from meshwright.report.text import explain

    print(explain(result, changes, verbose=outputs.verbose, columns=columns()))
    good = result.answer.extra.get("goodput")
    if isinstance(good, dict) and result.step_seconds is not None:
        from meshwright.report.sizes import goodput_lines

        print("\n" + goodput_lines(result.step_seconds, good))
    varied = result.answer.extra.get("lengths")
    if isinstance(varied, dict):
        from meshwright.report.lengths import lengths_lines

        print("\n" + lengths_lines(varied, columns=columns()))


def show(result: Result, outputs: Outputs, asked: Callable[[], bool] = bool) -> int:
    """Write and print a plan as asked; return the exit status. `asked`: whether to leave out what would help.

    Raises
    ------
    ExportError
        When there is nothing in seconds to draw.
    InputError
        When a file cannot be written; the answer is printed before.
    """
    import sys

    from meshwright.api import sensitivity as what_ifs
    from meshwright.base.errors import ExportError, InputError
    from meshwright.core.problem import Stop
    from meshwright.report.progress import progress

    trace, report = outputs.trace, outputs.report
    changes: tuple[what_ifs.Change, ...] = ()
    stopped = result.answer.extra.get("stopped_early") is True
    if outputs.what_if and result.feasible and not stopped and not asked() and (report or not outputs.json):
        until = time.monotonic() + outputs.left_seconds
        with progress("planning what would help") as told:
            changes = what_ifs.changes(result, Stop(asked=lambda: asked() or time.monotonic() >= until, told=told.tell))
        if time.monotonic() >= until:
            print(
                "meshwright: --time-limit is over before all was planned that would help: not all of it is shown",
                file=sys.stderr,
            )
    drawn = trace or report
    if drawn and result.feasible and result.timeline is None:
        costs = result.problem.costs
        raise ExportError(f"{drawn}: there is no timeline to draw, costs {costs} say nothing in seconds; leave the option out")
    if drawn and not result.feasible:
        print(
            f"meshwright: there is no plan, so {' and '.join(filter(None, (trace, report)))} cannot be drawn", file=sys.stderr
        )
    try:
        _write(result, outputs, changes)
    except InputError:  # as of a full disk: what took long is told all the same
        _print(result, outputs, changes)
        raise
    _print(result, outputs, changes)
    return 0 if result.feasible else 3


_GlobalBatch = Annotated[
    int, typer.Option(parser=units.samples, metavar="N", help="Samples per step over all devices; 0: left to the search.")
]
_MemoryRisk = Annotated[
    str,
    typer.Option(show_default="1% with analytic costs", help="Chance that memory does not suffice; 50%: peaks as predicted."),
]
_Fix = Annotated[
    str,
    typer.Option(metavar="KEY=VALUE,...", help="Parts of the plan, given: tensor=8,virtual=2; compared with the best of all."),
]
_Mtbf = Annotated[
    str,
    typer.Option(
        metavar="T", help="Count failures: time between those of a device (50000h), or device=T,node=T,... (see size)."
    ),
]
_Within = Annotated[
    str,
    typer.Option(
        show_default="1% with search best",
        help="Answer with the simplest plan at most so much slower than the best; 0: the best.",
    ),
]


def display(result: Result, *, verbose: bool = False) -> None:
    """Print an answer as the command does: about a screen, or all of it; for `Result.show`."""
    from meshwright.report.terminal import columns
    from meshwright.report.text import explain

    print(explain(result, verbose=verbose, columns=columns()))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def plan(
        model: _options.ModelName,
        cluster: _options.ClusterName = "",
        search: str = typer.Option("", help="The recipe; default: the one that suits the input (best)."),
        costs: _options.CostsName = "",
        file_format: _options.FileFormat = "",
        global_batch: _GlobalBatch = 0,
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
        memory_risk: _MemoryRisk = "",
        top: int = typer.Option(3, help="How many alternatives to show."),
        within: _Within = "",
        time_limit: str = typer.Option("", metavar="SECONDS", help="Stop the search then, with the best plan so far (30s)."),
        why_not: str = typer.Option("", metavar="KEY=VALUE,...", help="Degrees to compare the answer with: tensor=8."),
        fix: _Fix = "",
        mtbf: _Mtbf = "",
        lengths: _options.Lengths = "",
        batching: _options.Batching = "",
        seed: _options.Seed = 0,
        out: str = typer.Option("", help="Write the plan to this file."),
        trace: str = typer.Option("", help="Write a Chrome trace of the simulated step to this file."),
        report: str = typer.Option("", help="Write a report as one HTML page to this file."),
        what_if: bool = typer.Option(True, help="Plan again with faster links, more memory, a larger batch (not for --json)."),
        verbose: bool = typer.Option(False, "--verbose", "-v", help="Every stage, rank and note, not a screen of them."),
        json_: _options.AsJson = False,
    ) -> int:
        """Find the best plan, say how fast it runs and whether it fits, and explain it."""
        from meshwright import api
        from meshwright.api import training_states
        from meshwright.base import files
        from meshwright.commands import _early
        from meshwright.core import peaks
        from meshwright.core.problem import Batch

        files.check_targets([("--out", out), ("--trace", trace), ("--report", report)], (model, cluster, for_, lengths))
        problem = api.make_problem(
            model, cluster or None, costs=costs, batch=Batch(global_batch, micro_batch, sequence_length), freeze=freeze,
            file_format=file_format, training=precision, framework=for_, memory_risk=memory_risk or peaks.RISK,
            lora=training_states.adapters(lora, base), objective=objective, optimizer=optimizer, state_precision=state_precision
        )  # fmt: skip
        preferences = Preferences(top, seed, time_limit, within, why_not, fix, mtbf, lengths, batching)
        started = time.monotonic()
        stops = _early.stops_early(problem, search)
        with _early.interruptible(stops) as asked:
            result = search_best(problem, search, settings_of(set_), preferences, asked)
            left = started + _early.seconds_of(time_limit) - time.monotonic() if time_limit else math.inf
            outputs = Outputs(out, trace, report, what_if, json_, verbose, left)
            if stops:
                return show(result, outputs, asked)
        with _early.interruptible(True) as asked:  # there is an answer, which Ctrl-C does not take away
            return show(result, outputs, asked)
