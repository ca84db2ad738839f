"""What a framework's own configuration says of a run: the plan, and of the question what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from meshwright.core.plan import Plan
from meshwright.core.problem import MixedPrecision

__all__ = ["RunConfig"]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A configuration that was read.

    Parameters
    ----------
    plan : Plan
        What it says, layers numbered as in the model's graph.
    precision : str
        Of products, as `MixedPrecision.precision`; empty where the configuration does not say.
    sequence_length : int
        Tokens of a sample; 0 where it does not say.
    warnings : tuple of str
        Sentences without a full stop: entries that nothing is known of, each with its name and place, and what was
        assumed where the configuration says nothing.
    variant : str
        The framework's variant that the configuration starts; empty for the plain one.
    lora : str
        Adapters that are trained beside frozen weights, as after ``--lora``; empty where all weights are trained.
    training : MixedPrecision or None
        How numbers are held and updated, where it says more than the precision: another optimizer; None for as usual.
    objective : str
        What is trained for, as after ``--objective``; empty for the next token.
    attention : str
        How attention is computed, where the configuration says other than the model: ``unfused``; empty for the model's own.
    freeze : tuple of str
        Patterns of what is frozen, as after ``--freeze``; empty where all weights are trained.
    framework : str
        What ran it, as after ``--for``, where the file says it: plan files of ours; empty otherwise.
    environment : mapping of str to (str, int)
        What the file puts to the environment of the run, each with its line; empty text for what it takes out.
    """

    plan: Plan
    precision: str = ""
    sequence_length: int = 0
    warnings: tuple[str, ...] = ()
    variant: str = ""
    lora: str = ""
    training: MixedPrecision | None = None
    objective: str = ""
    attention: str = ""
    freeze: tuple[str, ...] = ()
    framework: str = ""
    environment: Mapping[str, tuple[str, int]] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))
