"""``meshwright simulate``: the timeline of a plan file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from meshwright.core.result import Result

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


def register(app: typer.Typer) -> None:
    """Add the command to the program."""

    @app.command()
    def simulate(
        plan: str = typer.Argument(help="A plan file, as 'meshwright plan --out' writes it."),
        cluster: str = typer.Option("", help="Another cluster than the plan's own."),
        model: str = typer.Option("", help="Where the model lies, if no longer where the plan says."),
        for_: str = typer.Option("", "--for", help="Another framework than the plan's own (list frameworks), or a TOML file."),
        trace: str = typer.Option("", help="Write a Chrome trace of the step to this file."),
        json_: bool = typer.Option(False, "--json", help="Print exactly one JSON object."),
    ) -> int:
        """Play one training step of a plan and say how long it takes and what it holds."""
        import json
        from dataclasses import replace

        from meshwright.api.plan_files import missing_bytes, resimulate
        from meshwright.base import files
        from meshwright.base.units import format_bytes
        from meshwright.report import text
        from meshwright.writers import chrome_trace

        if trace:
            files.check_target(trace, "--trace")
        with text.progress(f"playing a step of {plan}"):
            result = resimulate(plan, cluster, model, framework=for_)
        if trace:
            chrome_trace.write(result, trace)
        if json_:
            print(json.dumps(as_json(result)))
            return 0
        missing = missing_bytes(result)
        if missing > 0.0:
            note = (
                f"the plan does not fit: its fullest device needs {format_bytes(missing)} more than it has; seconds are as "
                "if it did"
            )
            result = replace(result, answer=replace(result.answer, notes=(*result.answer.notes, note)))
        print(text.explain(result))
        return 0
