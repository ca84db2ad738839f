"""A measured profile in Piper's terms: its menu of choices for every layer."""

from __future__ import annotations

from meshwright import sim
from meshwright.base.errors import ExportError
from meshwright.core.plan import Plan, Stage
from meshwright.core.problem import Problem
from meshwright.core.strategy import Strategy
from meshwright.costs import profiled
from meshwright.costs.profiled.readers.profile_json import Profile
from meshwright.planners.piper.problem import PiperChoice, PiperEdge, PiperInstance, PiperNode

__all__ = ["piper_instance"]


def piper_instance(problem: Problem, micro_batch: int) -> PiperInstance:
    """Return a measured profile in Piper's terms: every layer once kept whole, once recomputed, at every tensor degree
    measured.

    Returns: times in seconds; collectives of the tensor axis are part of them.
    Raises `ExportError` when there is no cluster, or a single layer (the format needs an edge).

    Notes
    -----
    As in `meshwright.planners.piper.writers.piper_json.instance_of_model`: half of the gradient bytes are written as weight
    bytes, since Piper reduces twice as much as a ring moves, and one bandwidth serves all links: the slowest link's.
    """
    profile, cluster = problem.model_spec.instance, problem.cluster
    assert isinstance(profile, Profile)
    n = len(profile.layers)
    if cluster is None:
        raise ExportError("piper_json: a profile without links says nothing of the machine; plan it on a cluster")
    if n < 2:
        raise ExportError("piper_json: the format needs at least one edge, and the profile has one layer")
    degrees = sorted({tensor for _, tensor in profile.measures if tensor <= cluster.n_devices})
    nodes = []
    for op, layer in enumerate(profile.layers):
        before = ((op - 1, 0.0),) if op else ()
        after = ((op + 1, 0.0),) if op < n - 1 else ()
        menu = []
        for degree in degrees:
            choices = []
            for name, word in (("vanilla", "none"), ("activation recomp", "full")):
                stage = Stage((op,), tuple(range(degree)), Strategy(tensor=degree), (word,))
                load = profiled.stage_costs(problem, Plan((stage,), 1, micro_batch, "1f1b", micro_batch))[0]
                seconds = load.forward_total_seconds + load.backward_total_seconds
                held = load.static_bytes + load.working_bytes
                choices.append(
                    PiperChoice(name, seconds, load.gradient_bytes / 2.0, load.activation_bytes, held, before, after)
                )
            menu.append((degree, tuple(choices)))
        nodes.append(PiperNode(op, layer.name, tuple(menu)))
    edges = tuple(PiperEdge(i, i + 1, profile.layers[i].output_bytes * micro_batch) for i in range(n - 1))
    return PiperInstance(
        tuple(nodes),
        edges,
        cluster.n_devices,
        max(1, (problem.batch.global_batch or micro_batch) // micro_batch),
        float(cluster.links.bytes_per_second.min()),
        sim.free_bytes(cluster.kinds, problem.memory_ratio),
    )
