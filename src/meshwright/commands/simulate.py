"""``meshwright simulate``: the timeline of a plan file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from meshwright.base.errors import InputError
from meshwright.commands import _options

if TYPE_CHECKING:
    from meshwright.core.problem import ModelSpec
    from meshwright.core.result import Result
    from meshwright.core.timeline import PlayedGraph

__all__ = ["register"]


def as_json(result: Result) -> dict[str, Any]:
    """Return the simulated step as the JSON object of ``simulate --json``."""
    from meshwright.api.plan_files import missing_bytes
    from meshwright.writers.plan_json import interval_json

    plan, timeline, cluster = result.plan, result.timeline, result.problem.cluster
    missing = missing_bytes(result)
    assert timeline is not None
    rank_of_stage = plan.rank_of_stage()
    causes_of_rank = timeline.memory_causes
    return {
        "format": "meshwright/simulation/1",
        "model": result.problem.model_spec.name,
        "cluster": None if cluster is None else cluster.name,
        "step_seconds": timeline.step_seconds,
        **interval_json(result),
        "samples_per_second": plan.global_batch / timeline.step_seconds if timeline.step_seconds else None,
        "fits": missing == 0.0,
        "missing_bytes": missing,
        "for": result.problem.framework_asked or None,
        "framework": result.problem.framework.word or None,
        "schedule": {
            "name": plan.schedule,
            "n_microbatches": plan.n_microbatches,
            "micro_batch": plan.micro_batch,
            "global_batch": plan.global_batch,
        },
        "stages": [
            {
                "rank": rank,
                "devices": list(stage.devices),
                "peak_bytes": timeline.peak_bytes[rank],
                "allocated_bytes": timeline.allocated_bytes[rank],
                "reserved_bytes": timeline.reserved_bytes[rank],
                "memory": dict(causes_of_rank[rank]) if causes_of_rank else None,
            }
            for stage, rank in zip(plan.stages, rank_of_stage, strict=True)
        ],
        "causes": dict(timeline.causes),
        "link_busy_ratio": [[link, ratio] for link, ratio in timeline.link_busy_ratio],
    }


def _task_graph(path: str) -> ModelSpec | None:
    """Return the training step that a file gives task by task; None where the argument is anything else."""
    from meshwright.base import registry
    from meshwright.core.source import Source

    source = Source(path)
    if source.content is None or source.text is not None:
        return None
    from meshwright import models

    found = models.read(path)
    return found if hasattr(registry.load("readers", found.format, "format"), "play") else None


def _played(step: ModelSpec, cluster: str, seed: int) -> PlayedGraph:
    """Play such a step, on a cluster if one is named."""
    from meshwright import clusters
    from meshwright.base import registry

    place = clusters.cluster(cluster) if cluster else None
    found: PlayedGraph = registry.load("readers", step.format, "format").play(step, place, seed)
    return found


def _played_json(step: ModelSpec, played: PlayedGraph, cluster: str) -> dict[str, Any]:
    """Return a played task graph as the JSON object of ``simulate --json``."""
    return {
        "format": "meshwright/task_graph_step/1",
        "model": step.name,
        "cluster": cluster or None,
        "step_seconds": played.step_seconds,
        "compute_seconds": played.compute_seconds,
        "n_tasks": played.n_tasks,
        "transfer_bytes": played.transfer_bytes,
        "all_reduce_bytes": played.all_reduce_bytes,
        "link_busy_ratio": [[link, ratio] for link, ratio in played.link_busy_ratio],
        "notes": list(played.notes),
    }


def _played_text(step: ModelSpec, played: PlayedGraph, cluster: str) -> str:
    """Return a played task graph as text."""
    from meshwright.base.units import format_bytes, format_seconds

    busiest = ", ".join(f"{link} {ratio:.0%}" for link, ratio in played.link_busy_ratio[:3])
    return "\n".join([
        f"{step.name}: {played.n_tasks} tasks on {cluster or 'the network of the file'}",
        f"step {format_seconds(played.step_seconds)}; the busiest device computes {format_seconds(played.compute_seconds)}",
        f"transfers {format_bytes(played.transfer_bytes)}, tensors of all-reduces {format_bytes(played.all_reduce_bytes)}",
        f"busiest links: {busiest or 'none'}",
        *(f"note: {note}" for note in (*step.notes, *played.notes)),
    ])  # fmt: skip


def _given(model: str, text: str, cluster: str, settings: list[str], trace: str) -> Result:
    """Return a plan that was typed, its step drawn where that is asked for."""
    from meshwright.api import plan_files
    from meshwright.base import files
    from meshwright.base.errors import ExportError
    from meshwright.commands.plan import settings_of
    from meshwright.writers import chrome_trace

    files.check_targets([("--trace", trace)], (model, cluster))
    result = plan_files.given(model, text, cluster, settings=settings_of(settings))
    if trace and result.timeline is None:
        costs = result.problem.costs
        raise ExportError(f"{trace}: there is no timeline to draw, costs {costs} say nothing in seconds; leave --trace out")
    if trace:
        chrome_trace.write(result, trace)
    return result


def _told_missing(result: Result) -> Result:
    """Return a result whose plan does not fit with a note that says so."""
    from dataclasses import replace

    from meshwright.api.plan_files import missing_bytes
    from meshwright.base.units import format_bytes

    missing = missing_bytes(result)
    if missing <= 0.0:
        return result
    note = f"the plan does not fit: its fullest device needs {format_bytes(missing)} more than it has; seconds are as if it did"
    return replace(result, answer=replace(result.answer, notes=(*result.answer.notes, note)))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def simulate(
        plan: str = typer.Argument(
            help="A plan file, as 'meshwright plan --out' writes it, a task graph of FlexNet, or with --fix a model."
        ),
        cluster: str = typer.Option("", help="Another cluster than the plan's own."),
        model: str = typer.Option("", help="Where the model lies, if no longer where the plan says."),
        for_: str = typer.Option("", "--for", help="Another framework than the plan's own (list frameworks), or a TOML file."),
        trace: str = typer.Option("", help="Write a Chrome trace of the step to this file."),
        fix: str = typer.Option("", metavar="TEXT", help="The plan as a paper's table has it: 8:8@13:6, 4x2:4x2r, '*=b/8'."),
        set_: _options.Settings = [],  # noqa: B006  typer copies it
        seed: int = typer.Option(0, min=0, help="Of a task graph: draws the path of each transfer among the shortest."),
        time_limit: _options.EndAt = "",
        json_: _options.AsJson = False,
    ) -> int:
        """Play one training step of a plan and say how long it takes and what it holds."""
        import json

        from meshwright.commands import _early
        from meshwright.report.progress import progress

        with _early.limited(time_limit), progress(f"playing a step of {plan}"):
            if fix:
                for given, option in ((model, "--model"), (for_, "--for"), (seed, "--seed")):
                    if given:
                        raise InputError(
                            f"{option}: with --fix the first argument is the model, and its own costs count; leave it out"
                        )
                from meshwright.report import text
                from meshwright.writers import plan_json

                found = _told_missing(_given(plan, fix, cluster, set_, trace))
                print(json.dumps(plan_json.as_json(found)) if json_ else text.explain(found))
                return 0
            if set_:
                raise InputError("--set: goes with --fix only; a plan file holds its own options")
            step = _task_graph(plan)
            if step is not None:
                for value, option in ((model, "--model"), (for_, "--for"), (trace, "--trace")):
                    if value:
                        raise InputError(
                            f"{option} is of plan files; {plan} is a task graph, whose tasks say how long they take"
                        )
                played = _played(step, cluster, seed)
                print(json.dumps(_played_json(step, played, cluster)) if json_ else _played_text(step, played, cluster))
                return 0
            if seed:
                raise InputError(f"--seed is of task graphs; {plan} is a plan, which is played one way")
            from meshwright.api.plan_files import resimulate
            from meshwright.base import files
            from meshwright.report import text
            from meshwright.writers import chrome_trace

            files.check_targets([("--trace", trace)], (plan, cluster, model, for_))
            result = resimulate(plan, cluster, model, framework=for_)
            if trace:
                chrome_trace.write(result, trace)
            print(json.dumps(as_json(result)) if json_ else text.explain(_told_missing(result)))
            return 0
