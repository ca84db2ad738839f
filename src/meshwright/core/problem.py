"""The one argument of a search: what to train (`ModelSpec`), where, how much at once (`Problem`), and when to stop (`Stop`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.base.errors import InputError
from meshwright.core import peaks
from meshwright.core.cluster import Cluster
from meshwright.core.framework import Framework
from meshwright.core.graph import Graph
from meshwright.core.interval import MEASURED_COSTS
from meshwright.core.optimizers import optimizer

__all__ = ["Batch", "Framework", "MixedPrecision", "ModelSpec", "Problem", "Stop"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a file or a name held.

    Parameters
    ----------
    name : str
        The model's name.
    format : str
        The reader that read it: ``huggingface``, ``piper_json``, ...
    spec : str
        As the user gave it.
    graph : Graph
        Layers or operators and the tensors between.
    instance : object or None
        The content in the format's own terms where it says more than a graph: costs, limits, measured times. The recipe that
        reproduces a published system reads it; its type is the reader's.
    cluster : Cluster or None
        The cluster, where the file holds one.
    costs : str
        The cost model the content asks for: ``analytic``, ``piper``, ...
    search : str
        The search that answers this content when the user names none and `best` does not apply to it.
    notes : tuple of str
        Sentences the user should read: what was assumed or left out while reading.
    freeze : tuple of str
        Patterns of names whose weights are frozen, where that was told.
    lora : str
        Adapters that are trained beside frozen weights, as told; empty for none.
    pairs_ratio : float
        Share of the pairs of tokens of a sample that attention computes under a document mask; 1 without one.
    objective : str
        What is trained for, as after ``--objective``; empty for the next token.
    """

    name: str
    format: str
    spec: str
    graph: Graph
    instance: object | None = None
    cluster: Cluster | None = None
    costs: str = "analytic"
    search: str = "best"
    notes: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    lora: str = ""
    pairs_ratio: float = 1.0
    objective: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """How much is trained at once; 0 leaves a number to the search (or to the file's own)."""

    global_batch: int = 0
    micro_batch: int = 0
    sequence_length: int = 0

    def check(self) -> None:
        """Refuse a global batch that its micro-batches cannot make.

        Raises
        ------
        InputError
            When the micro-batch does not divide it.
        """
        if self.micro_batch and self.global_batch % self.micro_batch:
            raise InputError(
                f"--micro-batch {self.micro_batch}: does not divide the global batch of {self.global_batch} samples; choose a "
                "divisor"
            )


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """How numbers are held and updated.

    Parameters
    ----------
    precision : str
        Of matrix products: ``bf16``, ``fp16``, ``fp8`` (a scale per tensor), ``mxfp8`` (per block), ``fp4``, ``tf32``,
        ``fp32``.
    activation_bytes, weight_bytes, gradient_bytes, optimizer_bytes : int
        Bytes per activation element, per weight as used by the products, per gradient, and per weight of optimizer state
        (mixed-precision Adam: fp32 master weight and two moments). State whose bytes follow from the shapes of weights (8-bit
        Adam, Adafactor, Muon) is counted beside it.
    loss_bytes : int
        Bytes per logit that the loss needs while it runs beside the fp32 logits it keeps: 2 where it is fused and turns them
        into gradients in place (Megatron-LM), 8 where it is PyTorch's own (the logits themselves, and fp32 gradients).
    fragmentation_ratio : float
        What the caching allocator holds beyond the tensors that come and go (activations, working memory), as a share of them:
        blocks are rounded, and freed ones do not always suit the next tensor.
    optimizer : str
        One of `meshwright.core.optimizers.OPTIMIZERS`.
    state_bytes : int
        Bytes of one number of its state.

    Raises
    ------
    UnknownNameError
        When there is no such optimizer.
    InputError
        When its state has no numbers of so many bytes.
    """

    precision: str = "bf16"
    activation_bytes: int = 2
    weight_bytes: int = 2
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    loss_bytes: int = 2
    fragmentation_ratio: float = 0.05
    optimizer: str = "adamw"
    state_bytes: int = 4

    def __post_init__(self) -> None:
        allowed = optimizer(self.optimizer).number_bytes
        if self.state_bytes not in allowed:
            held = " or ".join(str(one) for one in allowed)
            raise InputError(
                f"optimizer {self.optimizer}: state_bytes is {self.state_bytes}; numbers of its state have {held} bytes"
            )

    @property
    def plain_state_bytes(self) -> int:
        """Bytes of the optimizer's own state that every weight has, whatever its shape."""
        kind = optimizer(self.optimizer)
        return 0 if kind.shaped else kind.n_moments * self.state_bytes

    @property
    def has_copy(self) -> bool:
        """Whether an fp32 copy of every weight stands beside the optimizer's own state."""
        return self.weight_bytes < 4 and self.optimizer_bytes >= self.plain_state_bytes + 4

    @property
    def usual_optimizer(self) -> bool:
        """Whether it is Adam, with or without decoupled decay: both keep and do the same."""
        return self.optimizer in ("adam", "adamw")

    def updated_by(
        self, name: str = "", *, state_bytes: int = 0, gradient_bytes: int = 0, copy: bool | None = None
    ) -> MixedPrecision:
        """Return how numbers are held with another optimizer, or with other bytes of what it works on.

        Parameters
        ----------
        name : str
            As `optimizer`; empty for this one.
        state_bytes, gradient_bytes : int
            0 for the optimizer's usual, and for these.
        copy : bool or None
            Whether weights of less than four bytes have an fp32 copy; None for as it is.

        Raises
        ------
        UnknownNameError, InputError
            As of the class.
        """
        kind = optimizer(name or self.optimizer)
        own = state_bytes or (self.state_bytes if kind.name == self.optimizer else kind.number_bytes[0])
        held = replace(self, optimizer=kind.name, state_bytes=own, gradient_bytes=gradient_bytes or self.gradient_bytes)
        copied = self.has_copy if copy is None else copy and self.weight_bytes < 4
        return replace(held, optimizer_bytes=held.plain_state_bytes + 4 * copied)

    @classmethod
    def of(cls, precision: str) -> MixedPrecision:
        """Return how numbers are held for a precision of products when nothing else is told.

        Parameters
        ----------
        precision : str
            As the field of that name. With ``fp32`` and ``tf32`` everything is held in four bytes, without a second copy.
        """
        if precision in ("fp32", "tf32"):
            return cls(precision, activation_bytes=4, weight_bytes=4, gradient_bytes=4, optimizer_bytes=8)
        return cls(precision)


@dataclass(frozen=True, slots=True)
class Stop:
    """When a search that could go on stops: after so many iterations, or seconds (0 is no limit), or as soon as it is asked to.

    Parameters
    ----------
    n_iterations : int
        Steps of the search.
    seconds : float
        Wall time.
    asked : callable or None
        Says whether to stop now, for example because the user pressed Ctrl-C; searches that can stop early ask it often.
    told : callable or None
        Takes a function that says in a few words how far the search has come, whoever asks; searches that can tell give it one.
    """

    n_iterations: int = 0
    seconds: float = 0.0
    asked: Callable[[], bool] | None = None
    told: Callable[[Callable[[], str]], None] | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.n_iterations < math.inf and 0.0 <= self.seconds < math.inf):
            raise InputError(f"Stop: n_iterations {self.n_iterations} and seconds {self.seconds} must be numbers of at least 0")

    def is_asked(self) -> bool:
        """Return whether the search is asked to stop now."""
        return self.asked is not None and self.asked()

    def tell(self, so_far: Callable[[], str]) -> None:
        """Give who waits a function that says how far the search has come."""
        if self.told is not None:
            self.told(so_far)

    def unheeded(self, search: str) -> tuple[str, ...]:
        """Return a note for the answer of a search that cannot stop early; none where there was no limit.

        Parameters
        ----------
        search : str
            The search that went on to its end.
        """
        if not self.seconds and not self.n_iterations:
            return ()
        return (f"search {search} cannot stop early: it went on to its end, whatever the limit",)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """The one argument of a search.

    Parameters
    ----------
    model_spec : ModelSpec
        The model, as read.
    cluster : Cluster or None
        Where to run; None where the input has its own notion of devices (a published instance).
    costs : str
        Name of the cost model, a file of `meshwright.costs`.
    batch : Batch
        How much is trained at once.
    training : MixedPrecision
        Precision and optimizer.
    framework : Framework
        How the framework that trains carries out the plan, and what it can run.
    framework_asked : str
        How the user named it; empty where one is assumed.
    memory_risk : float
        Chance that a plan may have of needing more memory than its devices have; 0.5 takes predictions as they are.

    Raises
    ------
    InputError
        When the chance is none, or the batch has another sequence length than the model was read at.
    """

    model_spec: ModelSpec
    cluster: Cluster | None = None
    costs: str = "analytic"
    batch: Batch = Batch()
    training: MixedPrecision = MixedPrecision()
    framework: Framework = Framework()
    framework_asked: str = ""
    memory_risk: float = 0.5

    def __post_init__(self) -> None:
        peaks.risk(self.memory_risk, "memory_risk")
        length, wanted = self.graph.sequence_length, self.batch.sequence_length
        if wanted not in (0, length):
            raise InputError(
                f"Batch.sequence_length {wanted}: model {self.model_spec.name} was read at {length} tokens a sample; read it "
                f"with sequence_length={wanted}, or leave the batch's at 0"
            )

    @property
    def memory_ratio(self) -> float:
        """The share of a device's memory that a predicted peak may fill, as `memory_risk` and the framework have it.

        The inverse of the multiple of their prediction that the peaks of so many measured runs stay below; 1 for costs whose
        peaks were not measured.
        """
        return peaks.peaks(self.framework.holds_as).share(self.memory_risk) if self.costs in MEASURED_COSTS else 1.0

    @property
    def graph(self) -> Graph:
        """The model's layers."""
        return self.model_spec.graph

    @property
    def required_cluster(self) -> Cluster:
        """The cluster, for whoever cannot go on without one.

        Raises
        ------
        InputError
            When there is none.
        """
        if self.cluster is None:
            raise InputError(f"model {self.model_spec.name}: say where to train it: --cluster dgx-h100:64")
        return self.cluster
