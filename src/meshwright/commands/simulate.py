"""``meshwright simulate``: the timeline of a plan file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from meshwright.result import Result

__all__ = ["register"]


def read_plan(path: str) -> dict[str, Any]:
    """Return the JSON object of a plan file.

    Raises
    ------
    InputError
        When the file cannot be read or is no JSON object of ours.
    """
    import json
    from pathlib import Path

    from meshwright.errors import InputError
    from meshwright.writers.plan_json import FORMAT

    try:
        entry = json.loads(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; name a file written by 'meshwright plan --out'") from None
    except (ValueError, RecursionError):
        raise InputError(
            f"{path}: is not valid JSON (cut off, or a binary file?); name a file written by 'meshwright plan --out'"
        ) from None
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise InputError(f'{path}: is not a plan of ours: its "format" must be "{FORMAT}"')
    return entry


def replay(path: str, cluster: str = "", model: str = "") -> Result:
    """Play a plan file again: read its model, resolve its cluster, recompute what its stages do.

    Parameters
    ----------
    path : str
        A file written by ``meshwright plan --out``.
    cluster : str
        Another cluster than the plan's; empty for its own.
    model : str
        Where the model lies now; empty for where it was.

    Returns
    -------
    Result
        With plan, loads and timeline.

    Raises
    ------
    InputError
        When the file, the model or the cluster is wrong, or they do not go together.
    """
    from meshwright import api, sim
    from meshwright.errors import InputError
    from meshwright.problem import Batch, Training
    from meshwright.result import Answer, Result
    from meshwright.writers import plan_json

    entry = read_plan(path)
    if not entry.get("feasible"):
        raise InputError(f"{path}: holds the answer that nothing fits, so there is no plan to simulate")
    try:
        where = cluster or plan_json.cluster_from_json(entry, path)
        spec, form = (model, "") if model else (entry["model"]["spec"], entry["model"]["format"])
        length = entry.get("batch", {}).get("sequence_length", 0)
        batch = Batch(entry["schedule"]["global_batch"], entry["schedule"]["micro_batch"], 0 if length == 1 else length)
        training = Training(**entry.get("training", {}))
        search, seed, costs = str(entry["search"]), int(entry["seed"]), str(entry["costs"])
        planning_seconds = float(entry["planning_seconds"])
        settings = {str(key): str(value) for key, value in entry.get("settings", {}).items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: a field is missing or of the wrong kind: {error}") from None
    asked = api.pose(spec, where or None, costs=costs, batch=batch, training=training, form=form)
    problem = api.completed(asked, search, settings)
    plan = plan_json.plan_from_json(entry, {op.name: i for i, op in enumerate(problem.graph.ops)}, path)
    held = [op for stage in plan.stages for op in stage.ops]
    if sorted(held) != list(range(len(problem.graph.ops))):
        lost = sorted(set(range(len(problem.graph.ops))) - set(held))
        what = f"layer '{problem.graph.ops[lost[0]].name}' is in no stage" if lost else "a layer is in two stages"
        raise InputError(f"{path}: {what}; is this the plan of another model than {problem.reading.name}?")
    sim.check_plan(problem, plan)
    loads, timeline = api.judge(problem, plan)
    if timeline is None:
        raise InputError(f"{path}: the cost model '{costs}' cannot tell how long the stages of {problem.reading.name} take")
    return Result(problem, search, seed, Answer(plan=plan), loads, timeline, planning_seconds, settings, asked)


def as_json(result: Result) -> dict[str, Any]:
    """Return the simulated step as the JSON object of ``simulate --json``."""
    from meshwright.writers.plan_json import interval_json

    plan, timeline, cluster = result.plan, result.timeline, result.problem.cluster
    assert timeline is not None
    rank_of_stage = plan.rank_of_stage()
    causes_of_rank = timeline.memory_causes
    return {
        "format": "meshwright/simulation/1",
        "model": result.problem.reading.name,
        "cluster": None if cluster is None else cluster.name,
        "step_seconds": timeline.step_seconds,
        "step_interval": interval_json(result),
        "samples_per_second": plan.global_batch / timeline.step_seconds if timeline.step_seconds else None,
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
        trace: str = typer.Option("", help="Write a Chrome trace of the step to this file."),
        json_: bool = typer.Option(False, "--json", help="Print exactly one JSON object."),
    ) -> int:
        """Play one training step of a plan and say how long it takes and what it holds."""
        import json

        from meshwright import _files, report
        from meshwright.writers import chrome_trace

        if trace:
            _files.check_target(trace, "--trace")
        result = replay(plan, cluster, model)
        if trace:
            chrome_trace.write(result, trace)
        print(json.dumps(as_json(result)) if json_ else report.explain(result))
        return 0
