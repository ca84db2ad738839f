"""``meshwright advise``: a configuration that somebody runs, and what would make it quicker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.api.advise import Advice, Rung

__all__ = ["register"]


def text_of(advice: Advice, path: str) -> str:
    """Return the advice in words: the plan as read, the single changes, the way up."""
    from dataclasses import replace

    from meshwright.base.units import format_bytes
    from meshwright.core.formatting import describe
    from meshwright.report import text

    notes = [f"{warning}" for warning in advice.said.warnings]
    legal = "yes" if not advice.refusals else f"no: {'; '.join(advice.refusals)}"
    fits = f"no: the fullest device lacks {format_bytes(advice.missing_bytes)}" if advice.missing_bytes else "yes"
    fits += _kept_free(advice)
    lines = [f"{path}, read as {advice.result.problem.framework.word}", f"legal: {legal}", f"fits: {fits}", ""]
    result = replace(advice.result, answer=replace(advice.result.answer, notes=tuple(notes)))
    lines.append(text.explain(result).rstrip())
    own = advice.result.timeline
    assert own is not None
    if advice.measured is not None:
        lines += ["", *_beside(advice)]
    stopped = any(note.startswith("stopped before its end") for note in notes)
    if advice.best is None:
        none = "no plan was found" if stopped else "no plan of this framework fits here; see 'meshwright plan' for what would"
        return "\n".join([*lines, "", none])
    if not advice.ladder:
        return "\n".join(
            [
                *lines,
                "",
                "nothing quicker was found among what this framework has (degrees, sharding, recomputation, schedules)"
                + ", until the search was stopped" * stopped,
            ]
        )
    if len(advice.changes) > 1:
        lines += ["", "each change by itself, the most helpful first"]
        lines += [f"  {_row(rung, own.step_seconds)}" for rung in advice.changes]
    lines += ["", "one after another, up to the best plan"]
    lines += [f"  {_row(rung, own.step_seconds)}" for rung in advice.ladder]
    return "\n".join([*lines, f"  then: {describe(advice.best.plan)}"])


def _kept_free(advice: Advice) -> str:
    """Return the room that predicted peaks have to leave, where a plan lacks no more than that; empty elsewhere."""
    from dataclasses import replace

    from meshwright import sim
    from meshwright.core import peaks

    problem, timeline = advice.result.problem, advice.result.timeline
    assert timeline is not None
    whole = replace(problem, memory_risk=peaks.PLAIN_RISK)
    if not advice.missing_bytes or sim.excess_bytes(whole, advice.result.plan, timeline.peak_bytes) > 0.0:
        return ""
    return (
        f" of the room that predicted peaks have to leave: they may fill {problem.memory_ratio:.0%} of a device, for a chance "
        f"of {problem.memory_risk:.0%} to run out of memory; exactly as predicted it fits"
    )


def _beside(advice: Advice) -> list[str]:
    """Return what was measured beside the prediction, by cause where a trace tells."""
    from meshwright import validation
    from meshwright.base.units import format_bytes, format_seconds

    measured, own = advice.measured, advice.result.timeline
    assert measured is not None and own is not None
    rows = [("step", advice.measured_seconds, own.step_seconds)]
    if isinstance(measured, validation.TraceCauses):
        head = f"measured (a trace of {measured.n_steps} step{'s' * (measured.n_steps > 1)}) beside predicted"
        rows += validation.beside(measured, own.causes)
    else:
        head = f"measured ({measured.words}) beside predicted"
    lines = [head]
    for word, seconds, other in rows:
        ratio = f", measured is {seconds / other:.2f} times as much" if other > 0.0 else ""
        lines.append(f"  {word}: {format_seconds(seconds)}, predicted {format_seconds(other)}{ratio}")
    if isinstance(measured, validation.MeasuredRun) and measured.allocated_bytes and own.allocated_bytes:
        lines.append(f"  memory: {format_bytes(measured.allocated_bytes)}, predicted {format_bytes(max(own.allocated_bytes))}")
    return [*lines, *(f"note: {note}" for note in measured.notes)]


def _row(rung: Rung, seconds: float) -> str:
    """Return one change: what, how long a step takes then, what it holds."""
    from meshwright.base.units import format_bytes

    name = {"schedules": "schedule", "micro_batch": "micro-batch", "recompute": "recomputation", "shard": "sharding level"}
    what = f"{rung.before} -> {rung.after}"
    head = what if rung.axis == "rest" else f"{name.get(rung.axis, rung.axis)} {what}"
    if rung.result is None or rung.result.timeline is None:
        return f"{head}: {rung.reason}"
    head += f" ({'; '.join(rung.also)})" * bool(rung.also)
    timeline = rung.result.timeline
    ratio = timeline.step_seconds / seconds - 1.0
    return f"{head}: {ratio:+.1%}, {timeline.step_seconds:.4g} s a step, peak {format_bytes(max(timeline.peak_bytes))}"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def advise(
        file: str = typer.Argument(
            help="A Megatron-LM script, a torchtitan module, a DeepSpeed file, ..., or a plan file of ours."
        ),
        cluster: str = typer.Option(..., help="Where it runs, as of 'meshwright plan'."),
        model: str = typer.Option("", help="What it trains: a built-in name or a config.json; default: what the file says."),
        for_: str = typer.Option("", "--for", help="Whose file it is (list frameworks); default: recognised."),
        sequence_length: int = typer.Option(0, help="Tokens per sample where the file does not say; 0: the model's own."),
        against: str = typer.Option("", metavar="TRACE|LOG", help="What was measured, to be put beside the prediction."),
        time_limit: str = typer.Option("", metavar="SECONDS", help="Stop looking for the best plan then (30s)."),
        json_: _options.AsJson = False,
    ) -> int:
        """Read a framework's configuration: is it legal, does it fit, how fast is it, and what would make it quicker."""
        import json

        from meshwright.api import advise as advising
        from meshwright.commands import _early
        from meshwright.core.problem import Stop
        from meshwright.report import text

        seconds = _early.seconds_of(time_limit)
        with text.progress(f"planning around {file}"), _early.interruptible(True) as asked:
            advice = advising.advise(
                file, cluster, model, framework=for_, sequence_length=sequence_length, against=against,
                stop=Stop(seconds=seconds, asked=asked),
            )  # fmt: skip
        print(json.dumps(advising.as_json(advice, file)) if json_ else text_of(advice, file))
        return 0
