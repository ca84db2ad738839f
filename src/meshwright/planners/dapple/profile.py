"""The content of PipeDream's profiles in their own units: layers measured one by one, or states already linearised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.base.errors import InputError
from meshwright.core.problem import Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["LinearisedProfile", "PipeDreamProfile", "ProfileNode", "ProfiledTraining", "cleaned", "training_of"]


@dataclass(frozen=True, slots=True)
class ProfileNode:
    """One measured layer, as its line in the profile says.

    `name`: identifier in the file: ``node12``.
    `description`: free text: ``Conv2d(3, 64, kernel_size=(7, 7))``.
    `forward_milli_seconds`, `backward_milli_seconds`: measured time of the whole profile batch, in the file's own milliseconds.
    `activation_bytes`: output tensors for the whole profile batch; one element where the file has no list.
    `is_list`: whether the file writes the activation sizes as a list.
    `parameter_bytes`: weights in fp32.
    `stage`: the file's ``stage_id``; -1 for none.
    """

    name: str
    description: str
    forward_milli_seconds: float
    backward_milli_seconds: float
    activation_bytes: tuple[float, ...]
    is_list: bool
    parameter_bytes: float
    stage: int = -1

    @property
    def compute_seconds(self) -> float:
        """Forward and backward time of the whole profile batch."""
        return (self.forward_milli_seconds + self.backward_milli_seconds) / 1000.0

    @property
    def output_bytes(self) -> float:
        """All output tensors together, for the whole profile batch."""
        total = 0.0
        for n_bytes in self.activation_bytes:
            total += n_bytes
        return total


@dataclass(frozen=True, slots=True)
class PipeDreamProfile:
    """A profile in the text format, in file order.

    `nodes`: layers in the order of their lines.
    `edges` (tuple of (int, int)): source and target as positions in `nodes`, in the order of their lines; parallel edges are
    kept.
    `profile_batch`: samples the profile was measured with; 0 where it is not known (the format does not say).
    """

    nodes: tuple[ProfileNode, ...]
    edges: tuple[tuple[int, int], ...]
    profile_batch: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LinearisedProfile:
    """States of a profile's antichain graph with cumulative metrics and interval tables, as a ``.imp`` file holds them.

    `descriptions` (tuple of str, length n_states): description of each state's first layer.
    `compute_seconds`, `activation_bytes`, `parameter_bytes`, shape (n_states + 1, n_states), float64: entry (i, j): the stage
    that begins at state i and ends with state j, for the whole profile batch; -1 where j < i.
    `cut_bytes`, shape (n_states,), float64: bytes that cross a cut placed after each state, for the whole profile batch.
    `predecessors`: transitive predecessors of each state, in the order of the file.
    `cumulative_seconds`, `cumulative_activation_bytes`, `cumulative_parameter_bytes`, shape (n_states,), float64: everything up
    to and including each state, as its own line says.
    `profile_batch`: samples the profile was measured with; 0 where it is not known (the format does not say).
    """

    descriptions: tuple[str, ...]
    compute_seconds: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    parameter_bytes: NDArray[np.float64]
    cut_bytes: NDArray[np.float64]
    predecessors: tuple[NDArray[np.int64], ...]
    cumulative_seconds: NDArray[np.float64]
    cumulative_activation_bytes: NDArray[np.float64]
    cumulative_parameter_bytes: NDArray[np.float64]
    profile_batch: int = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            for array in value if isinstance(value, tuple) else (value,):
                if name not in ("descriptions", "profile_batch"):
                    array.setflags(write=False)


@dataclass(frozen=True, slots=True)
class ProfiledTraining:
    """A profile with what the file does not say: how it was measured and what training adds to it.

    `profile`: the file's content.
    `profile_batch`: samples the profile was measured with.
    `optimizer_scaling_ratio`: bytes held per byte of weights: weights themselves, gradients, optimizer state.
    `activation_ratio`: activation bytes at their peak per byte that the profile counts.
    `published_links`: whether all-reduces take the published constants' time instead of that of the cluster's links.
    """

    profile: PipeDreamProfile | LinearisedProfile
    profile_batch: int
    optimizer_scaling_ratio: float
    activation_ratio: float = 1.0
    published_links: bool = False


def training_of(problem: Problem) -> ProfiledTraining:
    """Return what a question that is completed trains.

    Raises `InputError` when it was not completed by `meshwright.planners.dapple.question`.
    """
    training = problem.model_spec.instance
    if not isinstance(training, ProfiledTraining):
        raise InputError(
            f"model {problem.model_spec.name}: is no profile with its training; ask through --search dapple or pipedream"
        )
    return training


def cleaned(profile: PipeDreamProfile) -> PipeDreamProfile:
    """Return the profile without what is no layer: input placeholders, then indexing at the end.

    Returns: without the sources whose description starts with ``Input`` and then without the sinks whose description starts
    with ``__getitem__``; each pass once, so a layer that becomes a source or sink by it stays.

    References
    ----------
    .. [1] PipeDream's optimizer, whose files these are (https://github.com/msr-fiddle/pipedream), cleans in the same two
       passes.
    """
    for word, end in (("Input", 1), ("__getitem__", 0)):
        inner = {edge[end] for edge in profile.edges}
        gone = {i for i, node in enumerate(profile.nodes) if i not in inner and node.description.startswith(word)}
        kept = [i for i in range(len(profile.nodes)) if i not in gone]
        new = {old: i for i, old in enumerate(kept)}
        edges = tuple((new[a], new[b]) for a, b in profile.edges if a in new and b in new)
        profile = PipeDreamProfile(tuple(profile.nodes[i] for i in kept), edges, profile.profile_batch)
    return profile
