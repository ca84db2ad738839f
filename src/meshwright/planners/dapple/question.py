"""What the searches on measured profiles are asked: samples, machines, memory; completed from settings, checked, noted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem
from meshwright.planners.dapple.machines import machines_cluster, sizes_of
from meshwright.planners.dapple.profile import ProfiledTraining
from meshwright.planners.dapple.states import profile_of, states_of

__all__ = ["Asked", "completed"]


@dataclass(frozen=True, slots=True)
class Asked:
    """Settings that every search on a profile has.

    `profile_batch`: samples the profile was measured with; 0 for the number after ``pbs-`` in the file's name.
    `global_batch`: samples of one step; 0 for the problem's own.
    `machines`: ascending exclusive ends of the machines' device ids; empty for the problem's cluster.
    `min_micro_batch`: fewest samples of a micro-batch.
    `optimizer_scaling_ratio`: bytes held per byte of weights.
    `peak_activation_bytes`: activation bytes of one sample at the peak; None for what the profile adds up to.
    """

    profile_batch: int
    global_batch: int
    machines: tuple[int, ...]
    min_micro_batch: int
    optimizer_scaling_ratio: float
    peak_activation_bytes: float | None


def completed(problem: Problem, params: Asked, search: str) -> tuple[Problem, tuple[str, ...]]:
    """Return the problem with what the settings say about it, and notes on what was assumed.

    Returns `problem`: its reading holds a `ProfiledTraining`, its cluster is there, its global batch is positive; `notes`: what
    was assumed.
    Raises `InputError` when something is missing or contradicts.
    """
    notes = []
    profile = profile_of(problem.model_spec, f"search {search}")
    profile_batch = params.profile_batch or profile.profile_batch
    if not profile_batch:
        raise InputError(
            f"model {problem.model_spec.name}: the file does not say how many samples it was measured with; "
            "give --set profile_batch=N"
        )
    if not params.profile_batch:
        notes.append(f"profile_batch={profile_batch}, from the file's name")
    asked = problem.batch.global_batch
    if params.global_batch and asked and params.global_batch != asked:
        raise InputError(f"--global-batch {asked} and --set global_batch={params.global_batch} contradict; give one")
    batch = params.global_batch or asked
    if not batch:
        raise InputError(f"search {search}: give the samples of one step: --set global_batch=N")
    if batch < params.min_micro_batch:
        raise InputError(
            f"global_batch={batch} is smaller than min_micro_batch={params.min_micro_batch}, so there is no micro-batch at "
            "all; "
            "raise the one or lower the other"
        )
    cluster = problem.cluster
    if params.machines:
        if cluster is not None:
            raise InputError("--cluster and --set machines=... both say where to train; give one")
        cluster = machines_cluster(sizes_of(params.machines, "--set machines"))
    if cluster is None:
        raise InputError(f"search {search}: say where to train: --set machines=8,16 (published links) or --cluster dgx-h100:16")
    states = states_of(problem.model_spec)
    per_sample = float(states.activation_bytes[-1]) / profile_batch
    ratio = 1.0
    if params.peak_activation_bytes is not None and per_sample > 0.0:
        ratio = params.peak_activation_bytes / per_sample
    training = ProfiledTraining(profile, profile_batch, params.optimizer_scaling_ratio, ratio, bool(params.machines))
    return (
        replace(
            problem,
            model_spec=replace(problem.model_spec, instance=training),
            cluster=cluster,
            costs="dapple",
            batch=replace(problem.batch, global_batch=batch),
        ),
        tuple(notes),
    )
