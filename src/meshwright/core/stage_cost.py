"""What a stage does and holds per micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Collective", "StageCost"]


@dataclass(frozen=True, slots=True)
class Collective:
    """Collectives of one kind and size that a stage runs: what the simulator puts on links.

    Parameters
    ----------
    part : str
        When: ``forward`` and ``backward`` block the task of every micro-batch, ``forward_beside`` and ``backward_beside`` run
        beside its compute, ``reduce`` and ``gather`` come once a step.
    kind : str
        ``all_reduce``, ``all_gather``, ...: the words of `meshwright.network`.
    size, stride : int
        All groups of `size` devices that lie `stride` apart in the stage's mesh order run it at once.
    n_bytes : float
        The tensor of one of them.
    n_times : float
        How many, per micro-batch or per step; parts of one are counted where it is partly hidden or a bucket is shared.
    seconds : float
        All of them, if nothing else used the links.
    """

    part: str
    kind: str
    size: int
    stride: int
    n_bytes: float
    n_times: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one pipeline stage does and holds, per device: what the simulator plays and the report explains.

    All times are of one micro-batch unless they say step.

    Parameters
    ----------
    forward_seconds : float
        Compute of the forward pass.
    backward_input_seconds : float
        Compute of the gradients of activations (recomputation not included).
    backward_weight_seconds : float
        Compute of the gradients of weights (what zero-bubble schedules may delay).
    recompute_seconds : float
        Forward work repeated before the backward pass.
    forward_communication : tuple of (str, float)
        Blocking communication inside the forward pass by cause, in seconds: ``tensor``, ``context``, ``expert``, ``gather``,
        ``offload`` (activations on their way to the host or back).
    backward_communication : tuple of (str, float)
        The same inside the backward pass (communication repeated by recomputation included).
    output_bytes : float
        Sent by each device of this stage to its peer in the next stage, forward; the backward pass returns as much, if any.
    reduce_seconds : float
        Gradient reduction of the stage's weights, once a step, if nothing else used the links.
    overlap_ratio : float
        The share of `reduce_seconds` that may run beside the backward pass of the last micro-batch.
    gather_seconds : float
        Gathering of updated weights after the optimizer, once a step (ZeRO-1 and 2).
    optimizer_seconds : float
        The weight update, once a step.
    weight_bytes, gradient_bytes, optimizer_bytes : float
        Held for the whole step, after sharding.
    activation_bytes : float
        Held from forward to backward by every micro-batch in flight, `fragmentation_ratio` of it on top included.
    working_bytes : float
        Needed only while the stage computes: recomputed activations of one layer, gathered weights, logits; the same on top.
    reserved_bytes : float
        Held for the whole step beside all tensors: context and libraries, and `communication_bytes`.
    model_flops : float
        Model FLOPs per micro-batch and device (forward and backward, recomputation not counted), for utilization.
    communication_bytes : float
        The part of `reserved_bytes` that consists of buffers of collectives, which keep blocks of their own.
    fragmentation_ratio : float
        By which share `activation_bytes` and `working_bytes` exceed the tensors in them: what the caching allocator cannot use.
    collectives : tuple of Collective
        What the seconds of communication are made of, so that the simulator can share links; empty where the cost model cannot
        tell: then communication takes its seconds whatever else is on the links.
    output_gradient : bool
        Whether the next stage sends the gradient of the output back; not where everything up to it is frozen.
    host_bytes : float
        Held on the host for this device: optimizer state that is offloaded, and the gradients that reach it; activations of a
        micro-batch that are offloaded.
    """

    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float = 0.0
    recompute_seconds: float = 0.0
    forward_communication: tuple[tuple[str, float], ...] = ()
    backward_communication: tuple[tuple[str, float], ...] = ()
    output_bytes: float = 0.0
    reduce_seconds: float = 0.0
    overlap_ratio: float = 0.0
    gather_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    weight_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    activation_bytes: float = 0.0
    working_bytes: float = 0.0
    reserved_bytes: float = 0.0
    model_flops: float = 0.0
    communication_bytes: float = 0.0
    fragmentation_ratio: float = 0.0
    collectives: tuple[Collective, ...] = ()
    output_gradient: bool = True
    host_bytes: float = 0.0

    @property
    def forward_total_seconds(self) -> float:
        """Forward pass of one micro-batch, blocking communication included."""
        return self.forward_seconds + sum(seconds for _, seconds in self.forward_communication)

    @property
    def backward_total_seconds(self) -> float:
        """Backward pass of one micro-batch, recomputation and blocking communication included."""
        seconds = self.backward_input_seconds + self.backward_weight_seconds + self.recompute_seconds
        return seconds + sum(seconds for _, seconds in self.backward_communication)

    @property
    def static_bytes(self) -> float:
        """Held for the whole step: weights, gradients and optimizer state."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
