"""The profile text format, written: layers with their times and the stage of each,
as PipeDream's and DAPPLE's tools read it.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.base import files
from meshwright.base.errors import ExportError
from meshwright.core.problem import Problem
from meshwright.core.result import Result
from meshwright.core.strategy import Strategy
from meshwright.costs import analytic
from meshwright.costs.profiled.readers import profile_json
from meshwright.planners.dapple.measured import pipedream_profile
from meshwright.planners.dapple.profile import PipeDreamProfile, ProfiledTraining, ProfileNode

__all__ = ["profile_of_model", "render", "write"]


def render(profile: PipeDreamProfile, stage_of_name: Mapping[str, int] | None = None) -> str:
    """Return a profile as text.

    `stage_of_name`: the stage of each layer by its id; layers without one keep the profile's own.
    Returns: nodes, then edges, each in the profile's order; numbers with as many digits as they need to come back the same.
    """
    stages = stage_of_name or {}
    lines = [_line(node, stages.get(node.name, node.stage)) for node in profile.nodes]
    lines += [f"\t{profile.nodes[a].name} -- {profile.nodes[b].name}" for a, b in profile.edges]
    return "\n".join(lines) + "\n"


def _line(node: ProfileNode, stage: int) -> str:
    """Return the line of one layer."""
    activation = repr(node.activation_bytes[0]) if len(node.activation_bytes) == 1 else ""
    if node.is_list or not activation:
        activation = "[" + "; ".join(repr(size) for size in node.activation_bytes) + "]"
    fields = (
        f"forward_compute_time={node.forward_milli_seconds!r}, backward_compute_time={node.backward_milli_seconds!r}, "
        f"activation_size={activation}, parameter_size={node.parameter_bytes!r}"
    )
    return f"{node.name} -- {node.description} -- {fields}" + (f" -- stage_id={stage}" if stage >= 0 else "")


def profile_of_model(problem: Problem, micro_batch: int) -> PipeDreamProfile:
    """Return a model of ours as if its layers had been measured one by one, each on one device.

    `problem`: a model with operators on a cluster.
    Returns: times of our cost model on the first device, weights in fp32, what a layer hands on as the training keeps it.
    """
    graph, width = problem.graph, problem.training.activation_bytes
    loads = analytic.row_loads(problem, Strategy(), range(1), micro_batch)
    elements = {edge.source: float(edge.n_elements) for edge in graph.edges}
    nodes = []
    for v, row in enumerate(analytic.rows(problem)):
        load = loads[row, "none"]
        nodes.append(
            ProfileNode(
                f"node{v + 1}",
                graph.ops[v].name,
                1e3 * load.forward_total_seconds,
                1e3 * load.backward_total_seconds,
                (elements.get(v, 0.0) * micro_batch * width,),
                False,
                4.0 * sum(operator.n_parameters for operator in graph.ops[v].body),
            )
        )
    return PipeDreamProfile(tuple(nodes), tuple((edge.source, edge.target) for edge in graph.edges), micro_batch)


def write(result: Result, path: str) -> tuple[str, ...]:
    """Write the profile a plan was made from, or the model's layers as our cost model times them, with the plan's stages.

    `result` is of a profile in the text format, or of one of ours, whose times at the plan's micro-batch are written, or of a
    model of ours on a cluster. Returns, where the times are not measured, whose they are, and how to read the file.
    Raises `ExportError` when the problem holds neither times nor operators to estimate them from.
    """
    problem, plan = result.problem, result.answer.plan
    instance, graph = problem.model_spec.instance, problem.graph
    stage_of = {op: i for i, stage in enumerate(plan.stages if plan else ()) for op in stage.ops}
    if isinstance(instance, profile_json.Profile):
        rows = plan.micro_batch if plan else 1
        files.write(path, render(pipedream_profile(instance, rows), {f"node{op + 1}": i for op, i in stage_of.items()}))
        return ()
    profile = instance.profile if isinstance(instance, ProfiledTraining) else instance
    if isinstance(profile, PipeDreamProfile):
        files.write(path, render(profile, {graph.ops[op].name: i for op, i in stage_of.items()}))
        return ()
    if instance is not None or problem.cluster is None or not any(op.body for op in graph.ops):
        raise ExportError(
            f"pipedream_txt holds times of layers; {problem.model_spec.name} was read from {problem.model_spec.format}, which "
            "has neither "
            "these nor operators to estimate them from"
        )
    batch = plan.micro_batch if plan else 1
    files.write(path, render(profile_of_model(problem, batch), {f"node{op + 1}": i for op, i in stage_of.items()}))
    device = problem.cluster.device(0).name
    return (
        f"times are those of our cost model on one {device} at {batch} samples, not measured; read the file with "
        f"--set profile_batch={batch}",
    )
