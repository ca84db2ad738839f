"""The calls of HPGO, DAPPLE's published planner, with the same arguments and answers.

``conductor_from_torch_graph_and_seps("vgg19.txt", 32, 1024, [8, 16]).py_orchestrate()`` answers ``(speedup, stages)`` as there,
in its published cost model. Two things are better: the kernels run without the interpreter's lock, so several threads can plan
at once, and settings made on ``conductor.m`` count (there they were made on a copy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from meshwright import api
from meshwright.base import registry
from meshwright.base.errors import InputError
from meshwright.core.problem import ModelSpec, Problem, Stop
from meshwright.core.result import Answer

__all__ = [
    "Layer",
    "Model",
    "SyncOrchestrate",
    "conductor_from_torch_graph_and_seps",
    "devices_from_seps",
    "model_from_torch_graph",
]


class Layer(NamedTuple):
    """One state of the model.

    Parameters
    ----------
    id : int
        Position.
    name, desc : str
        Description of its first layer.
    compute_time : float
        Forward and backward seconds of the global batch.
    activation_size, output_activation_size, parameter_size : float
        Bytes: activations and cut for the global batch, weights.
    """

    id: int
    name: str
    desc: str
    compute_time: float
    activation_size: float
    output_activation_size: float
    parameter_size: float


class Model:
    """A profile with its batch sizes; the three settings may be changed before planning.

    Parameters
    ----------
    model_spec : ModelSpec
        The profile.
    profile_batch_size, global_batch_size : int
        Samples of the profile and of one step.
    """

    def __init__(self, model_spec: ModelSpec, profile_batch_size: int, global_batch_size: int) -> None:
        self.model_spec = model_spec
        self.profile_batch_size = profile_batch_size
        self.global_batch_size = global_batch_size
        self.min_micro_batch_size = 1
        self.optimizer_memory_scaling = 1.0
        self.peak_activation_per_batch: float | None = None

    @property
    def layers(self) -> list[Layer]:
        """The model's states, scaled to the global batch."""
        from meshwright.planners.dapple.states import interval_tables, states_of

        states = states_of(self.model_spec, fold=False)
        seconds, activation_bytes, parameter_bytes = interval_tables(self.model_spec, states)
        ratio = self.global_batch_size / self.profile_batch_size
        return [
            Layer(
                i,
                name,
                name,
                float(seconds[i, i]) * ratio,
                float(activation_bytes[i, i]) * ratio,
                float(states.cut_bytes[i]) * ratio,
                float(parameter_bytes[i, i]),
            )
            for i, name in enumerate(states.names)
        ]


class SyncOrchestrate:
    """A model on devices, ready to be planned.

    Parameters
    ----------
    model : Model
        What to train.
    devices : list of int
        Ascending exclusive ends of the machines' device ids.
    """

    def __init__(self, model: Model, devices: list[int]) -> None:
        self.m = model
        self.d = devices
        self.res: tuple[float, list[tuple[int, int, int, list[int]]]] | None = None

    def py_orchestrate(self) -> tuple[float, list[tuple[int, int, int, list[int]]]]:
        """Return the speed-up over one device, and the stages.

        Returns
        -------
        speedup : float
            Of the published cost model.
        stages : list of (int, int, int, list of int)
            First state, stop (exclusive; of the last stage the last state), devices per copy of the pipeline, device ids.

        Raises
        ------
        InputError
            When a batch size is wrong.
        """
        dapple = registry.load("search", "dapple", "search")
        params = dapple.Params(
            profile_batch=self.m.profile_batch_size,
            global_batch=self.m.global_batch_size,
            machines=tuple(self.d),
            min_micro_batch=self.m.min_micro_batch_size,
            optimizer_memory_scaling=self.m.optimizer_memory_scaling,
            peak_activation_per_sample=self.m.peak_activation_per_batch,
            mode="published",
        )
        problem = Problem(model_spec=replace(self.m.model_spec, notes=()), costs="dapple")
        answer: Answer = dapple.search(problem, params, seed=0, stop=Stop())
        found = answer.extra["published"]
        assert isinstance(found, dict) and answer.objective is not None
        stages = [(begin, stop, width, list(cards)) for begin, stop, width, cards in found["stages"]]
        self.res = (answer.objective.value, stages)
        return self.res


def model_from_torch_graph(filename: str, profile_batch_size: int, global_batch_size: int) -> Model:
    """Return the model of a profile in PipeDream's text format.

    Raises
    ------
    InputError
        When the file is wrong, or a batch size is not a whole number from 1 on.
    """
    for name, value in (("profile_batch_size", profile_batch_size), ("global_batch_size", global_batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}; must be a whole number from 1 on")
    return Model(api.read(filename), profile_batch_size, global_batch_size)


def devices_from_seps(seps: Sequence[int]) -> list[int]:
    """Return the machines' ends, checked.

    Raises
    ------
    InputError
        When they do not ascend from 1 on.
    """
    ends = list(seps)
    if not ends or any(isinstance(end, bool) or not isinstance(end, int) for end in ends):
        raise InputError(f"seps is {ends}; give ascending whole numbers, for example [8, 16]")
    if ends[0] < 1 or any(later <= end for end, later in pairwise(ends)):
        raise InputError(f"seps is {ends}; ends must ascend from 1 on, for example [8, 16]")
    return ends


def conductor_from_torch_graph_and_seps(
    profile_filename: str, profile_batch_size: int, global_batch_size: int, devices: Sequence[int]
) -> SyncOrchestrate:
    """Return a profile on machines, ready to be planned.

    Parameters
    ----------
    profile_filename : str
        A profile in PipeDream's text format.
    profile_batch_size, global_batch_size : int
        Samples of the profile and of one step.
    devices : sequence of int
        Ascending exclusive ends of the machines' device ids.

    Returns
    -------
    SyncOrchestrate
        Its ``py_orchestrate()`` plans.

    Raises
    ------
    InputError
        When the file, a batch size or the machines are wrong.
    """
    model = model_from_torch_graph(profile_filename, profile_batch_size, global_batch_size)
    return SyncOrchestrate(model, devices_from_seps(devices))
