"""What one layer does and holds on one device, before anything is known about where the device sits: compute,
bytes, transfers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshwright.core.cluster import Device
from meshwright.core.flops import model_flops
from meshwright.core.graph import PACKED_BYTES, Graph, Op, Operator
from meshwright.core.problem import Framework, MixedPrecision
from meshwright.core.strategy import OFFLOAD, RECOMPUTE
from meshwright.costs.analytic import recomputation
from meshwright.costs.analytic.layer_transfers import Transfer, exchange_buffer_bytes, gathered_bytes, transfers
from meshwright.costs.analytic.passes import layer_passes, n_kernels, operator_times, pass_seconds
from meshwright.costs.analytic.roofline import OperatorSeconds, Shape, operand_bytes
from meshwright.costs.analytic.update import UpdateWork, update_work

__all__ = ["LayerWork", "Repeat", "Transfer", "layer_work"]


HANDING_ON = ("norm", "elementwise", "dispatch")
"""Kinds of operators that keep what they put out, where a product takes it."""


class Repeat(NamedTuple):
    """What a setting of a framework's own repeats of a layer before its backward pass, and the bytes that it then keeps."""

    seconds: float
    transfers: tuple[Transfer, ...]
    kept_bytes: float


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer of one micro-batch on one device.

    Parameters
    ----------
    forward_seconds, backward_input_seconds, backward_weight_seconds : float
        Compute.
    selective_seconds : float
        Forward compute of what selective recomputation repeats.
    rerun_seconds : float
        Compute that is repeated where all of the layer is recomputed.
    forward, backward, selective, rerun : tuple of Transfer
        Collectives of the forward pass, of the backward pass, and those that selective recomputation repeats.
    n_dense_parameters, n_expert_parameters : int
        Weights on the device before any sharding over the data axis.
    n_largest_parameters : int
        Those of the largest operator, of grouped products those of one expert.
    n_lookup_parameters : int
        Those of tables that are trained, whose gradient is not added to the main one in place.
    saved_bytes : float
        Kept from forward to backward when nothing is recomputed.
    selective_bytes : float
        The part of it that selective recomputation drops.
    input_bytes, output_bytes : float
        The tensor that enters and the one that leaves.
    working_bytes : float
        Temporary at the widest operator.
    model_flops : float
        Model FLOPs, forward and backward.
    repeats : tuple of (str, Repeat)
        What the framework's own settings repeat, by setting.
    has_backward : bool
        Whether the backward pass reaches the layer: where it does not, nothing is kept or repeated.
    n_frozen_dense, n_frozen_expert : int
        Those of the weights that are not trained.
    n_packed_parameters, scale_bytes : int, float
        Those of the dense weights that are frozen and held in four bits, and all of their scales.
    updates : tuple of UpdateWork
        What shapes add to the update of dense and of experts' weights.
    reference : LayerWork or None
        The same layer of a frozen reference model: a forward pass beside this one's.
    borrowed : bool
        Whether the weights are another work's on the same device, so that they take no memory here.
    """

    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float
    selective_seconds: float
    forward: tuple[Transfer, ...]
    backward: tuple[Transfer, ...]
    selective: tuple[Transfer, ...]
    rerun_seconds: float
    rerun: tuple[Transfer, ...]
    n_dense_parameters: int
    n_expert_parameters: int
    n_lookup_parameters: int
    saved_bytes: float
    selective_bytes: float
    input_bytes: float
    output_bytes: float
    working_bytes: float
    model_flops: float
    repeats: tuple[tuple[str, Repeat], ...] = ()
    has_backward: bool = True
    n_frozen_dense: int = 0
    n_frozen_expert: int = 0
    n_packed_parameters: int = 0
    scale_bytes: float = 0.0
    n_largest_parameters: int = 0
    updates: tuple[UpdateWork, UpdateWork] = (UpdateWork(), UpdateWork())
    reference: LayerWork | None = None
    borrowed: bool = False

    @property
    def n_trained_dense(self) -> int:
        """Those of the dense weights that have gradients."""
        return self.n_dense_parameters - self.n_frozen_dense

    @property
    def n_trained_expert(self) -> int:
        """Those of the experts' weights that have gradients."""
        return self.n_expert_parameters - self.n_frozen_expert

    def gathered_bytes(self, weight_bytes: int) -> float:
        """Return the bytes of the dense weights that ranks exchange where these are sharded: packed ones stay packed."""
        return weight_bytes * (self.n_dense_parameters - self.n_packed_parameters) + PACKED_BYTES * self.n_packed_parameters

    def same_as(self, word: str) -> str:
        """Return the first setting that repeats the same of this layer: many modules are not in it."""
        if not self.has_backward:
            return "none"
        own = next((repeat for known, repeat in self.repeats if known == word), None)
        if own is None:
            return word
        if own.seconds == 0.0 and not own.transfers:
            return "none"
        return next(known for known, repeat in self.repeats if repeat is own)


def layer_work(
    body: tuple[Operator, ...],
    shape: Shape,
    device: Device,
    training: MixedPrecision,
    framework: Framework,
    *,
    input_elements: int,
    output_elements: int,
) -> LayerWork:
    """Return what one layer does and holds on one device.

    `input_elements`, `output_elements`: elements per sample of the tensors that enter and leave the layer.
    """
    times, kernels = operator_times(body, shape, device, training, framework), n_kernels(body, shape, framework)
    forward: list[Transfer] = []
    backward: list[Transfer] = []
    selective: list[Transfer] = []
    saved = dropped = widest = selective_seconds = 0.0
    there_of, kept_of = [], []
    for i, operator in enumerate(body):
        there, back = transfers(body, i, shape, training, times)
        forward += there
        backward += back
        n_bytes = saved_bytes(operator, shape, _kept_width(body, i, training, framework))
        if operator.kind == "cross_entropy":  # operators count fp32 logits
            n_bytes *= framework.logit_bytes / 4.0
        saved += n_bytes
        if framework.keeps_gathered_inputs and operator.has_backward and not operator.expert:
            saved += gathered_bytes(there, shape)
        there_of.append(there)
        kept_of.append(n_bytes)
        if operator.selective:
            selective += there
            selective_seconds += times[i].forward + kernels[i] * device.launch_seconds
            dropped += n_bytes
        widest = max(widest, _working_bytes(operator, shape, training, framework))
    packed = [_frozen(operator, shape) if operator.frozen_weight_bytes else 0.0 for operator in body]
    share = shape.micro_batch / shape.context
    residual = share * training.activation_bytes / (shape.tensor if shape.sequence_parallel else 1)
    n_rerun = recomputation.n_rerun(body, framework.stops_early)
    passes = layer_passes(body, times, n_rerun, shape, device, framework)
    return LayerWork(
        forward_seconds=passes[0],
        backward_input_seconds=passes[1],
        backward_weight_seconds=passes[2],
        selective_seconds=selective_seconds,
        forward=tuple(forward),
        backward=tuple(backward),
        selective=tuple(selective),
        rerun_seconds=passes[3],
        rerun=_rerun(there_of, n_rerun),
        n_dense_parameters=math.ceil(sum(parameters(operator, shape) for operator in body if not operator.expert)),
        n_expert_parameters=math.ceil(sum(parameters(operator, shape) for operator in body if operator.expert)),
        n_lookup_parameters=math.ceil(
            sum(parameters(operator, shape) - _frozen(operator, shape) for operator in body if operator.kind == "embedding")
        ),
        saved_bytes=saved,
        selective_bytes=dropped,
        input_bytes=input_elements * residual,
        output_bytes=output_elements * residual,
        working_bytes=widest,
        model_flops=model_flops(Graph("layer", (Op("layer", "", body),))) * share / shape.tensor,
        repeats=_repeats(body, shape, (device, training, framework), (times, there_of, kept_of)),
        has_backward=not body or any(operator.has_backward for operator in body),
        n_frozen_dense=math.floor(sum(_frozen(operator, shape) for operator in body if not operator.expert)),
        n_frozen_expert=math.floor(sum(_frozen(operator, shape) for operator in body if operator.expert)),
        n_packed_parameters=math.floor(sum(packed)),
        scale_bytes=sum(n * (part.frozen_weight_bytes - PACKED_BYTES) for n, part in zip(packed, body, strict=True) if n),
        n_largest_parameters=math.ceil(max((_unit_parameters(operator, shape) for operator in body), default=0.0)),
        updates=update_work(body, shape, device, training),
    )


def _rerun(there_of: list[list[Transfer]], n_rerun: int) -> tuple[Transfer, ...]:
    """Return the collectives that run again: a row-split product left out is not summed up, but the block that it closes has
    gathered its input.
    """
    left_out = [transfer for there in there_of[n_rerun:] for transfer in there if transfer.kind == "all_gather"]
    return tuple([transfer for there in there_of[:n_rerun] for transfer in there] + left_out)


def _repeats(
    body: tuple[Operator, ...],
    shape: Shape,
    asked: tuple[Device, MixedPrecision, Framework],
    found: tuple[list[OperatorSeconds], list[list[Transfer]], list[float]],
) -> tuple[tuple[str, Repeat], ...]:
    """Return what each of the framework's own settings repeats; those that repeat the same share one entry."""
    known: dict[tuple[recomputation.Repeated, ...], Repeat] = {}
    repeats = []
    for word in asked[2].limits.recompute:
        if word in (*RECOMPUTE, OFFLOAD):
            continue
        parts = recomputation.repeated_parts(body, word)
        if parts not in known:
            known[parts] = _repeat(body, parts, shape, asked, found)
        repeats.append((word, known[parts]))
    return tuple(repeats)


def _repeat(
    body: tuple[Operator, ...],
    repeated: tuple[recomputation.Repeated, ...],
    shape: Shape,
    asked: tuple[Device, MixedPrecision, Framework],
    found: tuple[list[OperatorSeconds], list[list[Transfer]], list[float]],
) -> Repeat:
    """Return what one of the framework's own settings repeats; the host issues what is repeated like any other operator.

    `found`: seconds, forward collectives and saved bytes of each operator.
    """
    device, training, framework = asked
    computed = kept = issued = 0.0
    transfers: list[Transfer] = []
    parts = zip(body, repeated, n_kernels(body, shape, framework), *found, strict=True)
    for operator, part, n, seconds, there, n_bytes in parts:
        transfers += [transfer for transfer in there if transfer.kind in part.collectives]
        kept += n_bytes * part.kept_ratio
        if part.extra_elements:
            besides = replace(operator, saved_elements=part.extra_elements, saved_extra_bytes=0, saved_axis="sequence")
            kept += saved_bytes(besides, shape, float(training.activation_bytes))
        if part.work_ratio > 0.0 and seconds.forward > 0.0:
            computed += part.work_ratio * seconds.forward + n * device.launch_seconds
            issued += n * (framework.issue_seconds or device.issue_seconds)
            if operator.kind == "grouped_matmul":
                issued += framework.expert_issue_seconds * operator.size("experts") / shape.expert
    return Repeat(pass_seconds(computed, framework.compute_ratio * issued, framework), tuple(transfers), kept)


def parameters(operator: Operator, shape: Shape) -> float:
    """Return the weights of an operator that one device holds before sharding over the data axis."""
    whole = operator.tensor_axis in ("", "sequence") or (operator.expert and shape.folded)
    share = 1 if whole else shape.tensor
    return operator.n_parameters / share / (shape.expert if operator.expert else 1)


def _unit_parameters(operator: Operator, shape: Shape) -> float:
    """Return the weights of an operator's tensor on the device: of grouped products, those of one of its experts."""
    held = max(1.0, operator.size("experts") / shape.expert) if operator.kind == "grouped_matmul" else 1.0
    return parameters(operator, shape) / held


def _frozen(operator: Operator, shape: Shape) -> float:
    """Return those of `parameters` that are not trained."""
    return parameters(operator, shape) * operator.n_frozen_parameters / max(1, operator.n_parameters)


def saved_bytes(operator: Operator, shape: Shape, width: float) -> float:
    """Return the bytes of one micro-batch that an operator keeps from forward to backward on one device, `width` an element."""
    n_bytes = operator.saved_elements * width + operator.saved_extra_bytes
    along_sequence = operator.saved_axis == "sequence" and shape.sequence_parallel
    split = shape.tensor if operator.saved_axis == "tensor" or along_sequence else 1
    return n_bytes * shape.micro_batch / shape.context / split


def _kept_width(body: tuple[Operator, ...], i: int, training: MixedPrecision, framework: Framework) -> float:
    """Return the bytes of an element that operator `i` keeps: what norms, activation functions and dispatch keep is what they
    hand to the next product, which may keep it as cast.
    """
    handed_on = body[i].kind in HANDING_ON and i + 1 < len(body) and body[i + 1].kind in ("matmul", "grouped_matmul")
    if framework.keeps_casts and handed_on:
        return operand_bytes(training)[1]
    return float(training.activation_bytes)


def _working_bytes(operator: Operator, shape: Shape, training: MixedPrecision, framework: Framework) -> float:
    """Return what an operator needs beside what is kept: gradients of its output and input."""
    tokens = shape.tokens(operator) / shape.split(operator)
    width = training.activation_bytes
    if operator.kind == "cross_entropy":
        if operator.reference:  # logits, and what the loss widens them to: nothing is kept
            return tokens * operator.size("vocabulary") * (width + framework.logit_bytes)
        split = framework.split_loss_bytes if shape.tensor > 1 and operator.tensor_axis else 0.0
        return tokens * operator.size("vocabulary") * max(training.loss_bytes, framework.loss_bytes, split)  # logits are kept
    if operator.kind == "matmul":  # gathered along the sequence, the unsplit side stands whole on every rank
        inner, columns = float(operator.size("in")), float(operator.size("out"))
        if operator.frozen_weight_bytes:  # widened as a whole; never split over a tensor axis
            return tokens * width * (inner + columns) + training.weight_bytes * inner * columns
        if operator.tensor_axis == "sequence":
            return tokens * width * (inner + columns)
        inner, columns = (
            (inner / shape.tensor, columns) if operator.tensor_axis == "in" else (inner, columns / shape.split(operator))
        )
        if shape.sequence_parallel and operator.tensor_axis != "in":
            inner *= 1.0 if framework.keeps_gathered_inputs else 2.0  # its gradient, and the input where it is not kept
        return shape.tokens(operator) * width * (inner + columns)
    if operator.kind == "grouped_matmul":
        return tokens * operator.size("top_k") * width * max(operator.size("in"), operator.size("out"))
    if operator.kind == "softmax":  # scores of attention that is not fused: their gradient beside that of the probabilities
        return 2.0 * tokens * operator.size("hidden") * width
    return tokens * operator.size("hidden") * width + exchange_buffer_bytes(operator, shape, width)
