"""The profile text format, written: a measured profile with the stage of each layer, as PipeDream's and DAPPLE's tools read it."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright import _files
from meshwright.errors import ExportError
from meshwright.readers import profile_json
from meshwright.readers._profile import Profile, ProfiledTraining, ProfileNode
from meshwright.result import Result
from meshwright.writers._measured import pipedream_profile

__all__ = ["render", "write"]


def render(profile: Profile, stage_of_name: Mapping[str, int] | None = None) -> str:
    """Return a profile as text.

    Parameters
    ----------
    profile : Profile
        What to write.
    stage_of_name : mapping of str to int or None
        The stage of each layer by its id; layers without one keep the profile's own.

    Returns
    -------
    str
        Nodes, then edges, each in the profile's order; numbers with as many digits as they need to come back the same.
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


def write(result: Result, path: str) -> None:
    """Write the profile a plan was made from, with the plan's stages.

    Parameters
    ----------
    result : Result
        Its problem was read from a profile in the text format, or from one of ours, whose times at the plan's micro-batch are written.
    path : str
        The file.

    Raises
    ------
    ExportError
        When the problem holds no such profile: the format has measured times, which nothing else brings.
    InputError
        When the file cannot be written.
    """
    instance = result.problem.reading.instance
    if isinstance(instance, profile_json.Profile):
        rows = result.plan.micro_batch if result.feasible else 1
        stages_of = enumerate(result.plan.stages if result.feasible else ())
        _files.write(
            path, render(pipedream_profile(instance, rows), {f"node{op + 1}": i for i, part in stages_of for op in part.ops})
        )
        return
    profile = instance.profile if isinstance(instance, ProfiledTraining) else instance
    if not isinstance(profile, Profile):
        raise ExportError(
            f"pipedream_txt holds measured times of layers; {result.problem.reading.name} was read from "
            f"{result.problem.reading.format}, which has none"
        )
    graph, stages = result.problem.graph, {}
    if result.answer.plan is not None:
        stages = {graph.ops[op].name: i for i, stage in enumerate(result.answer.plan.stages) for op in stage.ops}
    _files.write(path, render(profile, stages))
